// The compiled table of a SentencePiece normalizer (`precompiled_charsmap`): what strings are replaced by what.
#ifndef LLMC_RUNTIME_TEXT_CHARS_MAP_H_
#define LLMC_RUNTIME_TEXT_CHARS_MAP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace llmc {

// The table's bytes are: the size of a trie in bytes (32 bits, little-endian), the trie as a double array of 32-bit
// units (Aoe, "An Efficient Digital Search Algorithm by Using a Double-Array Structure", 1989, in the layout of
// darts-clone), and replacements, each ended by a NUL, which the trie's values are offsets of. Immutable.
class CharsMap {
 public:
  // InvalidArgument: sizes do not fit each other, or the replacements are no UTF-8. The trie itself may be wrong:
  // whatever it says, a search ends, inside it.
  static absl::StatusOr<CharsMap> FromBytes(absl::string_view bytes);

  // A string that `text` begins with, and what replaces it.
  struct Match {
    size_t bytes;
    absl::string_view replacement;  // lives as long as the map
  };
  absl::optional<Match> Shortest(absl::string_view text) const { return Find(text, /*longest=*/false); }
  absl::optional<Match> Longest(absl::string_view text) const { return Find(text, /*longest=*/true); }
  // Whether a key begins with `text`, or may.
  bool HasPrefix(absl::string_view text) const;

 private:
  absl::optional<Match> Find(absl::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_CHARS_MAP_H_
