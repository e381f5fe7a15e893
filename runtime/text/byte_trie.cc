#include "runtime/text/byte_trie.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

constexpr size_t kMaxKeyBytes = size_t{1} << 10;
constexpr size_t kMaxTrieBytes = size_t{8} << 20;

}  // namespace

int32_t ByteTrie::NewNode() {
  values_.push_back(-1);
  return static_cast<int32_t>(values_.size()) - 1;
}

uint64_t ByteTrie::Multiplier() {
  static const uint64_t multiplier = [] {
    std::random_device random;
    return uint64_t{random()} << 32 | random() | 1;
  }();
  return multiplier;
}

void ByteTrie::AddEdge(uint32_t key, int32_t node) {
  if (2 * ++edge_count_ > edges_.size()) {
    const std::vector<Edge> old = std::exchange(edges_, std::vector<Edge>(2 * edges_.size()));
    for (const Edge& edge : old) {
      if (edge.node != 0) edges_[FindEdge(edge.key)] = edge;
    }
  }
  edges_[FindEdge(key)] = {key, node};
}

absl::Status ByteTrie::Add(absl::string_view key, int32_t value) {
  if (key.empty()) return absl::OkStatus();
  bytes_ += key.size();
  if (key.size() > kMaxKeyBytes || bytes_ > kMaxTrieBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a token of more than ", kMaxKeyBytes, " bytes, or tokens of together more than ", kMaxTrieBytes));
  }
  int32_t& root = roots_[static_cast<uint8_t>(key[0])];
  if (root < 0) root = NewNode();
  int32_t node = root;
  for (const char c : key.substr(1)) {
    int32_t child = Child(node, static_cast<uint8_t>(c));
    if (child < 0) {
      child = NewNode();
      AddEdge(static_cast<uint32_t>(node) << 8 | static_cast<uint8_t>(c), child);
    }
    node = child;
  }
  values_[node] = value;
  return absl::OkStatus();
}

}  // namespace llmc
