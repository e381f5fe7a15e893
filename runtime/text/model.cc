#include "runtime/text/model.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/bpe.h"
#include "runtime/text/unigram.h"
#include "runtime/text/word_models.h"

namespace llmc {
namespace {

// Early files do not name the type of their model.
const char* UnnamedModelType(const JsonNode& model) {
  if (model.Find("merges")) return "BPE";
  const absl::optional<JsonNode> vocab = model.Find("vocab");
  if (vocab && vocab->value().is_array()) return "Unigram";
  if (model.Find("max_input_chars_per_word") || model.Find("continuing_subword_prefix")) return "WordPiece";
  return vocab && model.Find("unk_token") ? "WordLevel" : "";
}

template <typename Model>
absl::StatusOr<std::unique_ptr<TokenModel>> ReadModel(const JsonNode& node) {
  absl::StatusOr<Model> model = Model::FromJson(node);
  if (!model.ok()) return model.status();
  return std::make_unique<Model>(*std::move(model));
}

}  // namespace

absl::StatusOr<Vocab> ReadVocab(const JsonNode& vocab) {
  RETURN_IF_ERROR(vocab.ExpectObject());
  Vocab ids;
  ids.reserve(vocab.value().size());
  absl::flat_hash_map<int32_t, absl::string_view> owners;
  owners.reserve(vocab.value().size());
  for (const auto& item : vocab.value().items()) {
    const nlohmann::json& value = item.value();
    // The path is only spelled out for errors: this loop runs for every token.
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kMaxTokenId) {
      return vocab.Error(absl::StrCat("the id of token \"", item.key(), "\" must be an integer from 0 to ", kMaxTokenId,
                                      ", is ", value.dump().substr(0, 40)));
    }
    const int32_t id = value.get<int32_t>();
    const auto [owner, is_new] = owners.try_emplace(id, item.key());
    if (!is_new) {
      return vocab.Error(absl::StrCat("tokens \"", owner->second, "\" and \"", item.key(), "\" have the same id ", id));
    }
    ids.emplace(item.key(), id);
  }
  return ids;
}

absl::StatusOr<std::unique_ptr<TokenModel>> TokenModel::FromJson(const JsonNode& node) {
  RETURN_IF_ERROR(node.ExpectObject());
  ASSIGN_OR_RETURN(const std::string type, node.GetString("type", UnnamedModelType(node)));
  if (type == "BPE") return ReadModel<BpeModel>(node);
  if (type == "Unigram") return ReadModel<UnigramModel>(node);
  if (type == "WordPiece") return ReadModel<WordPieceModel>(node);
  if (type == "WordLevel") return ReadModel<WordLevelModel>(node);
  return node.Unsupported(absl::StrCat("model type \"", type, "\" is not supported"));
}

std::vector<std::pair<absl::string_view, int32_t>> TokenModel::Tokens() const { return {vocab_.begin(), vocab_.end()}; }

absl::optional<int32_t> TokenModel::TokenId(absl::string_view token) const {
  const auto it = vocab_.find(token);
  if (it == vocab_.end()) return absl::nullopt;
  return it->second;
}

void TokenModel::EncodeBytes(absl::string_view, std::vector<int32_t>*) const {}

absl::Status TokenModel::NotCovered(absl::string_view word) {
  return absl::InvalidArgumentError(absl::StrCat("the vocabulary does not cover \"", word.substr(0, 100),
                                                 "\", and the model has no unknown token (unk_id)"));
}

}  // namespace llmc
