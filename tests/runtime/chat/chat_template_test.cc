// Templates against jinja2: construct by construct, at random, and the real ones.
#include "runtime/chat/chat_template.h"

#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

std::string Sha256(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), sizeof digest));
}

// The first line whose digest is another than that of make_expected.py, or "".
std::string FirstDifference(const std::string& text, const std::string& digests) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (digests.substr(std::min(digests.size(), i * 6), 6) != Sha256(lines[i]).substr(0, 6)) return lines[i];
  }
  return digests.size() == lines.size() * 6 ? "" : "(a line at the end is missing)";
}

TEST(ChatTemplate, RealTemplatesAreAsInJinja) {
  const std::string folder = SharedData("chat_templates");
  if (folder.empty()) GTEST_SKIP() << "no shared data";
  std::map<std::string, ChatInput> inputs;
  for (const Json& one : ReadTestJson(ChatTestFile("conversations.json"))) inputs[one["name"]] = InputOf(one["input"]);
  const Json cases = ReadTestJson(ChatTestFile("real.json"))["cases"];
  EXPECT_EQ(cases.size(), 17 * inputs.size());
  for (const Json& one : cases) {
    const std::string name = one["template"];
    std::ifstream in(folder + "/" + name);
    std::stringstream text;
    text << in.rdbuf();
    SCOPED_TRACE(absl::StrCat(name, ", ", std::string(one["conversation"])));
    const auto parsed = ChatTemplate::Parse(text.str(), name);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const absl::StatusOr<RenderedChat> chat = (*parsed)->Render(inputs.at(one["conversation"]));
    if (one.contains("error")) {
      EXPECT_FALSE(chat.ok()) << "jinja2 raises " << one["error"];
      continue;
    }
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_EQ(Sha256(chat->text()), one["sha256"]) << "first in " << FirstDifference(chat->text(), one["lines"]);
  }
}

}  // namespace
}  // namespace llmc
