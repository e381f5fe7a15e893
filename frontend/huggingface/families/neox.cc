// Layer norms and plain MLPs with rotary positions, from GPT-NeoX on.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/families/gpt_parts.h"

namespace llmc::hf {
namespace {

DecoderSpec GptNeoX(ConfigReader& c) {
  DecoderSpec spec = ReadGpt(c,
                             {.eps = "layer_norm_eps",
                              .vocab_size = 50432,
                              .hidden_size = 6144,
                              .layer_count = 44,
                              .head_count = 64,
                              .max_positions = 2048,
                              .act = "gelu",
                              .tied = false},
                             "gpt_neox.layers");
  const double eps = ReadEps(c, "layer_norm_eps");
  const int64_t inner = c.Int("intermediate_size", 24576);
  const bool bias = c.Flag("attention_bias", true), is_parallel = c.Flag("use_parallel_residual", true);
  // Before transformers 5 rotary_pct and rotary_emb_base were keys.
  Rotate(c, {.theta = c.Number("rotary_emb_base", 10000, 1.0001, 1e15), .partial = c.Number("rotary_pct", 0.25, 0, 1)},
         &spec);
  spec.embedding = "gpt_neox.embed_in";
  spec.head.module = "embed_out";
  for (LayerSpec& layer : spec.layers) {
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.layout = QkvLayout::kGroups;
    a.q = {m + ".attention.query_key_value", bias};
    a.o = {m + ".attention.dense", bias};
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.size = inner;
    mlp.up = {m + ".mlp.dense_h_to_4h", true};
    mlp.down = {m + ".mlp.dense_4h_to_h", true};
    layer.attention_norm = LayerNormOf(m + ".input_layernorm", eps);
    layer.mlp_norm = LayerNormOf(m + ".post_attention_layernorm", eps);
    layer.is_parallel = is_parallel;
  }
  spec.norm = LayerNormOf("gpt_neox.final_layer_norm", eps);
  spec.unused.of_layers.push_back({".attention.bias", "the causal mask"});
  spec.unused.of_layers.push_back({".attention.masked_bias", "the causal mask"});
  return spec;
}

DecoderSpec GptJ(ConfigReader& c) {
  DecoderSpec spec = ReadGpt(c,
                             {.hidden = "n_embd",
                              .layers = "n_layer",
                              .heads = "n_head",
                              .activation = "activation_function",
                              .positions = "n_positions",
                              .vocab_size = 50400,
                              .hidden_size = 4096,
                              .layer_count = 28,
                              .head_count = 16,
                              .max_positions = 2048,
                              .tied = false},
                             "transformer.h");
  const double eps = ReadEps(c);
  const int64_t inner = InnerSize(c, "n_inner", spec);
  const int64_t head_dim = std::get<AttentionSpec>(spec.layers[0].attention).head_dim;
  const int64_t rotary = c.Int("rotary_dim", std::min<int64_t>(64, head_dim), 2, std::max<int64_t>(head_dim, 2));
  Rotate(c, {}, &spec);
  spec.ropes[0].dims = rotary;
  spec.ropes[0].interleaved = true;
  if (rotary % 2 != 0) c.Contradicts(absl::StrCat("rotary_dim ", rotary, " is odd"));
  spec.embedding = "transformer.wte";
  spec.head.bias = true;
  for (LayerSpec& layer : spec.layers) {
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.q = {m + ".attn.q_proj"};
    a.k = {m + ".attn.k_proj"};
    a.v = {m + ".attn.v_proj"};
    a.o = {m + ".attn.out_proj"};
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.size = inner;
    mlp.up = {m + ".mlp.fc_in", true};
    mlp.down = {m + ".mlp.fc_out", true};
    layer.attention_norm = LayerNormOf(m + ".ln_1", eps);
    layer.is_parallel = true;
  }
  spec.norm = LayerNormOf("transformer.ln_f", eps);
  spec.unused.of_layers.push_back({".attn.bias", "the causal mask"});
  spec.unused.of_layers.push_back({".attn.masked_bias", "the causal mask"});
  return spec;
}

DecoderSpec Phi(ConfigReader& c) {
  DecoderSpec spec = ReadGpt(c,
                             {.eps = "layer_norm_eps",
                              .vocab_size = 51200,
                              .hidden_size = 2048,
                              .layer_count = 24,
                              .head_count = 32,
                              .max_positions = 2048,
                              .tied = false},
                             "model.layers");
  const double eps = ReadEps(c, "layer_norm_eps");
  const int64_t inner = c.Int("intermediate_size", 8192);
  const bool has_norms = c.Flag("qk_layernorm", false);
  Rotate(c, {.partial = 0.5}, &spec);
  spec.head.bias = true;
  for (LayerSpec& layer : spec.layers) {
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.kv_heads = c.Int("num_key_value_heads", a.heads);
    CheckHeads(c, a.heads, a.kv_heads, a.head_dim);
    a.q = {m + ".self_attn.q_proj", true};
    a.k = {m + ".self_attn.k_proj", true};
    a.v = {m + ".self_attn.v_proj", true};
    a.o = {m + ".self_attn.dense", true};
    if (has_norms) {
      a.q_norm = LayerNormOf(m + ".self_attn.q_layernorm", eps);
      a.k_norm = LayerNormOf(m + ".self_attn.k_layernorm", eps);
    }
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.size = inner;
    mlp.up = {m + ".mlp.fc1", true};
    mlp.down = {m + ".mlp.fc2", true};
    layer.attention_norm = LayerNormOf(m + ".input_layernorm", eps);
    layer.is_parallel = true;
  }
  spec.norm = LayerNormOf("model.final_layernorm", eps);
  return spec;
}

DecoderSpec Falcon(ConfigReader& c) {
  DecoderSpec spec = ReadGpt(c,
                             {.activation = "activation",
                              .vocab_size = 65024,
                              .hidden_size = 4544,
                              .layer_count = 32,
                              .head_count = 71,
                              .max_positions = 2048,
                              .act = "gelu"},
                             "transformer.h");
  const double eps = ReadEps(c);
  const int64_t size = InnerSize(c, "ffn_hidden_size", spec);
  const bool bias = c.Flag("bias", false), is_new = c.Flag("new_decoder_architecture", false);
  const bool is_parallel = c.Flag("parallel_attn", true), one_key = c.Flag("multi_query", true);
  const bool has_alibi = c.Flag("alibi", false);
  const bool two_norms = c.Int("num_ln_in_parallel_attn", is_new ? 2 : 1, 1, 2) == 2 && is_parallel;
  const int64_t heads = std::get<AttentionSpec>(spec.layers[0].attention).heads,
                kv_heads = c.Int("num_kv_heads", heads);
  if (!has_alibi) Rotate(c, {}, &spec);
  if (has_alibi) c.Ignore({"rope_parameters", "rope_scaling", "rope_theta"});
  NeedsWholeRope(c, spec);
  spec.embedding = "transformer.word_embeddings";
  for (LayerSpec& layer : spec.layers) {
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    // transformers reads num_kv_heads of the new form only.
    if (is_new) a.kv_heads = kv_heads;
    if (!is_new && one_key) a.kv_heads = 1;
    CheckHeads(c, a.heads, a.kv_heads, a.head_dim);
    a.layout = QkvLayout::kGroups;
    a.q = {m + ".self_attention.query_key_value", bias};
    a.o = {m + ".self_attention.dense", bias};
    a.has_alibi = has_alibi;
    a.alibi_scale = 1 / std::sqrt(static_cast<double>(a.head_dim));  // the biases are scaled like scores
    a.alibi_in_bf16 = true;
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.size = size;
    mlp.up = {m + ".mlp.dense_h_to_4h", bias};
    mlp.down = {m + ".mlp.dense_4h_to_h", bias};
    layer.attention_norm = LayerNormOf(m + (two_norms ? ".ln_attn" : ".input_layernorm"), eps);
    if (two_norms) layer.mlp_norm = LayerNormOf(m + ".ln_mlp", eps);
    if (!is_parallel) layer.mlp_norm = LayerNormOf(m + ".post_attention_layernorm", eps);
    layer.is_parallel = is_parallel;
  }
  spec.norm = LayerNormOf("transformer.ln_f", eps);
  return spec;
}

// ---- the modules of Llama with layer norms and plain MLPs
// ------------------------------------------------------------
void UsePlainMlp(const std::string& up, const std::string& down, bool bias, DecoderSpec* spec) {
  for (LayerSpec& layer : spec->layers) {
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.gate.reset();
    mlp.up = {layer.module + up, bias};
    mlp.down = {layer.module + down, bias};
  }
}

void UseLayerNormsWithBias(bool plus_one, DecoderSpec* spec) {
  const auto change = [&](NormSpec& norm) {
    norm.kind = NormKind::kLayer;
    norm.bias = true;
    norm.plus_one = plus_one;
  };
  change(*spec->norm);
  for (LayerSpec& layer : spec->layers) {
    change(*layer.attention_norm);
    change(*layer.mlp_norm);
  }
}

void SetAllBiases(bool bias, DecoderSpec* spec) {
  ForAttention(spec, [&](AttentionSpec& a) { a.q.bias = a.k.bias = a.v.bias = a.o.bias = bias; });
}

DecoderSpec Starcoder2(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 49152,
                                    .hidden_size = 3072,
                                    .intermediate_size = 12288,
                                    .layers = 30,
                                    .heads = 24,
                                    .kv_heads = 2,
                                    .max_positions = 4096,
                                    .tied = true,
                                    .activation = "gelu_pytorch_tanh",
                                    .eps_key = "norm_epsilon",
                                    .eps = 1e-5});
  NeedsWholeRope(c, spec);
  const bool bias = c.Flag("use_bias", true);
  c.Ignore({"activation_function"});  // of an earlier form, beside hidden_act
  UsePlainMlp(".mlp.c_fc", ".mlp.c_proj", bias, &spec);
  UseLayerNormsWithBias(false, &spec);
  SetAllBiases(bias, &spec);
  const int64_t window = c.Int("sliding_window", 0, 1, kMaxPositions);
  ForAttention(&spec, [&](AttentionSpec& a) { a.window = window; });
  return spec;
}

DecoderSpec Nemotron(ConfigReader& c) {
  DecoderSpec spec = ReadCommon(c, {.vocab_size = 256000,
                                    .hidden_size = 6144,
                                    .intermediate_size = 24576,
                                    .heads = 48,
                                    .max_positions = 4096,
                                    .rope = {.partial = 0.5},
                                    .activation = "relu2",
                                    .eps_key = "norm_eps",
                                    .eps = 1e-5});
  UsePlainMlp(".mlp.up_proj", ".mlp.down_proj", c.Flag("mlp_bias", false), &spec);
  UseLayerNormsWithBias(true, &spec);
  SetAllBiases(c.Flag("attention_bias", false), &spec);
  return spec;
}

constexpr Family kNeoxFamilies[] = {
    {"GPTNeoXForCausalLM", "gpt_neox", GptNeoX},
    {"GPTJForCausalLM", "gptj", GptJ},
    {"PhiForCausalLM", "phi", Phi},
    {"FalconForCausalLM", "falcon", Falcon},
    {"Starcoder2ForCausalLM", "starcoder2", Starcoder2},
    {"NemotronForCausalLM", "nemotron", Nemotron},
};

}  // namespace

absl::Span<const Family> NeoxFamilies() { return kNeoxFamilies; }

}  // namespace llmc::hf
