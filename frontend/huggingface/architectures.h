// The table of Hugging Face architectures. To add a decoder of the same block structure, add a row.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace llmc {

// Whether linear layers have a bias.
enum class HfBias { kNever, kAlways, kConfig };

// Which layers attend to a window only.
enum class HfWindow {
  kNone,       // none
  kAllLayers,  // all, if `sliding_window` is a number
  kSwitched,   // none unless `use_sliding_window`; then by `layer_types`, else those from `max_window_layers` on
  kByType,     // by `layer_types`, else all, if `sliding_window` is a number
};

// What transformers' configuration class takes for a key that config.json lacks. 0 stands for "derived".
struct HfDefaults {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t layers = 32;
  int64_t heads = 32;
  int64_t kv_heads = 0;  // heads
  int64_t head_dim = 0;  // hidden_size / heads
  int64_t max_position_embeddings = 2048;
  int64_t sliding_window = 4096;
  int64_t max_window_layers = 28;
};

// Names of modules in the checkpoint; each weight is "MODULE.weight". Those of a layer follow "model.layers.N.".
struct HfModules {
  absl::string_view embed = "model.embed_tokens";
  absl::string_view layers = "model.layers.";
  absl::string_view norm = "model.norm";
  absl::string_view lm_head = "lm_head";
  absl::string_view attention_norm = "input_layernorm";
  absl::string_view q = "self_attn.q_proj";
  absl::string_view k = "self_attn.k_proj";
  absl::string_view v = "self_attn.v_proj";
  absl::string_view o = "self_attn.o_proj";
  absl::string_view q_norm = "self_attn.q_norm";
  absl::string_view k_norm = "self_attn.k_norm";
  absl::string_view mlp_norm = "post_attention_layernorm";
  absl::string_view gate = "mlp.gate_proj";
  absl::string_view up = "mlp.up_proj";
  absl::string_view down = "mlp.down_proj";
};

struct HfArchitecture {
  absl::string_view name;            // as `architectures` in config.json
  absl::string_view model;           // the name of the imported model
  HfBias qkv_bias = HfBias::kNever;  // kConfig: `attention_bias`
  HfBias o_bias = HfBias::kNever;    // kConfig: `attention_bias`
  HfBias mlp_bias = HfBias::kNever;  // kConfig: `mlp_bias`
  bool qk_norm = false;              // RMS norm of each head's query and key before rope
  HfWindow window = HfWindow::kNone;
  HfDefaults defaults = {};
  HfModules modules = {};
};

absl::Span<const HfArchitecture> HfArchitectures();
std::string KnownHfArchitectures();  // their names
// Unimplemented, with the list of those that are there.
absl::StatusOr<const HfArchitecture*> FindHfArchitecture(absl::string_view name);

}  // namespace llmc
