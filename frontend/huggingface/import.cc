// Builds the graph of a Hugging Face decoder: embedding, layers of attention and gated MLP, norm, head.
#include "frontend/import.h"

#include <cmath>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "frontend/formats/json_file.h"
#include "frontend/formats/safetensors.h"
#include "frontend/huggingface/config.h"
#include "frontend/huggingface/weights.h"
#include "ir/ops.h"
#include "ir/state_type.h"
#include "ir/step_inputs.h"
#include "ir/verify.h"

namespace llmc {
namespace {

constexpr int64_t kMaxTokens = 8192;
constexpr int64_t kMaxSequences = 256;
constexpr int64_t kMaxLogits = 1024;  // rows of logits in a step: their memory grows with the vocabulary
constexpr int64_t kMaxPages = 1 << 20;

struct Linear {
  std::string module;
  Value* weight = nullptr;
  Value* bias = nullptr;  // may be absent
};

struct Norm {
  std::string module;
  Value* weight = nullptr;
};

struct Layer {
  Norm attention_norm, q_norm, k_norm, mlp_norm;
  Linear q, k, v, o, gate, up, down;
};

struct Weights {
  std::string embed_module, head_module;
  Value* embed = nullptr;
  std::vector<Layer> layers;
  Norm norm;
  Value* head = nullptr;
};

class WeightReader {
 public:
  WeightReader(const HfConfig& config, HfWeights* weights) : config_(config), weights_(weights) {}

  Weights Read() {
    const HfModules& names = config_.architecture->modules;
    Weights w{.embed_module = std::string(names.embed), .head_module = std::string(names.lm_head)};
    const Shape table = {config_.vocab_size, config_.hidden_size};
    w.embed = weights_->Add("@embed", absl::StrCat(names.embed, ".weight"), table);
    for (int64_t i = 0; i < config_.layers; ++i) w.layers.push_back(ReadLayer(i));
    w.norm = ReadNorm("@norm", std::string(names.norm), config_.hidden_size);
    const std::string head = absl::StrCat(names.lm_head, ".weight");
    w.head = w.embed;
    if (!config_.tie_word_embeddings) {
      w.head = weights_->Add("@lm_head", head, table);
    } else if (weights_->SameContents(head, absl::StrCat(names.embed, ".weight"))) {
      weights_->Ignore(head, "the same as the embedding, to which it is tied");
    } else {
      weights_->Refuse(head,
                       "differs from the embedding, but tie_word_embeddings is true; set it to false to use both");
    }
    return w;
  }

 private:
  Linear ReadLinear(const std::string& layer, absl::string_view name, const std::string& module, int64_t out,
                    int64_t in, bool bias) {
    Linear linear{.module = module};
    linear.weight = weights_->Add(absl::StrCat(layer, "w", name), absl::StrCat(module, ".weight"), {out, in});
    if (bias) linear.bias = weights_->Add(absl::StrCat(layer, "b", name), absl::StrCat(module, ".bias"), {out});
    return linear;
  }

  Norm ReadNorm(const std::string& name, const std::string& module, int64_t size) {
    return {.module = module, .weight = weights_->Add(name, absl::StrCat(module, ".weight"), {size}, /*mean=*/1)};
  }

  Layer ReadLayer(int64_t index) {
    const HfConfig& c = config_;
    const HfModules& names = c.architecture->modules;
    const std::string l = absl::StrCat("@l", index, ".");
    const std::string m = absl::StrCat(names.layers, index, ".");
    weights_->Ignore(m + "self_attn.rotary_emb.inv_freq", "a buffer that config.json's rope parameters give");
    const int64_t q_size = c.heads * c.head_dim, kv_size = c.kv_heads * c.head_dim;
    Layer layer;
    layer.attention_norm = ReadNorm(l + "norm1", absl::StrCat(m, names.attention_norm), c.hidden_size);
    layer.q = ReadLinear(l, "q", absl::StrCat(m, names.q), q_size, c.hidden_size, c.qkv_bias);
    layer.k = ReadLinear(l, "k", absl::StrCat(m, names.k), kv_size, c.hidden_size, c.qkv_bias);
    layer.v = ReadLinear(l, "v", absl::StrCat(m, names.v), kv_size, c.hidden_size, c.qkv_bias);
    if (c.architecture->qk_norm) {
      layer.q_norm = ReadNorm(l + "q_norm", absl::StrCat(m, names.q_norm), c.head_dim);
      layer.k_norm = ReadNorm(l + "k_norm", absl::StrCat(m, names.k_norm), c.head_dim);
    }
    layer.o = ReadLinear(l, "o", absl::StrCat(m, names.o), c.hidden_size, q_size, c.o_bias);
    layer.mlp_norm = ReadNorm(l + "norm2", absl::StrCat(m, names.mlp_norm), c.hidden_size);
    layer.gate = ReadLinear(l, "gate", absl::StrCat(m, names.gate), c.intermediate_size, c.hidden_size, c.mlp_bias);
    layer.up = ReadLinear(l, "up", absl::StrCat(m, names.up), c.intermediate_size, c.hidden_size, c.mlp_bias);
    layer.down = ReadLinear(l, "down", absl::StrCat(m, names.down), c.hidden_size, c.intermediate_size, c.mlp_bias);
    return layer;
  }

  const HfConfig& config_;
  HfWeights* weights_;
};

class GraphBuilder {
 public:
  GraphBuilder(const HfConfig& config, Model* model, Step* step)
      : config_(config), model_(model), step_(step), b_(model, &step->block) {}

  absl::Status Build(const Weights& weights) {
    dtype_ = weights.embed->type.dtype;
    AddInputs();
    b_.set_loc("model.rotary_emb");
    const RopeTable rope = MakeRopeTable(config_.rope, config_.head_dim);
    const Shape table_shape = {static_cast<int64_t>(rope.inv_freq.size())};
    inv_freq_ = b_.Add(Constant{.value = Tensor::FromValues(DType::kF32, table_shape, rope.inv_freq)}, "%inv_freq");
    rope_scale_ = rope.scale;
    b_.set_loc(weights.embed_module);
    Value* x = b_.Add(Gather{.x = weights.embed, .indices = inputs_.at(StepRole::kTokenIds)}, "%x0");
    for (int64_t i = 0; i < config_.layers; ++i) x = AddLayer(weights.layers[i], i, x);
    AddHead(weights, x);
    return b_.status();
  }

 private:
  void AddInputs() {
    const int64_t max_pages = (config_.rope.max_context + kDefaultPageSize - 1) / kDefaultPageSize;
    model_->dims = {{"T", kMaxTokens}, {"S", kMaxSequences}, {"R", kMaxLogits}, {"P", max_pages}, {"N", kMaxPages}};
    inputs_ = AddPagedInputs(model_, step_);
    const TensorType head = {dtype_, {Dim(config_.kv_heads), Dim(config_.head_dim)}};
    for (int64_t i = 0; i < config_.layers; ++i) {
      kv_.push_back(model_->AddState(absl::StrCat("@kv", i),
                                     StateType::Paged(Dim::Symbol("N"), kDefaultPageSize, {{"k", head}, {"v", head}})));
    }
  }

  // A weight that is stored in another type than the activations' is converted where it is used.
  Value* Use(Value* weight) {
    if (weight == nullptr || weight->type.dtype == dtype_) return weight;
    return b_.Add(Cast{.x = weight, .to = dtype_}, absl::StrCat("%", weight->name.substr(1), ".cast"));
  }

  Value* AddLinear(const Linear& linear, Value* x, const std::string& name) {
    b_.set_loc(linear.module);
    Value* weight = Use(linear.weight);
    Value* product = b_.Add(llmc::Linear{.lhs = x, .rhs = weight, .transpose_rhs = true},
                            linear.bias == nullptr ? name : absl::StrCat(name, ".mm"));
    if (linear.bias == nullptr) return product;
    return b_.Add(Add{.lhs = product, .rhs = Use(linear.bias)}, name);
  }

  Value* AddNorm(const Norm& norm, Value* x, const std::string& name) {
    b_.set_loc(norm.module);
    Value* weight = Use(norm.weight);
    return b_.Add(RmsNorm{.x = x, .weight = weight, .eps = config_.rms_norm_eps}, name);
  }

  // The RMS norm of each head of x[T, heads * head_dim].
  Value* AddHeadNorm(const Norm& norm, Value* x, int64_t heads, const std::string& name) {
    if (norm.weight == nullptr) return x;
    b_.set_loc(norm.module);
    const Dim t = Dim::Symbol("T");
    Value* split = b_.Add(Reshape{.x = x, .shape = {t, Dim(heads), Dim(config_.head_dim)}}, name + ".split");
    Value* normed = AddNorm(norm, split, name + ".norm");
    return b_.Add(Reshape{.x = normed, .shape = {t, Dim(heads * config_.head_dim)}}, name);
  }

  Value* AddRope(Value* x, const std::string& name) {
    return b_.Add(Rope{.x = x,
                       .pos = inputs_.at(StepRole::kPositions),
                       .inv_freq = inv_freq_,
                       .head_dim = config_.head_dim,
                       .scale = rope_scale_},
                  name);
  }

  Value* AddAttention(const Layer& layer, int64_t index, Value* x) {
    const std::string i = absl::StrCat(index);
    Value* q = AddLinear(layer.q, x, "%q" + i);
    Value* k = AddLinear(layer.k, x, "%k" + i);
    Value* v = AddLinear(layer.v, x, "%v" + i);
    q = AddHeadNorm(layer.q_norm, q, config_.heads, "%qn" + i);
    k = AddHeadNorm(layer.k_norm, k, config_.kv_heads, "%kn" + i);
    b_.set_loc(absl::StrCat(config_.architecture->modules.layers, index, ".self_attn"));
    q = AddRope(q, "%qr" + i);
    k = AddRope(k, "%kr" + i);
    b_.AddNode(KvWrite{.kv = kv_[index], .k = k, .v = v, .slots = inputs_.at(StepRole::kSlots)});
    Value* attended = b_.Add(PagedAttention{.q = q,
                                            .kv = kv_[index],
                                            .pages = inputs_.at(StepRole::kPageTable),
                                            .lens = inputs_.at(StepRole::kLengths),
                                            .starts = inputs_.at(StepRole::kStarts),
                                            .scale = 1 / std::sqrt(static_cast<double>(config_.head_dim)),
                                            .window = config_.windows[index]},
                             "%a" + i);
    return AddLinear(layer.o, attended, "%o" + i);
  }

  Value* AddMlp(const Layer& layer, int64_t index, Value* x) {
    const std::string i = absl::StrCat(index);
    Value* gate = AddLinear(layer.gate, x, "%g" + i);
    Value* up = AddLinear(layer.up, x, "%u" + i);
    b_.set_loc(absl::StrCat(config_.architecture->modules.layers, index, ".mlp"));
    Value* silu = b_.Add(Silu{.x = gate}, "%s" + i);
    Value* product = b_.Add(Mul{.lhs = silu, .rhs = up}, "%m" + i);
    return AddLinear(layer.down, product, "%d" + i);
  }

  Value* AddLayer(const Layer& layer, int64_t index, Value* x) {
    const std::string module = absl::StrCat(config_.architecture->modules.layers, index);
    Value* attended = AddAttention(layer, index, AddNorm(layer.attention_norm, x, absl::StrCat("%n", index, "a")));
    b_.set_loc(module);
    x = b_.Add(Add{.lhs = x, .rhs = attended}, absl::StrCat("%h", index));
    Value* out = AddMlp(layer, index, AddNorm(layer.mlp_norm, x, absl::StrCat("%n", index, "b")));
    b_.set_loc(module);
    return b_.Add(Add{.lhs = x, .rhs = out}, absl::StrCat("%x", index + 1));
  }

  void AddHead(const Weights& weights, Value* x) {
    b_.set_loc(weights.norm.module);
    Value* rows = b_.Add(Gather{.x = x, .indices = inputs_.at(StepRole::kRows)}, "%last");
    Value* normed = AddNorm(weights.norm, rows, "%n");
    b_.set_loc(weights.head_module);
    Value* head = Use(weights.head);
    const bool cast = dtype_ != DType::kF32;
    Value* logits =
        b_.Add(llmc::Linear{.lhs = normed, .rhs = head, .transpose_rhs = true}, cast ? "%logits.mm" : "%logits");
    if (cast) logits = b_.Add(Cast{.x = logits, .to = DType::kF32}, "%logits");
    step_->outputs.push_back({"logits", logits});
  }

  const HfConfig& config_;
  Model* model_;
  Step* step_;
  Builder b_;
  DType dtype_ = DType::kF32;
  double rope_scale_ = 1;
  std::map<StepRole, Value*> inputs_;
  Value* inv_freq_ = nullptr;
  std::vector<Value*> kv_;
};

absl::Status NoConfig(const std::string& folder) {
  std::string hint;
  if (ExistsInside(folder, "adapter_config.json").value_or(false)) {
    hint = "; it holds an adapter (adapter_config.json): merge that into its base model first";
  }
  if (const std::vector<std::string> onnx = FilesEndingIn(folder, ".onnx"); !onnx.empty()) {
    absl::StrAppend(&hint, "; for its ONNX model give the file itself: ", folder, "/", onnx[0]);
  }
  return absl::NotFoundError(absl::StrCat(folder, ": not a Hugging Face model folder: no config.json", hint));
}

absl::StatusOr<HfConfig> ReadConfig(const std::string& folder) {
  absl::StatusOr<nlohmann::json> json = ReadJsonFile(folder, "config.json");
  if (absl::IsNotFound(json.status())) return NoConfig(folder);
  if (!json.ok()) return json.status();
  return ParseHfConfig(*json, absl::StrCat(folder, "/config.json"));
}

absl::StatusOr<std::unique_ptr<Model>> BuildModel(const std::string& folder, const HfConfig& config,
                                                  std::unique_ptr<Model> model, HfWeights* account,
                                                  std::vector<IgnoredTensor>* ignored) {
  model->name = std::string(config.architecture->model);
  const Weights weights = WeightReader(config, account).Read();
  if (absl::Status s = account->Finish(ignored); !s.ok()) return s;
  model->steps.push_back(std::make_unique<Step>());
  GraphBuilder builder(config, model.get(), model->steps.back().get());
  if (absl::Status s = builder.Build(weights); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat(folder, ": ", s.message()));
  }
  if (absl::Status s = Verify(*model, Phase::kImported); !s.ok()) return s;
  return model;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> ImportHuggingFace(const std::string& folder,
                                                         std::vector<IgnoredTensor>* ignored) {
  ASSIGN_OR_RETURN(HfConfig config, ReadConfig(folder));
  ASSIGN_OR_RETURN(Checkpoint checkpoint, ReadCheckpoint(folder));
  auto model = std::make_unique<Model>();
  HfWeights account(folder, &checkpoint, model.get());
  return BuildModel(folder, config, std::move(model), &account, ignored);
}

absl::StatusOr<std::unique_ptr<Model>> ImportHuggingFaceConfig(const std::string& folder, const RandomWeights& random) {
  ASSIGN_OR_RETURN(HfConfig config, ReadConfig(folder));
  auto model = std::make_unique<Model>();
  HfWeights account(random.seed, random.dtype.value_or(config.dtype), model.get());
  return BuildModel(folder, config, std::move(model), &account, nullptr);
}

}  // namespace llmc
