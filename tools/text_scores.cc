#include "tools/text_scores.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "frontend/formats/json_file.h"
#include "runtime/text/post_processor.h"
#include "runtime/text/tokenizer.h"
#include "tools/language_files.h"
#include "tools/sentence_settings.h"

namespace llmc {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;

constexpr const char* kScoreOutputs[] = {"logits"};
constexpr int64_t kMaxPositions = int64_t{1} << 27;

constexpr std::pair<const char*, ScoreActivation> kActivations[] = {
    {"none", ScoreActivation::kNone}, {"sigmoid", ScoreActivation::kSigmoid}, {"softmax", ScoreActivation::kSoftmax}};

absl::Status NoScores(const LoadedPlan& model) {
  std::vector<std::string> names;
  for (const TensorInfo& output : model.outputs()) names.push_back(output.name);
  return absl::InvalidArgumentError(
      absl::StrCat("the model gives ", absl::StrJoin(names, ", "),
                   ", no scores of labels for each text (\"logits\" of two dims): it takes a model that classifies "
                   "texts, such as BertForSequenceClassification"));
}

// PyTorch's names, and what CrossEncoder saves.
absl::StatusOr<ScoreActivation> OfTorch(const std::string& name, const std::string& file) {
  const std::string last = name.substr(name.rfind('.') + 1);
  if (last == "Identity") return ScoreActivation::kNone;
  if (last == "Sigmoid") return ScoreActivation::kSigmoid;
  return absl::UnimplementedError(absl::StrCat(file, ": the activation ", name,
                                               " is not supported; choose with --activation none, sigmoid or softmax"));
}

// `max_seq_length` of sentence-transformers, else what the tokenizer says, which may be a number that stands for none.
absl::StatusOr<int64_t> MaxTokens(const SideFiles& files, int64_t of_model) {
  ASSIGN_OR_RETURN(const json settings, SentenceSettingsOf(files));
  ASSIGN_OR_RETURN(const int64_t context, MaxContextOf(files));
  int64_t most = context > 0 ? std::min(of_model, context) : of_model;
  const auto limit = [&](const json& object, const char* key) {
    const json number = object.is_object() ? object.value(key, json()) : json();
    if (!number.is_number()) return false;
    const auto tokens = number.get<double>();
    if (tokens >= 1 && tokens <= static_cast<double>(kMaxPositions)) {
      most = std::min(most, static_cast<int64_t>(tokens));
    }
    return true;
  };
  if (limit(settings, "max_seq_length") || !files.tokenizer_config.ok() || files.tokenizer_config->empty()) return most;
  ASSIGN_OR_RETURN(const json config, ParseJson(*files.tokenizer_config, files.NameOf("tokenizer_config.json")));
  limit(config, "model_max_length");
  return most;
}

// Whether the tokenizer gives types of tokens, which are all 0 otherwise, as transformers 5 has it: by
// `model_input_names`, else those of every class but the one that stands for no class of its own.
absl::StatusOr<bool> GivesTypes(const SideFiles& files) {
  if (!files.tokenizer_config.ok() || files.tokenizer_config->empty()) return true;
  ASSIGN_OR_RETURN(const json config, ParseJson(*files.tokenizer_config, files.NameOf("tokenizer_config.json")));
  if (!config.is_object()) return true;
  const json names = config.value("model_input_names", json());
  if (names.is_array()) return std::find(names.begin(), names.end(), "token_type_ids") != names.end();
  const json name = config.value("tokenizer_class", json());
  return name != "TokenizersBackend" && name != "PreTrainedTokenizerFast";
}

absl::StatusOr<std::vector<std::string>> LabelsOf(const SideFiles& files, size_t count) {
  ASSIGN_OR_RETURN(const json config, ConfigOf(files));
  const json names = config.value("id2label", json());
  std::vector<std::string> labels;
  for (size_t i = 0; i < count; ++i) {
    const json name = names.is_object() ? names.value(absl::StrCat(i), json()) : json();
    labels.push_back(name.is_string() ? name.get<std::string>() : absl::StrCat("LABEL_", i));
  }
  return labels;
}

// How many tokens of each of two texts are kept of `room`: the longer one loses tokens first ("longest_first").
std::pair<size_t, size_t> Kept(size_t first, size_t second, size_t room) {
  if (first + second <= room) return {first, second};
  const bool is_swapped = first > second;
  const size_t shorter = std::min(first, second);
  size_t a = shorter, b = std::max(shorter, room - std::min(room, shorter));
  if (a + b > room) {
    a = room / 2;
    b = room - a;
  }
  return is_swapped ? std::pair(b, a) : std::pair(a, b);
}

class Encoder {
 public:
  Encoder(const TextScoreOptions& options, size_t max_tokens, const Tokenizer& tokenizer)
      : options_(options), max_tokens_(max_tokens), tokenizer_(tokenizer) {}

  absl::Status Prepare() {
    if (options_.of_pairs) {
      ASSIGN_OR_RETURN(const TypedTokens specials, tokenizer_.Join({}, {}));
      special_count_ = specials.ids.size();
    } else {
      ASSIGN_OR_RETURN(specials_, FindSpecialTokens(tokenizer_));
      special_count_ = static_cast<size_t>(specials_.size());
    }
    if (special_count_ + (options_.of_pairs ? 2 : 1) <= max_tokens_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the model takes ", max_tokens_, " tokens, too few for a text with special tokens"));
  }

  absl::StatusOr<EncodedText> Encode(const ScoredText& text, const std::string& place) {
    const size_t room = max_tokens_ - special_count_;
    ASSIGN_OR_RETURN(const Ids first, EncodePlain(options_.prompt + text.first, tokenizer_, place));
    Ids second;
    if (options_.of_pairs) {
      ASSIGN_OR_RETURN(second, EncodePlain(text.second, tokenizer_, place));
    }
    const size_t size = first.size() + second.size();
    if (size > room && !options_.truncate) {
      return absl::InvalidArgumentError(absl::StrCat(place, ": has ", size + special_count_,
                                                     " tokens, the model takes ", max_tokens_,
                                                     "; leave out --no-truncate to cut it, or split it"));
    }
    truncated_ += size > room ? 1 : 0;
    if (!options_.of_pairs) return EncodedText{.ids = specials_.Around(first, room)};
    const auto [of_first, of_second] = Kept(first.size(), second.size(), room);
    ASSIGN_OR_RETURN(TypedTokens joined, tokenizer_.Join(absl::MakeConstSpan(first).subspan(0, of_first),
                                                         absl::MakeConstSpan(second).subspan(0, of_second)));
    return EncodedText{.ids = std::move(joined.ids), .types = std::move(joined.types)};
  }

  int64_t truncated() const { return truncated_; }

 private:
  const TextScoreOptions& options_;
  const size_t max_tokens_;
  const Tokenizer& tokenizer_;
  SpecialTokens specials_;
  size_t special_count_ = 0;
  int64_t truncated_ = 0;
};

}  // namespace

absl::StatusOr<ScoreActivation> ParseScoreActivation(const std::string& name) {
  for (const auto& [known, activation] : kActivations) {
    if (name == known) return activation;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' is none of none, sigmoid and softmax"));
}

const char* ScoreActivationName(ScoreActivation activation) {
  return absl::c_find_if(kActivations, [&](const auto& row) { return row.second == activation; })->first;
}

absl::StatusOr<ScoreActivation> ActivationOf(const SideFiles& files, bool of_pairs, size_t labels) {
  ASSIGN_OR_RETURN(const json config, ConfigOf(files));
  ASSIGN_OR_RETURN(const json settings, SentenceSettingsOf(files));
  const std::string file = files.NameOf("config.json");
  if (!of_pairs) {
    const json type = config.value("problem_type", json());
    if (type == "regression") return ScoreActivation::kNone;
    const bool is_apart = type == "multi_label_classification" || labels == 1;
    return is_apart ? ScoreActivation::kSigmoid : ScoreActivation::kSoftmax;
  }
  for (const auto& [object, key] :
       {std::pair(&settings, "activation_fn"), {&config, "sbert_ce_default_activation_function"}}) {
    const json name = object->value(key, json());
    if (name.is_string()) return OfTorch(name.get<std::string>(), file);
  }
  return labels == 1 ? ScoreActivation::kSigmoid : ScoreActivation::kNone;
}

absl::StatusOr<TextScores> ScoresOf(const std::vector<ScoredText>& texts, const SideFiles& files, const DimEnv& dims,
                                    const TextScoreOptions& options, LoadedPlan* model) {
  const absl::StatusOr<TextModel> text_model = FindTextModel(*model, dims, kScoreOutputs);
  if (absl::IsNotFound(text_model.status())) return NoScores(*model);
  if (!text_model.ok()) return text_model.status();
  RETURN_IF_ERROR(CheckTokenizer(*model));
  TextScores scores;
  ASSIGN_OR_RETURN(scores.max_tokens, MaxTokens(files, text_model->max_tokens));
  Encoder encoder(options, static_cast<size_t>(scores.max_tokens), *model->tokenizer());
  RETURN_IF_ERROR(encoder.Prepare());
  std::vector<EncodedText> encoded;
  ASSIGN_OR_RETURN(const bool gives_types, GivesTypes(files));
  for (const ScoredText& text : texts) {
    const std::string place = absl::StrCat("text ", encoded.size() + 1);
    ASSIGN_OR_RETURN(EncodedText ids, encoder.Encode(text, place));
    if (ids.ids.empty()) return absl::InvalidArgumentError(absl::StrCat(place, ": is empty, and has no token"));
    scores.tokens.push_back(static_cast<int64_t>(ids.ids.size()));
    if (!gives_types) ids.types.clear();
    encoded.push_back(std::move(ids));
  }
  scores.truncated = encoder.truncated();
  ASSIGN_OR_RETURN(scores.rows, RunTexts(encoded, *text_model, options.batching, model));
  ASSIGN_OR_RETURN(scores.labels, LabelsOf(files, static_cast<size_t>(scores.rows.size)));
  return scores;
}

void Activate(ScoreActivation activation, TextRows* rows) {
  if (activation == ScoreActivation::kSigmoid) {
    for (float& x : rows->values) x = 1 / (1 + std::exp(-x));
  }
  if (activation != ScoreActivation::kSoftmax) return;
  const auto size = static_cast<size_t>(rows->size);
  for (size_t begin = 0; begin < rows->values.size(); begin += size) {
    const absl::Span<float> row = absl::MakeSpan(rows->values).subspan(begin, size);
    const float largest = *std::max_element(row.begin(), row.end());
    float sum = 0;
    for (float& x : row) sum += x = std::exp(x - largest);
    for (float& x : row) x /= sum;
  }
}

}  // namespace llmc
