#include "runtime/text/tokenizer_formats.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

absl::Status ReadTokenizerJson(const TokenizerInput& input, TokenizerParts* parts, TokenizerConfig*) {
  const std::string name = input.NameOf(input.main->name);
  ASSIGN_OR_RETURN(const nlohmann::json document, ParseTokenizerJson(input.main->text, name));
  const JsonNode root(&document, name, "");
  ASSIGN_OR_RETURN(const JsonNode model_node, root.Get("model"));
  ASSIGN_OR_RETURN(std::unique_ptr<TokenModel> model, TokenModel::FromJson(model_node));
  return parts->Read(root, std::move(model));
}

absl::Status AddConfigTokens(const JsonNode& decoder, absl::flat_hash_set<std::string>* known, nlohmann::json* tokens) {
  RETURN_IF_ERROR(decoder.ExpectObject());
  for (const auto& item : decoder.value().items()) {
    ASSIGN_OR_RETURN(const JsonNode node, decoder.Get(item.key()));
    RETURN_IF_ERROR(node.ExpectObject());
    int32_t id = 0;
    if (!absl::SimpleAtoi(item.key(), &id) || id < 0 || id > kMaxTokenId) {
      return node.Error(absl::StrCat("the key must be an id from 0 to ", kMaxTokenId));
    }
    ASSIGN_OR_RETURN(const std::string content, node.GetString("content"));
    if (!known->insert(content).second) continue;
    nlohmann::json token = item.value();
    token["id"] = id;
    tokens->push_back(std::move(token));
  }
  return absl::OkStatus();
}

// Without "Fast"; empty for the classes of which every tokenizer may be.
absl::StatusOr<std::string> ReadClass(const JsonNode& config) {
  ASSIGN_OR_RETURN(std::string name, config.GetString("tokenizer_class", ""));
  if (absl::EndsWith(name, "Fast")) name.resize(name.size() - 4);
  return name == "PreTrainedTokenizer" || name == "TokenizersBackend" ? std::string() : name;
}

// The tokenizer that transformers takes for a model whose files name none, where it is not what most models with such
// files have.
absl::string_view ClassOfModelType(absl::string_view type) {
  static constexpr std::pair<absl::string_view, absl::string_view> kClasses[] = {
      {"albert", "AlbertTokenizer"},
      {"bart", "BartTokenizer"},
      {"big_bird", "BigBirdTokenizer"},
      {"camembert", "CamembertTokenizer"},
      {"clip", "CLIPTokenizer"},
      {"clip_text_model", "CLIPTokenizer"},
      {"deberta", "DebertaTokenizer"},
      {"longformer", "LongformerTokenizer"},
      {"m2m_100", "M2M100Tokenizer"},
      {"marian", "MarianTokenizer"},
      {"mbart", "MBartTokenizer"},
      {"mpnet", "MPNetTokenizer"},
      {"nllb-moe", "NllbTokenizer"},
      {"pegasus", "PegasusTokenizer"},
      {"qwen2", "Qwen2Tokenizer"},
      {"qwen2_moe", "Qwen2Tokenizer"},
      {"qwen3", "Qwen2Tokenizer"},
      {"qwen3_moe", "Qwen2Tokenizer"},
      {"roberta", "RobertaTokenizer"},
      {"whisper", "WhisperTokenizer"},
      {"xglm", "XGLMTokenizer"},
      {"xlm-roberta", "XLMRobertaTokenizer"},
      {"xlm-roberta-xl", "XLMRobertaTokenizer"},
      {"xlnet", "XLNetTokenizer"}};
  for (const auto& [model, tokenizer] : kClasses) {
    if (model == type) return tokenizer;
  }
  return "";
}

}  // namespace

const TokenizerFormat kTokenizerJsonFormat = {
    [](absl::string_view name, absl::string_view) { return name == "tokenizer.json"; }, ReadTokenizerJson};

absl::StatusOr<std::string> TokenizerInput::Class(absl::string_view otherwise) const {
  ASSIGN_OR_RETURN(std::string name, ReadClass(config));
  const TokenizerFile* model = Find("config.json");
  if (name.empty() && model != nullptr && !model->text.empty()) {
    ASSIGN_OR_RETURN(const nlohmann::json document, ParseTokenizerJson(model->text, NameOf(model->name)));
    const JsonNode root(&document, NameOf(model->name), "");
    RETURN_IF_ERROR(root.ExpectObject());
    ASSIGN_OR_RETURN(name, ReadClass(root));
    ASSIGN_OR_RETURN(const std::string type, root.GetString("model_type", ""));
    if (name.empty()) name = std::string(ClassOfModelType(type));
  }
  return name.empty() ? std::string(otherwise) : name;
}

const TokenizerFile* TokenizerInput::Find(absl::string_view name) const {
  for (const TokenizerFile& file : files) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

absl::Status TokenizerInput::Error(absl::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat(NameOf(main->name), ": ", message));
}

nlohmann::json AddedTokenJson(int32_t id, absl::string_view content, bool special) {
  return {{"id", id}, {"content", std::string(content)}, {"special", special}, {"normalized", false}};
}

absl::StatusOr<nlohmann::json> TokenizerInput::AddedTokens(nlohmann::json own) const {
  nlohmann::json tokens = std::move(own);
  absl::flat_hash_set<std::string> known;
  for (const nlohmann::json& token : tokens) known.insert(token["content"].get<std::string>());
  if (const absl::optional<JsonNode> decoder = config.Find("added_tokens_decoder")) {
    RETURN_IF_ERROR(AddConfigTokens(*decoder, &known, &tokens));
  }
  const TokenizerFile* added = Find("added_tokens.json");
  if (added == nullptr) return tokens;
  ASSIGN_OR_RETURN(const nlohmann::json document, ParseTokenizerJson(added->text, NameOf(added->name)));
  ASSIGN_OR_RETURN(const Vocab ids, ReadVocab(JsonNode(&document, NameOf(added->name), "")));
  for (const auto& [content, id] : ids) {
    if (known.insert(content).second) tokens.push_back(AddedTokenJson(id, content, /*special=*/false));
  }
  return tokens;
}

}  // namespace llmc
