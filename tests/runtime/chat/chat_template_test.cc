// Templates against jinja2: construct by construct, at random, and the real ones.
#include "runtime/chat/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/runtime/chat/template_cases.h"
#include "tests/shared_data.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

void CheckCases(const std::string& file) {
  const ChatInput input = InputOf(ReadTestJson(ChatTestFile("variables.json")));
  const Json cases = ReadTestJson(file)["cases"];
  EXPECT_GT(cases.size(), 60u);
  for (const Json& one : cases) {
    const std::string wrong = CheckCase(one, input);
    EXPECT_EQ(wrong, "") << one["name"] << ":\n" << one["template"].get<std::string>();
  }
}

TEST(ChatTemplate, EachConstructIsAsInJinja) { CheckCases(ChatTestFile("constructs.json")); }

// LLMC_TEMPLATE_CASES names another file that make_expected.py made.
TEST(ChatTemplate, RandomTemplatesAreAsInJinja) {
  CheckCases(Environment("LLMC_TEMPLATE_CASES", ChatTestFile("random.json").c_str()));
}

}  // namespace
}  // namespace llmc
