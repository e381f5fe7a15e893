// Llama's structure with other norms: Gemma, OLMo, Cohere, StableLM.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/families/llama_parts.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

// ---- Gemma --------------------------------------------------------------------------------------------------------
constexpr Defaults kGemma = {.vocab_size = 256000,
                             .hidden_size = 3072,
                             .intermediate_size = 24576,
                             .layers = 28,
                             .heads = 16,
                             .kv_heads = 16,
                             .head_dim = 256,
                             .max_positions = 8192,
                             .tied = true,
                             .activation = "gelu_pytorch_tanh"};

DecoderSpec ReadGemma(ConfigReader& c, const Defaults& defaults) {
  DecoderSpec spec = ReadCommon(c, defaults);
  NeedsWholeRope(c, spec);
  const bool bias = c.Flag("attention_bias", false);
  SetBias(bias, bias, &spec);
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  spec.embedding_scale_rounds = true;
  return spec;
}

void AddOne(DecoderSpec* spec) {
  ForNorms(spec, [](NormSpec& norm) { norm.plus_one = true; });
}

DecoderSpec Gemma(ConfigReader& c) {
  c.Needs("use_bidirectional_attention", false);
  DecoderSpec spec = ReadGemma(c, kGemma);
  // Checkpoints say "gelu" and mean the form with tanh, with which they were trained (transformers 4.39 on).
  ForMlp(&spec, [](MlpSpec& mlp) {
    if (mlp.activation == Activation::kGelu) mlp.activation = Activation::kGeluTanh;
  });
  AddOne(&spec);
  return spec;
}

void NormBothSides(DecoderSpec* spec) {
  for (LayerSpec& layer : spec->layers) {
    const double eps = layer.attention_norm->eps;
    layer.attention_out_norm = NormSpec{.module = layer.module + ".post_attention_layernorm", .eps = eps};
    layer.mlp_norm = NormSpec{.module = layer.module + ".pre_feedforward_layernorm", .eps = eps};
    layer.mlp_out_norm = NormSpec{.module = layer.module + ".post_feedforward_layernorm", .eps = eps};
  }
}

// What Gemma 2 and 3 have in common: norms on both sides, a scale of its own, softcaps.
DecoderSpec ReadGemma2(ConfigReader& c, Defaults defaults, double attention_softcap, double logit_softcap) {
  defaults.hidden_size = 2304;
  defaults.intermediate_size = 9216;
  defaults.layers = 26;
  defaults.heads = 8;
  defaults.kv_heads = 4;
  defaults.activation_key = "hidden_activation";
  DecoderSpec spec = ReadGemma(c, defaults);
  const double scale = 1 / std::sqrt(c.Number("query_pre_attn_scalar", 256, 1e-6, 1e9));
  const double softcap =
      c.IsNull("attn_logit_softcapping") ? 0 : c.Number("attn_logit_softcapping", attention_softcap, 1e-6, 1e9);
  NormBothSides(&spec);
  ForAttention(&spec, [&](AttentionSpec& a) {
    a.scale = scale;
    a.softcap = softcap;
  });
  spec.logit_softcap =
      c.IsNull("final_logit_softcapping") ? 0 : c.Number("final_logit_softcapping", logit_softcap, 1e-6, 1e9);
  return spec;
}

DecoderSpec Gemma2(ConfigReader& c) {
  c.Needs("use_bidirectional_attention", false);
  DecoderSpec spec = ReadGemma2(c, kGemma, 50, 30);
  std::vector<bool> otherwise;
  for (size_t i = 0; i < spec.layers.size(); ++i) otherwise.push_back(i % 2 == 0);
  SetWindowsByType(c, !c.IsNull("sliding_window"), 4096, otherwise, "sliding_window is", &spec);
  AddOne(&spec);
  return spec;
}

// Layers with a window rotate by a base of their own, without scaling. Before transformers 5 it was a key.
void RotateWindowsApart(ConfigReader& c, DecoderSpec* spec) {
  const json* parameters = c.Find("rope_parameters");
  const bool has_both = parameters != nullptr && parameters->is_object() && parameters->contains("sliding_attention");
  const int64_t head_dim = std::get<AttentionSpec>(spec->layers[0].attention).head_dim;
  RopeSpec local = {
      .parameters = {.theta = c.Number("rope_local_base_freq", 10000, 1.0001, 1e15), .max_context = spec->max_context},
      .dims = head_dim};
  if (has_both) local = ReadRope(c, spec->max_context, head_dim, {.theta = 10000, .layer_type = "sliding_attention"});
  spec->ropes.push_back(local);
  ForAttention(spec, [](AttentionSpec& a) { a.rope = a.window > 0 ? 1 : 0; });
}

DecoderSpec Gemma3(ConfigReader& c) {
  Defaults defaults = kGemma;
  defaults.vocab_size = 262208;
  defaults.max_positions = 131072;
  defaults.rope = {.theta = 1e6, .layer_type = "full_attention"};
  DecoderSpec spec = ReadGemma2(c, defaults, 0, 0);
  const int64_t period = c.Int("sliding_window_pattern", 6, 1);
  SetWindowsByType(c, !c.IsNull("sliding_window"), 4096, AllButEvery(spec.layers.size(), period), "sliding_window is",
                   &spec);
  RotateWindowsApart(c, &spec);
  AddHeadNorms(HeadNorm::kHead, spec.norm->eps, &spec);
  AddOne(&spec);
  spec.is_causal = !c.Flag("use_bidirectional_attention", false);
  return spec;
}

// ---- Gemma 3n: several hidden states of a token, embeddings for each layer, caches of other layers -----------------
// The last layers read what the last layer of their type before them wrote.
void ShareCaches(ConfigReader& c, DecoderSpec* spec) {
  const auto layers = static_cast<int64_t>(spec->layers.size());
  const int64_t shared = c.Int("num_kv_shared_layers", std::min<int64_t>(15, layers), 0, layers);
  const auto first = static_cast<size_t>(layers - shared);
  for (size_t i = first; i < spec->layers.size(); ++i) {
    auto& a = std::get<AttentionSpec>(spec->layers[i].attention);
    size_t from = first;
    while (from > 0 && std::get<AttentionSpec>(spec->layers[from - 1].attention).window != a.window) --from;
    if (from == 0) {
      c.Contradicts(absl::StrCat("num_kv_shared_layers ", shared, ": no layer before has the type of layer ", i,
                                 ", which would read its keys and values"));
      return;
    }
    a.kv_layer = from - 1;
    for (const char* unused : {"k_proj", "v_proj", "k_norm"}) {
      spec->unused.names.push_back({absl::StrCat(spec->layers[i].module, ".self_attn.", unused, ".weight"),
                                    "the layer reads keys and values of another"});
    }
  }
}

void SetSparsity(ConfigReader& c, DecoderSpec* spec) {
  const size_t layers = spec->layers.size();
  const double below_one = 1 - 1e-9;
  const auto sparsity = c.Numbers("activation_sparsity_pattern", static_cast<int64_t>(layers), 0, below_one);
  for (size_t i = 0; i < layers; ++i) {
    const double absent = layers > 10 && i < 10 ? 0.95 : 0;
    std::get<MlpSpec>(spec->layers[i].mlp).sparsity = sparsity.has_value() ? (*sparsity)[i] : absent;
  }
}

void AddStreams(ConfigReader& c, DecoderSpec* spec) {
  const double eps = spec->norm->eps;
  StreamsSpec streams;
  streams.count = c.Int("altup_num_inputs", 4, 1, 64);
  streams.active = c.Int("altup_active_idx", 0, 0, streams.count - 1);
  streams.projections = "model.altup_projections";
  streams.unembed_projections = "model.altup_unembed_projections";
  streams.input_table = "model.embed_tokens_per_layer";
  streams.input_size = c.Int("hidden_size_per_layer_input", 256, 1, 65536);
  streams.input_vocab = c.Int("vocab_size_per_layer_input", 262144, 1, kMaxVocab);
  streams.input_projection = {"model.per_layer_model_projection"};
  streams.input_norm = {.module = "model.per_layer_projection_norm", .eps = eps};
  spec->streams = streams;
  const int64_t rank = c.Int("laurel_rank", 64, 1, 65536);
  const bool scales = c.Flag("altup_correct_scale", true);
  c.Ignore({"altup_coef_clip"});  // of training
  for (LayerSpec& layer : spec->layers) {
    const std::string& m = layer.module;
    StreamLayerSpec own;
    own.router_norm = {.module = m + ".altup.router_norm", .eps = eps};
    own.router = {m + ".altup.modality_router"};
    own.prediction = {m + ".altup.prediction_coefs"};
    own.correction = {m + ".altup.correction_coefs"};
    if (scales) own.output_scale = m + ".altup.correct_output_scale";
    own.laurel_left = {m + ".laurel.linear_left"};
    own.laurel_right = {m + ".laurel.linear_right"};
    own.laurel_rank = rank;
    own.laurel_norm = {.module = m + ".laurel.post_laurel_norm", .eps = eps};
    own.input_gate = {m + ".per_layer_input_gate"};
    own.input_projection = {m + ".per_layer_projection"};
    own.input_norm = {.module = m + ".post_per_layer_input_norm", .eps = eps};
    own.activation = std::get<MlpSpec>(layer.mlp).activation;
    if (!scales) spec->unused.names.push_back({m + ".altup.correct_output_scale", "altup_correct_scale is false"});
    layer.streams = own;
  }
}

DecoderSpec Gemma3n(ConfigReader& c) {
  DecoderSpec spec = ReadGemma(c, {.vocab_size = 262400,
                                   .hidden_size = 2048,
                                   .intermediate_size = 16384,
                                   .layers = 35,
                                   .heads = 8,
                                   .kv_heads = 2,
                                   .head_dim = 256,
                                   .max_positions = 32768,
                                   .tied = true,
                                   .rope = {.theta = 1e6, .layer_type = "full_attention"},
                                   .activation_key = "hidden_activation",
                                   .activation = "gelu_pytorch_tanh",
                                   .sizes_by_layer = true});
  NormBothSides(&spec);
  SetWindowsByType(c, !c.IsNull("sliding_window"), 512, AllButEvery(spec.layers.size(), 5), "sliding_window is", &spec);
  RotateWindowsApart(c, &spec);
  AddHeadNorms(HeadNorm::kHead, spec.norm->eps, &spec);
  for (LayerSpec& layer : spec.layers) {
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.scale = 1;
    a.v_norm = NormSpec{.module = layer.module + ".self_attn.v_norm", .eps = spec.norm->eps, .has_weight = false};
  }
  ShareCaches(c, &spec);
  SetSparsity(c, &spec);
  AddStreams(c, &spec);
  spec.logit_softcap = c.IsNull("final_logit_softcapping") ? 0 : c.Number("final_logit_softcapping", 30, 1e-6, 1e9);
  return spec;
}

// ---- OLMo ---------------------------------------------------------------------------------------------------------
constexpr Defaults kOlmo = {.vocab_size = 50304, .eps = 1e-5};

DecoderSpec ReadOlmo(ConfigReader& c, const Defaults& defaults) {
  DecoderSpec spec = ReadCommon(c, defaults);
  NeedsWholeRope(c, spec);
  const bool bias = c.Flag("attention_bias", false);
  SetBias(bias, bias, &spec);
  return spec;
}

DecoderSpec Olmo(ConfigReader& c) {
  DecoderSpec spec = ReadOlmo(c, kOlmo);
  ForNorms(&spec, [](NormSpec& norm) {
    norm.kind = NormKind::kLayer;
    norm.eps = 1e-5;
    norm.has_weight = false;
  });
  const double clip = c.Number("clip_qkv", 0, 1e-6, 1e9);
  ForAttention(&spec, [&](AttentionSpec& a) { a.clip = clip; });
  return spec;
}

DecoderSpec Olmo2(ConfigReader& c) {
  DecoderSpec spec = ReadOlmo(c, kOlmo);
  AddHeadNorms(HeadNorm::kWidth, spec.norm->eps, &spec);
  NormWhatComesOut(&spec);
  return spec;
}

DecoderSpec Olmo3(ConfigReader& c) {
  Defaults defaults = kOlmo;
  defaults.rope = {.theta = 5e5, .layer_type = "full_attention"};
  DecoderSpec spec = ReadOlmo(c, defaults);
  SetWindowsByType(c, !c.IsNull("sliding_window"), 4096, AllButEvery(spec.layers.size(), 4), "sliding_window is",
                   &spec);
  // The scaling of the rotation is for layers that see all; those with a window have the plain one.
  RopeSpec plain = spec.ropes[0];
  plain.parameters = {.theta = plain.parameters.theta, .max_context = spec.max_context};
  const json* parameters = c.Find("rope_parameters");
  if (parameters != nullptr && parameters->is_object() && parameters->contains("sliding_attention")) {
    plain = ReadRope(c, spec.max_context, plain.dims, {.theta = 5e5, .layer_type = "sliding_attention"});
  }
  spec.ropes.push_back(plain);
  ForAttention(&spec, [](AttentionSpec& a) { a.rope = a.window > 0 ? 1 : 0; });
  AddHeadNorms(HeadNorm::kWidth, spec.norm->eps, &spec);
  NormWhatComesOut(&spec);
  return spec;
}

// ---- Cohere: layer norms without bias, attention and MLP side by side -----------------------------------------------
DecoderSpec ReadCohere(ConfigReader& c, double theta) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 256000,
                                    .hidden_size = 8192,
                                    .intermediate_size = 22528,
                                    .layers = 40,
                                    .heads = 64,
                                    .max_positions = 8192,
                                    .tied = true,
                                    .rope = {.theta = theta},
                                    .eps_key = "layer_norm_eps",
                                    .eps = 1e-5});
  NeedsWholeRope(c, spec);
  const bool bias = c.Flag("attention_bias", false);
  SetBias(bias, bias, &spec);
  spec.ropes[0].interleaved = true;
  spec.logit_scale = c.Number("logit_scale", 0.0625, 1e-9, 1e9);
  for (LayerSpec& layer : spec.layers) {
    layer.is_parallel = true;
    layer.mlp_norm.reset();
  }
  return spec;
}

void UseLayerNorms(DecoderSpec* spec) {
  ForNorms(spec, [](NormSpec& norm) { norm.kind = NormKind::kLayer; });
}

DecoderSpec Cohere(ConfigReader& c) {
  DecoderSpec spec = ReadCohere(c, 5e5);
  if (c.Flag("use_qk_norm", false)) AddHeadNorms(HeadNorm::kHeads, spec.norm->eps, &spec);
  UseLayerNorms(&spec);
  return spec;
}

DecoderSpec Cohere2(ConfigReader& c) {
  DecoderSpec spec = ReadCohere(c, 1e4);
  UseLayerNorms(&spec);
  const int64_t period = c.Int("sliding_window_pattern", 4, 1);
  SetWindowsByType(c, !c.IsNull("sliding_window"), 4096, AllButEvery(spec.layers.size(), period), "sliding_window is",
                   &spec);
  ForAttention(&spec, [](AttentionSpec& a) {
    if (a.window == 0) a.rope.reset();
  });
  return spec;
}

// ---- StableLM -----------------------------------------------------------------------------------------------------
DecoderSpec StableLm(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 50304,
                                    .hidden_size = 2560,
                                    .intermediate_size = 6912,
                                    .kv_heads = 32,
                                    .max_positions = 4096,
                                    .rope = {.partial = 0.25},
                                    .eps_key = "layer_norm_eps",
                                    .eps = 1e-5});
  SetBias(c.Flag("use_qkv_bias", false), false, &spec);
  const bool is_parallel = c.Flag("use_parallel_residual", false);
  if (c.Flag("qk_layernorm", false)) {
    AddHeadNorms(HeadNorm::kHeads, spec.norm->eps, &spec);
    for (LayerSpec& layer : spec.layers) {
      auto& a = std::get<AttentionSpec>(layer.attention);
      a.q_norm->module = layer.module + ".self_attn.q_layernorm";
      a.k_norm->module = layer.module + ".self_attn.k_layernorm";
    }
  }
  UseLayerNorms(&spec);
  spec.norm->bias = true;
  for (LayerSpec& layer : spec.layers) {
    layer.attention_norm->bias = true;
    layer.mlp_norm->bias = true;
    layer.is_parallel = is_parallel;
    if (is_parallel) layer.mlp_norm.reset();
  }
  return spec;
}

constexpr Family kNormFamilies[] = {
    {"GemmaForCausalLM", "gemma", Gemma},       {"Gemma2ForCausalLM", "gemma2", Gemma2},
    {"Gemma3ForCausalLM", "gemma3", Gemma3},    {"Gemma3nForCausalLM", "gemma3n_text", Gemma3n},
    {"OlmoForCausalLM", "olmo", Olmo},          {"Olmo2ForCausalLM", "olmo2", Olmo2},
    {"Olmo3ForCausalLM", "olmo3", Olmo3},       {"CohereForCausalLM", "cohere", Cohere},
    {"Cohere2ForCausalLM", "cohere2", Cohere2}, {"StableLmForCausalLM", "stablelm", StableLm},
};

}  // namespace

absl::Span<const Family> NormFamilies() { return kNormFamilies; }

}  // namespace llmc::hf
