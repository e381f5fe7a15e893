#include "frontend/huggingface/embedding_modules.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "frontend/formats/json_file.h"
#include "frontend/huggingface/config_reader.h"
#include "frontend/huggingface/decoder_tower.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

constexpr char kModules[] = "modules.json";
constexpr size_t kMaxModules = 64;
// Its settings of tokens; the name depended on the model once.
constexpr const char* kTransformerConfigs[] = {"sentence_bert_config.json",        "sentence_roberta_config.json",
                                               "sentence_distilbert_config.json",  "sentence_camembert_config.json",
                                               "sentence_xlm-roberta_config.json", "sentence_albert_config.json",
                                               "sentence_xlnet_config.json"};

struct PoolName {
  absl::string_view mode;    // of version 6
  absl::string_view flag;    // of older ones
  absl::string_view choice;  // of users; empty: none
  TokenPool pool;
};
// In the order in which the vectors of several flags stand.
constexpr PoolName kPools[] = {
    {"cls", "pooling_mode_cls_token", "cls", TokenPool::kFirst},
    {"max", "pooling_mode_max_tokens", "max", TokenPool::kMax},
    {"mean", "pooling_mode_mean_tokens", "mean", TokenPool::kMean},
    {"mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", "", TokenPool::kMeanSqrt},
    {"weightedmean", "pooling_mode_weightedmean_tokens", "", TokenPool::kWeightedMean},
    {"lasttoken", "pooling_mode_lasttoken", "last", TokenPool::kLast},
};

// Activations of PyTorch by the last part of their names.
constexpr std::pair<absl::string_view, std::optional<Activation>> kTorchActivations[] = {{"Identity", std::nullopt},
                                                                                         {"Tanh", Activation::kTanh},
                                                                                         {"ReLU", Activation::kRelu},
                                                                                         {"GELU", Activation::kGelu},
                                                                                         {"SiLU", Activation::kSilu}};

std::string JoinFolder(const std::string& folder, const std::string& inside) {
  return inside.empty() ? folder : absl::StrCat(folder, "/", inside);
}

// An object in a file inside the folder; an empty one where there is no such file.
absl::StatusOr<json> ReadSettings(const std::string& folder, const std::string& name) {
  absl::StatusOr<json> read = ReadJsonFile(folder, name);
  if (absl::IsNotFound(read.status())) return json::object();
  if (read.ok() && !read->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(folder, "/", name, ": must be a JSON object"));
  }
  return read;
}

struct Module {
  std::string type;  // "sentence_transformers.models.Pooling"
  std::string path;

  absl::string_view kind() const { return absl::string_view(type).substr(type.rfind('.') + 1); }
};

// A path that leads out of the folder is refused without saying where it stands.
absl::Status CheckInside(const std::string& folder, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const absl::Status inside = ExistsInside(folder, absl::StrCat(path, "/config.json")).status();
  return inside.ok() ? inside
                     : absl::Status(inside.code(), absl::StrCat(folder, "/", kModules, ": ", inside.message()));
}

absl::StatusOr<std::vector<Module>> ReadModules(const std::string& folder, const json& list) {
  const std::string file = absl::StrCat(folder, "/", kModules);
  if (!list.is_array() || list.empty() || list.size() > kMaxModules) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": must be a list of 1 to ", kMaxModules, " modules, each with \"type\" and \"path\""));
  }
  std::vector<Module> modules;
  for (const json& item : list) {
    const auto text = [&](const char* key) {
      return item.is_object() && item.contains(key) && item[key].is_string() ? item[key].get<std::string>() : "";
    };
    Module module = {text("type"), text("path")};
    if (!absl::StartsWith(module.type, "sentence_transformers.")) {
      return absl::UnimplementedError(
          absl::StrCat(file, ": module ", modules.size(), " is of type ", Quoted(module.type),
                       ", which is none of sentence-transformers; code of models is not run"));
    }
    modules.push_back(std::move(module));
  }
  if (modules[0].kind() != "Transformer") {
    return absl::UnimplementedError(
        absl::StrCat(file, ": the first module is of type ", Quoted(modules[0].type), "; supported is a Transformer"));
  }
  RETURN_IF_ERROR(CheckInside(folder, modules[0].path));
  return modules;
}

// Tokens of a text: `max_seq_length`, else what the tokenizer says, which may be a number that stands for none.
absl::Status ReadMaxTokens(const std::string& folder, ConfigReader& config, EmbeddingSpec* spec) {
  spec->max_tokens = config.Int("max_seq_length", 0, 1, kMaxPositions);
  if (spec->max_tokens > 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const json tokenizer, ReadSettings(folder, "tokenizer_config.json"));
  const auto length = tokenizer.find("model_max_length");
  if (length == tokenizer.end() || !length->is_number()) return absl::OkStatus();
  const double tokens = length->get<double>();
  if (tokens >= 1 && tokens <= static_cast<double>(kMaxPositions)) spec->max_tokens = static_cast<int64_t>(tokens);
  return absl::OkStatus();
}

absl::Status ReadTransformer(const std::string& folder, EmbeddingSpec* spec) {
  json settings = json::object();
  std::string file;
  for (const char* name : kTransformerConfigs) {
    if (!settings.empty()) break;
    ASSIGN_OR_RETURN(settings, ReadSettings(folder, name));
    file = absl::StrCat(folder, "/", name);
  }
  ConfigReader config(&settings, file);
  config.Choice("transformer_task", "feature-extraction", {"feature-extraction"});
  config.Choice("module_output_name", "token_embeddings", {"token_embeddings"});
  if (const json* modalities = config.Find("modality_config")) {
    const json text = modalities->is_object() ? modalities->value("text", json()) : json();
    if (!text.is_object() || text.value("method", json()) != "forward" ||
        text.value("method_output_name", json()) != "last_hidden_state") {
      config.Refuse(
          "modality_config: supported is \"text\" with the method \"forward\" and its output "
          "\"last_hidden_state\"");
    }
  }
  RETURN_IF_ERROR(ReadMaxTokens(folder, config, spec));
  return config.Finish();
}

void ReadModes(ConfigReader& config, EmbeddingSpec* spec) {
  const json* modes = config.Find("pooling_mode");
  if (modes == nullptr) {
    for (const PoolName& name : kPools) {
      if (config.Flag(std::string(name.flag), false)) spec->pools.push_back(name.pool);
    }
    if (spec->pools.empty()) spec->pools.push_back(TokenPool::kMean);
    return;
  }
  const json list = modes->is_array() ? *modes : json::array({*modes});
  for (const json& mode : list) {
    const auto known = std::find_if(std::begin(kPools), std::end(kPools),
                                    [&](const PoolName& name) { return mode == std::string(name.mode); });
    if (known == std::end(kPools)) {
      config.Refuse(absl::StrCat(
          "pooling_mode ", Quoted(mode.is_string() ? mode.get<std::string>() : mode.dump()),
          " is not supported; supported: ", absl::StrJoin(kPools, ", ", [](std::string* out, const PoolName& name) {
            absl::StrAppend(out, name.mode);
          })));
      return;
    }
    spec->pools.push_back(known->pool);
  }
  if (spec->pools.empty() || spec->pools.size() > std::size(kPools)) {
    config.Wrong("pooling_mode", absl::StrCat("the name of a mode, or 1 to ", std::size(kPools), " of them"));
  }
}

absl::Status ReadPooling(ConfigReader& config, EmbeddingSpec* spec) {
  ReadModes(config, spec);
  spec->pooled_size = config.Int("embedding_dimension", config.Int("word_embedding_dimension", 0));
  spec->include_prompt = config.Flag("include_prompt", true);
  return config.Finish();
}

// That a module reads and writes the vector of the text, not those of tokens.
void NeedsVectors(ConfigReader& config) {
  for (const char* key : {"module_input_name", "module_output_name"}) {
    config.Choice(key, "sentence_embedding", {"sentence_embedding"});
  }
}

absl::Status ReadDense(const std::string& path, ConfigReader& config, EmbeddingSpec* spec) {
  NeedsVectors(config);
  DenseStep step{.linear = {absl::StrCat(path, "/linear"), config.Flag("bias", true)}};
  step.in = config.Int("in_features", 0);
  step.out = config.Int("out_features", 0);
  if (step.in == 0 || step.out == 0) config.Contradicts("in_features and out_features are needed");
  if (config.Flag("use_residual", false)) config.Refuse("use_residual true is not supported");
  const std::string name = config.Text("activation_function", "torch.nn.modules.activation.Tanh");
  const absl::string_view last = absl::string_view(name).substr(name.rfind('.') + 1);
  const auto known = std::find_if(std::begin(kTorchActivations), std::end(kTorchActivations),
                                  [&](const auto& row) { return row.first == last; });
  if (!absl::StartsWith(name, "torch.nn.") || known == std::end(kTorchActivations)) {
    config.Refuse(absl::StrCat("activation_function ", Quoted(name), " is not supported; supported of torch.nn: ",
                               absl::StrJoin(kTorchActivations, ", ", [](std::string* out, const auto& row) {
                                 absl::StrAppend(out, row.first);
                               })));
  } else {
    step.activation = known->second;
  }
  spec->steps.emplace_back(std::move(step));
  return config.Finish();
}

absl::Status ReadModule(const std::string& folder, const Module& module, EmbeddingSpec* spec) {
  const auto refuse = [&](absl::string_view why) {
    return absl::UnimplementedError(absl::StrCat(folder, "/", kModules, ": ", Quoted(module.type), " ", why));
  };
  json settings = json::object();
  std::string file = absl::StrCat(folder, "/", kModules);
  if (!module.path.empty()) {
    const std::string name = absl::StrCat(module.path, "/config.json");
    RETURN_IF_ERROR(CheckInside(folder, module.path));
    ASSIGN_OR_RETURN(settings, ReadSettings(folder, name));
    file = absl::StrCat(folder, "/", name);
  }
  ConfigReader config(&settings, file);
  if (module.kind() == "Pooling") {
    if (!spec->pools.empty()) return refuse("is there twice");
    return ReadPooling(config, spec);
  }
  if (module.kind() == "Dropout") return absl::OkStatus();  // of training
  const bool is_known = module.kind() == "Dense" || module.kind() == "Normalize";
  if (!is_known) return refuse("is not supported; supported are Transformer, Pooling, Dense, Normalize and Dropout");
  if (spec->pools.empty()) return refuse("stands before a Pooling, which is not supported");
  if (module.kind() == "Dense") return ReadDense(module.path, config, spec);
  NeedsVectors(config);
  spec->steps.emplace_back(UnitStep{});
  return config.Finish();
}

absl::StatusOr<std::optional<EmbeddingSpec>> Chosen(const std::string& transformer, const PoolingChoice& choice) {
  if (choice.pool.empty()) return std::nullopt;
  EmbeddingSpec spec;
  for (const PoolName& name : kPools) {
    if (name.choice == choice.pool) spec.pools.push_back(name.pool);
  }
  if (spec.pools.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no pooling ", Quoted(choice.pool)));
  }
  if (choice.normalize) spec.steps.emplace_back(UnitStep{});
  const json none = json::object();
  ConfigReader config(&none, "");
  RETURN_IF_ERROR(ReadMaxTokens(transformer, config, &spec));
  return spec;
}

}  // namespace

absl::StatusOr<std::string> TransformerPath(const std::string& folder) {
  const absl::StatusOr<json> list = ReadJsonFile(folder, kModules);
  if (absl::IsNotFound(list.status())) return "";
  if (!list.ok()) return list.status();
  ASSIGN_OR_RETURN(const std::vector<Module> modules, ReadModules(folder, *list));
  return modules[0].path;
}

absl::StatusOr<std::optional<EmbeddingSpec>> ReadEmbedding(const std::string& folder, const PoolingChoice& choice) {
  const absl::StatusOr<json> list = ReadJsonFile(folder, kModules);
  if (absl::IsNotFound(list.status())) return Chosen(folder, choice);
  if (!list.ok()) return list.status();
  ASSIGN_OR_RETURN(const std::vector<Module> modules, ReadModules(folder, *list));
  const std::string transformer = JoinFolder(folder, modules[0].path);
  if (modules.size() == 1) return Chosen(transformer, choice);
  if (!choice.pool.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, "/", kModules, ": says how texts become vectors; leave out --pool"));
  }
  EmbeddingSpec spec;
  RETURN_IF_ERROR(ReadTransformer(transformer, &spec));
  for (size_t i = 1; i < modules.size(); ++i) RETURN_IF_ERROR(ReadModule(folder, modules[i], &spec));
  if (spec.pools.empty()) {
    return absl::UnimplementedError(
        absl::StrCat(folder, "/", kModules, ": has no Pooling; vectors of tokens are not supported"));
  }
  return spec;
}

absl::Status SetEmbedding(EmbeddingSpec embedding, const std::string& folder, ModelSpec* spec) {
  if (auto* decoder = std::get_if<DecoderSpec>(spec)) {
    ASSIGN_OR_RETURN(EncoderSpec tower, TowerOfDecoder(std::move(*decoder), folder + "/config.json"));
    *spec = std::move(tower);
  }
  auto* encoder = std::get_if<EncoderSpec>(spec);
  if (encoder == nullptr || !encoder->text.has_value() || encoder->image.has_value() ||
      !std::holds_alternative<TextInput>(encoder->text->input)) {
    return absl::UnimplementedError(
        absl::StrCat(folder, "/config.json: vectors of texts are supported for models of text alone"));
  }
  const int64_t hidden = encoder->text->hidden_size;
  if (embedding.pooled_size != 0 && embedding.pooled_size != hidden) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": the Pooling takes vectors of ", embedding.pooled_size,
                                                   " numbers, those of config.json have ", hidden));
  }
  int64_t size = hidden * static_cast<int64_t>(embedding.pools.size());
  for (const auto& step : embedding.steps) {
    const auto* dense = std::get_if<DenseStep>(&step);
    if (dense == nullptr) continue;
    if (dense->in != size) {
      return absl::InvalidArgumentError(absl::StrCat(folder, ": ", dense->linear.module, " takes ", dense->in,
                                                     " numbers, the module before it gives ", size));
    }
    size = dense->out;
  }
  auto& input = std::get<TextInput>(encoder->text->input);
  if (embedding.max_tokens > 0) input.max_positions = std::min(input.max_positions, embedding.max_tokens);
  encoder->embedding = std::move(embedding);
  encoder->gives_hidden = encoder->pools_to_output = false;
  encoder->text_pool.reset();
  for (const std::string& prefix : {std::string(), encoder->prefix}) {
    encoder->unused.beginnings.emplace_back(prefix + "pooler.", "the vector is pooled otherwise");
  }
  return absl::OkStatus();
}

std::vector<std::string> ModuleFolders(const EmbeddingSpec& embedding) {
  std::vector<std::string> folders;
  for (const auto& step : embedding.steps) {
    const auto* dense = std::get_if<DenseStep>(&step);
    if (dense != nullptr) folders.push_back(dense->linear.module.substr(0, dense->linear.module.rfind('/')));
  }
  return folders;
}

}  // namespace llmc::hf
