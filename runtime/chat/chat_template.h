// Chat templates: from a conversation to the text that a language model reads.
//
// Templates are written in Jinja. What is understood, and what is refused, stands in README.md; texts are those of
// jinja2 3.1 as transformers sets it up (utils/chat_template_utils.py), byte for byte.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "runtime/chat/limits.h"

namespace llmc {

// What a template is rendered for. Keys keep their order, as templates print them.
struct ChatInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;      // null: none
  nlohmann::ordered_json documents;  // null: none
  bool add_generation_prompt = true;
  // Further variables of the template, such as enable_thinking; those of the same name as one above are refused.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
  // For the function strftime_now.
  std::function<absl::Time()> now = absl::Now;
  absl::TimeZone zone = absl::LocalTimeZone();
};

// A part of a rendered text. Only what the template itself wrote may hold control tokens.
struct ChatSegment {
  std::string text;
  bool from_template;
};

struct RenderedChat {
  std::vector<ChatSegment> segments;  // none is empty; all together are the text
  // What {% generation %} blocks wrote: [begin, end) in code points of the text, as transformers has them.
  struct Range {
    int64_t begin;
    int64_t end;
  };
  std::vector<Range> generation;

  std::string text() const;
};

struct ChatTemplateOptions {
  TemplateLimits limits;
  // Variables that count as the template's own text, such as bos_token: strings by name.
  nlohmann::ordered_json special_tokens = nlohmann::ordered_json::object();
  // Roles of messages that count as the template's own text: templates make control tokens of them ('<|' + role +
  // '|>'). A role that is not here is text like any other.
  std::vector<std::string> roles = {"system", "developer", "user", "assistant", "tool", "function", "ipython"};
};

// Immutable: any number of threads may render with one.
class ChatTemplate {
 public:
  // `name` is the file's name, for errors. InvalidArgument: wrong syntax, at a line. Unimplemented: a tag for templates
  // of several files. ResourceExhausted: larger or nested deeper than the limits allow.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(absl::string_view text, absl::string_view name,
                                                             ChatTemplateOptions options = {});
  ~ChatTemplate();

  // InvalidArgument: the template refuses the conversation (raise_exception) or cannot be run on it. Unimplemented: it
  // needs what README.md says is refused. ResourceExhausted: it takes more than the limits allow.
  absl::StatusOr<RenderedChat> Render(const ChatInput& input) const;

  // As it was parsed.
  const std::string& source() const;

 private:
  struct Parts;
  explicit ChatTemplate(std::unique_ptr<const Parts> parts);
  std::unique_ptr<const Parts> parts_;
};

}  // namespace llmc
