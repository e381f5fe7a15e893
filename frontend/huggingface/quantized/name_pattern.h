// How configurations of quantized checkpoints name modules: regular expressions, globs, names and parts of names.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc::hf {

// A regular expression in the syntax of Python's `re`, without groups that are referred to, lookaround and flags. Runs
// all alternatives at once (Thompson, "Regular expression search algorithm", 1968), so that no pattern of a file takes
// more than time in proportion to its length and the name's.
class NamePattern {
 public:
  // Unimplemented, with the reason: syntax that is not supported.
  static absl::StatusOr<NamePattern> Parse(absl::string_view text);

  // As re.match: a beginning of the name fits.
  bool MatchesBeginning(absl::string_view name) const;
  // In instructions: what a match takes for each character of a name.
  size_t size() const { return program_.size(); }

 private:
  friend class NamePatternParser;
  struct Instruction {
    enum class Kind { kOneOf, kSplit, kBegin, kEnd, kMatch };
    Kind kind = Kind::kMatch;
    std::bitset<256> chars;         // of kOneOf
    int32_t next = 1, or_else = 0;  // relative; or_else of kSplit
  };
  void Follow(size_t at, size_t place, size_t size, std::vector<bool>* reached) const;

  std::vector<Instruction> program_;
};

// Whether `name` is `pattern`, in which '*' stands for any text, or is inside of a module of that name.
bool IsInModule(absl::string_view name, absl::string_view pattern);
// That, or a part of `name` between dots, or several, is `pattern`: what lists such as modules_to_not_convert mean.
bool IsListed(absl::string_view name, const std::vector<std::string>& patterns);

}  // namespace llmc::hf
