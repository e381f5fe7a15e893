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
  // A key that is there already gets the new value, which must not be negative. InvalidArgument: the key is longer than
  // 1 KiB, or all keys have 8 MiB. A text is read from each of its positions, and a node takes some 30 bytes.
  absl::Status Add(absl::string_view key, int32_t value);

  // Calls visit(length, value) for each key that `text` begins with, the shortest first.
  template <typename Visit>
  void ForEachPrefix(absl::string_view text, Visit visit) const {
    Link link = text.empty() ? Link() : roots_[static_cast<uint8_t>(text[0])];
    for (size_t length = 1; link.exists(); ++length) {
      if (link.has_value()) visit(length, values_[link.node()]);
      if (length == text.size() || !link.MayHave(static_cast<uint8_t>(text[length]))) return;
      link = edges_[FindEdge(link.node(), static_cast<uint8_t>(text[length]))].link;
    }
  }
  // Whether a key begins with the text, which is not empty.
  bool HasPrefix(absl::string_view text) const {
    Link link = roots_[static_cast<uint8_t>(text[0])];
    for (size_t i = 1; i < text.size() && link.exists(); ++i) {
      link = edges_[FindEdge(link.node(), static_cast<uint8_t>(text[i]))].link;
    }
    return link.exists();
  }

 private:
  // To a node, of which there are at most 2^23 - 1; or to none. Of each edge of the node one of eight bits tells, which
  // its byte chooses: most texts end there without a look at the table.
  class Link {
   public:
    bool exists() const { return bits_ != 0; }
    bool has_value() const { return (bits_ & 1) != 0; }
    bool MayHave(uint8_t byte) const { return (bits_ >> (1 + byte % 8) & 1) != 0; }
    uint32_t node() const { return (bits_ >> 9) - 1; }
    void SetNode(uint32_t node) { bits_ = (node + 1) << 9; }
    void SetHasValue() { bits_ |= 1; }
    void SetMayHave(uint8_t byte) { bits_ |= 2u << byte % 8; }

   private:
    uint32_t bits_ = 0;
  };
  struct Edge {
    uint32_t key = 0;  // KeyOf(node, byte)
    Link link;
  };

  static uint32_t KeyOf(uint32_t node, uint8_t byte) { return node << 8 | byte; }
  // The place of that edge, or the free one where it belongs. Edges of one node lie near each other.
  size_t FindEdge(uint32_t node, uint8_t byte) const {
    const size_t mask = edges_.size() - 1;
    size_t at = ((node * multiplier_ >> 32) + byte) & mask;
    while (edges_[at].link.exists() && edges_[at].key != KeyOf(node, byte)) at = (at + 1) & mask;
    return at;
  }
  // The link of the edge, which may be a new one.
  Link* ChildOf(uint32_t node, uint8_t byte);
  uint32_t NewNode();
  // Random for each process, so that no file can be made whose edges all want the same place.
  static uint64_t Multiplier();

  uint64_t multiplier_ = Multiplier();
  std::array<Link, 256> roots_;                 // by first byte
  std::vector<Edge> edges_ = {Edge(), Edge()};  // a hash table, at most half full
  size_t edge_count_ = 0;
  std::vector<int32_t> values_;  // by node; of those that have none it says nothing
  size_t bytes_ = 0;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_BYTE_TRIE_H_
