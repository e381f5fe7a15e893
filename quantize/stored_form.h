// How quantized weights lie in folders of other programs: compressed-tensors (vLLM, transformers) and bitsandbytes.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "frontend/formats/safetensors.h"
#include "quantize/nested_scales.h"
#include "quantize/scheme.h"

namespace llmc {

// A tensor of a module's weight: its type, and its contents by the weight as it is encoded, or by its scales as they
// were before they were nested.
struct StoredPart {
  std::string suffix;  // behind the module's name: ".weight_scale"
  SafetensorsWriter::Entry entry;
  std::function<Tensor(const Tensor& encoded)> contents;
  std::function<Tensor(const NestedScales& scales)> of_scales = {};  // then there are no contents
};

// Those of a weight [out, in] whose numbers were of `dtype`. InvalidArgument: the sizes do not fit the scheme.
absl::StatusOr<std::vector<StoredPart>> StoredParts(const Scheme& scheme, const Encoding& encoding, int64_t out,
                                                    int64_t in, DType dtype);
// The static scale of an input, beside them; nothing where the scheme has none.
std::vector<StoredPart> StoredInputScale(const Scheme& scheme, DType dtype, float scale);

// Bits that a weight takes, scales and zero points counted.
double BitsPerWeight(const std::vector<StoredPart>& parts, int64_t out, int64_t in);

// What config.json says of it. `modules` are those that have a scheme, by their names, `ignored` other linear layers.
// InvalidArgument: the schemes are of several programs.
struct QuantizedNames {
  std::map<std::string, const Scheme*> modules;
  std::vector<std::string> ignored;
  bool has_kv_scales = false;  // of keys and values in f8e4m3
};
absl::StatusOr<nlohmann::ordered_json> QuantizationConfig(const QuantizedNames& names, DType dtype);

}  // namespace llmc
