// config.json of a Hugging Face language model, checked and with defaults filled in as transformers fills them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "frontend/formats/json_file.h"
#include "frontend/huggingface/architectures.h"

namespace llmc {

enum class HfRopeType { kDefault, kLinear, kLlama3, kYarn };

// Rotary embedding parameters, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).
struct HfRope {
  HfRopeType type = HfRopeType::kDefault;
  double theta = 10000;
  double factor = 1;                       // linear, llama3, yarn
  int64_t original_max_positions = 0;      // llama3, yarn
  int64_t max_context = 0;                 // tokens of a sequence that the model is made for
  double low_freq_factor = 1;              // llama3
  double high_freq_factor = 4;             // llama3
  double beta_fast = 32;                   // yarn
  double beta_slow = 1;                    // yarn
  double mscale = 0;                       // yarn; 0: not given
  double mscale_all_dim = 0;               // yarn; 0: not given
  bool truncate = true;                    // yarn
  std::optional<double> attention_factor;  // yarn
};

struct HfConfig {
  const HfArchitecture* architecture = nullptr;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;  // even
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  DType dtype = DType::kF32;  // that the weights should have; those of a checkpoint say it themselves
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  std::vector<int64_t> windows;  // of each layer; 0: sees all
  HfRope rope;
};

// `file` is used in errors only. Unimplemented for what llmc does not do (by name), InvalidArgument for contradictions.
absl::StatusOr<HfConfig> ParseHfConfig(const nlohmann::json& config, const std::string& file);
absl::StatusOr<HfRope> ParseHfRope(const JsonFields& config, int64_t max_position_embeddings);

// The tokens of a sequence that config.json of any model allows, with its rope scaling; nullopt where it does not say
// so in a form that is known. InvalidArgument: the text is no JSON object.
absl::StatusOr<std::optional<int64_t>> ReadContextLength(absl::string_view config, const std::string& file);

struct RopeTable {
  std::vector<float> inv_freq;  // head_dim / 2
  double scale = 1;             // of cos and sin
};
// The frequencies in the float32 arithmetic of transformers' modeling_rope_utils.
RopeTable MakeRopeTable(const HfRope& rope, int64_t head_dim);

}  // namespace llmc
