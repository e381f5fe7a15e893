#include "runtime/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/json_node.h"
#include "runtime/text/model.h"
#include "runtime/text/text_budget.h"
#include "runtime/text/tokenizer_config.h"
#include "runtime/text/tokenizer_parts.h"
#include "runtime/text/utf8.h"

namespace llmc {

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(absl::string_view json, absl::string_view name) {
  return FromJson(json, name, "", "");
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(absl::string_view json, absl::string_view name,
                                                               absl::string_view config,
                                                               absl::string_view config_name) {
  ASSIGN_OR_RETURN(const TokenizerConfig settings, ReadTokenizerConfig(config, config_name));
  ASSIGN_OR_RETURN(const nlohmann::json document, ParseTokenizerJson(json, name));
  auto parts = std::make_unique<Parts>();
  parts->name = std::string(name);
  const JsonNode root(&document, name, "");
  ASSIGN_OR_RETURN(const JsonNode model_node, root.Get("model"));
  ASSIGN_OR_RETURN(std::unique_ptr<TokenModel> model, TokenModel::FromJson(model_node));
  RETURN_IF_ERROR(parts->Read(root, std::move(model)));
  parts->Apply(settings);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view utf8, const EncodeOptions& options) const {
  // Repaired text may be three times as long.
  const std::string text = utf8.size() > kMaxTextBytes ? std::string() : RepairUtf8(utf8);
  if (std::max(utf8.size(), text.size()) > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("text of ", utf8.size(), " bytes is larger than 1 GiB"));
  }
  TextBudget budget(text.size());
  std::vector<int32_t> ids;
  for (const AddedTokenMatcher::Part& part : parts_->raw_tokens.Find(text, options)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    const absl::string_view between = absl::string_view(text).substr(part.begin, part.end - part.begin);
    const absl::Status status = parts_->EncodeBetween(between, part.begin == 0, options, &budget, &ids);
    if (!status.ok()) return status;
  }
  if (options.add_special_tokens && parts_->post_processor) {
    parts_->post_processor->AddSpecialTokens(options.repeat_bos, &ids);
  }
  return ids;
}

absl::StatusOr<TypedTokens> Tokenizer::Join(absl::Span<const int32_t> first, absl::Span<const int32_t> second) const {
  return parts_->post_processor.value_or(PostProcessor()).Join(first, second);
}

std::string Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  if (!parts_->byte_texts.empty()) {
    for (const int32_t id : ids) {
      if (TokenText(id, skip_special_tokens) != nullptr) text += parts_->byte_texts[id];
    }
    return RepairUtf8(text);
  }
  DecodeStream stream = parts_->decoder.NewStream();
  for (const int32_t id : ids) {
    if (const std::string* token = TokenText(id, skip_special_tokens)) stream.Push(*token, &text);
  }
  stream.Finish(&text);
  return text;
}

absl::optional<int32_t> Tokenizer::TokenId(absl::string_view token) const { return parts_->TokenId(token); }

absl::optional<int32_t> Tokenizer::eos_token_id() const { return parts_->eos_token_id; }

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(parts_->texts.size()); }

bool Tokenizer::IsSpecial(int32_t id) const { return id >= 0 && id < vocab_size() && parts_->special[id]; }

bool Tokenizer::IsFoundWhole(int32_t id) const {
  const std::string* text = TokenText(id, /*skip_special_tokens=*/false);
  if (text == nullptr) return false;
  const auto added = parts_->added_ids.find(*text);
  return (added != parts_->added_ids.end() && added->second == id) || parts_->symbols.contains(id);
}

const std::string* Tokenizer::TokenText(int32_t id, bool skip_special_tokens) const {
  if (id < 0 || id >= vocab_size() || !parts_->exists[id]) return nullptr;
  if (skip_special_tokens && parts_->special[id]) return nullptr;
  return &parts_->texts[id];
}

struct StreamDecoder::State {
  const Tokenizer* tokenizer;
  bool skip_special_tokens;
  DecodeStream stream;
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : state_(new State{&tokenizer, skip_special_tokens, tokenizer.parts_->decoder.NewStream()}) {}
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder::~StreamDecoder() = default;

std::string StreamDecoder::Push(int32_t id) {
  std::string text;
  const std::string* token = state_->tokenizer->TokenText(id, state_->skip_special_tokens);
  if (token != nullptr) state_->stream.Push(*token, &text);
  return text;
}

std::string StreamDecoder::Finish() {
  std::string text;
  state_->stream.Finish(&text);
  return text;
}

}  // namespace llmc
