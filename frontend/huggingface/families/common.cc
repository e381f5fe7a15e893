// What several families share.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "files/path_check.h"
#include "frontend/huggingface/family.h"
#include "frontend/huggingface/quantized/scheme.h"
#include "frontend/huggingface/unread_keys.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

// Names of activations in transformers (activations.py).
constexpr std::pair<absl::string_view, Activation> kActivations[] = {
    {"silu", Activation::kSilu},
    {"swish", Activation::kSilu},
    {"gelu", Activation::kGelu},
    {"gelu_python", Activation::kGelu},
    {"gelu_new", Activation::kGeluTanh},
    {"gelu_fast", Activation::kGeluTanh},
    {"gelu_pytorch_tanh", Activation::kGeluTanh},
    {"gelu_accurate", Activation::kGeluTanh},
    {"quick_gelu", Activation::kQuickGelu},
    {"relu", Activation::kRelu},
    {"relu2", Activation::kRelu2},
    {"tanh", Activation::kTanh},
};

// `dtype` (transformers 5) or `torch_dtype`. What it does not know is ignored, as in transformers.
DType ReadDType(const ConfigReader& config) {
  const std::pair<absl::string_view, DType> known[] = {{"float16", DType::kF16}, {"bfloat16", DType::kBF16}};
  for (const char* key : {"dtype", "torch_dtype"}) {
    const json* value = config.Find(key);
    for (const auto& [name, dtype] : known) {
      if (value != nullptr && *value == std::string(name)) return dtype;
    }
  }
  return DType::kF32;
}

std::vector<EncoderFamily> Encoders() {
  std::vector<EncoderFamily> all;
  for (const absl::Span<const EncoderFamily> some : {TextEncoders(), ImageEncoders()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

absl::StatusOr<std::string> ReadArchitecture(const ConfigReader& config) {
  const json* list = config.Find("architectures");
  if (list == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        config.file(), ": there is no \"architectures\"; it must be a list of one of ", KnownArchitectures()));
  }
  if (!list->is_array() || list->size() != 1 || !(*list)[0].is_string()) {
    return config.fields().Wrong("architectures", "a list of one string");
  }
  return (*list)[0].get<std::string>();
}

// Classes of encoders that the families know, behind their stems.
constexpr absl::string_view kTasks[] = {"Model", "For", "TextModel", "VisionModel"};

bool IsOf(const EncoderFamily& family, absl::string_view architecture) {
  absl::string_view rest = architecture;
  if (!absl::ConsumePrefix(&rest, family.stem)) return false;
  return std::any_of(std::begin(kTasks), std::end(kTasks),
                     [&](absl::string_view task) { return absl::StartsWith(rest, task); });
}

// Whether it is the class of the decoder without its head, "MistralModel" or "Gemma3TextModel".
bool IsBaseOf(const Family& family, absl::string_view architecture) {
  absl::string_view stem = family.architecture;
  return absl::ConsumeSuffix(&stem, "ForCausalLM") && absl::ConsumePrefix(&architecture, stem) &&
         (architecture == "Model" || architecture == "TextModel");
}

}  // namespace

std::vector<Family> DecoderFamilies() {
  std::vector<Family> all;
  for (const absl::Span<const Family> some :
       {LlamaFamilies(), NormFamilies(), GptFamilies(), NeoxFamilies(), ExpertFamilies()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::string KnownArchitectures() {
  std::vector<std::string> names;
  for (const Family& family : DecoderFamilies()) names.emplace_back(family.architecture);
  for (const EncoderFamily& family : Encoders()) names.push_back(absl::StrCat(family.stem, "Model"));
  return absl::StrJoin(names, ", ");
}

absl::StatusOr<ModelSpec> ReadModel(const json& config, const std::string& file, EncoderClass encoder_class,
                                    std::vector<std::string>* unread) {
  if (!config.is_object()) return absl::InvalidArgumentError(absl::StrCat(file, ": must be a JSON object"));
  ConfigReader reader(&config, file);
  const absl::StatusOr<std::string> architecture = ReadArchitecture(reader);
  if (!architecture.ok()) return architecture.status();
  std::optional<ModelSpec> spec;
  const auto finish = [&](auto read, absl::string_view model) {
    read.model = std::string(model);
    read.dtype = ReadDType(reader);
    spec = std::move(read);
  };
  const bool is_base = encoder_class == EncoderClass::kBase;
  for (const Family& family : DecoderFamilies()) {
    const bool is_it = family.architecture == *architecture || (is_base && IsBaseOf(family, *architecture));
    if (is_it) finish(family.read(reader), family.model);
  }
  for (const EncoderFamily& family : Encoders()) {
    if (!IsOf(family, *architecture)) continue;
    finish(family.read(reader, is_base ? absl::StrCat(family.stem, "Model") : *architecture), family.model);
  }
  if (!spec.has_value()) {
    return absl::UnimplementedError(absl::StrCat(file, ": architecture ", Quoted(*architecture),
                                                 " is not supported; supported are ", KnownArchitectures(),
                                                 "; others may be imported through ONNX"));
  }
  std::visit([&](auto& read) { read.quantized = ReadQuantization(reader); }, *spec);
  if (unread != nullptr) {
    *unread = CheckUnread(*architecture, std::holds_alternative<DecoderSpec>(*spec), &reader);
  }
  if (absl::Status s = reader.Finish(); !s.ok()) return s;
  return *std::move(spec);
}

NormSpec LayerNormOf(const std::string& module, double eps, bool bias) {
  return {.module = module, .kind = NormKind::kLayer, .eps = eps, .bias = bias};
}

int64_t Labels(ConfigReader& config) {
  const json* labels = config.Find("id2label");
  if (labels != nullptr && labels->is_object() && !labels->empty()) return static_cast<int64_t>(labels->size());
  return config.Int("num_labels", 2, 1, kMaxSize);
}

Activation ReadActivation(ConfigReader& config, const std::string& key, absl::string_view absent) {
  const std::string name = config.Text(key, absent);
  for (const auto& [known, activation] : kActivations) {
    if (known == name) return activation;
  }
  config.Refuse(absl::StrCat(
      key, " ", Quoted(name), " is not supported; supported: ",
      absl::StrJoin(kActivations, ", ", [](std::string* out, const auto& row) { absl::StrAppend(out, row.first); })));
  return Activation::kSilu;
}

int64_t RotatedDims(int64_t head_dim, double partial) {
  return static_cast<int64_t>(static_cast<double>(head_dim) * partial);
}

RopeSpec ReadRope(ConfigReader& config, int64_t max_positions, int64_t head_dim, const HfRopeDefaults& defaults) {
  absl::StatusOr<HfRope> rope = ParseHfRope(config.fields(), max_positions, defaults);
  config.Keep(rope.status());
  RopeSpec spec;
  if (!rope.ok()) return spec;
  spec.parameters = *std::move(rope);
  spec.dims = RotatedDims(head_dim, spec.parameters.partial);
  if (spec.dims < 2 || spec.dims % 2 != 0) {
    config.Contradicts(absl::StrCat("head_dim ", head_dim, " with partial_rotary_factor ", spec.parameters.partial,
                                    " rotates ", spec.dims, " elements; it must be an even number of at least 2"));
  }
  for (const auto* factors : {&spec.parameters.short_factors, &spec.parameters.long_factors}) {
    if (factors->empty() || static_cast<int64_t>(factors->size()) == spec.dims / 2) continue;
    config.Contradicts(absl::StrCat("rope parameters: short_factor and long_factor have ", factors->size(),
                                    " numbers; head_dim ", head_dim, " needs ", spec.dims / 2));
  }
  return spec;
}

void CheckHeads(ConfigReader& config, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  if (heads % kv_heads != 0) {
    config.Contradicts(
        absl::StrCat("num_attention_heads ", heads, " is no multiple of num_key_value_heads ", kv_heads));
  }
  if (head_dim * heads > kMaxSize) config.Contradicts("num_attention_heads * head_dim is too large");
}

void NeedsWholeRope(ConfigReader& config, const DecoderSpec& spec) {
  for (const RopeSpec& rope : spec.ropes) {
    if (rope.parameters.partial == 1) continue;
    config.Refuse(
        absl::StrCat("partial_rotary_factor ", rope.parameters.partial, " is not supported for this architecture"));
  }
}

namespace {

std::vector<int64_t> MlpSizes(ConfigReader& c, const Defaults& d, int64_t layers) {
  const std::string key = "intermediate_size";
  const json* value = c.Find(key);
  if (d.sizes_by_layer && value != nullptr && value->is_array()) {
    const std::vector<int64_t> sizes = c.Ints(key).value_or(std::vector<int64_t>());
    const auto fits = [](int64_t size) { return size >= 1 && size <= kMaxSize; };
    if (static_cast<int64_t>(sizes.size()) == layers && std::all_of(sizes.begin(), sizes.end(), fits)) return sizes;
    c.Wrong(key, absl::StrCat("a list of ", layers, " integers from 1 to ", kMaxSize, ", one for each layer"));
    return std::vector<int64_t>(static_cast<size_t>(layers), 1);
  }
  return std::vector<int64_t>(static_cast<size_t>(layers), c.Int(key, d.intermediate_size));
}

}  // namespace

LayerSpec PlainLayer(const std::string& m, AttentionSpec attention, MlpSpec mlp, double eps) {
  attention.q = {m + ".self_attn.q_proj"};
  attention.k = {m + ".self_attn.k_proj"};
  attention.v = {m + ".self_attn.v_proj"};
  attention.o = {m + ".self_attn.o_proj"};
  mlp.gate = LinearSpec{m + ".mlp.gate_proj"};
  mlp.up = {m + ".mlp.up_proj"};
  mlp.down = {m + ".mlp.down_proj"};
  return {.module = m,
          .attention = std::move(attention),
          .mlp = std::move(mlp),
          .attention_norm = NormSpec{.module = m + ".input_layernorm", .eps = eps},
          .mlp_norm = NormSpec{.module = m + ".post_attention_layernorm", .eps = eps}};
}

DecoderSpec ReadCommon(ConfigReader& c, const Defaults& d) {
  DecoderSpec spec;
  spec.vocab_size = c.Int("vocab_size", d.vocab_size, 1, kMaxVocab);
  spec.hidden_size = c.Int("hidden_size", d.hidden_size);
  const int64_t layers = c.Int("num_hidden_layers", d.layers, 1, kMaxLayers);
  const std::vector<int64_t> sizes = MlpSizes(c, d, layers);
  const int64_t max_positions = c.Int("max_position_embeddings", d.max_positions, 1, kMaxPositions);
  AttentionSpec attention;
  attention.heads = c.Int("num_attention_heads", d.heads);
  // A key that is null means "as many as heads"; one that is absent, the class's default.
  const bool as_heads = d.kv_heads == 0 || c.IsNull("num_key_value_heads");
  attention.kv_heads = c.Int("num_key_value_heads", as_heads ? attention.heads : d.kv_heads);
  const bool derived = !c.Has("head_dim") && (d.head_dim == 0 || c.IsNull("head_dim"));
  if (derived && spec.hidden_size % attention.heads != 0) {
    c.Contradicts(absl::StrCat("hidden_size ", spec.hidden_size, " is no multiple of num_attention_heads ",
                               attention.heads, " and there is no head_dim"));
  }
  attention.head_dim =
      c.Int("head_dim", derived ? std::max<int64_t>(spec.hidden_size / attention.heads, 1) : d.head_dim, 1, 4096);
  CheckHeads(c, attention.heads, attention.kv_heads, attention.head_dim);
  if (attention.head_dim % 2 != 0) c.Contradicts(absl::StrCat("head_dim ", attention.head_dim, " is odd"));
  const double eps = c.Number(std::string(d.eps_key), d.eps, 0, 1);
  const Activation activation = ReadActivation(c, std::string(d.activation_key), d.activation);
  spec.is_tied = c.Flag("tie_word_embeddings", d.tied);
  spec.ropes = {ReadRope(c, max_positions, attention.head_dim, d.rope)};
  spec.max_context = std::max<int64_t>(spec.ropes[0].parameters.max_context, 1);
  attention.rope = 0;
  spec.norm = NormSpec{.module = "model.norm", .eps = eps};
  for (int64_t i = 0; i < layers; ++i) {
    spec.layers.push_back(PlainLayer(absl::StrCat("model.layers.", i), attention,
                                     {.size = sizes[static_cast<size_t>(i)], .activation = activation}, eps));
  }
  spec.unused.of_layers = {{".self_attn.rotary_emb.inv_freq", "a buffer that config.json's rope parameters give"}};
  return spec;
}

std::vector<bool> AllButEvery(size_t layers, int64_t period) {
  std::vector<bool> windowed;
  for (size_t i = 0; i < layers; ++i) windowed.push_back((static_cast<int64_t>(i) + 1) % period != 0);
  return windowed;
}

std::vector<bool> WindowedLayers(ConfigReader& config, size_t layers, const std::vector<bool>& otherwise,
                                 absl::string_view type) {
  const auto types = config.Texts("layer_types", static_cast<int64_t>(layers));
  if (!types.has_value()) return otherwise;
  std::vector<bool> windowed;
  for (const std::string& own : *types) {
    if (own != "full_attention" && own != type) {
      config.Refuse(absl::StrCat("layer type ", Quoted(own), " is not supported for this architecture"));
    }
    windowed.push_back(own == type);
  }
  return windowed;
}

void SetWindows(const std::vector<bool>& is_windowed, int64_t window, DecoderSpec* spec) {
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    std::get<AttentionSpec>(spec->layers[i].attention).window = is_windowed[i] ? window : 0;
  }
}

}  // namespace llmc::hf
