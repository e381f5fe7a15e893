#include "runtime/chat/chat_encoder.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "runtime/text/utf8.h"

namespace llmc {

namespace {

// Whether a token that the files do not call special controls the conversation.
bool LooksLikeControl(absl::string_view token, absl::string_view template_source) {
  const auto is_between = [&](absl::string_view first, absl::string_view last) {
    return token.size() > first.size() + last.size() && absl::StartsWith(token, first) && absl::EndsWith(token, last);
  };
  if (is_between("<|", "|>") || is_between("<\xEF\xBD\x9C", "\xEF\xBD\x9C>")) return true;
  if (token == "<s>" || token == "</s>") return true;
  return (is_between("<", ">") || is_between("[", "]")) && absl::StrContains(template_source, token);
}

}  // namespace

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, absl::string_view template_source) : tokenizer_(tokenizer) {
  is_control_.resize(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const bool is_special = tokenizer.IsSpecial(id);
    if (!is_special && !tokenizer.IsFoundWhole(id)) continue;
    std::string text = tokenizer.Decode({id}, /*skip_special_tokens=*/false);
    if (text.empty() || tokenizer.TokenId(text) != id) continue;
    if (!is_special && !LooksLikeControl(text, template_source)) continue;
    if (!is_special) not_special_.insert(id);
    is_control_[static_cast<size_t>(id)] = true;
    if (!absl::StrContains(first_bytes_, text[0])) first_bytes_ += text[0];
    controls_.push_back({std::move(text), id});
  }
  std::stable_sort(controls_.begin(), controls_.end(),
                   [](const Control& a, const Control& b) { return a.text.size() > b.text.size(); });
}

std::vector<ChatEncoder::Found> ChatEncoder::Find(absl::string_view text) const {
  std::vector<Found> found;
  for (size_t at = text.find_first_of(first_bytes_); at != absl::string_view::npos;) {
    const auto control = std::find_if(controls_.begin(), controls_.end(),
                                      [&](const Control& one) { return absl::StartsWith(text.substr(at), one.text); });
    size_t next = at + 1;
    if (control != controls_.end()) {
      next = at + control->text.size();
      found.push_back({at, next, control->id});
    }
    at = text.find_first_of(first_bytes_, next);
  }
  return found;
}

absl::Status ChatEncoder::EncodeText(absl::string_view text, std::vector<int32_t>* ids) const {
  if (text.empty()) return absl::OkStatus();
  const EncodeOptions options{.add_special_tokens = false, .as_special = &not_special_};
  ASSIGN_OR_RETURN(const std::vector<int32_t> all, tokenizer_.Encode(text, options));
  // A special token can only be the unknown one here.
  const auto is_text = [&](int32_t id) { return !not_special_.contains(id); };
  if (ReadUtf8(text).bytes == text.size() || std::all_of(all.begin(), all.end(), is_text)) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(*ids), is_text);
    return absl::OkStatus();
  }
  // The model itself makes control tokens: what spells them is cut behind its first character, else all characters are.
  const std::vector<Found> spelled = Find(text);
  std::vector<size_t> cuts;
  for (const Found& one : spelled) cuts.push_back(one.begin + ReadUtf8(text.substr(one.begin)).bytes);
  for (size_t at = 0; spelled.empty() && at < text.size();) cuts.push_back(at += ReadUtf8(text.substr(at)).bytes);
  cuts.push_back(text.size());
  size_t begin = 0;
  for (const size_t end : cuts) {
    RETURN_IF_ERROR(EncodeText(text.substr(begin, end - begin), ids));
    begin = end;
  }
  return absl::OkStatus();
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
    // A normalizer may have made a control token of other characters.
    const auto controls =
        std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return is_control_[static_cast<size_t>(id)]; });
    if (static_cast<size_t>(controls) == own.size()) return ids;
  }
  std::vector<int32_t> ids;
  size_t at = 0;
  for (const Found& control : own) {
    RETURN_IF_ERROR(EncodeText(absl::string_view(text).substr(at, control.begin - at), &ids));
    ids.push_back(control.id);
    at = control.end;
  }
  RETURN_IF_ERROR(EncodeText(absl::string_view(text).substr(at), &ids));
  return ids;
}

}  // namespace llmc
