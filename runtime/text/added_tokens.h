// The `added_tokens` of tokenizer.json: found in the text as they stand, before the model sees it.
#ifndef LLMC_RUNTIME_TEXT_ADDED_TOKENS_H_
#define LLMC_RUNTIME_TEXT_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/json_node.h"
#include "runtime/text/tokenizer.h"

namespace llmc {

struct AddedToken {
  int32_t id;
  std::string content;
  bool special;      // dropped by Decode(skip_special_tokens)
  bool single_word;  // does not match beside a word character
  bool lstrip;       // takes the white space before it
  bool rstrip;       // takes the white space behind it
  bool normalized;   // looked for in the normalized text
};

absl::StatusOr<AddedToken> ReadAddedToken(const JsonNode& node);

// Finds a set of added tokens in text: the leftmost match, the longest of those, then on behind it.
class AddedTokenMatcher {
 public:
  // A range of the text: an added token's, or (id -1) text between.
  struct Part {
    size_t begin;
    size_t end;
    int32_t id;
  };

  // Looks for `pattern` (the token's content, or that normalized). The first token of equal patterns counts.
  void Add(const AddedToken& token, absl::string_view pattern);
  // Once, after the last Add.
  void Link();

  // All of `text` in parts, without empty ones, in time linear in its length. Special tokens in it, and those that
  // `options` wants to be like them, are text like any other unless it wants them parsed.
  std::vector<Part> Find(absl::string_view text, const EncodeOptions& options) const;

 private:
  // A string that some pattern ends with; node 0 is the empty one.
  struct Node {
    int32_t parent = 0;
    uint8_t byte = 0;     // what `parent` lacks, at the front
    int32_t shorter = 0;  // the longest other node that this one begins with
    int32_t token = -1;   // the token of the longest pattern that this one begins with
    int32_t length = 0;   // of that pattern
  };

  // By position of `text`: the node that holds the longest pattern that begins there.
  std::vector<int32_t> FindLongest(absl::string_view text) const;
  int32_t Step(int32_t node, uint8_t byte) const;

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<uint64_t, int32_t> edges_;  // node << 8 | byte in front -> node
  std::vector<Node> nodes_ = {Node()};
  std::array<bool, 256> is_last_byte_ = {};
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_ADDED_TOKENS_H_
