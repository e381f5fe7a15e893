// Llama and its kin: RMS norms before attention and MLP, rotary positions, a gated MLP.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/families/llama_parts.h"

namespace llmc::hf {
namespace {

DecoderSpec Llama(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {});
  NeedsWholeRope(c, spec);
  NeedsNoWindow(c, spec);
  SetBias(c.Flag("attention_bias", false), c.Flag("attention_bias", false), &spec);
  SetMlpBias(c.Flag("mlp_bias", false), &spec);
  return spec;
}

constexpr Defaults kMistral = {.intermediate_size = 14336, .kv_heads = 8, .max_positions = 131072};

DecoderSpec Mistral(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, kMistral);
  NeedsWholeRope(c, spec);
  const std::vector<bool> windowed = All(spec, !c.IsNull("sliding_window"));
  NeedsTypes(c, windowed);
  SetWindows(windowed, c.Int("sliding_window", 4096, 1, kMaxPositions), &spec);
  return spec;
}

DecoderSpec Ministral(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, kMistral);
  NeedsWholeRope(c, spec);
  const bool use = !c.IsNull("sliding_window");
  SetWindowsByType(c, use, 4096, All(spec, use), "sliding_window is", &spec);
  return spec;
}

// Without `layer_types`, layers from `max_window_layers` on have a window, if use_sliding_window says so.
void SetSwitchedWindows(ConfigReader& c, DecoderSpec* spec) {
  const bool use = c.Flag("use_sliding_window", false) && !c.IsNull("sliding_window");
  const int64_t full = c.Int("max_window_layers", 28, 0);
  std::vector<bool> otherwise;
  for (size_t i = 0; i < spec->layers.size(); ++i) otherwise.push_back(use && static_cast<int64_t>(i) >= full);
  SetWindowsByType(c, use, 4096, otherwise, "use_sliding_window and sliding_window are", spec);
}

DecoderSpec Qwen2(ConfigReader& c) {
  DecoderSpec spec =
      ReadCommon(c, {.vocab_size = 151936, .intermediate_size = 22016, .kv_heads = 32, .max_positions = 32768});
  NeedsWholeRope(c, spec);
  SetBias(true, false, &spec);
  SetSwitchedWindows(c, &spec);
  return spec;
}

DecoderSpec Qwen3(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(
      c, {.vocab_size = 151936, .intermediate_size = 22016, .kv_heads = 32, .head_dim = 128, .max_positions = 32768});
  NeedsWholeRope(c, spec);
  SetBias(c.Flag("attention_bias", false), c.Flag("attention_bias", false), &spec);
  AddHeadNorms(HeadNorm::kHead, spec.norm->eps, &spec);
  SetSwitchedWindows(c, &spec);
  return spec;
}

// ---- Phi-3 --------------------------------------------------------------------------------------------------------
DecoderSpec Phi3(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 32064,
                                    .hidden_size = 3072,
                                    .intermediate_size = 8192,
                                    .max_positions = 4096,
                                    .rope = {.original_max_positions = 4096},
                                    .eps = 1e-5});
  for (LayerSpec& layer : spec.layers) {
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.layout = QkvLayout::kInTurn;
    a.q = {layer.module + ".self_attn.qkv_proj"};
    a.window = c.Int("sliding_window", 0, 1, kMaxPositions);
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.is_fused = true;
    mlp.up = {layer.module + ".mlp.gate_up_proj"};
  }
  return spec;
}

// ---- others -------------------------------------------------------------------------------------------------------
DecoderSpec Granite(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {});
  NeedsWholeRope(c, spec);
  const bool bias = c.Flag("attention_bias", false);
  SetBias(bias, bias, &spec);
  SetMlpBias(c.Flag("mlp_bias", false), &spec);
  spec.embedding_scale = c.Number("embedding_multiplier", 1, 1e-9, 1e9);
  spec.logit_scale = 1 / c.Number("logits_scaling", 1, 1e-9, 1e9);
  const double scale = c.Number("attention_multiplier", 1, 1e-9, 1e9);
  ForAttention(&spec, [&](AttentionSpec& a) { a.scale = scale; });
  for (LayerSpec& layer : spec.layers) layer.residual_scale = c.Number("residual_multiplier", 1, 1e-9, 1e9);
  return spec;
}

DecoderSpec SmolLm3(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 128256,
                                    .hidden_size = 2048,
                                    .layers = 36,
                                    .heads = 16,
                                    .kv_heads = 4,
                                    .max_positions = 32768,
                                    .tied = true,
                                    .rope = {.theta = 2e6}});
  NeedsWholeRope(c, spec);
  const bool bias = c.Flag("attention_bias", false);
  SetBias(bias, bias, &spec);
  SetMlpBias(c.Flag("mlp_bias", false), &spec);
  const std::vector<bool> rotated = RotatedLayers(c, spec.layers.size());
  const bool use_windows = c.Flag("use_sliding_window", false) && c.Has("sliding_window");
  std::vector<bool> otherwise;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (!rotated[i]) std::get<AttentionSpec>(spec.layers[i].attention).rope.reset();
    otherwise.push_back(use_windows && !rotated[i]);
  }
  SetWindowsByType(c, use_windows, 1, otherwise, "use_sliding_window and sliding_window are", &spec);
  return spec;
}

DecoderSpec Exaone4(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 102400, .intermediate_size = 16384, .kv_heads = 32, .eps = 1e-5});
  NeedsWholeRope(c, spec);
  const bool has_windows = !c.IsNull("sliding_window");
  const nlohmann::json* pattern = c.Find("sliding_window_pattern");
  const bool is_number = pattern == nullptr || pattern->is_number_integer();
  const int64_t period = is_number ? c.Int("sliding_window_pattern", 4, 0)
                                   : static_cast<int64_t>(c.Text("sliding_window_pattern", "LLLG").size());
  std::vector<bool> otherwise = All(spec, false);
  if (has_windows) otherwise = AllButEvery(spec.layers.size(), std::max<int64_t>(period, 1));
  SetWindowsByType(c, has_windows, 4096, otherwise, "sliding_window is", &spec);
  if (has_windows) {
    ForAttention(&spec, [](AttentionSpec& a) {
      if (a.window == 0) a.rope.reset();
    });
  }
  AddHeadNorms(HeadNorm::kHead, spec.norm->eps, &spec);
  NormWhatComesOut(&spec);
  return spec;
}

constexpr Defaults kGlm = {.vocab_size = 151552,
                           .intermediate_size = 13696,
                           .layers = 40,
                           .kv_heads = 2,
                           .head_dim = 128,
                           .max_positions = 131072,
                           .rope = {.partial = 0.5},
                           .eps = 1.5625e-7};

DecoderSpec Glm(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, kGlm);
  SetBias(c.Flag("attention_bias", true), false, &spec);
  spec.ropes[0].interleaved = true;
  for (LayerSpec& layer : spec.layers) {
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.is_fused = true;
    mlp.up = {layer.module + ".mlp.gate_up_proj"};
  }
  return spec;
}

DecoderSpec Glm4(ConfigReader& c) {
  DecoderSpec spec = Glm(c);
  for (LayerSpec& layer : spec.layers) {
    const double eps = spec.norm->eps;
    layer.attention_out_norm = NormSpec{.module = layer.module + ".post_self_attn_layernorm", .eps = eps};
    layer.mlp_out_norm = NormSpec{.module = layer.module + ".post_mlp_layernorm", .eps = eps};
  }
  return spec;
}

constexpr Family kLlamaFamilies[] = {
    {"LlamaForCausalLM", "llama", Llama},
    {"MistralForCausalLM", "mistral", Mistral},
    {"MinistralForCausalLM", "ministral", Ministral},
    {"Qwen2ForCausalLM", "qwen2", Qwen2},
    {"Qwen3ForCausalLM", "qwen3", Qwen3},
    {"Phi3ForCausalLM", "phi3", Phi3},
    {"GraniteForCausalLM", "granite", Granite},
    {"SmolLM3ForCausalLM", "smollm3", SmolLm3},
    {"Exaone4ForCausalLM", "exaone4", Exaone4},
    {"GlmForCausalLM", "glm", Glm},
    {"Glm4ForCausalLM", "glm4", Glm4},
};

}  // namespace

absl::Span<const Family> LlamaFamilies() { return kLlamaFamilies; }

}  // namespace llmc::hf
