// A trie of byte strings, for the keys that a text begins with.
#ifndef LLMC_RUNTIME_TEXT_BYTE_TRIE_H_
#define LLMC_RUNTIME_TEXT_BYTE_TRIE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

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
  // An edge to node 0 is none: that is a root.
  struct Edge {
    uint32_t key = 0;  // the node << 8 | the byte; there are fewer than 2^23 nodes
    int32_t node = 0;
  };

  int32_t Child(int32_t node, uint8_t byte) const {
    const Edge& edge = edges_[FindEdge(static_cast<uint32_t>(node) << 8 | byte)];
    return edge.node == 0 ? -1 : edge.node;
  }
  // The place of the edge with that key, or the free one where it belongs.
  size_t FindEdge(uint32_t key) const {
    const size_t mask = edges_.size() - 1;
    size_t at = key * multiplier_ >> 32 & mask;
    while (edges_[at].node != 0 && edges_[at].key != key) at = (at + 1) & mask;
    return at;
  }
  void AddEdge(uint32_t key, int32_t node);
  // Random for each process, so that no file can be made whose edges all want the same place.
  static uint64_t Multiplier();
  int32_t NewNode();

  uint64_t multiplier_ = Multiplier();
  std::array<int32_t, 256> roots_;              // by first byte; -1: none
  std::vector<Edge> edges_ = {Edge(), Edge()};  // a hash table, at most half full
  size_t edge_count_ = 0;
  std::vector<int32_t> values_;  // by node; -1: no key ends there
  size_t bytes_ = 0;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_BYTE_TRIE_H_
