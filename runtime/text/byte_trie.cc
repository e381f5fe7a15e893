#include "runtime/text/byte_trie.h"

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
    const auto [edge, is_new] = edges_.try_emplace(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c), 0);
    if (is_new) edge->second = NewNode();
    node = edge->second;
  }
  values_[node] = value;
  return absl::OkStatus();
}

}  // namespace llmc
