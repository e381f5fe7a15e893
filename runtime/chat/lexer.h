// Splits a template into tokens, as jinja2 3.1 does with trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/chat/budget.h"

namespace llmc::jinja {

struct Token {
  enum Kind : uint8_t {
    kData,  // text between tags
    kBlockBegin,
    kBlockEnd,
    kVariableBegin,
    kVariableEnd,
    kName,
    kString,  // without quotes, escapes replaced
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string text;
  int line;
  bool Is(absl::string_view op) const { return kind == kOperator && text == op; }
  bool IsName(absl::string_view name) const { return kind == kName && text == name; }
};

// Throws TemplateError. The last token is kEnd.
std::vector<Token> Tokenize(absl::string_view source, Budget* budget);

}  // namespace llmc::jinja
