#include "runtime/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/added_tokens.h"
#include "runtime/text/bpe.h"
#include "runtime/text/decoder.h"
#include "runtime/text/json_node.h"
#include "runtime/text/normalizer.h"
#include "runtime/text/post_processor.h"
#include "runtime/text/pre_tokenizer.h"
#include "runtime/text/tokenizer_config.h"
#include "runtime/text/utf8.h"

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

// Early files do not name the type of their model.
const char* UnnamedModelType(const JsonNode& model) {
  if (model.Find("merges")) return "BPE";
  const absl::optional<JsonNode> vocab = model.Find("vocab");
  if (vocab && vocab->value().is_array()) return "Unigram";
  return model.Find("max_input_chars_per_word") ? "WordPiece" : "";
}

absl::Status TooManyAdded(const JsonNode& root) {
  return root.Error(absl::StrCat("added_tokens hold more than ", kMaxAddedBytes, " bytes"));
}

}  // namespace

struct Tokenizer::Parts {
  std::string name;                             // of the file
  std::unique_ptr<Normalizer> normalizer;       // or nullptr
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // or nullptr
  BpeModel model;
  absl::optional<PostProcessor> post_processor;
  Decoder decoder;
  AddedTokenMatcher raw_tokens;         // looked for before normalization
  AddedTokenMatcher normalized_tokens;  // and behind it
  absl::flat_hash_map<std::string, int32_t> added_ids;
  std::vector<std::string> texts;  // by id
  std::vector<bool> exists;        // by id
  std::vector<bool> special;       // by id
  absl::optional<int32_t> eos_token_id;

  absl::Status Read(const JsonNode& root);
  absl::Status ReadModel(const JsonNode& root);
  absl::Status ReadSteps(const JsonNode& root);
  absl::Status ReadAddedTokens(const JsonNode& root);
  absl::Status AddToken(const JsonNode& node, const AddedToken& token);
  absl::Status CheckPostProcessor(const JsonNode& root) const;
  void Apply(const TokenizerConfig& config);
  absl::optional<int32_t> TokenId(absl::string_view token) const;
  void Resize(int32_t size);

  absl::Status EncodeBetween(absl::string_view text, bool at_start, bool find_special, TextBudget* budget,
                             std::vector<int32_t>* ids) const;
  absl::Status EncodeWords(absl::string_view text, bool at_start, TextBudget* budget, std::vector<int32_t>* ids) const;
  // `status` with the file's name and the key of the step that failed.
  absl::Status At(absl::string_view key, const absl::Status& status) const;
};

absl::Status Tokenizer::Parts::Read(const JsonNode& root) {
  RETURN_IF_ERROR(root.ExpectObject());
  RETURN_IF_ERROR(ReadModel(root));
  RETURN_IF_ERROR(ReadSteps(root));
  RETURN_IF_ERROR(ReadAddedTokens(root));
  return CheckPostProcessor(root);
}

absl::Status Tokenizer::Parts::ReadModel(const JsonNode& root) {
  ASSIGN_OR_RETURN(const JsonNode node, root.Get("model"));
  RETURN_IF_ERROR(node.ExpectObject());
  ASSIGN_OR_RETURN(const std::string type, node.GetString("type", UnnamedModelType(node)));
  if (type != "BPE") {
    return node.Unsupported(absl::StrCat("model type \"", type, "\" is not supported, only BPE is"));
  }
  ASSIGN_OR_RETURN(BpeModel bpe, BpeModel::FromJson(node));
  model = std::move(bpe);
  for (const auto& [text, id] : model.vocab()) {
    Resize(id + 1);
    texts[id] = text;
    exists[id] = true;
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Parts::ReadSteps(const JsonNode& root) {
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
  decoder = Decoder::JoinWithSpaces();
  if (const auto node = root.Find("decoder")) {
    RETURN_IF_ERROR(CheckStepCount(*node, "decoders"));
    ASSIGN_OR_RETURN(Decoder step, Decoder::FromJson(*node));
    decoder = std::move(step);
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Parts::ReadAddedTokens(const JsonNode& root) {
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

absl::Status Tokenizer::Parts::AddToken(const JsonNode& node, const AddedToken& token) {
  const absl::optional<int32_t> model_id = model.TokenId(token.content);
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

absl::Status Tokenizer::Parts::CheckPostProcessor(const JsonNode& root) const {
  if (!post_processor) return absl::OkStatus();
  for (const int32_t id : post_processor->Ids()) {
    if (static_cast<size_t>(id) >= exists.size() || !exists[id]) {
      return root.Find("post_processor")->Error(absl::StrCat("adds id ", id, ", which no token has"));
    }
  }
  return absl::OkStatus();
}

absl::optional<int32_t> Tokenizer::Parts::TokenId(absl::string_view token) const {
  if (const auto it = added_ids.find(token); it != added_ids.end()) return it->second;
  return model.TokenId(token);
}

void Tokenizer::Parts::Apply(const TokenizerConfig& config) {
  if (config.eos_token) eos_token_id = TokenId(*config.eos_token);
  const absl::optional<int32_t> bos_token_id = config.bos_token ? TokenId(*config.bos_token) : absl::nullopt;
  if (!post_processor) post_processor.emplace();
  if (config.add_bos_token && bos_token_id) post_processor->SetFirst(*bos_token_id, *config.add_bos_token);
  if (config.add_eos_token && eos_token_id) post_processor->SetLast(*eos_token_id, *config.add_eos_token);
}

void Tokenizer::Parts::Resize(int32_t size) {
  if (static_cast<size_t>(size) <= texts.size()) return;
  texts.resize(size);
  exists.resize(size);
  special.resize(size);
}

// Encodes text without raw added tokens.
absl::Status Tokenizer::Parts::EncodeBetween(absl::string_view text, bool at_start, bool find_special,
                                             TextBudget* budget, std::vector<int32_t>* ids) const {
  absl::StatusOr<std::string> normalized = std::string(text);
  if (normalizer != nullptr) normalized = normalizer->Normalize(*std::move(normalized), budget);
  if (!normalized.ok()) return At("normalizer", normalized.status());
  const absl::string_view all = *normalized;
  for (const AddedTokenMatcher::Part& part : normalized_tokens.Find(all, find_special)) {
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
absl::Status Tokenizer::Parts::EncodeWords(absl::string_view text, bool at_start, TextBudget* budget,
                                           std::vector<int32_t>* ids) const {
  if (pre_tokenizer == nullptr) {
    model.Encode(text, ids);
    return absl::OkStatus();
  }
  std::vector<Piece> pieces = {{std::string(text), at_start}};
  if (absl::Status status = pre_tokenizer->Split(&pieces, budget); !status.ok()) {
    return At("pre_tokenizer", status);
  }
  for (const Piece& piece : pieces) model.Encode(piece.text, ids);
  return absl::OkStatus();
}

absl::Status Tokenizer::Parts::At(absl::string_view key, const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat(name, ": ", key, ": ", status.message()));
}

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
  RETURN_IF_ERROR(parts->Read(JsonNode(&document, name, "")));
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
  for (const AddedTokenMatcher::Part& part : parts_->raw_tokens.Find(text, options.parse_special_tokens)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    const absl::string_view between = absl::string_view(text).substr(part.begin, part.end - part.begin);
    const absl::Status status =
        parts_->EncodeBetween(between, part.begin == 0, options.parse_special_tokens, &budget, &ids);
    if (!status.ok()) return status;
  }
  if (options.add_special_tokens && parts_->post_processor) {
    parts_->post_processor->AddSpecialTokens(options.repeat_bos, &ids);
  }
  return ids;
}

std::string Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const {
  StreamDecoder stream(*this, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id);
  text += stream.Finish();
  return text;
}

absl::optional<int32_t> Tokenizer::TokenId(absl::string_view token) const { return parts_->TokenId(token); }

absl::optional<int32_t> Tokenizer::eos_token_id() const { return parts_->eos_token_id; }

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(parts_->texts.size()); }

bool Tokenizer::IsSpecial(int32_t id) const { return id >= 0 && id < vocab_size() && parts_->special[id]; }

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
  const std::string* text = state_->tokenizer->TokenText(id, state_->skip_special_tokens);
  return text == nullptr ? std::string() : state_->stream.Push(*text);
}

std::string StreamDecoder::Finish() { return state_->stream.Finish(); }

}  // namespace llmc
