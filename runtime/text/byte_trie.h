// A trie of byte strings, for the keys that a text begins with.
#ifndef LLMC_RUNTIME_TEXT_BYTE_TRIE_H_
#define LLMC_RUNTIME_TEXT_BYTE_TRIE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace llmc {

class ByteTrie {
 public:
  ByteTrie() { roots_.fill(-1); }

  // A key that is there already gets the new value, which must not be negative. InvalidArgument: the key is longer than
  // 1 KiB, or all keys than 8 MiB. A text is read from each of its positions, and a node takes some 30 bytes.
  absl::Status Add(absl::string_view key, int32_t value);

  // Calls visit(length, value) for each key that `text` begins with, the shortest first.
  template <typename Visit>
  void ForEachPrefix(absl::string_view text, Visit visit) const {
    int32_t node = text.empty() ? -1 : roots_[static_cast<uint8_t>(text[0])];
    for (size_t length = 1; node >= 0; ++length) {
      if (values_[node] >= 0) visit(length, values_[node]);
      if (length == text.size()) return;
      node = Child(node, static_cast<uint8_t>(text[length]));
    }
  }

 private:
  int32_t Child(int32_t node, uint8_t byte) const {
    const auto edge = edges_.find(static_cast<uint64_t>(node) << 8 | byte);
    return edge == edges_.end() ? -1 : edge->second;
  }
  int32_t NewNode();

  std::array<int32_t, 256> roots_;                // by first byte; -1: none
  absl::flat_hash_map<uint64_t, int32_t> edges_;  // node << 8 | byte -> node
  std::vector<int32_t> values_;                   // by node; -1: no key ends there
  size_t bytes_ = 0;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_BYTE_TRIE_H_
