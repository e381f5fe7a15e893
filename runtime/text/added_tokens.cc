#include "runtime/text/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "runtime/text/bpe.h"
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

bool IsSpace(absl::string_view c) { return u_isUWhiteSpace(static_cast<UChar32>(ReadUtf8(c).codepoint)); }

bool StandsAlone(absl::string_view before, absl::string_view after) {
  if (!before.empty() && IsWordChar(ReadUtf8(LastChar(before)).codepoint)) return false;
  return after.empty() || !IsWordChar(ReadUtf8(after).codepoint);
}

size_t TrailingSpace(absl::string_view text) {
  size_t size = 0;
  while (!text.empty() && IsSpace(LastChar(text))) {
    const size_t bytes = LastChar(text).size();
    size += bytes;
    text.remove_suffix(bytes);
  }
  return size;
}

size_t LeadingSpace(absl::string_view text) {
  const size_t all = text.size();
  while (!text.empty() && IsSpace(text)) text.remove_prefix(ReadUtf8(text).bytes);
  return all - text.size();
}

}  // namespace

absl::StatusOr<AddedToken> ReadAddedToken(const JsonNode& node) {
  AddedToken token;
  const absl::StatusOr<int64_t> id = node.GetInt("id", 0, kMaxTokenId);
  if (!id.ok()) return id.status();
  token.id = static_cast<int32_t>(*id);
  absl::StatusOr<std::string> content = node.GetString("content");
  if (!content.ok()) return content.status();
  token.content = *std::move(content);
  const absl::StatusOr<bool> special = node.GetBool("special", false);
  if (!special.ok()) return special.status();
  token.special = *special;
  const struct {
    const char* key;
    bool otherwise;
    bool* flag;
  } flags[] = {{"single_word", false, &token.single_word},
               {"lstrip", false, &token.lstrip},
               {"rstrip", false, &token.rstrip},
               {"normalized", !token.special, &token.normalized}};
  for (const auto& [key, otherwise, flag] : flags) {
    const absl::StatusOr<bool> value = node.GetBool(key, otherwise);
    if (!value.ok()) return value.status();
    *flag = *value;
  }
  return token;
}

void AddedTokenMatcher::Add(const AddedToken& token, absl::string_view pattern) {
  if (pattern.empty()) return;
  is_first_byte_[static_cast<uint8_t>(pattern[0])] = true;
  uint64_t node = 0;
  for (const char c : pattern) {
    const auto [edge, is_new] =
        edges_.try_emplace(node << 8 | static_cast<uint8_t>(c), static_cast<int32_t>(token_at_.size()));
    if (is_new) token_at_.push_back(-1);
    node = static_cast<uint64_t>(edge->second);
  }
  if (token_at_[node] >= 0) return;
  token_at_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

const AddedToken* AddedTokenMatcher::Longest(absl::string_view text, size_t* length) const {
  const AddedToken* best = nullptr;
  uint64_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto edge = edges_.find(node << 8 | static_cast<uint8_t>(text[i]));
    if (edge == edges_.end()) break;
    node = static_cast<uint64_t>(edge->second);
    if (token_at_[node] < 0) continue;
    best = &tokens_[token_at_[node]];
    *length = i + 1;
  }
  return best;
}

std::vector<AddedTokenMatcher::Part> AddedTokenMatcher::Find(absl::string_view text) const {
  std::vector<Part> parts;
  size_t done = 0;  // everything before is in `parts`
  for (size_t at = 0; at < text.size();) {
    size_t length = 0;
    const AddedToken* token =
        is_first_byte_[static_cast<uint8_t>(text[at])] ? Longest(text.substr(at), &length) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + length;
    at = end;
    if (token->single_word && !StandsAlone(text.substr(0, begin), text.substr(end))) continue;
    if (token->lstrip) begin = std::max(begin - TrailingSpace(text.substr(0, begin)), done);
    if (token->rstrip) end += LeadingSpace(text.substr(end));
    if (done < begin) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token->id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

}  // namespace llmc
