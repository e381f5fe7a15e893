// Mixtures of experts, and latent attention, with which DeepSeek's come.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/families/llama_parts.h"

namespace llmc::hf {
namespace {

// Experts in a layer's MODULE, with its router in MODULE.gate.
ExpertsSpec ReadExperts(ConfigReader& c, const std::string& count_key, int64_t count, int64_t top_k, int64_t size) {
  ExpertsSpec experts;
  experts.experts = c.Int(count_key, count, 1, 65536);
  experts.top_k = c.Int("num_experts_per_tok", std::min(top_k, experts.experts), 1, experts.experts);
  experts.size = size;
  return experts;
}

void PutExperts(ExpertsSpec experts, const std::string& module, const std::string& router, LayerSpec* layer) {
  experts.activation = std::get<MlpSpec>(layer->mlp).activation;
  experts.module = absl::StrCat(layer->module, module);
  experts.router.module = absl::StrCat(layer->module, router);
  layer->mlp = std::move(experts);
}

MlpSpec GatedMlp(const std::string& module, int64_t size, Activation activation) {
  return {.size = size,
          .activation = activation,
          .gate = LinearSpec{module + ".gate_proj"},
          .up = {module + ".up_proj"},
          .down = {module + ".down_proj"}};
}

// Layers that have experts: every `decoder_sparse_step`-th, but for `mlp_only_layers`.
std::vector<bool> SparseLayers(ConfigReader& c, size_t layers) {
  const int64_t step = c.Int("decoder_sparse_step", 1, 1);
  const std::vector<int64_t> dense = c.Ints("mlp_only_layers").value_or(std::vector<int64_t>());
  std::vector<bool> sparse;
  for (int64_t i = 0; i < static_cast<int64_t>(layers); ++i) {
    sparse.push_back((i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end());
  }
  return sparse;
}

// A window for all layers that config.json switches on.
void SetSwitchedWindow(ConfigReader& c, DecoderSpec* spec) {
  const bool use = c.Flag("use_sliding_window", false) && !c.IsNull("sliding_window");
  const int64_t window = c.Int("sliding_window", 4096, 1, kMaxPositions);
  if (!use) return;
  ForAttention(spec, [&](AttentionSpec& a) { a.window = window; });
}

// A window for every other of the first `max_window_layers` layers, which config.json switches on. Without,
// transformers writes 0 for the window.
void SetWindowsInTurn(ConfigReader& c, DecoderSpec* spec) {
  const int64_t end = c.Int("max_window_layers", 28, 0);
  if (!c.Flag("use_sliding_window", false) || c.IsNull("sliding_window")) {
    c.Ignore({"sliding_window"});
    NeedsTypes(c, All(*spec, false));
    return;
  }
  std::vector<bool> otherwise;
  for (int64_t i = 0; i < static_cast<int64_t>(spec->layers.size()); ++i) otherwise.push_back(i % 2 == 0 && i < end);
  SetWindowsByType(c, true, 4096, otherwise, "", spec);
}

DecoderSpec Mixtral(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(
      c, {.intermediate_size = 14336, .kv_heads = 8, .max_positions = 131072, .rope = {.theta = 1e6}, .eps = 1e-5});
  NeedsWholeRope(c, spec);
  const int64_t window = c.Int("sliding_window", 0, 1, kMaxPositions);
  for (LayerSpec& layer : spec.layers) {
    std::get<AttentionSpec>(layer.attention).window = window;
    ExpertsSpec experts = ReadExperts(c, "num_local_experts", 8, 2, std::get<MlpSpec>(layer.mlp).size);
    experts.normalize = true;
    experts.gate = "w1";
    experts.up = "w3";
    experts.down = "w2";
    experts.other_module = layer.module + ".mlp.experts";
    experts.other_router = layer.module + ".mlp.gate";
    PutExperts(experts, ".block_sparse_moe.experts", ".block_sparse_moe.gate", &layer);
  }
  return spec;
}

DecoderSpec Qwen2Moe(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 151936,
                                    .hidden_size = 2048,
                                    .intermediate_size = 5632,
                                    .layers = 24,
                                    .heads = 16,
                                    .kv_heads = 16,
                                    .max_positions = 32768});
  NeedsWholeRope(c, spec);
  SetBias(c.Flag("qkv_bias", true), false, &spec);
  SetWindowsInTurn(c, &spec);
  const std::vector<bool> sparse = SparseLayers(c, spec.layers.size());
  const int64_t shared = c.Int("shared_expert_intermediate_size", 5632);
  ExpertsSpec common = ReadExperts(c, "num_experts", 60, 4, c.Int("moe_intermediate_size", 1408));
  common.normalize = c.Flag("norm_topk_prob", false);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    if (!sparse[i]) continue;
    ExpertsSpec experts = common;
    experts.shared = GatedMlp(layer.module + ".mlp.shared_expert", shared, std::get<MlpSpec>(layer.mlp).activation);
    experts.shared_gate = LinearSpec{layer.module + ".mlp.shared_expert_gate"};
    PutExperts(experts, ".mlp.experts", ".mlp.gate", &layer);
  }
  return spec;
}

DecoderSpec Qwen3Moe(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 151936,
                                    .hidden_size = 2048,
                                    .intermediate_size = 6144,
                                    .layers = 24,
                                    .kv_heads = 4,
                                    .max_positions = 32768});
  NeedsWholeRope(c, spec);
  SetBias(c.Flag("attention_bias", false), c.Flag("attention_bias", false), &spec);
  AddHeadNorms(HeadNorm::kHead, spec.norm->eps, &spec);
  SetSwitchedWindow(c, &spec);
  const std::vector<bool> sparse = SparseLayers(c, spec.layers.size());
  const std::string count = c.Has("num_experts") ? "num_experts" : "num_local_experts";
  ExpertsSpec experts = ReadExperts(c, count, 128, 8, c.Int("moe_intermediate_size", 768));
  experts.normalize = c.Flag("norm_topk_prob", false);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (sparse[i]) PutExperts(experts, ".mlp.experts", ".mlp.gate", &spec.layers[i]);
  }
  return spec;
}

DecoderSpec Olmoe(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 50304,
                                    .hidden_size = 2048,
                                    .intermediate_size = 2048,
                                    .layers = 16,
                                    .heads = 16,
                                    .max_positions = 4096,
                                    .eps = 1e-5});
  NeedsWholeRope(c, spec);
  SetBias(c.Flag("attention_bias", false), c.Flag("attention_bias", false), &spec);
  AddHeadNorms(HeadNorm::kWidth, spec.norm->eps, &spec);
  const double clip = c.Number("clip_qkv", 0, 1e-6, 1e9);
  for (LayerSpec& layer : spec.layers) {
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.clip = clip;
    a.clip_after_norm = true;
    ExpertsSpec experts = ReadExperts(c, "num_experts", 64, 8, std::get<MlpSpec>(layer.mlp).size);
    experts.normalize = c.Flag("norm_topk_prob", false);
    PutExperts(experts, ".mlp.experts", ".mlp.gate", &layer);
  }
  return spec;
}

DecoderSpec GraniteMoe(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {});
  NeedsWholeRope(c, spec);
  SetBias(c.Flag("attention_bias", false), c.Flag("attention_bias", false), &spec);
  spec.embedding_scale = c.Number("embedding_multiplier", 1, 1e-9, 1e9);
  spec.logit_scale = 1 / c.Number("logits_scaling", 1, 1e-9, 1e9);
  const double scale = c.Number("attention_multiplier", 1, 1e-9, 1e9);
  for (LayerSpec& layer : spec.layers) {
    layer.residual_scale = c.Number("residual_multiplier", 1, 1e-9, 1e9);
    std::get<AttentionSpec>(layer.attention).scale = scale;
    ExpertsSpec experts = ReadExperts(c, "num_local_experts", 8, 2, std::get<MlpSpec>(layer.mlp).size);
    experts.score = "chosen";
    experts.fused_gate_up = "input_linear";
    experts.fused_down = "output_linear";
    PutExperts(experts, ".block_sparse_moe", ".block_sparse_moe.router.layer", &layer);
  }
  return spec;
}

DecoderSpec GptOss(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 201088,
                                    .hidden_size = 2880,
                                    .intermediate_size = 2880,
                                    .layers = 36,
                                    .heads = 64,
                                    .kv_heads = 8,
                                    .head_dim = 64,
                                    .max_positions = 131072,
                                    .rope = {.theta = 150000},
                                    .eps = 1e-5});
  NeedsWholeRope(c, spec);
  if (!c.Has("rope_parameters") && !c.Has("rope_scaling")) {
    c.Contradicts("there is no \"rope_parameters\" or \"rope_scaling\"");
  }
  SetBias(c.Flag("attention_bias", true), c.Flag("attention_bias", true), &spec);
  SetWindows(WindowedLayers(c, spec.layers.size(), AllButEvery(spec.layers.size(), 2)),
             c.Int("sliding_window", 128, 1, kMaxPositions), &spec);
  for (LayerSpec& layer : spec.layers) {
    std::get<AttentionSpec>(layer.attention).sinks = layer.module + ".self_attn.sinks";
    ExpertsSpec experts = ReadExperts(c, "num_local_experts", 128, 4, std::get<MlpSpec>(layer.mlp).size);
    experts.score = "chosen";
    experts.bias = true;
    experts.limit = c.Number("swiglu_limit", 7, 1e-6, 1e9);
    experts.alpha = c.Number("swiglu_alpha", 1.702, 1e-6, 1e9);
    experts.fused_is_transposed = true;
    experts.fused_is_interleaved = true;
    // As Unsloth and GPTQModel take them apart to quantize them.
    experts.lists = {{"gate_up_projs", "down_projs"}, {"gate_up", "down"}};
    experts.other_module = layer.module + ".mlp.experts";
    experts.other_router = layer.module + ".mlp.router.linear";
    PutExperts(experts, ".mlp.experts", ".mlp.router", &layer);
    std::get<ExpertsSpec>(layer.mlp).router.bias = true;
  }
  return spec;
}

// ---- Llama 4: chunks where positions rotate; experts take what their scores multiply --------------------------------
// Published configurations have a number for it.
bool HasTemperature(ConfigReader& c) {
  const std::string key = "attn_temperature_tuning";
  const nlohmann::json* value = c.Find(key);
  return value != nullptr && value->is_number() ? c.Int(key, 1, 0) != 0 : c.Flag(key, true);
}

void SetLlama4Attention(ConfigReader& c, DecoderSpec* spec) {
  const bool has_chunks = !c.IsNull("attention_chunk_size"), has_norms = c.Flag("use_qk_norm", true);
  const int64_t chunk = c.Int("attention_chunk_size", 8192, 1, kMaxPositions);
  const double strength = c.Number("attn_scale", 0.1, 0, 1e9), temperature = HasTemperature(c) ? strength : 0;
  const int64_t length = c.Int("floor_scale", 8192, 1, kMaxPositions);
  const std::vector<bool> rotated = RotatedLayers(c, spec->layers.size());
  const std::vector<bool> chunked =
      WindowedLayers(c, spec->layers.size(), has_chunks ? rotated : All(*spec, false), "chunked_attention");
  if (!has_chunks && chunked != All(*spec, false)) {
    c.Contradicts("layer_types has chunked_attention, but attention_chunk_size is null");
  }
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    auto& a = std::get<AttentionSpec>(spec->layers[i].attention);
    a.chunk = chunked[i] ? chunk : 0;
    if (!rotated[i]) {
      a.rope.reset();
      a.temperature = temperature;
      a.temperature_length = length;
    } else if (has_norms) {
      // Behind the rotation, which changes no lengths: the same in front of it.
      a.q_norm = a.k_norm = NormSpec{
          .module = spec->layers[i].module + ".self_attn.qk_norm", .eps = spec->norm->eps, .has_weight = false};
    }
  }
}

DecoderSpec Llama4(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 202048,
                                    .hidden_size = 5120,
                                    .intermediate_size = 8192,
                                    .layers = 48,
                                    .heads = 40,
                                    .kv_heads = 8,
                                    .head_dim = 128,
                                    .max_positions = 131072,
                                    .rope = {.theta = 500000},
                                    .eps = 1e-5});
  NeedsWholeRope(c, spec);
  spec.ropes[0].interleaved = true;
  if (MakeRopeTable(spec.ropes[0].parameters, spec.ropes[0].dims).scale != 1) {
    c.Refuse("rope parameters that scale queries and keys are not supported for this architecture");
  }
  SetBias(c.Flag("attention_bias", false), c.Flag("attention_bias", false), &spec);
  SetLlama4Attention(c, &spec);
  const auto sparse = c.Ints("moe_layers");
  const auto layers = static_cast<int64_t>(spec.layers.size());
  const auto is_layer = [&](int64_t i) { return i >= 0 && i < layers; };
  if (sparse.has_value() && !std::all_of(sparse->begin(), sparse->end(), is_layer)) {
    c.Wrong("moe_layers", absl::StrCat("a list of numbers of layers, from 0 to ", layers - 1));
  }
  const int64_t step = c.Int("interleave_moe_layer_step", 1, 1), dense_size = c.Int("intermediate_size_mlp", 16384);
  ExpertsSpec experts = ReadExperts(c, "num_local_experts", 16, 1, std::get<MlpSpec>(spec.layers[0].mlp).size);
  experts.score = "chosen_sigmoid";
  experts.scale_input = true;
  experts.fused_is_transposed = true;
  for (int64_t i = 0; i < layers; ++i) {
    LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    const std::string module = layer.module + ".feed_forward";
    const auto common = std::get<MlpSpec>(layer.mlp);
    const bool is_sparse =
        sparse.has_value() ? std::find(sparse->begin(), sparse->end(), i) != sparse->end() : (i + 1) % step == 0;
    if (!is_sparse) {
      layer.mlp = GatedMlp(module, dense_size, common.activation);
      continue;
    }
    experts.shared = GatedMlp(module + ".shared_expert", common.size, common.activation);
    PutExperts(experts, ".feed_forward.experts", ".feed_forward.router", &layer);
  }
  return spec;
}

// Of the experts, `topk_group` of `n_group` groups may be chosen.
void CheckGroups(ConfigReader& c, const ExpertsSpec& e) {
  if (e.experts % e.groups != 0) {
    c.Contradicts(absl::StrCat("n_routed_experts ", e.experts, " is no multiple of n_group ", e.groups));
  } else if (e.top_groups > e.groups) {
    c.Contradicts(absl::StrCat("topk_group ", e.top_groups, " is more than n_group ", e.groups));
  } else if (const int64_t most = e.experts / e.groups * e.top_groups; e.top_k > most) {
    c.Contradicts(absl::StrCat("num_experts_per_tok ", e.top_k, " is more than the ", most, " experts of topk_group ",
                               e.top_groups, " groups"));
  }
}

// ---- GLM 4.5 and DeepSeek: layers without experts first, experts by sigmoids with corrections -----------------------
struct DeepseekDefaults {
  int64_t experts = 256, top_k = 8, size = 2048, shared = 1, groups = 8, top_groups = 4, dense_layers = 3;
  double scale = 2.5;
  bool normalize = true;
};

void PutSigmoidExperts(ConfigReader& c, const DeepseekDefaults& d, DecoderSpec* spec) {
  ExpertsSpec experts = ReadExperts(c, "n_routed_experts", d.experts, d.top_k, c.Int("moe_intermediate_size", d.size));
  experts.score = "sigmoid";
  experts.groups = c.Int("n_group", d.groups);
  experts.top_groups = c.Int("topk_group", d.top_groups);
  CheckGroups(c, experts);
  experts.group_best = std::min<int64_t>(2, std::max<int64_t>(experts.experts / experts.groups, 1));
  experts.normalize = c.Flag("norm_topk_prob", d.normalize);
  experts.scale = c.Number("routed_scaling_factor", d.scale, 1e-9, 1e9);
  const int64_t dense = c.Int("first_k_dense_replace", d.dense_layers, 0);
  const int64_t shared = c.Int("n_shared_experts", d.shared, 0) * experts.size;
  for (size_t i = static_cast<size_t>(dense); i < spec->layers.size(); ++i) {
    LayerSpec& layer = spec->layers[i];
    ExpertsSpec own = experts;
    own.correction = layer.module + ".mlp.gate.e_score_correction_bias";
    if (shared > 0) {
      own.shared = GatedMlp(layer.module + ".mlp.shared_experts", shared, std::get<MlpSpec>(layer.mlp).activation);
    }
    PutExperts(own, ".mlp.experts", ".mlp.gate", &layer);
  }
}

// The layers that predict further tokens stand behind the last one, and are read like those. They are not part of the
// model itself.
int64_t AppendPredictors(ConfigReader& c, DecoderSpec* spec) {
  const int64_t count = c.Int(c.Has("num_mtp_layers") ? "num_mtp_layers" : "num_nextn_predict_layers", 1, 0, 64);
  const LayerSpec last = spec->layers.back();
  for (int64_t i = 0; i < count; ++i) {
    spec->layers.push_back(PlainLayer(absl::StrCat("model.layers.", spec->layers.size()),
                                      std::get<AttentionSpec>(last.attention), std::get<MlpSpec>(last.mlp),
                                      spec->norm->eps));
  }
  return count;
}

void SplitPredictors(int64_t count, DecoderSpec* spec) {
  const auto first = spec->layers.end() - static_cast<ptrdiff_t>(count);
  for (auto layer = first; layer != spec->layers.end(); ++layer) {
    const std::string& m = layer->module;
    const auto norm = [&](const std::string& name) { return NormSpec{.module = m + name, .eps = spec->norm->eps}; };
    spec->unused.beginnings.push_back({m + ".", "a layer that predicts further tokens (--form=predictor)"});
    spec->predictors.push_back({.layer = *layer,
                                .embedding_norm = norm(".enorm"),
                                .hidden_norm = norm(".hnorm"),
                                .norm = norm(".shared_head.norm"),
                                .projection = {m + ".eh_proj"},
                                .embedding = m + ".embed_tokens",
                                .head = m + ".shared_head.head"});
  }
  spec->layers.erase(first, spec->layers.end());
}

DecoderSpec Glm4Moe(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 151552,
                                    .intermediate_size = 10944,
                                    .layers = 46,
                                    .heads = 96,
                                    .kv_heads = 8,
                                    .max_positions = 131072,
                                    .rope = {.partial = 0.5},
                                    .eps = 1e-5});
  const int64_t predictors = AppendPredictors(c, &spec);
  SetBias(c.Flag("attention_bias", false), false, &spec);
  if (c.Flag("use_qk_norm", false)) AddHeadNorms(HeadNorm::kHead, spec.norm->eps, &spec);
  PutSigmoidExperts(c, {.experts = 128, .size = 1408, .groups = 1, .top_groups = 1, .dense_layers = 1, .scale = 1},
                    &spec);
  SplitPredictors(predictors, &spec);
  return spec;
}

// Latent attention has sizes of its own; hidden_size need not be a multiple of the heads.
constexpr int64_t kUnreadHeadDim = 64;

struct LatentDefaults {
  int64_t latent = 512, q = 1536, rope = 64, nope = 128, value = 128;
};

// Latent attention in all layers. `interleaved`: of the rotation's pairs.
void UseLatentAttention(ConfigReader& c, const LatentDefaults& d, bool interleaved, DecoderSpec* spec) {
  const auto common = std::get<AttentionSpec>(spec->layers[0].attention);
  LatentAttentionSpec a;
  a.heads = common.heads;
  a.nope_dim = c.Int("qk_nope_head_dim", d.nope, 1, 4096);
  a.rope_dim = c.Int("qk_rope_head_dim", d.rope, 2, 4096);
  a.value_dim = c.Int("v_head_dim", d.value, 1, 4096);
  a.latent_dim = c.Int("kv_lora_rank", d.latent, 1, 65536);
  a.q_a_dim = c.IsNull("q_lora_rank") ? 0 : c.Int("q_lora_rank", d.q, 1, 65536);
  if (a.rope_dim % 2 != 0) c.Contradicts(absl::StrCat("qk_rope_head_dim ", a.rope_dim, " is odd"));
  RopeSpec& rope = spec->ropes[0];
  rope.dims = a.rope_dim;
  rope.interleaved = interleaved;
  a.rope = 0;
  a.scale = 1 / std::sqrt(static_cast<double>(a.nope_dim + a.rope_dim));
  // YaRN's temperature goes to the scores, twice (DeepSeek-V2's modeling_deepseek.py).
  const HfRope& p = rope.parameters;
  if (p.type == HfRopeType::kYarn && p.mscale_all_dim != 0 && p.factor > 1) {
    const double mscale = 0.1 * p.mscale_all_dim * std::log(p.factor) + 1;
    a.scale *= mscale * mscale;
  }
  const bool bias = c.Flag("attention_bias", false);
  for (LayerSpec& layer : spec->layers) {
    const std::string m = layer.module + ".self_attn";
    if (a.q_a_dim > 0) {
      a.q_a = LinearSpec{m + ".q_a_proj", bias};
      a.q_a_norm = {.module = m + ".q_a_layernorm", .eps = 1e-6};
    }
    a.q = {m + (a.q_a_dim > 0 ? ".q_b_proj" : ".q_proj")};
    a.kv_a = {m + ".kv_a_proj_with_mqa", bias};
    a.kv_a_norm = {.module = m + ".kv_a_layernorm", .eps = 1e-6};
    a.kv_b = m + ".kv_b_proj";
    a.o = {m + ".o_proj", bias};
    layer.attention = a;
  }
}

DecoderSpec DeepseekV2(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 102400, .head_dim = kUnreadHeadDim});
  UseLatentAttention(c, {}, true, &spec);
  const std::string method = c.Text("topk_method", "greedy");
  ExpertsSpec experts = ReadExperts(c, "n_routed_experts", 64, 6, c.Int("moe_intermediate_size", 1407));
  if (method == "group_limited_greedy") {
    experts.groups = c.Int("n_group", 1);
    experts.top_groups = c.Int("topk_group", 1);
    CheckGroups(c, experts);
  } else if (method == "greedy") {
    c.Ignore({"n_group", "topk_group"});
  } else {
    c.Refuse(absl::StrCat("topk_method \"", method, "\" is not supported; supported: greedy, group_limited_greedy"));
  }
  experts.scale = c.Number("routed_scaling_factor", 1, 1e-9, 1e9);
  c.Needs("norm_topk_prob", false);
  const int64_t shared = c.Int("n_shared_experts", 2, 0) * experts.size;
  for (size_t i = static_cast<size_t>(c.Int("first_k_dense_replace", 0, 0)); i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    ExpertsSpec own = experts;
    if (shared > 0) {
      own.shared = GatedMlp(layer.module + ".mlp.shared_experts", shared, std::get<MlpSpec>(layer.mlp).activation);
    }
    PutExperts(own, ".mlp.experts", ".mlp.gate", &layer);
  }
  return spec;
}

DecoderSpec DeepseekV3(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 129280,
                                    .hidden_size = 7168,
                                    .intermediate_size = 18432,
                                    .layers = 61,
                                    .heads = 128,
                                    .kv_heads = 128,
                                    .head_dim = kUnreadHeadDim,
                                    .max_positions = 4096});
  c.Ignore({"topk_method"});  // there is one
  const int64_t predictors = AppendPredictors(c, &spec);
  UseLatentAttention(c, {}, c.Flag("rope_interleave", true), &spec);
  PutSigmoidExperts(c, {}, &spec);
  SplitPredictors(predictors, &spec);
  return spec;
}

constexpr Family kExpertFamilies[] = {
    {"MixtralForCausalLM", "mixtral", Mixtral},           {"Qwen2MoeForCausalLM", "qwen2_moe", Qwen2Moe},
    {"Qwen3MoeForCausalLM", "qwen3_moe", Qwen3Moe},       {"OlmoeForCausalLM", "olmoe", Olmoe},
    {"GraniteMoeForCausalLM", "granitemoe", GraniteMoe},  {"GptOssForCausalLM", "gpt_oss", GptOss},
    {"Glm4MoeForCausalLM", "glm4_moe", Glm4Moe},          {"DeepseekV2ForCausalLM", "deepseek_v2", DeepseekV2},
    {"DeepseekV3ForCausalLM", "deepseek_v3", DeepseekV3}, {"Llama4ForCausalLM", "llama4_text", Llama4},
};

}  // namespace

absl::Span<const Family> ExpertFamilies() { return kExpertFamilies; }

}  // namespace llmc::hf
