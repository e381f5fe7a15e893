#include "frontend/huggingface/gguf.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "frontend/huggingface/family.h"
#include "frontend/huggingface/gguf_rope.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

// A name in GGUF and what stands for it in a Hugging Face folder. In names of tensors "{}" is the number of the layer.
struct GgufName {
  absl::string_view gguf, hf;
};

constexpr GgufName kCommonKeys[] = {
    {"block_count", "num_hidden_layers"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"context_length", "max_position_embeddings"},
    {"rope.freq_base", "rope_theta"},
    {"vocab_size", "vocab_size"},
};
constexpr GgufName kWindowKey = {"attention.sliding_window", "sliding_window"};
constexpr GgufName kLayerNormKey = {"attention.layer_norm_epsilon", "layer_norm_epsilon"};

constexpr GgufName kMistralKeys[] = {kWindowKey};
constexpr GgufName kMixtralKeys[] = {
    kWindowKey, {"expert_count", "num_local_experts"}, {"expert_used_count", "num_experts_per_tok"}};
constexpr GgufName kPhi3Keys[] = {kWindowKey};
constexpr GgufName kGemma2Keys[] = {kWindowKey,
                                    {"attn_logit_softcapping", "attn_logit_softcapping"},
                                    {"final_logit_softcapping", "final_logit_softcapping"}};
constexpr GgufName kStarcoder2Keys[] = {{"attention.layer_norm_epsilon", "norm_epsilon"}};
constexpr GgufName kGpt2Keys[] = {kLayerNormKey,
                                  {"block_count", "n_layer"},
                                  {"embedding_length", "n_embd"},
                                  {"attention.head_count", "n_head"},
                                  {"context_length", "n_positions"},
                                  {"feed_forward_length", "n_inner"}};
constexpr GgufName kFalconKeys[] = {
    kLayerNormKey, {"attention.head_count_kv", "num_kv_heads"}, {"feed_forward_length", "ffn_hidden_size"}};
constexpr GgufName kMoeKeys[] = {{"expert_count", "num_experts"},
                                 {"expert_used_count", "num_experts_per_tok"},
                                 {"expert_feed_forward_length", "moe_intermediate_size"},
                                 {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"}};

// Modules; those of tensors are behind their ".weight" and ".bias".
constexpr GgufName kLlamaTensors[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"blk.{}.attn_norm", "model.layers.{}.input_layernorm"},
    {"blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"},
    {"blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"},
    {"blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
    {"blk.{}.attn_qkv", "model.layers.{}.self_attn.qkv_proj"},
    {"blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"},
    {"blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"},
    {"blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"},
    {"blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"},
    {"blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"},
    {"blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"},
    {"blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"},
    {"blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate"},
    {"blk.{}.ffn_gate_exps", "model.layers.{}.mlp.experts.stacked.gate_proj"},
    {"blk.{}.ffn_up_exps", "model.layers.{}.mlp.experts.stacked.up_proj"},
    {"blk.{}.ffn_down_exps", "model.layers.{}.mlp.experts.stacked.down_proj"},
    {"blk.{}.ffn_gate_inp_shexp", "model.layers.{}.mlp.shared_expert_gate"},
    {"blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_expert.gate_proj"},
    {"blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_expert.up_proj"},
    {"blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_expert.down_proj"},
};
// With a second norm, in files of Falcon's new form, the first is that of the MLP.
constexpr absl::string_view kFirstNorm = "blk.{}.attn_norm", kNormOfMlp = "transformer.h.{}.ln_mlp";
constexpr char kSecondNorm[] = "blk.0.attn_norm_2.weight";
// What families name otherwise goes before.
constexpr GgufName kMixtralTensors[] = {
    {"blk.{}.ffn_gate_inp", "model.layers.{}.block_sparse_moe.gate"},
    {"blk.{}.ffn_gate_exps", "model.layers.{}.block_sparse_moe.experts.stacked.w1"},
    {"blk.{}.ffn_up_exps", "model.layers.{}.block_sparse_moe.experts.stacked.w3"},
    {"blk.{}.ffn_down_exps", "model.layers.{}.block_sparse_moe.experts.stacked.w2"},
};
constexpr GgufName kPhi3Tensors[] = {{"blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj"}};
constexpr GgufName kGemma2Tensors[] = {
    {"blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"},
    {"blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm"},
    {"blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"},
};
constexpr GgufName kStarcoder2Tensors[] = {{"blk.{}.ffn_up", "model.layers.{}.mlp.c_fc"},
                                           {"blk.{}.ffn_down", "model.layers.{}.mlp.c_proj"}};
constexpr GgufName kGpt2Tensors[] = {
    {"token_embd", "transformer.wte"},
    {"position_embd", "transformer.wpe"},
    {"output_norm", "transformer.ln_f"},
    {"blk.{}.attn_norm", "transformer.h.{}.ln_1"},
    {"blk.{}.attn_qkv", "transformer.h.{}.attn.c_attn"},
    {"blk.{}.attn_output", "transformer.h.{}.attn.c_proj"},
    {"blk.{}.ffn_norm", "transformer.h.{}.ln_2"},
    {"blk.{}.ffn_up", "transformer.h.{}.mlp.c_fc"},
    {"blk.{}.ffn_down", "transformer.h.{}.mlp.c_proj"},
};
constexpr GgufName kFalconTensors[] = {
    {"token_embd", "transformer.word_embeddings"},
    {"output_norm", "transformer.ln_f"},
    {"blk.{}.attn_norm", "transformer.h.{}.input_layernorm"},
    {"blk.{}.attn_norm_2", "transformer.h.{}.ln_attn"},
    {"blk.{}.attn_qkv", "transformer.h.{}.self_attention.query_key_value"},
    {"blk.{}.attn_output", "transformer.h.{}.self_attention.dense"},
    {"blk.{}.ffn_up", "transformer.h.{}.mlp.dense_h_to_4h"},
    {"blk.{}.ffn_down", "transformer.h.{}.mlp.dense_4h_to_h"},
};

bool HasBias(const GgufFile& file, absl::string_view module) {
  return file.tensors.contains(absl::StrCat("blk.0.", module, ".bias"));
}

// ---- what the metadata leave to tensors or to the family ------------------------------------------------------------
void CompleteLlama(const GgufFile& file, json* config) {
  (*config)["attention_bias"] = HasBias(file, "attn_q");
  (*config)["mlp_bias"] = HasBias(file, "ffn_gate");
}

// Queries are scaled by the width of a head, but for the largest models by that of all heads together (technical
// reports of Gemma 2 and 3); GGUF tells them by the number of layers.
void CompleteGemma2(const GgufFile& file, json* config) {
  constexpr int kLayersOf27B[] = {46, 62};
  const json& c = *config;
  const auto number = [&](const char* key) {
    return c.contains(key) && c[key].is_number_unsigned() ? c[key].get<int64_t>() : int64_t{0};
  };
  const int64_t heads = std::max<int64_t>(number("num_attention_heads"), 1), layers = number("num_hidden_layers");
  const bool is_27b = std::find(std::begin(kLayersOf27B), std::end(kLayersOf27B), layers) != std::end(kLayersOf27B);
  (*config)["query_pre_attn_scalar"] = is_27b ? number("hidden_size") / heads : number("head_dim");
  if (!c.contains("attn_logit_softcapping")) (*config)["attn_logit_softcapping"] = nullptr;
  if (!c.contains("final_logit_softcapping")) (*config)["final_logit_softcapping"] = nullptr;
  if (!c.contains("sliding_window")) (*config)["sliding_window"] = nullptr;
  (*config)["attention_bias"] = HasBias(file, "attn_q");
}

void CompleteQwen3(const GgufFile& file, json* config) { (*config)["attention_bias"] = HasBias(file, "attn_q"); }

void CompleteStarcoder2(const GgufFile& file, json* config) { (*config)["use_bias"] = HasBias(file, "attn_q"); }

void CompleteFalcon(const GgufFile& file, json* config) {
  const bool is_new = file.tensors.contains(kSecondNorm);
  (*config)["new_decoder_architecture"] = is_new;
  (*config)["multi_query"] = true;
  (*config)["bias"] = HasBias(file, "attn_qkv");
}

void CompleteQwen2Moe(const GgufFile& file, json* config) { (*config)["qkv_bias"] = HasBias(file, "attn_q"); }

void CompleteQwen3Moe(const GgufFile& file, json* config) {
  CompleteQwen3(file, config);
  (*config)["norm_topk_prob"] = true;
}

// ---- what GGUF stores otherwise -------------------------------------------------------------------------------------
// Rows of queries and keys lie so that the two elements of a pair are neighbours.
void RotateNeighbours(DecoderSpec* spec) {
  for (RopeSpec& rope : spec->ropes) rope.interleaved = true;
}

// 1 is in the weights already.
void AddNothing(DecoderSpec* spec) {
  ForNorms(spec, [](NormSpec& norm) { norm.plus_one = false; });
}

// [out, in], as linear layers are elsewhere.
void TransposeNothing(DecoderSpec* spec) {
  for (LayerSpec& layer : spec->layers) {
    auto& a = std::get<AttentionSpec>(layer.attention);
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    for (LinearSpec* linear : {&a.q, &a.o, &mlp.up, &mlp.down}) linear->is_transposed = false;
  }
}

// All queries, all keys, all values.
void SortRows(DecoderSpec* spec) {
  ForAttention(spec, [](AttentionSpec& a) { a.layout = QkvLayout::kInTurn; });
}

struct GgufFamily {
  absl::string_view name;                    // general.architecture
  absl::string_view architecture;            // of transformers
  absl::Span<const GgufName> keys, tensors;  // beside the common ones, before them
  void (*complete)(const GgufFile& file, json* config) = nullptr;
  void (*change)(DecoderSpec* spec) = nullptr;
};
constexpr GgufFamily kGgufFamilies[] = {
    {"llama", "LlamaForCausalLM", {}, {}, CompleteLlama, RotateNeighbours},
    {"qwen2", "Qwen2ForCausalLM", {}, {}},
    {"qwen3", "Qwen3ForCausalLM", {}, {}, CompleteQwen3},
    {"gemma", "GemmaForCausalLM", {}, {}, nullptr, AddNothing},
    {"gemma2", "Gemma2ForCausalLM", kGemma2Keys, kGemma2Tensors, CompleteGemma2, AddNothing},
    {"gemma3", "Gemma3ForCausalLM", kGemma2Keys, kGemma2Tensors, CompleteGemma2, AddNothing},
    {"phi3", "Phi3ForCausalLM", kPhi3Keys, kPhi3Tensors},
    {"gpt2", "GPT2LMHeadModel", kGpt2Keys, kGpt2Tensors, nullptr, TransposeNothing},
    {"starcoder2", "Starcoder2ForCausalLM", kStarcoder2Keys, kStarcoder2Tensors, CompleteStarcoder2},
    {"falcon", "FalconForCausalLM", kFalconKeys, kFalconTensors, CompleteFalcon, SortRows},
    {"qwen2moe", "Qwen2MoeForCausalLM", kMoeKeys, {}, CompleteQwen2Moe},
    {"qwen3moe", "Qwen3MoeForCausalLM", kMoeKeys, {}, CompleteQwen3Moe},
};
// Files of Mistral's models are "llama" too; those with experts, or else with a window, are read as such.
constexpr GgufFamily kMixtralFamily = {"llama", "MixtralForCausalLM", kMixtralKeys, kMixtralTensors,
                                       nullptr, RotateNeighbours};
constexpr GgufFamily kMistralFamily = {"llama", "MistralForCausalLM", kMistralKeys,
                                       {},      CompleteLlama,        RotateNeighbours};

class GgufModelReader {
 public:
  GgufModelReader(const std::string& path, const GgufFile& file) : path_(path), file_(file) {}

  absl::StatusOr<GgufModel> Read() {
    ASSIGN_OR_RETURN(family_, FamilyOf());
    prefix_ = absl::StrCat(family_->name, ".");
    RETURN_IF_ERROR(CheckKeys());
    GgufModel model;
    ASSIGN_OR_RETURN(model.config, Config());
    const std::string place = absl::StrCat(path_, " (metadata under the names of config.json)");
    ASSIGN_OR_RETURN(ModelSpec spec, ReadModel(model.config, place));
    model.spec = std::get<DecoderSpec>(std::move(spec));
    if (family_->change != nullptr) family_->change(&model.spec);
    for (const auto& [name, tensor] : file_.tensors) AddTensor(name, tensor, &model.checkpoint);
    const bool has_second_norm = file_.tensors.contains(kSecondNorm);
    model.stored_name = [family = family_, has_second_norm](const std::string& name) {
      return StoredNameOf(*family, has_second_norm, name);
    };
    return model;
  }

 private:
  const json* Find(absl::string_view key) const {
    const auto at = file_.metadata.find(absl::StrCat(prefix_, key));
    return at == file_.metadata.end() ? nullptr : &*at;
  }

  absl::StatusOr<const GgufFamily*> FamilyOf() const {
    const auto name = file_.metadata.find("general.architecture");
    if (name == file_.metadata.end() || !name->is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": metadata \"general.architecture\" must be a string; there is none"));
    }
    const auto text = name->get<std::string>();
    const auto has = [&](absl::string_view key) {
      const auto at = file_.metadata.find(absl::StrCat(text, ".", key));
      return at != file_.metadata.end() && !IsNothing(*at);
    };
    if (text == kMixtralFamily.name && has("expert_count")) return &kMixtralFamily;
    if (text == kMistralFamily.name && has(kWindowKey.gguf)) return &kMistralFamily;
    for (const GgufFamily& family : kGgufFamilies) {
      if (family.name == text) return &family;
    }
    return absl::UnimplementedError(absl::StrCat(
        path_, ": architecture ", Quoted(text), " of a GGUF file is not supported; supported are ",
        absl::StrJoin(kGgufFamilies, ", ", [](std::string* out, const auto& f) { absl::StrAppend(out, f.name); }),
        "; give the Hugging Face folder of the model"));
  }

  // A key that is not read may change what the model computes.
  absl::Status CheckKeys() const {
    const absl::Span<const absl::string_view> of_rope = GgufRopeKeys();
    std::set<absl::string_view> known(of_rope.begin(), of_rope.end());
    for (const auto names : {absl::MakeConstSpan(kCommonKeys), family_->keys}) {
      for (const GgufName& name : names) known.insert(name.gguf);
    }
    std::vector<std::string> unknown;
    for (const auto& [key, value] : file_.metadata.items()) {
      absl::string_view rest = key;
      if (!absl::ConsumePrefix(&rest, prefix_) || known.contains(rest)) continue;
      if (rest == "tensor_data_layout" || IsNothing(value)) continue;
      unknown.push_back(Quoted(key));
    }
    if (unknown.empty()) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(path_, ": metadata ", absl::StrJoin(unknown, ", "),
                                                 " is not supported for architecture ", family_->name,
                                                 "; give the Hugging Face folder of the model"));
  }
  // Zero experts, say.
  static bool IsNothing(const json& value) { return value == 0 || value == false; }

  // In which the model computes: that of the embedding or, where that is stored in blocks, bf16, which holds whatever a
  // model was trained with. Scales and codes keep their own.
  DType DTypeOf(const NamedTensors::value_type& embedding) const {
    return file_.encodings.contains(embedding.first) ? DType::kBF16 : embedding.second.dtype();
  }

  absl::StatusOr<json> Config() const {
    json config = {{"architectures", {std::string(family_->architecture)}}};
    for (const auto names : {absl::MakeConstSpan(kCommonKeys), family_->keys}) {
      for (const GgufName& name : names) {
        const json* value = Find(name.gguf);
        if (value == nullptr) continue;
        const bool is_no_window = name.gguf == kWindowKey.gguf && IsNothing(*value);
        config[std::string(name.hf)] = is_no_window ? json() : *value;
      }
    }
    std::vector<std::string> required = {"block_count", "embedding_length", "attention.head_count", "context_length"};
    if (const json* experts = Find("expert_count"); experts != nullptr && !IsNothing(*experts)) {
      required.emplace_back("expert_used_count");
    }
    for (const std::string& key : required) {
      if (Find(key) == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(path_, ": metadata ", Quoted(absl::StrCat(prefix_, key)),
                                                       " is not there; the file may be of another kind than a model"));
      }
    }
    const auto embedding = file_.tensors.find("token_embd.weight");
    if (embedding == file_.tensors.end() || embedding->second.rank() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": tensor \"token_embd.weight\" must be there, with 2 dims"));
    }
    if (!config.contains("vocab_size")) config["vocab_size"] = embedding->second.shape()[0];
    config["tie_word_embeddings"] = !file_.tensors.contains("output.weight");
    const DType dtype = DTypeOf(*embedding);
    config["dtype"] = dtype == DType::kF16 ? "float16" : dtype == DType::kBF16 ? "bfloat16" : "float32";
    RETURN_IF_ERROR(PutGgufRope(path_, file_, prefix_, &config));
    if (family_->complete != nullptr) family_->complete(file_, &config);
    return config;
  }

  // "blk.3.attn_q.weight" to {"blk.{}.attn_q", "3", ".weight"}.
  struct Parts {
    std::string module, layer, ending;
  };
  static Parts Split(const std::string& name) {
    Parts parts{.module = name, .layer = "", .ending = ""};
    for (absl::string_view ending : {".weight", ".bias"}) {
      if (!absl::EndsWith(name, ending)) continue;
      parts.module = std::string(absl::StripSuffix(name, ending));
      parts.ending = std::string(ending);
    }
    constexpr absl::string_view kBlock = "blk.";
    const size_t dot = parts.module.find('.', kBlock.size());
    uint32_t number = 0;
    if (!absl::StartsWith(parts.module, kBlock) || dot == std::string::npos) return parts;
    parts.layer = parts.module.substr(kBlock.size(), dot - kBlock.size());
    // "blk.03" is another name than that of layer 3.
    if (!absl::SimpleAtoi(parts.layer, &number) || absl::StrCat(number) != parts.layer) return parts;
    parts.module = absl::StrCat(kBlock, "{}", parts.module.substr(dot));
    return parts;
  }

  // NameOf, the other way round; a name that is of neither stays.
  static std::string StoredNameOf(const GgufFamily& family, bool has_second_norm, const std::string& name) {
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos) return name;
    std::vector<std::string> parts = absl::StrSplit(name.substr(0, dot), '.');
    std::string layer;
    for (std::string& part : parts) {
      if (layer.empty() && absl::c_all_of(part, absl::ascii_isdigit)) layer = std::exchange(part, "{}");
    }
    const std::string module = absl::StrJoin(parts, ".");
    for (const auto names : {family.tensors, absl::MakeConstSpan(kLlamaTensors)}) {
      for (const GgufName& row : names) {
        const absl::string_view hf = row.gguf == kFirstNorm && has_second_norm ? kNormOfMlp : row.hf;
        if (hf == module) return absl::StrCat(absl::StrReplaceAll(row.gguf, {{"{}", layer}}), name.substr(dot));
      }
    }
    return name;
  }

  std::string NameOf(const std::string& name) const {
    const Parts parts = Split(name);
    if (parts.ending.empty()) return name;
    for (const auto names : {family_->tensors, absl::MakeConstSpan(kLlamaTensors)}) {
      for (const GgufName& row : names) {
        if (row.gguf != parts.module) continue;
        std::string module(row.hf);
        if (row.gguf == kFirstNorm && file_.tensors.contains(kSecondNorm)) module = std::string(kNormOfMlp);
        return absl::StrCat(absl::StrReplaceAll(module, {{"{}", parts.layer}}), parts.ending);
      }
    }
    return name;
  }

  void AddTensor(const std::string& name, const Tensor& tensor, Checkpoint* checkpoint) const {
    if (name == "rope_freqs.weight" || absl::StartsWith(name, "rope_factors_")) return;  // in the configuration
    const std::string hf_name = NameOf(name);
    const auto file = file_.file_of.find(name);
    CheckpointTensor entry{tensor, file == file_.file_of.end() ? "" : file->second};
    if (const auto encoding = file_.encodings.find(name); encoding != file_.encodings.end()) {
      entry.encoding = encoding->second;
      entry.dtype = DTypeOf(*file_.tensors.find("token_embd.weight"));
    }
    // A gate of one row has no dim for it.
    const bool is_row = absl::EndsWith(hf_name, "shared_expert_gate.weight") && tensor.rank() == 1;
    if (is_row) entry.tensor = tensor.Reshaped({1, tensor.size()});
    // A file may have both names; the account of weights then has one too many.
    if (!checkpoint->emplace(hf_name, entry).second) checkpoint->emplace(name, entry);
  }

  const std::string& path_;
  const GgufFile& file_;
  const GgufFamily* family_ = nullptr;
  std::string prefix_;
};

}  // namespace

absl::StatusOr<GgufModel> ReadGgufModel(const std::string& path, const GgufFile& file) {
  return GgufModelReader(path, file).Read();
}

}  // namespace llmc::hf
