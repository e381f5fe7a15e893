#include "frontend/huggingface/families/llama_parts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace llmc::hf {

void SetBias(bool qkv, bool o, DecoderSpec* spec) {
  ForAttention(spec, [&](AttentionSpec& a) {
    a.q.bias = a.k.bias = a.v.bias = qkv;
    a.o.bias = o;
  });
}

void SetMlpBias(bool bias, DecoderSpec* spec) {
  ForMlp(spec, [&](MlpSpec& mlp) { mlp.gate->bias = mlp.up.bias = mlp.down.bias = bias; });
}

void AddHeadNorms(HeadNorm over, double eps, DecoderSpec* spec) {
  for (LayerSpec& layer : spec->layers) {
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.head_norm = over;
    a.q_norm = NormSpec{.module = layer.module + ".self_attn.q_norm", .eps = eps};
    a.k_norm = NormSpec{.module = layer.module + ".self_attn.k_norm", .eps = eps};
  }
}

void NormWhatComesOut(DecoderSpec* spec) {
  for (LayerSpec& layer : spec->layers) {
    layer.attention_out_norm = layer.mlp_norm;
    layer.attention_norm = layer.mlp_norm = std::nullopt;
    layer.mlp_out_norm = layer.attention_out_norm;
    layer.mlp_out_norm->module = layer.module + ".post_feedforward_layernorm";
  }
}

std::vector<bool> RotatedLayers(ConfigReader& c, size_t layers) {
  const std::vector<int64_t> flags = c.Ints("no_rope_layers").value_or(std::vector<int64_t>());
  if (!flags.empty() && flags.size() != layers) c.Wrong("no_rope_layers", "a number for each layer");
  std::vector<bool> rotated = AllButEvery(layers, c.Int("no_rope_layer_interval", 4, 1));
  for (size_t i = 0; i < std::min(layers, flags.size()); ++i) rotated[i] = flags[i] != 0;
  return rotated;
}

std::vector<bool> All(const DecoderSpec& spec, bool value) { return std::vector<bool>(spec.layers.size(), value); }

void NeedsTypes(ConfigReader& c, const std::vector<bool>& windowed) {
  if (WindowedLayers(c, windowed.size(), windowed) != windowed) {
    c.Refuse("layer_types that differ from sliding_window are not supported for this architecture");
  }
}

void NeedsNoWindow(ConfigReader& c, const DecoderSpec& spec) {
  NeedsTypes(c, All(spec, false));
  if (c.Has("sliding_window")) {
    c.Refuse("sliding_window is not supported for this architecture; set it to null");
  }
}

void SetWindowsByType(ConfigReader& c, bool use, int64_t window_absent, const std::vector<bool>& otherwise,
                      absl::string_view switches, DecoderSpec* spec) {
  const int64_t window = c.Int("sliding_window", window_absent, 1, kMaxPositions);
  const std::vector<bool> windowed = WindowedLayers(c, spec->layers.size(), otherwise);
  if (!use && windowed != All(*spec, false)) {
    c.Contradicts(absl::StrCat("layer_types has sliding_attention, but ", switches, " not set"));
  }
  SetWindows(windowed, window, spec);
}

}  // namespace llmc::hf
