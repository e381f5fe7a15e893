// The table of families: how each architecture of transformers is made of blocks (blocks.h). To add one, write a
// function from config.json to its blocks in the file of its kind in families/, and its row there; and a tiny model
// with outputs of transformers to the tests.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "frontend/huggingface/blocks.h"
#include "frontend/huggingface/config_reader.h"

namespace llmc::hf {

struct Family {
  absl::string_view architecture;  // as `architectures` in config.json
  absl::string_view model;         // the name of the imported model
  DecoderSpec (*read)(ConfigReader& config) = nullptr;
};

// Encoders: a family has classes for several tasks, "BertModel", "BertForMaskedLM", …, which `read` tells apart.
struct EncoderFamily {
  absl::string_view stem;  // what the names of its classes begin with
  absl::string_view model;
  EncoderSpec (*read)(ConfigReader& config, absl::string_view architecture) = nullptr;
};

absl::Span<const Family> LlamaFamilies();   // RMS norms, rotary positions, gated MLPs, and what varies that
absl::Span<const Family> NormFamilies();    // the same with other norms
absl::Span<const Family> GptFamilies();     // layer norms and plain MLPs, from GPT-2 on
absl::Span<const Family> NeoxFamilies();    // the same with rotary positions
absl::Span<const Family> ExpertFamilies();  // mixtures of experts

absl::Span<const EncoderFamily> TextEncoders();
absl::Span<const EncoderFamily> ImageEncoders();

std::vector<Family> DecoderFamilies();  // all of them
std::string KnownArchitectures();       // the names of these, and of encoders
// config.json, checked, with the defaults of transformers' configuration classes. `file` is used in errors only.
// Unimplemented for what llmc does not do (by name), InvalidArgument for contradictions; all findings at once, a line
// each. An encoder is that of the class that `architectures` names, or of the class without the head of a task; for the
// latter that may name a decoder's class without the head, too. `unread`, if not null, becomes the keys that the family
// did not look at, and those that may matter are errors (unread_keys.h).
enum class EncoderClass { kNamed, kBase };
absl::StatusOr<ModelSpec> ReadModel(const nlohmann::json& config, const std::string& file,
                                    EncoderClass encoder_class = EncoderClass::kNamed,
                                    std::vector<std::string>* unread = nullptr);

// What several families share: families/common.cc.

// Sizes of a configuration class, for keys that config.json lacks; 0 where it derives them.
struct Defaults {
  int64_t vocab_size = 32000, hidden_size = 4096, intermediate_size = 11008, layers = 32, heads = 32;
  int64_t kv_heads = 0;  // heads
  int64_t head_dim = 0;  // hidden_size / heads
  int64_t max_positions = 2048;
  bool tied = false;
  HfRopeDefaults rope = {};
  absl::string_view activation_key = "hidden_act", activation = "silu";
  absl::string_view eps_key = "rms_norm_eps";
  double eps = 1e-6;
  bool sizes_by_layer = false;  // intermediate_size may be a list, of a number for each layer
};

// A decoder with the keys and modules that most architectures have: model.layers.N.self_attn.q_proj and so on, norms
// before attention and MLP, heads of one size, rotary positions, a gated MLP.
DecoderSpec ReadCommon(ConfigReader& config, const Defaults& defaults);
// A layer of it: MODULE.self_attn.q_proj and so on, with attention and MLP of these sizes.
LayerSpec PlainLayer(const std::string& module, AttentionSpec attention, MlpSpec mlp, double eps);

// Calls `change(AttentionSpec&)`, or with `(LayerSpec&, size_t index)`, for every layer.
template <class F>
void ForAttention(DecoderSpec* spec, F change) {
  for (LayerSpec& layer : spec->layers) change(std::get<AttentionSpec>(layer.attention));
}
template <class F>
void ForMlp(DecoderSpec* spec, F change) {
  for (LayerSpec& layer : spec->layers) {
    if (auto* mlp = std::get_if<MlpSpec>(&layer.mlp)) change(*mlp);
  }
}
// All norms but those of latent attention.
template <class F>
void ForNorms(DecoderSpec* spec, F change) {
  if (spec->norm.has_value()) change(*spec->norm);
  for (LayerSpec& layer : spec->layers) {
    for (auto* norm : {&layer.attention_norm, &layer.mlp_norm, &layer.attention_out_norm, &layer.mlp_out_norm}) {
      if (norm->has_value()) change(**norm);
    }
    if (auto* a = std::get_if<AttentionSpec>(&layer.attention)) {
      if (a->q_norm.has_value()) change(*a->q_norm);
      if (a->k_norm.has_value()) change(*a->k_norm);
    }
  }
}

NormSpec LayerNormOf(const std::string& module, double eps, bool bias = true);
// Of id2label, else num_labels, else two.
int64_t Labels(ConfigReader& config);
Activation ReadActivation(ConfigReader& config, const std::string& key, absl::string_view absent);
// The model's rope: `dims` of a head, those that `partial_rotary_factor` leaves.
RopeSpec ReadRope(ConfigReader& config, int64_t max_positions, int64_t head_dim, const HfRopeDefaults& defaults);
int64_t RotatedDims(int64_t head_dim, double partial);
// Refuses a rope that is partial.
void NeedsWholeRope(ConfigReader& config, const DecoderSpec& spec);
// kv_heads divides heads, and sizes are not too large.
void CheckHeads(ConfigReader& config, int64_t heads, int64_t kv_heads, int64_t head_dim);

// Which layers have a window, by `layer_types`, else by `otherwise`; or what else `type` stands for.
std::vector<bool> WindowedLayers(ConfigReader& config, size_t layers, const std::vector<bool>& otherwise,
                                 absl::string_view type = "sliding_attention");
// Every `period`-th layer sees all, the others a window.
std::vector<bool> AllButEvery(size_t layers, int64_t period);
void SetWindows(const std::vector<bool>& is_windowed, int64_t window, DecoderSpec* spec);

}  // namespace llmc::hf
