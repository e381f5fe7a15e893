// GPT-2 and its kin: layer norms, plain MLPs, learned positions or biases by distance.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/families/gpt_parts.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

DecoderSpec Gpt2(ConfigReader& c) {
  DecoderSpec spec = ReadGpt(c,
                             {.hidden = "n_embd",
                              .layers = "n_layer",
                              .heads = "n_head",
                              .activation = "activation_function",
                              .positions = "n_positions"},
                             "transformer.h");
  c.Needs("add_cross_attention", false);
  const double eps = ReadEps(c);
  const int64_t inner = InnerSize(c, "n_inner", spec);
  const bool scales = c.Flag("scale_attn_weights", true), by_layer = c.Flag("scale_attn_by_inverse_layer_idx", false);
  spec.embedding = "transformer.wte";
  spec.positions = "transformer.wpe";
  spec.position_rows = spec.max_context;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.layout = QkvLayout::kInTurn;
    a.q = {m + ".attn.c_attn", true, true};
    a.o = {m + ".attn.c_proj", true, true};
    a.scale =
        (scales ? 1 / std::sqrt(static_cast<double>(a.head_dim)) : 1) / (by_layer ? static_cast<double>(i + 1) : 1);
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.size = inner;
    mlp.up = {m + ".mlp.c_fc", true, true};
    mlp.down = {m + ".mlp.c_proj", true, true};
    layer.attention_norm = LayerNormOf(m + ".ln_1", eps);
    layer.mlp_norm = LayerNormOf(m + ".ln_2", eps);
  }
  spec.norm = LayerNormOf("transformer.ln_f", eps);
  spec.unused.of_layers = {{".attn.bias", "the causal mask"}, {".attn.masked_bias", "the causal mask"}};
  return spec;
}

bool AreAttentionTypes(const std::vector<std::string>& types) {
  return std::all_of(types.begin(), types.end(), [](const std::string& t) { return t == "global" || t == "local"; });
}

// `attention_types`: [[["global", "local"], 12]], the types of layers, so many times. `attention_layers` has one for
// each layer, and goes before it, as in transformers.
std::vector<std::string> AttentionTypes(ConfigReader& c, size_t layers) {
  if (const auto each = c.Texts("attention_layers", static_cast<int64_t>(layers)); each.has_value()) {
    c.Ignore({"attention_types"});
    if (AreAttentionTypes(*each)) return *each;
    c.Wrong("attention_layers", "a list of \"global\" and \"local\"");
  }
  std::vector<std::string> types;
  const json* list = c.Find("attention_types");
  const json otherwise = {{{"global", "local"}, static_cast<uint64_t>(layers + 1) / 2}};
  const json& runs = list == nullptr ? otherwise : *list;
  bool fits = runs.is_array();
  for (size_t r = 0; fits && r < runs.size(); ++r) {
    const json& run = runs[r];
    fits =
        run.is_array() && run.size() == 2 && run[0].is_array() && run[1].is_number_unsigned() && run[1] <= kMaxLayers;
    for (uint64_t n = 0; fits && n < run[1].get<uint64_t>() && types.size() <= layers; ++n) {
      for (const json& type : run[0]) types.push_back(type.is_string() ? type.get<std::string>() : "");
    }
  }
  types.resize(list == nullptr ? layers : types.size());
  if (!fits || !AreAttentionTypes(types) || types.size() != layers) {
    c.Wrong("attention_types", absl::StrCat("runs of \"global\" and \"local\" for ", layers, " layers"));
    types.assign(layers, "global");
  }
  return types;
}

DecoderSpec GptNeo(ConfigReader& c) {
  DecoderSpec spec = ReadGpt(c,
                             {.layers = "num_layers",
                              .heads = "num_heads",
                              .activation = "activation_function",
                              .hidden_size = 2048,
                              .layer_count = 24,
                              .head_count = 16,
                              .max_positions = 2048},
                             "transformer.h");
  const double eps = ReadEps(c);
  const int64_t inner = InnerSize(c, "intermediate_size", spec), window = c.Int("window_size", 256, 1, kMaxPositions);
  const std::vector<std::string> types = AttentionTypes(c, spec.layers.size());
  spec.embedding = "transformer.wte";
  spec.positions = "transformer.wpe";
  spec.position_rows = spec.max_context;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    LayerSpec& layer = spec.layers[i];
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.q = {m + ".attn.attention.q_proj"};
    a.k = {m + ".attn.attention.k_proj"};
    a.v = {m + ".attn.attention.v_proj"};
    a.o = {m + ".attn.attention.out_proj", true};
    a.scale = 1;
    a.window = types[i] == "local" ? window : 0;
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.size = inner;
    mlp.up = {m + ".mlp.c_fc", true};
    mlp.down = {m + ".mlp.c_proj", true};
    layer.attention_norm = LayerNormOf(m + ".ln_1", eps);
    layer.mlp_norm = LayerNormOf(m + ".ln_2", eps);
  }
  spec.norm = LayerNormOf("transformer.ln_f", eps);
  spec.unused.of_layers = {{".attn.attention.bias", "the causal mask"},
                           {".attn.attention.masked_bias", "the causal mask"}};
  return spec;
}

DecoderSpec Opt(ConfigReader& c) {
  DecoderSpec spec =
      ReadGpt(c, {.activation = "activation_function", .vocab_size = 50272, .max_positions = 2048, .act = "relu"},
              "model.decoder.layers");
  const int64_t size = c.Int("ffn_dim", 3072);
  const bool before = c.Flag("do_layer_norm_before", true), bias = c.Flag("enable_bias", true);
  const bool affine = c.Flag("layer_norm_elementwise_affine", true);
  const int64_t width = c.Int("word_embed_proj_dim", spec.hidden_size);
  c.Ignore({"intermediate_size"});
  spec.embedding = "model.decoder.embed_tokens";
  if (width != spec.hidden_size) {
    spec.embedding_size = width;
    spec.embedding_in = {"model.decoder.project_in"};
    spec.embedding_out = {"model.decoder.project_out"};
  }
  // Two rows before that of position 0.
  spec.positions = "model.decoder.embed_positions";
  spec.position_offset = 2;
  spec.position_rows = spec.max_context + spec.position_offset;
  const auto norm = [&](const std::string& module) {
    NormSpec n = LayerNormOf(module, 1e-5, affine);
    n.has_weight = affine;
    return n;
  };
  for (LayerSpec& layer : spec.layers) {
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.q = {m + ".self_attn.q_proj", bias};
    a.k = {m + ".self_attn.k_proj", bias};
    a.v = {m + ".self_attn.v_proj", bias};
    a.o = {m + ".self_attn.out_proj", bias};
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.size = size;
    mlp.up = {m + ".fc1", bias};
    mlp.down = {m + ".fc2", bias};
    (before ? layer.attention_norm : layer.attention_sum_norm) = norm(m + ".self_attn_layer_norm");
    (before ? layer.mlp_norm : layer.mlp_sum_norm) = norm(m + ".final_layer_norm");
  }
  const bool no_norm = c.Flag("_remove_final_layer_norm", false);
  if (before && !no_norm) spec.norm = norm("model.decoder.final_layer_norm");
  return spec;
}

DecoderSpec Bloom(ConfigReader& c) {
  // Sizes had other names once; a file may have both.
  DecoderSpec spec = ReadGpt(c,
                             {.hidden = c.Has("n_embed") ? "n_embed" : "hidden_size",
                              .layers = c.Has("num_hidden_layers") ? "num_hidden_layers" : "n_layer",
                              .heads = c.Has("num_attention_heads") ? "num_attention_heads" : "n_head",
                              .positions = "",
                              .vocab_size = 250880,
                              .hidden_size = 64,
                              .layer_count = 2,
                              .head_count = 8,
                              .act = "gelu_new"},
                             "transformer.h");
  c.Ignore({"hidden_size", "n_layer", "n_head", "num_hidden_layers", "num_attention_heads"});
  // Biases by distance have no end; the models were trained on this length.
  spec.max_context = c.Int("seq_length", 2048, 1, kMaxPositions);
  const double eps = ReadEps(c);
  const bool adds_to_normed = c.Flag("apply_residual_connection_post_layernorm", false);
  spec.embedding = "transformer.word_embeddings";
  spec.embedding_norm = LayerNormOf("transformer.word_embeddings_layernorm", eps);
  for (LayerSpec& layer : spec.layers) {
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.layout = QkvLayout::kGroups;
    a.q = {m + ".self_attention.query_key_value", true};
    a.o = {m + ".self_attention.dense", true};
    a.has_alibi = true;
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.size = 4 * spec.hidden_size;
    mlp.up = {m + ".mlp.dense_h_to_4h", true};
    mlp.down = {m + ".mlp.dense_4h_to_h", true};
    layer.attention_norm = LayerNormOf(m + ".input_layernorm", eps);
    layer.mlp_norm = LayerNormOf(m + ".post_attention_layernorm", eps);
    layer.adds_to_normed = adds_to_normed;
  }
  spec.norm = LayerNormOf("transformer.ln_f", eps);
  return spec;
}

DecoderSpec Mpt(ConfigReader& c) {
  DecoderSpec spec = ReadGpt(c,
                             {.hidden = "d_model",
                              .layers = "n_layers",
                              .heads = "n_heads",
                              .activation = "hidden_act",
                              .positions = "max_seq_len",
                              .vocab_size = 50368,
                              .hidden_size = 2048,
                              .layer_count = 24,
                              .head_count = 16,
                              .max_positions = 2048,
                              .act = "gelu"},
                             "transformer.blocks");
  const double eps = ReadEps(c);
  c.Needs("no_bias", true);
  c.Ignore({"learned_pos_emb", "norm_type"});  // transformers reads neither
  if (c.Has("logit_scale")) c.Refuse("logit_scale is not supported for this architecture; set it to null");
  const json none = json::object();
  const json* object = c.Find("attn_config");
  if (object != nullptr && !object->is_object()) c.Wrong("attn_config", "an object");
  ConfigReader attention(object != nullptr && object->is_object() ? object : &none, c.file() + ": attn_config");
  attention.Needs("alibi", true);
  attention.Needs("qk_ln", false);
  attention.Needs("prefix_lm", false);
  const double clip = attention.Number("clip_qkv", 0, 1e-6, 1e9),
               scale = attention.Number("softmax_scale", 0, 1e-9, 1e9);
  const double bias_max = attention.Number("alibi_bias_max", 8, 1e-6, 1e6);
  if (attention.Text("attn_type", "multihead_attention") != "multihead_attention") {
    attention.Refuse("attn_type other than multihead_attention is not supported");
  }
  c.Keep(attention.Finish());
  const int64_t size = c.Int("expansion_ratio", 4, 1, 64) * spec.hidden_size;
  spec.embedding = "transformer.wte";
  for (LayerSpec& layer : spec.layers) {
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.layout = QkvLayout::kInTurn;
    a.q = {m + ".attn.Wqkv"};
    a.o = {m + ".attn.out_proj"};
    a.has_alibi = true;
    a.alibi_max = bias_max;
    a.clip = clip;
    a.scale = scale;
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.size = size;
    mlp.up = {m + ".ffn.up_proj"};
    mlp.down = {m + ".ffn.down_proj"};
    layer.attention_norm = LayerNormOf(m + ".norm_1", eps, false);
    layer.mlp_norm = LayerNormOf(m + ".norm_2", eps, false);
  }
  spec.norm = LayerNormOf("transformer.norm_f", eps, false);
  return spec;
}

constexpr Family kGptFamilies[] = {
    {"GPT2LMHeadModel", "gpt2", Gpt2},    {"GPTNeoForCausalLM", "gpt_neo", GptNeo}, {"OPTForCausalLM", "opt", Opt},
    {"BloomForCausalLM", "bloom", Bloom}, {"MptForCausalLM", "mpt", Mpt},           {"MPTForCausalLM", "mpt", Mpt},
};

}  // namespace

absl::Span<const Family> GptFamilies() { return kGptFamilies; }

}  // namespace llmc::hf
