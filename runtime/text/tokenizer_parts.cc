#include "runtime/text/tokenizer_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/byte_level.h"
#include "runtime/text/utf8.h"
#include "runtime/text/word_cache.h"

namespace llmc {
namespace {

constexpr int kMaxSteps = 32;
constexpr size_t kMaxAddedBytes = size_t{4} << 20;  // each takes some 50 bytes of memory

// Steps of a normalizer, pre-tokenizer or decoder; `list` is the key of a sequence's children.
int CountSteps(const nlohmann::json& step, const char* list) {
  if (!step.is_object() || !step.contains(list) || !step[list].is_array()) return 1;
  int count = 0;
  for (const nlohmann::json& child : step[list]) count += CountSteps(child, list);
  return count;
}

absl::Status CheckStepCount(const JsonNode& node, const char* list) {
  const int count = CountSteps(node.value(), list);
  if (count <= kMaxSteps) return absl::OkStatus();
  return node.Error(absl::StrCat("has ", count, " steps, at most ", kMaxSteps, " are supported"));
}

absl::Status TooManyAdded(const JsonNode& root) {
  return root.Error(absl::StrCat("added_tokens hold more than ", kMaxAddedBytes, " bytes"));
}

}  // namespace

absl::Status TokenizerParts::Read(const JsonNode& steps, std::unique_ptr<TokenModel> token_model) {
  model = std::move(token_model);
  for (const auto& [text, id] : model->Tokens()) {
    Resize(id + 1);
    texts[id] = std::string(text);
    exists[id] = true;
  }
  RETURN_IF_ERROR(ReadSteps(steps));
  RETURN_IF_ERROR(ReadAddedTokens(steps));
  RETURN_IF_ERROR(CheckPostProcessor(steps));
  model->HideTokens(special);
  if (pre_tokenizer != nullptr && model->IsByteLevel()) byte_level_words = pre_tokenizer->AsByteLevelWords();
  if (decoder.IsByteLevel()) {
    for (const std::string& text : texts) byte_texts.push_back(AlphabetToBytes(text));
  }
  return absl::OkStatus();
}

absl::Status TokenizerParts::ReadSteps(const JsonNode& root) {
  if (const auto node = root.Find("normalizer")) {
    RETURN_IF_ERROR(CheckStepCount(*node, "normalizers"));
    ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> step, Normalizer::FromJson(*node));
    normalizer = std::move(step);
  }
  if (const auto node = root.Find("pre_tokenizer")) {
    RETURN_IF_ERROR(CheckStepCount(*node, "pretokenizers"));
    ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> step, PreTokenizer::FromJson(*node));
    pre_tokenizer = std::move(step);
  }
  if (const auto node = root.Find("post_processor")) {
    ASSIGN_OR_RETURN(PostProcessor step, PostProcessor::FromJson(*node));
    post_processor = std::move(step);
  }
  if (const auto node = root.Find("decoder")) {
    RETURN_IF_ERROR(CheckStepCount(*node, "decoders"));
    ASSIGN_OR_RETURN(Decoder step, Decoder::FromJson(*node));
    decoder = std::move(step);
  }
  return absl::OkStatus();
}

absl::Status TokenizerParts::ReadAddedTokens(const JsonNode& root) {
  if (!root.Find("added_tokens")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<JsonNode> nodes, root.GetArray("added_tokens"));
  std::vector<AddedToken> tokens;
  size_t bytes = 0, pattern_bytes = 0;
  for (const JsonNode& node : nodes) {
    ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(node));
    RETURN_IF_ERROR(AddToken(node, token));
    bytes += token.content.size();
    if (bytes > kMaxAddedBytes) return TooManyAdded(root);
    tokens.push_back(std::move(token));
  }
  // Where two patterns are equal the special token wins.
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.special > b.special; });
  TextBudget budget(bytes);
  for (const AddedToken& token : tokens) {
    if (!token.normalized) {
      raw_tokens.Add(token, token.content);
      continue;
    }
    absl::StatusOr<std::string> pattern = token.content;
    if (normalizer != nullptr) pattern = normalizer->Normalize(token.content, &budget);
    if (!pattern.ok()) return At("normalizer", pattern.status());
    pattern_bytes += pattern->size();
    if (pattern_bytes > kMaxAddedBytes) return TooManyAdded(root);
    normalized_tokens.Add(token, *pattern);
  }
  raw_tokens.Link();
  normalized_tokens.Link();
  return absl::OkStatus();
}

absl::Status TokenizerParts::AddToken(const JsonNode& node, const AddedToken& token) {
  const absl::optional<int32_t> model_id = model->TokenId(token.content);
  if (model_id && *model_id != token.id) {
    return node.Error(
        absl::StrCat("token \"", token.content, "\" has id ", token.id, " here and ", *model_id, " in model.vocab"));
  }
  if (!added_ids.try_emplace(token.content, token.id).second) {
    return node.Error(absl::StrCat("token \"", token.content, "\" is listed twice"));
  }
  Resize(token.id + 1);
  if (exists[token.id] && texts[token.id] != token.content) {
    return node.Error(
        absl::StrCat("tokens \"", token.content, "\" and \"", texts[token.id], "\" have the same id ", token.id));
  }
  texts[token.id] = token.content;
  exists[token.id] = true;
  special[token.id] = token.special;
  return absl::OkStatus();
}

absl::Status TokenizerParts::CheckPostProcessor(const JsonNode& root) const {
  if (!post_processor) return absl::OkStatus();
  for (const int32_t id : post_processor->Ids()) {
    if (static_cast<size_t>(id) >= exists.size() || !exists[id]) {
      return root.Find("post_processor")->Error(absl::StrCat("adds id ", id, ", which no token has"));
    }
  }
  return absl::OkStatus();
}

absl::optional<int32_t> TokenizerParts::TokenId(absl::string_view token) const {
  if (const auto it = added_ids.find(token); it != added_ids.end()) return it->second;
  return model->TokenId(token);
}

void TokenizerParts::Apply(const TokenizerConfig& config) {
  if (config.eos_token) eos_token_id = TokenId(*config.eos_token);
  const absl::optional<int32_t> bos_token_id = config.bos_token ? TokenId(*config.bos_token) : absl::nullopt;
  if (!post_processor) post_processor.emplace();
  if (config.add_bos_token && bos_token_id) post_processor->SetFirst(*bos_token_id, *config.add_bos_token);
  if (config.add_eos_token && eos_token_id) post_processor->SetLast(*eos_token_id, *config.add_eos_token);
}

void TokenizerParts::Resize(int32_t size) {
  if (static_cast<size_t>(size) <= texts.size()) return;
  texts.resize(size);
  exists.resize(size);
  special.resize(size);
}

// Encodes text without raw added tokens.
absl::Status TokenizerParts::EncodeBetween(absl::string_view text, bool at_start, const EncodeOptions& options,
                                           TextBudget* budget, std::vector<int32_t>* ids) const {
  absl::StatusOr<std::string> normalized = std::string(text);
  if (normalizer != nullptr) normalized = normalizer->Normalize(*std::move(normalized), budget);
  if (!normalized.ok()) return At("normalizer", normalized.status());
  const absl::string_view all = *normalized;
  for (const AddedTokenMatcher::Part& part : normalized_tokens.Find(all, options)) {
    if (part.id >= 0) {
      ids->push_back(part.id);
      continue;
    }
    const absl::Status status =
        EncodeWords(all.substr(part.begin, part.end - part.begin), at_start && part.begin == 0, budget, ids);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Encodes normalized text without added tokens.
absl::Status TokenizerParts::EncodeWords(absl::string_view text, bool at_start, TextBudget* budget,
                                         std::vector<int32_t>* ids) const {
  if (pre_tokenizer == nullptr) {
    const absl::Status status = model->Encode(text, ids);
    return status.ok() ? status : At("model", status);
  }
  if (byte_level_words.matcher != nullptr) {
    EncodeByteLevelWords(text, ids);
    return absl::OkStatus();
  }
  if (pre_tokenizer->SplitsWordsAlone()) return EncodeSpacedWords(text, at_start, budget, ids);
  std::vector<Piece> pieces = {{std::string(text), at_start}};
  return EncodePieces(pre_tokenizer->Split(&pieces, budget), pieces, ids);
}

absl::Status TokenizerParts::EncodeSpacedWords(absl::string_view text, bool at_start, TextBudget* budget,
                                               std::vector<int32_t>* ids) const {
  LongWordCache cache(text.size());
  absl::Status status;
  std::vector<Piece> pieces;
  for (size_t at = 0; at < text.size() && status.ok();) {
    if (const Utf8Char c = ReadUtf8(text.substr(at)); IsSpace(c.codepoint)) {
      at += c.bytes;
      continue;
    }
    size_t end = at;
    while (end < text.size()) {
      const Utf8Char c = ReadUtf8(text.substr(end));
      if (IsSpace(c.codepoint)) break;
      end += c.bytes;
    }
    const bool is_first = at_start && at == 0;
    const auto encode = [&](absl::string_view word) {
      pieces.assign(1, {std::string(word), is_first});
      status = EncodePieces(pre_tokenizer->SplitWord(&pieces, budget), pieces, ids);
    };
    if (is_first) {
      encode(text.substr(0, end));
    } else {
      cache.Append(text, at, end, ids, encode);
    }
    at = end;
  }
  return status;
}

absl::Status TokenizerParts::EncodePieces(const absl::Status& split, const std::vector<Piece>& pieces,
                                          std::vector<int32_t>* ids) const {
  if (!split.ok()) return At("pre_tokenizer", split);
  for (const Piece& word : pieces) {
    if (const absl::Status status = model->Encode(word.text, ids); !status.ok()) return At("model", status);
  }
  return absl::OkStatus();
}

void TokenizerParts::EncodeByteLevelWords(absl::string_view text, std::vector<int32_t>* ids) const {
  std::string prefixed;
  if (byte_level_words.add_prefix_space && !absl::StartsWith(text, " ")) text = prefixed = absl::StrCat(" ", text);
  WordCache cache(text.size());
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = byte_level_words.matcher(text, at);
    cache.Append(text, at, end, ids, [&](absl::string_view word) { model->EncodeBytes(word, ids); });
  }
}

absl::Status TokenizerParts::At(absl::string_view key, const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat(name, ": ", key, ": ", status.message()));
}

}  // namespace llmc
