#include "runtime/text/word_models.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

bool IsHidden(const std::vector<bool>& hidden, int32_t id) {
  return static_cast<size_t>(id) < hidden.size() && hidden[id];
}

int64_t CountChars(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

}  // namespace

absl::StatusOr<WordPieceModel> WordPieceModel::FromJson(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode vocab_node, node.Get("vocab"));
  ASSIGN_OR_RETURN(Vocab vocab, ReadVocab(vocab_node));
  Options options;
  ASSIGN_OR_RETURN(options.unknown_token, node.GetString("unk_token", options.unknown_token));
  ASSIGN_OR_RETURN(options.continuing_prefix, node.GetString("continuing_subword_prefix", options.continuing_prefix));
  if (node.Find("max_input_chars_per_word")) {
    ASSIGN_OR_RETURN(options.max_input_chars, node.GetInt("max_input_chars_per_word", 0, INT32_MAX));
  }
  absl::StatusOr<WordPieceModel> model = FromVocab(std::move(vocab), options);
  if (!model.ok()) return node.Error(model.status().message());
  return model;
}

absl::StatusOr<WordPieceModel> WordPieceModel::FromVocab(Vocab vocab, const Options& options) {
  WordPieceModel model;
  model.vocab_ = std::move(vocab);
  model.max_input_chars_ = options.max_input_chars;
  const absl::optional<int32_t> unknown = model.TokenId(options.unknown_token);
  if (!unknown) {
    return absl::InvalidArgumentError(
        absl::StrCat("the unknown token \"", options.unknown_token, "\" is not in the vocabulary"));
  }
  model.unknown_id_ = *unknown;
  for (const auto& [token, id] : model.vocab_) {
    RETURN_IF_ERROR(model.first_.Add(token, id));
    if (!absl::StartsWith(token, options.continuing_prefix)) continue;
    RETURN_IF_ERROR(model.continuing_.Add(absl::string_view(token).substr(options.continuing_prefix.size()), id));
  }
  return model;
}

absl::Status WordPieceModel::Encode(absl::string_view word, std::vector<int32_t>* ids) const {
  const size_t before = ids->size();
  bool is_known = CountChars(word) <= max_input_chars_;
  for (size_t at = 0; is_known && at < word.size();) {
    size_t longest = 0;
    int32_t token = 0;
    (at == 0 ? first_ : continuing_).ForEachPrefix(word.substr(at), [&](size_t length, int32_t id) {
      if (IsHidden(hidden_, id)) return;
      longest = length;
      token = id;
    });
    is_known = longest > 0;
    ids->push_back(token);
    at += longest;
  }
  if (is_known) return absl::OkStatus();
  ids->resize(before);
  ids->push_back(unknown_id_);
  return absl::OkStatus();
}

absl::StatusOr<WordLevelModel> WordLevelModel::FromJson(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode vocab_node, node.Get("vocab"));
  ASSIGN_OR_RETURN(Vocab vocab, ReadVocab(vocab_node));
  ASSIGN_OR_RETURN(const std::string unknown, node.GetString("unk_token", "<unk>"));
  WordLevelModel model;
  model.vocab_ = std::move(vocab);
  model.unknown_id_ = model.TokenId(unknown);
  return model;
}

absl::Status WordLevelModel::Encode(absl::string_view word, std::vector<int32_t>* ids) const {
  if (word.empty()) return absl::OkStatus();
  absl::optional<int32_t> id = TokenId(word);
  if (!id || IsHidden(hidden_, *id)) id = unknown_id_;
  if (!id) return NotCovered(word);
  ids->push_back(*id);
  return absl::OkStatus();
}

}  // namespace llmc
