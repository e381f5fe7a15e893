#include "frontend/huggingface/gguf_rope.h"

#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "frontend/huggingface/config_reader.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

constexpr absl::string_view kKeys[] = {"attention.value_length",
                                       "rope.dimension_count",
                                       "rope.scaling.type",
                                       "rope.scaling.factor",
                                       "rope.scaling.original_context_length",
                                       "rope.scaling.finetuned",
                                       "rope.scale_linear",
                                       "rope.scaling.attn_factor",
                                       "rope.scaling.yarn_ext_factor",
                                       "rope.scaling.yarn_attn_factor",
                                       "rope.scaling.yarn_beta_fast",
                                       "rope.scaling.yarn_beta_slow"};

class GgufRopeReader {
 public:
  GgufRopeReader(const std::string& path, const GgufFile& file, const std::string& prefix)
      : path_(path), file_(file), prefix_(prefix) {}

  absl::Status Put(json* config) const {
    const json *heads = Find("attention.head_count"), *hidden = Find("embedding_length");
    const bool has_sizes = heads->is_number_unsigned() && hidden->is_number_unsigned() && *heads > 0;
    const json* key_length = Find("attention.key_length");
    const json head_dim = key_length != nullptr ? *key_length
                          : has_sizes           ? json(hidden->get<uint64_t>() / heads->get<uint64_t>())
                                                : json();
    if (!head_dim.is_number_unsigned() || head_dim < 1) return absl::OkStatus();  // the family says what is wrong
    (*config)["head_dim"] = head_dim;
    if (const json* value_length = Find("attention.value_length");
        value_length != nullptr && *value_length != head_dim) {
      return absl::UnimplementedError(absl::StrCat(path_, ": metadata \"", prefix_, "attention.value_length\" is ",
                                                   value_length->dump(), ", and keys have ", head_dim.dump(),
                                                   "; values of another size than keys are not supported"));
    }
    if (const json* rotated = Find("rope.dimension_count"); rotated != nullptr) {
      const bool fits = rotated->is_number_unsigned() && *rotated >= 1 && *rotated <= head_dim;
      if (!fits) {
        return absl::InvalidArgumentError(absl::StrCat(path_, ": metadata \"", prefix_,
                                                       "rope.dimension_count\" must be "
                                                       "from 1 to ",
                                                       head_dim.dump(), "; found ", rotated->dump()));
      }
      if (*rotated != head_dim) (*config)["partial_rotary_factor"] = rotated->get<double>() / head_dim.get<double>();
    }
    return PutScaling(config);
  }

 private:
  const json* Find(absl::string_view key) const {
    const auto at = file_.metadata.find(absl::StrCat(prefix_, key));
    return at == file_.metadata.end() ? nullptr : &*at;
  }

  absl::Status PutScaling(json* config) const {
    const json* type = Find("rope.scaling.type");
    json scaling = {{"rope_type", type == nullptr || *type == "none" ? json("default") : *type}};
    if (const json* factor = Find("rope.scale_linear"); factor != nullptr && *factor != 1) {
      scaling = {{"rope_type", "linear"}, {"factor", *factor}};
    }
    const bool is_scaled = scaling["rope_type"] != "default";
    if (const json* factor = Find("rope.scaling.factor"); factor != nullptr && is_scaled) scaling["factor"] = *factor;
    const json* original = Find("rope.scaling.original_context_length");
    if (original != nullptr && is_scaled) scaling["original_max_position_embeddings"] = *original;
    if (const json* factor = Find("rope.scaling.attn_factor"); factor != nullptr) scaling["attention_factor"] = *factor;
    RETURN_IF_ERROR(PutYarn(&scaling));
    RETURN_IF_ERROR(PutFactors(original, &scaling));
    if (scaling["rope_type"] != "default") (*config)["rope_scaling"] = scaling;
    return absl::OkStatus();
  }

  absl::Status PutYarn(json* scaling) const {
    if ((*scaling)["rope_type"] != "yarn") {
      for (const absl::string_view key : kKeys) {
        if (!absl::StartsWith(key, "rope.scaling.yarn_") || Find(key) == nullptr) continue;
        return absl::UnimplementedError(absl::StrCat(path_, ": metadata \"", prefix_, key,
                                                     "\" beside rope.scaling.type ", (*scaling)["rope_type"].dump(),
                                                     " is not supported"));
      }
      return absl::OkStatus();
    }
    for (const auto& [gguf, hf] : {std::pair("rope.scaling.yarn_beta_fast", "beta_fast"),
                                   {"rope.scaling.yarn_beta_slow", "beta_slow"},
                                   {"rope.scaling.yarn_attn_factor", "attention_factor"}}) {
      if (const json* value = Find(gguf); value != nullptr) (*scaling)[hf] = *value;
    }
    // Below 0 stands for 1: interpolated where beta_fast and beta_slow say so.
    if (const json* mix = Find("rope.scaling.yarn_ext_factor");
        mix != nullptr && *mix != 1 && !(mix->is_number() && *mix < 0)) {
      return absl::UnimplementedError(absl::StrCat(path_, ": metadata \"", prefix_,
                                                   "rope.scaling.yarn_ext_factor\" is ", mix->dump(),
                                                   "; another factor than 1 is not supported"));
    }
    // It multiplies the factor of the scores that the scaling itself gives.
    const json *times = Find("rope.scaling.attn_factor"), *factor = Find("rope.scaling.factor");
    if (times != nullptr && times->is_number() && factor != nullptr && factor->is_number() && *factor > 1) {
      (*scaling)["attention_factor"] = times->get<double>() * (0.1 * std::log(factor->get<double>()) + 1);
    }
    return absl::OkStatus();
  }

  // Frequencies may be divided by factors that are tensors: by one list (Llama 3.1), which is LongRoPE's form with both
  // lists alike and no factor of attention; or by two, of short and long sequences (Phi-3).
  absl::Status PutFactors(const json* original, json* scaling) const {
    const bool has_one = file_.tensors.contains("rope_freqs.weight");
    const bool has_two =
        file_.tensors.contains("rope_factors_short.weight") || file_.tensors.contains("rope_factors_long.weight");
    if (!has_one && !has_two) return absl::OkStatus();
    ASSIGN_OR_RETURN(json of_short, Factors(has_one ? "rope_freqs.weight" : "rope_factors_short.weight"));
    ASSIGN_OR_RETURN(json of_long, Factors(has_one ? "rope_freqs.weight" : "rope_factors_long.weight"));
    if (has_one && (*scaling)["rope_type"] != "default") {
      return absl::UnimplementedError(
          absl::StrCat(path_, ": tensor \"rope_freqs.weight\" beside rope.scaling.type is not supported"));
    }
    (*scaling)["rope_type"] = "longrope";
    (*scaling)["short_factor"] = std::move(of_short);
    (*scaling)["long_factor"] = std::move(of_long);
    if (has_one) (*scaling)["attention_factor"] = 1;
    (*scaling)["original_max_position_embeddings"] =
        has_one || original == nullptr ? *Find("context_length") : *original;
    return absl::OkStatus();
  }

  absl::StatusOr<json> Factors(const std::string& name) const {
    const auto at = file_.tensors.find(name);
    if (at == file_.tensors.end() || at->second.rank() != 1 || at->second.size() > kMaxSize) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor ", Quoted(name), " must be there, with 1 dim"));
    }
    json list = json::array();
    for (float factor : at->second.ToFloats()) list.push_back(factor);
    return list;
  }

  const std::string& path_;
  const GgufFile& file_;
  const std::string& prefix_;
};

}  // namespace

absl::Span<const absl::string_view> GgufRopeKeys() { return kKeys; }

absl::Status PutGgufRope(const std::string& path, const GgufFile& file, const std::string& prefix, json* config) {
  return GgufRopeReader(path, file, prefix).Put(config);
}

}  // namespace llmc::hf
