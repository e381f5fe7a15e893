// Patterns of tokenizer.json: Oniguruma regular expressions (Ruby syntax, UTF-8) and plain strings.
#ifndef LLMC_RUNTIME_TEXT_REGEX_H_
#define LLMC_RUNTIME_TEXT_REGEX_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/json_node.h"
#include "runtime/text/text_budget.h"
#include "runtime/text/word_matcher.h"

namespace llmc {

// A range [begin, end) of bytes of a text, and whether the pattern matched it or it lies between matches.
struct TextSpan {
  size_t begin;
  size_t end;
  bool is_match;
};

// A compiled pattern. Thread safe.
class Pattern {
 public:
  static absl::StatusOr<Pattern> FromRegex(absl::string_view regex);
  // The syntax of Rust's fancy-regex, which tiktoken uses: $ and ^ are the ends of the text, and a + behind {1,3} keeps
  // the match from giving any of it back.
  static absl::StatusOr<Pattern> FromRustRegex(absl::string_view regex);
  static absl::StatusOr<Pattern> FromString(absl::string_view literal);
  // {"String": "..."} or {"Regex": "..."}.
  static absl::StatusOr<Pattern> FromJson(const JsonNode& node);

  // All of valid UTF-8 `text` in order, as matches and what lies between. ResourceExhausted if the pattern needs more
  // steps on it than the budget has.
  absl::StatusOr<std::vector<TextSpan>> FindAll(absl::string_view text, TextBudget* budget) const;

  // `text` with every match replaced by `content`, taken literally. ResourceExhausted if that is longer
  // than what is left of the budget; the caller spends it.
  absl::StatusOr<std::string> ReplaceAll(absl::string_view text, absl::string_view content, TextBudget* budget) const;

  // Bytes that ReplaceAll makes of one byte, at most, for texts that are not empty.
  double MaxGrowth(absl::string_view content) const;

  // The plain string, or "" if this is a regular expression.
  const std::string& literal() const { return literal_; }

  // What finds the words of a well-known pattern; else nullptr.
  WordMatcher word_matcher() const { return word_matcher_; }

 private:
  struct Compiled;
  static absl::StatusOr<Pattern> Compile(absl::string_view regex, bool possessive_intervals);
  std::string literal_;
  std::shared_ptr<const Compiled> regex_;
  WordMatcher word_matcher_ = nullptr;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_REGEX_H_
