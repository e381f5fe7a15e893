// Rotary embedding frequencies: plain (arXiv:2104.09864), scaled linearly (arXiv:2306.15595), Llama 3.1's, YaRN
// (arXiv:2309.00071), LongRoPE (arXiv:2402.13753), and by the length of the sequence ("dynamic").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/formats/json_file.h"

namespace llmc {

enum class HfRopeType { kDefault, kLinear, kLlama3, kYarn, kLongRope, kDynamic };

// Rotary embedding parameters, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).
struct HfRope {
  HfRopeType type = HfRopeType::kDefault;
  double theta = 10000;
  double factor = 1;                                // linear, dynamic, llama3, yarn, longrope
  int64_t original_max_positions = 0;               // dynamic, llama3, yarn, longrope
  int64_t max_context = 0;                          // tokens of a sequence that the model is made for
  double partial = 1;                               // of the elements of a head that are rotated
  double low_freq_factor = 1;                       // llama3
  double high_freq_factor = 4;                      // llama3
  double beta_fast = 32;                            // yarn
  double beta_slow = 1;                             // yarn
  double mscale = 0;                                // yarn; 0: not given
  double mscale_all_dim = 0;                        // yarn; 0: not given
  bool truncate = true;                             // yarn
  std::optional<double> attention_factor;           // yarn, longrope
  std::vector<double> short_factors, long_factors;  // longrope: of each frequency
};

// What the configuration class of a family takes for what config.json lacks.
struct HfRopeDefaults {
  double theta = 10000;
  double partial = 1;
  int64_t original_max_positions = 0;  // of longrope; 0: max_position_embeddings
  absl::string_view layer_type = "";   // whose parameters are taken where types of layers have their own
};

absl::StatusOr<HfRope> ParseHfRope(const JsonFields& config, int64_t max_position_embeddings,
                                   const HfRopeDefaults& defaults = {});

// The tokens of a sequence that config.json of any model allows, with its rope scaling; nullopt where it does not say
// so in a form that is known. InvalidArgument: the text is no JSON object.
absl::StatusOr<std::optional<int64_t>> ReadContextLength(absl::string_view config, const std::string& file);

struct RopeTable {
  std::vector<float> inv_freq;       // half of the elements that are rotated
  std::vector<float> long_inv_freq;  // longrope: those of sequences past original_max_positions
  double scale = 1;                  // of cos and sin
};
// The frequencies in the float32 arithmetic of transformers' modeling_rope_utils, for `dims` elements of a head.
RopeTable MakeRopeTable(const HfRope& rope, int64_t dims);

namespace hf {

// How some layers rotate queries and keys.
struct RopeSpec {
  HfRope parameters;
  int64_t dims = 0;          // the first so many elements of a head
  bool interleaved = false;  // pairs are neighbours, else half of `dims` apart
};

}  // namespace hf
}  // namespace llmc
