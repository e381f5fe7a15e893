#include "runtime/text/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <numeric>

#include "base/status_macros.h"
#include "runtime/text/model.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

bool IsWordChar(char32_t c) {
  const auto code = static_cast<UChar32>(c);
  const uint32_t categories = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_isUAlphabetic(code) || (U_GET_GC_MASK(code) & categories) != 0 || c == 0x200C || c == 0x200D;
}

// The last character of non-empty valid UTF-8.
absl::string_view LastChar(absl::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return text.substr(at);
}

bool BeginsWithSpace(absl::string_view c) { return u_isUWhiteSpace(static_cast<UChar32>(ReadUtf8(c).codepoint)); }

bool StandsAlone(absl::string_view before, absl::string_view after) {
  if (!before.empty() && IsWordChar(ReadUtf8(LastChar(before)).codepoint)) return false;
  return after.empty() || !IsWordChar(ReadUtf8(after).codepoint);
}

size_t TrailingSpace(absl::string_view text) {
  size_t size = 0;
  while (!text.empty() && BeginsWithSpace(LastChar(text))) {
    const size_t bytes = LastChar(text).size();
    size += bytes;
    text.remove_suffix(bytes);
  }
  return size;
}

size_t LeadingSpace(absl::string_view text) {
  const size_t all = text.size();
  while (!text.empty() && BeginsWithSpace(text)) text.remove_prefix(ReadUtf8(text).bytes);
  return all - text.size();
}

}  // namespace

absl::StatusOr<AddedToken> ReadAddedToken(const JsonNode& node) {
  AddedToken token;
  ASSIGN_OR_RETURN(const int64_t id, node.GetInt("id", 0, kMaxTokenId));
  token.id = static_cast<int32_t>(id);
  ASSIGN_OR_RETURN(std::string content, node.GetString("content"));
  token.content = std::move(content);
  ASSIGN_OR_RETURN(const bool special, node.GetBool("special", false));
  token.special = special;
  const struct {
    const char* key;
    bool otherwise;
    bool* flag;
  } flags[] = {{"single_word", false, &token.single_word},
               {"lstrip", false, &token.lstrip},
               {"rstrip", false, &token.rstrip},
               {"normalized", !token.special, &token.normalized}};
  for (const auto& [key, otherwise, flag] : flags) {
    ASSIGN_OR_RETURN(const bool value, node.GetBool(key, otherwise));
    *flag = value;
  }
  return token;
}

void AddedTokenMatcher::Add(const AddedToken& token, absl::string_view pattern) {
  if (pattern.empty()) return;
  is_last_byte_[static_cast<uint8_t>(pattern.back())] = true;
  int32_t node = 0;
  for (size_t i = pattern.size(); i-- > 0;) {
    const auto byte = static_cast<uint8_t>(pattern[i]);
    const auto [edge, is_new] =
        edges_.try_emplace(static_cast<uint64_t>(node) << 8 | byte, static_cast<int32_t>(nodes_.size()));
    if (is_new) nodes_.push_back({.parent = node, .byte = byte});
    node = edge->second;
  }
  if (nodes_[node].token >= 0) return;
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  nodes_[node].length = static_cast<int32_t>(pattern.size());
  tokens_.push_back(token);
}

void AddedTokenMatcher::Link() {
  // Shorter strings first: each node needs those that are shorter than itself.
  std::vector<int32_t> depth(nodes_.size());
  for (size_t i = 1; i < nodes_.size(); ++i) depth[i] = depth[nodes_[i].parent] + 1;
  std::vector<int32_t> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return depth[a] < depth[b]; });
  for (const int32_t i : order) {
    Node& node = nodes_[i];
    if (depth[i] > 1) node.shorter = Step(nodes_[node.parent].shorter, node.byte);
    if (node.token >= 0) continue;
    node.token = nodes_[node.shorter].token;
    node.length = nodes_[node.shorter].length;
  }
}

int32_t AddedTokenMatcher::Step(int32_t node, uint8_t byte) const {
  if (node == 0 && !is_last_byte_[byte]) return 0;
  for (;; node = nodes_[node].shorter) {
    const auto edge = edges_.find(static_cast<uint64_t>(node) << 8 | byte);
    if (edge != edges_.end()) return edge->second;
    if (node == 0) return 0;
  }
}

// Aho-Corasick from the back: what it finds at a position is the longest pattern that begins there.
std::vector<int32_t> AddedTokenMatcher::FindLongest(absl::string_view text) const {
  std::vector<int32_t> nodes(text.size());
  int32_t node = 0;
  for (size_t i = text.size(); i-- > 0;) nodes[i] = node = Step(node, static_cast<uint8_t>(text[i]));
  return nodes;
}

std::vector<AddedTokenMatcher::Part> AddedTokenMatcher::Find(absl::string_view text,
                                                             const EncodeOptions& options) const {
  const auto is_text = [&](const AddedToken& token) {
    if (options.parse_special_tokens) return false;
    return token.special || (options.as_special != nullptr && options.as_special->contains(token.id));
  };
  std::vector<Part> parts;
  const std::vector<int32_t> longest = tokens_.empty() ? std::vector<int32_t>() : FindLongest(text);
  size_t done = 0;       // everything before is in `parts`
  size_t space_end = 0;  // the end of the white space behind the last token with rstrip
  for (size_t at = 0; at < longest.size();) {
    const Node& node = nodes_[longest[at]];
    if (node.token < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[node.token];
    size_t begin = at;
    size_t end = at + static_cast<size_t>(node.length);
    at = end;
    if (is_text(token)) continue;
    if (token.single_word && !StandsAlone(text.substr(0, begin), text.substr(end))) continue;
    if (begin < done) begin = done;  // inside white space that the token before has taken
    if (token.lstrip) begin -= TrailingSpace(text.substr(done, begin - done));
    if (token.rstrip) {
      if (end > space_end) space_end = end;
      space_end += LeadingSpace(text.substr(space_end));
      end = space_end;
    }
    if (done < begin) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

}  // namespace llmc
