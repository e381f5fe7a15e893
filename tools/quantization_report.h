// What the encoded weights of an imported model are like: how they are stored, and what looks as if it were read
// wrongly or quantized badly.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph.h"

namespace llmc {

// Weights of one kind of module: "model.layers.*.self_attn.q_proj".
struct QuantizedGroupReport {
  std::string modules;
  std::string encoding;                    // "int4 group=128 scale=f16"
  int64_t count = 0, sampled = 0;          // weights, and those whose numbers were looked at
  int64_t elements = 0;                    // of all
  double bits = 0;                         // of a weight, its part of the scales among them
  double least_scale = 0, most_scale = 0;  // of absolute values; outer scales multiplied
  bool has_ends = true;                    // false: codes in superblocks, of which the next is not known
  double saturation = 0;                   // the share of codes that are the smallest or largest there is
  int64_t dead_rows = 0;                   // outputs whose weights are all zero
  int64_t zero_scales = 0;
  double deviation = 0;  // the root of the mean square of weights
  double largest = 0;    // weight
};

struct QuantizationReport {
  std::vector<QuantizedGroupReport> groups;
  std::vector<std::string> warnings;
};

// The name of a module or tensor with "*" for the numbers of layers and experts.
std::string KindOfModule(const std::string& module);

struct QuantizationReportOptions {
  // So many weights of a group are decoded, those of whole modules, but for the first one, which always is. Of the
  // others the scales are looked at, and some rows of superblocks.
  int64_t max_elements = int64_t{1} << 26;
  // Whether scales of integers may be negative (HfReport).
  bool has_signed_scales = true;
};

// Of the model as imported, whose weights have contents.
absl::StatusOr<QuantizationReport> ReportQuantization(const Model& model,
                                                      const QuantizationReportOptions& options = {});

std::string QuantizationText(const QuantizationReport& report);
nlohmann::ordered_json QuantizationJson(const QuantizationReport& report);

}  // namespace llmc
