// Internal to ir/text*.cc: characters of the language, and errors with a caret under their place.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/graph.h"
#include "ir/text.h"

namespace llmc::text_internal {

// One op statement as written: the line's parts, written types and the offsets that errors point at.
struct Statement {
  OpLine line;
  std::vector<std::string> types;
  std::string loc;
  size_t offset = 0;  // of the op's name
  std::vector<size_t> result_offsets, operand_offsets;
  size_t type_offset = 0;
};

class Lexer {
 public:
  Lexer(absl::string_view text, absl::string_view file) : text_(text), file_(file) {}

  size_t NextOffset() { return (SkipSpace(), pos_); }  // of what stands next
  bool AtEnd();
  char Peek();  // '\0' at the end
  bool Eat(char c);
  // Eats `word` if it stands next as a whole word.
  bool EatWord(absl::string_view word);
  absl::Status Expect(char c);
  absl::StatusOr<std::string> Word();       // an op's, attribute's or model's name
  absl::StatusOr<std::string> ValueName();  // "%x", "@w" or "_"; %"in:0" gives "%in:0"
  absl::StatusOr<std::string> QuotedString();
  // The text up to a ',' or one of `stops` at bracket depth zero, outside of strings.
  absl::StatusOr<std::string> Balanced(absl::string_view stops);
  // A type; ends at its closing bracket.
  absl::StatusOr<std::string> TypeText();
  // A state's type; ends at its closing brace.
  absl::StatusOr<std::string> StateTypeText();
  absl::StatusOr<Statement> ParseStatement();

  // "file:LINE: message", the line, a caret at `offset`.
  absl::Status ErrorAt(size_t offset, absl::string_view message) const;
  absl::Status Error(absl::string_view message) { return ErrorAt(NextOffset(), message); }
  int LineOf(size_t offset);

 private:
  void SkipSpace();
  size_t WordEnd(size_t begin) const;  // `begin` if there is no word
  absl::Status ValueNames(std::vector<std::string>* names, std::vector<size_t>* offsets);

  absl::string_view text_;
  std::string file_;
  size_t pos_ = 0;
  size_t counted_ = 0;  // LineOf's last offset, and its line: offsets only grow
  int line_ = 1;
};

std::string QuoteString(absl::string_view text);
// A value's name as it is written: %x, or %"in:0" if it has other characters than those of words.
std::string ValueText(absl::string_view name);

}  // namespace llmc::text_internal
