#include "tests/runtime/chat/template_cases.h"

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace llmc {

using Json = nlohmann::ordered_json;

std::string ChatTestFile(const std::string& name) { return std::string(LLMC_TEST_DATA) + "/../runtime/chat/" + name; }

Json ReadTestJson(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return Json::parse(text.str());
}

ChatInput InputOf(const Json& variables) {
  ChatInput input;
  input.add_generation_prompt = false;
  for (const auto& [key, value] : variables.items()) {
    if (key == "messages") {
      input.messages = value;
    } else if (key == "tools") {
      input.tools = value;
    } else if (key == "documents") {
      input.documents = value;
    } else if (key == "add_generation_prompt") {
      input.add_generation_prompt = value.get<bool>();
    } else {
      input.variables[key] = value;
    }
  }
  input.zone = absl::UTCTimeZone();
  const absl::Time now = absl::FromCivil(absl::CivilSecond(2026, 3, 1, 14, 5, 9), input.zone) + absl::Microseconds(123);
  input.now = [now] { return now; };
  return input;
}

std::string CheckCase(const Json& one, const ChatInput& input) {
  const auto parsed = ChatTemplate::Parse(one["template"].get<std::string>(), "t.jinja");
  const absl::StatusOr<RenderedChat> chat =
      parsed.ok() ? (*parsed)->Render(input) : absl::StatusOr<RenderedChat>(parsed.status());
  if (one.contains("error")) {
    return chat.ok() ? absl::StrCat("gives \"", chat->text(), "\", where jinja2 raises ", std::string(one["error"]))
                     : "";
  }
  // Where a template looks at such a text without showing it, the two cannot agree.
  if (absl::IsUnimplemented(chat.status()) && absl::StrContains(chat.status().message(), "its address in memory"))
    return "";
  if (!chat.ok()) return chat.status().ToString();
  const std::string expected = one["expected"];
  if (chat->text() != expected) return absl::StrCat("gives\n", chat->text(), "\nbut jinja2\n", expected);
  Json ranges = Json::array();
  for (const RenderedChat::Range& range : chat->generation) ranges.push_back({range.begin, range.end});
  const Json wanted = one.value("generation", Json::array());
  return ranges == wanted ? "" : absl::StrCat("has generation blocks ", ranges.dump(), ", not ", wanted.dump());
}

}  // namespace llmc
