#include "runtime/chat/chat_encoder.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "base/status_macros.h"

namespace llmc {

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) continue;
    std::string text = tokenizer.Decode({id}, /*skip_special_tokens=*/false);
    if (text.empty() || tokenizer.TokenId(text) != id) continue;
    if (!absl::StrContains(first_bytes_, text[0])) first_bytes_ += text[0];
    specials_.push_back({std::move(text), id});
  }
  std::stable_sort(specials_.begin(), specials_.end(),
                   [](const Special& a, const Special& b) { return a.text.size() > b.text.size(); });
}

std::vector<ChatEncoder::Found> ChatEncoder::Find(absl::string_view text) const {
  std::vector<Found> found;
  for (size_t at = text.find_first_of(first_bytes_); at != absl::string_view::npos;) {
    const auto special = std::find_if(specials_.begin(), specials_.end(),
                                      [&](const Special& one) { return absl::StartsWith(text.substr(at), one.text); });
    size_t next = at + 1;
    if (special != specials_.end()) {
      next = at + special->text.size();
      found.push_back({at, next, special->id});
    }
    at = text.find_first_of(first_bytes_, next);
  }
  return found;
}

absl::StatusOr<std::vector<int32_t>> ChatEncoder::Encode(const RenderedChat& chat) const {
  const std::string text = chat.text();
  std::vector<Found> own;
  size_t begin = 0;
  for (const ChatSegment& segment : chat.segments) {
    if (segment.from_template) {
      for (const Found& found : Find(segment.text)) own.push_back({begin + found.begin, begin + found.end, found.id});
    }
    begin += segment.text.size();
  }
  if (Find(text) == own) {
    ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                     tokenizer_.Encode(text, {.add_special_tokens = false, .parse_special_tokens = true}));
    // A normalizer may have made a special token of other characters.
    const auto specials = std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer_.IsSpecial(id); });
    if (static_cast<size_t>(specials) == own.size()) return ids;
  }
  std::vector<int32_t> ids;
  size_t at = 0;
  const auto encode = [&](size_t end) -> absl::Status {
    if (end == at) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::vector<int32_t> part,
                     tokenizer_.Encode(absl::string_view(text).substr(at, end - at), {.add_special_tokens = false}));
    ids.insert(ids.end(), part.begin(), part.end());
    return absl::OkStatus();
  };
  for (const Found& special : own) {
    RETURN_IF_ERROR(encode(special.begin));
    ids.push_back(special.id);
    at = special.end;
  }
  RETURN_IF_ERROR(encode(text.size()));
  return ids;
}

}  // namespace llmc
