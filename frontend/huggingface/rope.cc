#include "frontend/huggingface/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/path_check.h"

namespace llmc {
namespace {

using nlohmann::json;

constexpr double kMaxFactor = 1e6;
constexpr size_t kMaxFactors = 4096;

struct NumberField {
  const char* key;
  double HfRope::*member;
  double min;
};

absl::Status ReadNumbers(const JsonFields& fields, std::initializer_list<NumberField> list, HfRope* rope) {
  for (const NumberField& f : list) {
    ASSIGN_OR_RETURN(double value, fields.Double(f.key, rope->*f.member, f.min, kMaxFactor));
    rope->*f.member = value;
  }
  return absl::OkStatus();
}

absl::Status Require(const JsonFields& fields, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (!fields.Has(key)) return fields.Wrong(key, "given for this type of rope");
  }
  return absl::OkStatus();
}

constexpr char kOriginalMax[] = "original_max_position_embeddings";
constexpr int64_t kMaxRopePositions = int64_t{1} << 27;

absl::Status ReadOriginalMax(const JsonFields& fields, int64_t max_positions, HfRope* rope) {
  ASSIGN_OR_RETURN(int64_t value, fields.Int(kOriginalMax, max_positions, 1, kMaxRopePositions));
  rope->original_max_positions = value;
  return absl::OkStatus();
}

absl::Status ReadLinear(const JsonFields& fields, HfRope* rope) {
  if (absl::Status s = Require(fields, {"factor"}); !s.ok()) return s;
  return ReadNumbers(fields, {{"factor", &HfRope::factor, 1}}, rope);
}

absl::Status ReadLlama3(const JsonFields& fields, int64_t max_positions, HfRope* rope) {
  if (absl::Status s =
          Require(fields, {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"});
      !s.ok()) {
    return s;
  }
  absl::Status s = ReadNumbers(fields,
                               {{"factor", &HfRope::factor, 1},
                                {"low_freq_factor", &HfRope::low_freq_factor, 1e-6},
                                {"high_freq_factor", &HfRope::high_freq_factor, 1e-6}},
                               rope);
  if (!s.ok()) return s;
  if (rope->high_freq_factor < rope->low_freq_factor) {
    return fields.Wrong("high_freq_factor", absl::StrCat("at least low_freq_factor ", rope->low_freq_factor));
  }
  return ReadOriginalMax(fields, max_positions, rope);
}

absl::Status ReadYarn(const JsonFields& fields, int64_t max_positions, HfRope* rope) {
  if (absl::Status s = Require(fields, {"factor"}); !s.ok()) return s;
  if (absl::Status s = ReadOriginalMax(fields, max_positions, rope); !s.ok()) return s;
  absl::Status s = ReadNumbers(fields,
                               {{"factor", &HfRope::factor, 1},
                                {"beta_fast", &HfRope::beta_fast, 0},
                                {"beta_slow", &HfRope::beta_slow, 0},
                                {"mscale", &HfRope::mscale, 0},
                                {"mscale_all_dim", &HfRope::mscale_all_dim, 0}},
                               rope);
  if (!s.ok()) return s;
  // A zero counts as absent, as in transformers.
  if (rope->beta_fast == 0) rope->beta_fast = 32;
  if (rope->beta_slow == 0) rope->beta_slow = 1;
  if (rope->beta_fast < rope->beta_slow) {
    return fields.Wrong("beta_fast", absl::StrCat("at least beta_slow ", rope->beta_slow));
  }
  ASSIGN_OR_RETURN(bool truncate, fields.Bool("truncate", true));
  rope->truncate = truncate;
  if (fields.Has("attention_factor")) {
    ASSIGN_OR_RETURN(double factor, fields.Double("attention_factor", 1, 1e-6, kMaxFactor));
    rope->attention_factor = factor;
  }
  return absl::OkStatus();
}

// Tokens of a sequence by what the authors of each kind of scaling mean by max_position_embeddings (`max_positions`):
// - linear, dynamic: the length before scaling. The configurations of transformers say of rope_scaling "don't update
//   max_position_embeddings to the expected new maximum".
// - yarn: either, so the length is that before scaling times the factor (the model cards of Qwen2.5 keep 32,768 beside
// a
//   factor of 4; DeepSeek-V3 has 163,840 = 40 * 4,096).
// - llama3: the length after scaling, which is not the product (Llama 3.1: 131,072, not 8 * 8,192).
// - longrope (once "su"): the length after scaling if the one before is given (Phi-3), else the one before.
// vLLM (_get_and_verify_max_len of vllm/config/model.py) and transformers (modeling_rope_utils.py) derive the same, but
// for a linear or dynamic kind with an original length, which vLLM overlooks. 0: `original` is not given.
double ContextOf(absl::string_view type, double max_positions, double original, double factor) {
  if (type == "linear" || type == "dynamic" || type == "yarn") {
    return std::floor((original > 0 ? original : max_positions) * factor);
  }
  if ((type == "longrope" || type == "su") && original == 0) return std::floor(max_positions * factor);
  return max_positions;
}

absl::Status SetContext(const std::string& type, const JsonFields& fields, int64_t max_positions, HfRope* rope) {
  ASSIGN_OR_RETURN(int64_t original, fields.Int(kOriginalMax, 0, 1, kMaxRopePositions));
  const double context =
      ContextOf(type, static_cast<double>(max_positions), static_cast<double>(original), rope->factor);
  if (context > kMaxRopePositions) {
    return absl::InvalidArgumentError(absl::StrCat(fields.file(), ": factor ", rope->factor, " makes a context of ",
                                                   context, " tokens; at most ", kMaxRopePositions, " are supported"));
  }
  rope->max_context = static_cast<int64_t>(context);
  return absl::OkStatus();
}

// LongRoPE (arXiv:2402.13753), as Phi-3 has it: a factor for each frequency, others for sequences past the original
// length.
absl::Status ReadLongRope(const JsonFields& fields, int64_t max_positions, HfRope* rope) {
  if (absl::Status s = ReadOriginalMax(fields, max_positions, rope); !s.ok()) return s;
  for (const auto& [key, member] :
       {std::pair("short_factor", &HfRope::short_factors), std::pair("long_factor", &HfRope::long_factors)}) {
    const json* list = fields.Find(key);
    const bool fits = list != nullptr && list->is_array() && !list->empty() && list->size() <= kMaxFactors;
    if (!fits) return fields.Wrong(key, "a list of numbers, one for each frequency");
    for (const json& item : *list) {
      const bool is_factor = item.is_number() && item.get<double>() >= 1e-6 && item.get<double>() <= kMaxFactor;
      if (!is_factor) return fields.Wrong(key, absl::StrCat("a list of numbers from 1e-6 to ", kMaxFactor));
      (rope->*member).push_back(item.get<double>());
    }
  }
  const double stretch = static_cast<double>(max_positions) / static_cast<double>(rope->original_max_positions);
  ASSIGN_OR_RETURN(rope->factor, fields.Double("factor", std::max(stretch, 1.0), 1, kMaxFactor));
  if (fields.Has("attention_factor")) {
    ASSIGN_OR_RETURN(double factor, fields.Double("attention_factor", 1, 1e-6, kMaxFactor));
    rope->attention_factor = factor;
  }
  return absl::OkStatus();
}

absl::Status ReadTyped(const std::string& type, const JsonFields& fields, int64_t max_positions, HfRope* rope) {
  if (type == "default") {
    if (!fields.Has("factor")) return absl::OkStatus();
    return fields.Wrong("factor", "absent, for rope_type is \"default\", which scales nothing");
  }
  if (type == "linear") {
    rope->type = HfRopeType::kLinear;
    return ReadLinear(fields, rope);
  }
  if (type == "llama3") {
    rope->type = HfRopeType::kLlama3;
    return ReadLlama3(fields, max_positions, rope);
  }
  if (type == "yarn") {
    rope->type = HfRopeType::kYarn;
    return ReadYarn(fields, max_positions, rope);
  }
  if (type == "longrope" || type == "su") {
    rope->type = HfRopeType::kLongRope;
    return ReadLongRope(fields, max_positions, rope);
  }
  if (type == "dynamic") {
    rope->type = HfRopeType::kDynamic;
    rope->original_max_positions = max_positions;
    return ReadLinear(fields, rope);
  }
  return absl::UnimplementedError(
      absl::StrCat(fields.file(), ": rope type ", Quoted(type),
                   " is not supported; supported are default, linear, dynamic, llama3, longrope and yarn"));
}

// The object with the parameters: `rope_parameters`, or `rope_scaling` of older files; nullptr if neither is there.
absl::StatusOr<const json*> FindParameters(const JsonFields& config) {
  const json* newer = config.Find("rope_parameters");
  const json* older = config.Find("rope_scaling");
  for (const auto& [key, object] : {std::pair("rope_parameters", newer), std::pair("rope_scaling", older)}) {
    if (object != nullptr && !object->is_object()) return config.Wrong(key, "an object");
  }
  if (newer != nullptr && older != nullptr && *newer != *older) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.file(), ": rope_parameters and rope_scaling are both there and differ; remove one"));
  }
  return newer != nullptr ? newer : older;
}

float LinearRamp(double low, double high, int64_t i) {
  return std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
}

void ScaleLlama3(const HfRope& rope, std::vector<float>* inv_freq) {
  const double old = static_cast<double>(rope.original_max_positions);
  const float low_wavelen = static_cast<float>(old / rope.low_freq_factor);
  const float high_wavelen = static_cast<float>(old / rope.high_freq_factor);
  const float factor = static_cast<float>(rope.factor);
  for (float& f : *inv_freq) {
    const float wavelen = static_cast<float>(2 * std::numbers::pi) / f;
    if (wavelen < high_wavelen) continue;
    if (wavelen > low_wavelen || low_wavelen == high_wavelen) {
      f = f / factor;
      continue;
    }
    const float smooth = (static_cast<float>(old) / wavelen - static_cast<float>(rope.low_freq_factor)) /
                         static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
    f = (1 - smooth) * f / factor + smooth * f;
  }
}

double YarnMscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

double YarnScale(const HfRope& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale != 0 && rope.mscale_all_dim != 0) {
    return YarnMscale(rope.factor, rope.mscale) / YarnMscale(rope.factor, rope.mscale_all_dim);
  }
  return YarnMscale(rope.factor, 1);
}

double LongRopeScale(const HfRope& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.factor <= 1) return 1;
  return std::sqrt(1 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_max_positions)));
}

// Section 3.2 of the paper: dims that turn more than beta_fast times keep their frequency, those that turn less than
// beta_slow times are interpolated, with a ramp between.
void ScaleYarn(const HfRope& rope, int64_t dim, const std::vector<float>& powers, std::vector<float>* inv_freq) {
  const auto correction = [&](double rotations) {
    const double positions = static_cast<double>(rope.original_max_positions);
    return static_cast<double>(dim) * std::log(positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = correction(rope.beta_fast), high = correction(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  for (int64_t i = 0; i < static_cast<int64_t>(inv_freq->size()); ++i) {
    const float keep = 1 - LinearRamp(low, high, i);
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * powers[i]);
    (*inv_freq)[i] = interpolated * (1 - keep) + (*inv_freq)[i] * keep;
  }
}

}  // namespace

absl::StatusOr<HfRope> ParseHfRope(const JsonFields& config, int64_t max_position_embeddings,
                                   const HfRopeDefaults& defaults) {
  HfRope rope{.theta = defaults.theta, .max_context = max_position_embeddings, .partial = defaults.partial};
  ASSIGN_OR_RETURN(const json* parameters, FindParameters(config));
  ASSIGN_OR_RETURN(rope.partial, config.Double("partial_rotary_factor", rope.partial, 0, 1));
  constexpr double kMaxTheta = 1e15;
  ASSIGN_OR_RETURN(rope.theta, config.Double("rope_theta", rope.theta, 1.0 + 1e-6, kMaxTheta));
  if (parameters == nullptr) return rope;
  const std::string layer_type(defaults.layer_type);
  if (!layer_type.empty() && parameters->contains(layer_type) && (*parameters)[layer_type].is_object()) {
    parameters = &(*parameters)[layer_type];
  }
  json merged = *parameters;
  // As transformers 5 does: beside the parameters (as in Phi-3) it goes before the one in them.
  if (const json* original = config.Find(kOriginalMax); original != nullptr) merged[kOriginalMax] = *original;
  const JsonFields fields(&merged, absl::StrCat(config.file(), ": rope parameters"));
  for (const auto& [key, value] : merged.items()) {
    if (value.is_object()) {
      return absl::UnimplementedError(absl::StrCat(fields.file(), ": separate parameters for ", Quoted(key),
                                                   " are not supported for this architecture"));
    }
  }
  ASSIGN_OR_RETURN(rope.partial, fields.Double("partial_rotary_factor", rope.partial, 0, 1));
  ASSIGN_OR_RETURN(rope.theta, fields.Double("rope_theta", rope.theta, 1.0 + 1e-6, kMaxTheta));
  // The name of the key before transformers 4.43 was "type".
  ASSIGN_OR_RETURN(std::string type, fields.String("rope_type", ""));
  if (type.empty()) {
    ASSIGN_OR_RETURN(type, fields.String("type", "default"));
  }
  const bool is_long = type == "longrope" || type == "su";
  if (is_long && defaults.original_max_positions > 0 && !fields.Has(kOriginalMax)) {
    merged[kOriginalMax] = defaults.original_max_positions;
  }
  if (absl::Status s = ReadTyped(type, fields, max_position_embeddings, &rope); !s.ok()) return s;
  if (absl::Status s = SetContext(type, fields, max_position_embeddings, &rope); !s.ok()) return s;
  return rope;
}

absl::StatusOr<std::optional<int64_t>> ReadContextLength(absl::string_view config, const std::string& file) {
  ASSIGN_OR_RETURN(json parsed, ParseJson(config, file));
  if (!parsed.is_object()) return absl::InvalidArgumentError(absl::StrCat(file, ": must be a JSON object"));
  const JsonFields fields(&parsed, file);
  absl::StatusOr<int64_t> max_positions = fields.Int("max_position_embeddings", 0, 1, kMaxRopePositions);
  if (!fields.Has("max_position_embeddings")) max_positions = fields.Int("n_positions", 0, 1, kMaxRopePositions);
  if (!max_positions.ok() || *max_positions == 0) return std::nullopt;
  const absl::StatusOr<const json*> parameters = FindParameters(fields);
  // With biases by distance (Falcon's) nothing rotates, whatever the parameters are.
  const bool has_alibi = fields.Bool("alibi", false).value_or(false);
  if (has_alibi || !parameters.ok() || *parameters == nullptr) return *max_positions;
  const json* own = *parameters;
  // Where types of layers have their own, those that see all decide.
  if (own->contains("full_attention") && (*own)["full_attention"].is_object()) own = &(*own)["full_attention"];
  const JsonFields rope(own, file);
  absl::StatusOr<std::string> type = rope.String(rope.Has("rope_type") ? "rope_type" : "type", "default");
  absl::StatusOr<int64_t> original =
      (fields.Has(kOriginalMax) ? fields : rope).Int(kOriginalMax, 0, 1, kMaxRopePositions);
  absl::StatusOr<double> factor = rope.Double("factor", 1, 1, kMaxFactor);
  if (!type.ok() || !original.ok() || !factor.ok()) return std::nullopt;
  const double context = ContextOf(*type, static_cast<double>(*max_positions), static_cast<double>(*original), *factor);
  if (context > kMaxRopePositions) return std::nullopt;
  return static_cast<int64_t>(context);
}

RopeTable MakeRopeTable(const HfRope& rope, int64_t head_dim) {
  std::vector<float> powers;  // theta ** (2 i / head_dim)
  RopeTable table;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    // The power in double, rounded once: the nearest float, which a good float32 power gives too.
    powers.push_back(static_cast<float>(std::pow(static_cast<double>(static_cast<float>(rope.theta)), exponent)));
    table.inv_freq.push_back(1.0f / powers.back());
  }
  switch (rope.type) {
    case HfRopeType::kDefault:
    case HfRopeType::kDynamic:  // up to max_position_embeddings
      break;
    case HfRopeType::kLinear:
      for (float& f : table.inv_freq) f /= static_cast<float>(rope.factor);
      break;
    case HfRopeType::kLlama3:
      ScaleLlama3(rope, &table.inv_freq);
      break;
    case HfRopeType::kYarn:
      ScaleYarn(rope, head_dim, powers, &table.inv_freq);
      table.scale = YarnScale(rope);
      break;
    case HfRopeType::kLongRope:
      table.long_inv_freq = table.inv_freq;
      for (size_t i = 0; i < table.inv_freq.size(); ++i) {
        table.inv_freq[i] = 1.0f / (static_cast<float>(rope.short_factors[i]) * powers[i]);
        table.long_inv_freq[i] = 1.0f / (static_cast<float>(rope.long_factors[i]) * powers[i]);
      }
      table.scale = LongRopeScale(rope);
      break;
  }
  return table;
}

}  // namespace llmc
