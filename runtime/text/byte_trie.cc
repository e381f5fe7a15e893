#include "runtime/text/byte_trie.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

constexpr size_t kMaxKeyBytes = size_t{1} << 10;
constexpr size_t kMaxTrieBytes = size_t{8} << 20;

}  // namespace

uint64_t ByteTrie::Multiplier() {
  static const uint64_t multiplier = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random() | 1;
  }();
  return multiplier;
}

uint32_t ByteTrie::NewNode() {
  values_.push_back(0);
  return static_cast<uint32_t>(values_.size()) - 1;
}

ByteTrie::Link* ByteTrie::ChildOf(uint32_t node, uint8_t byte) {
  if (Edge& edge = edges_[FindEdge(node, byte)]; edge.link.exists()) return &edge.link;
  if (2 * ++edge_count_ > edges_.size()) {
    const std::vector<Edge> old = std::exchange(edges_, std::vector<Edge>(2 * edges_.size()));
    for (const Edge& edge : old) {
      if (edge.link.exists()) edges_[FindEdge(edge.key >> 8, static_cast<uint8_t>(edge.key))] = edge;
    }
  }
  Edge& edge = edges_[FindEdge(node, byte)];
  edge.key = KeyOf(node, byte);
  edge.link.SetNode(NewNode());
  return &edge.link;
}

absl::Status ByteTrie::Add(absl::string_view key, int32_t value) {
  if (key.empty()) return absl::OkStatus();
  bytes_ += key.size();
  if (key.size() > kMaxKeyBytes || bytes_ >= kMaxTrieBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a token of more than ", kMaxKeyBytes, " bytes, or tokens of together more than ", kMaxTrieBytes));
  }
  Link* link = &roots_[static_cast<uint8_t>(key[0])];
  if (!link->exists()) link->SetNode(NewNode());
  for (const char c : key.substr(1)) {
    link->SetMayHave(static_cast<uint8_t>(c));
    link = ChildOf(link->node(), static_cast<uint8_t>(c));
  }
  link->SetHasValue();
  values_[link->node()] = value;
  return absl::OkStatus();
}

}  // namespace llmc
