#include "frontend/huggingface/families/gpt_parts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace llmc::hf {

DecoderSpec ReadGpt(ConfigReader& c, const GptKeys& keys, const std::string& layers_module) {
  DecoderSpec spec;
  spec.vocab_size = c.Int("vocab_size", keys.vocab_size, 1, kMaxVocab);
  spec.hidden_size = c.Int(keys.hidden, keys.hidden_size);
  const int64_t layers = c.Int(keys.layers, keys.layer_count, 1, kMaxLayers);
  const int64_t heads = c.Int(keys.heads, keys.head_count);
  spec.prefix = layers_module.substr(0, layers_module.find('.') + 1);
  if (!keys.positions.empty()) spec.max_context = c.Int(keys.positions, keys.max_positions, 1, kMaxPositions);
  if (spec.hidden_size % heads != 0) {
    c.Contradicts(absl::StrCat(keys.hidden, " ", spec.hidden_size, " is no multiple of ", keys.heads, " ", heads));
  }
  const int64_t head_dim = std::max<int64_t>(spec.hidden_size / heads, 1);
  const Activation activation = ReadActivation(c, keys.activation, keys.act);
  spec.is_tied = c.Flag("tie_word_embeddings", keys.tied);
  for (int64_t i = 0; i < layers; ++i) {
    LayerSpec layer{.module = absl::StrCat(layers_module, ".", i)};
    layer.attention = AttentionSpec{.heads = heads, .kv_heads = heads, .head_dim = head_dim};
    layer.mlp = MlpSpec{.activation = activation};
    spec.layers.push_back(std::move(layer));
  }
  return spec;
}

double ReadEps(ConfigReader& c, const std::string& key) { return c.Number(key, 1e-5, 0, 1); }

int64_t InnerSize(ConfigReader& c, const std::string& key, const DecoderSpec& spec) {
  return c.Int(key, 4 * spec.hidden_size, 1, kMaxSize);
}

void Rotate(ConfigReader& c, const HfRopeDefaults& defaults, DecoderSpec* spec) {
  spec->ropes = {ReadRope(c, spec->max_context, std::get<AttentionSpec>(spec->layers[0].attention).head_dim, defaults)};
  spec->max_context = std::max<int64_t>(spec->ropes[0].parameters.max_context, 1);
  ForAttention(spec, [](AttentionSpec& a) { a.rope = 0; });
  for (const char* module : {".attention", ".self_attn", ".self_attention"}) {
    spec->unused.of_layers.push_back(
        {absl::StrCat(module, ".rotary_emb.inv_freq"), "a buffer that config.json's rope parameters give"});
  }
}

}  // namespace llmc::hf
