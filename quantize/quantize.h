// Quantizes a Hugging Face folder: reads weights one at a time, writes a folder that llmc and other programs load.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "quantize/scheme.h"
#include "quantize/step_runner.h"

namespace llmc {

struct QuantizeRequest {
  std::string folder;  // with config.json and weights of floats
  std::string output;  // the folder to write
  std::vector<SchemeRule> rules;
  // Patterns (MatchesModule) of modules that stay as they are. "lm_head" is the head, whatever it is called.
  std::vector<std::string> ignore = {"lm_head"};
  // In place of codes, what they decode to, in this type: a folder as if it were not quantized.
  std::optional<DType> decoded;
  // Token ids of samples of the calibration text, from which it is learned what inputs of layers are like: needed where
  // a scheme asks for it (Scheme::NeedsCalibration) or for kv_scales; else outputs of layers are compared, too.
  std::vector<std::vector<int32_t>> samples;
  bool kv_scales = false;        // writes scales for keys and values in f8e4m3
  StepRunner* device = nullptr;  // runs the samples; nullptr: the host
  std::function<void(absl::string_view stage, int64_t done, int64_t total)> on_progress;  // may be empty
};

struct QuantizedModule {
  std::string name, scheme;
  double bits = 0;          // a weight, with its scales
  double weight_error = 0;  // |decoded - weight| / |weight|, of all numbers as one vector
  // With a calibration text: |output - output with the weight as it was| / |the latter|, of round to nearest and of the
  // scheme's method, both with inputs of the layer that those before it, quantized, give.
  std::optional<double> nearest_error, output_error;
  std::string note;  // what of the method does not apply to this layer
};

struct QuantizeReport {
  std::vector<QuantizedModule> modules;
  std::vector<std::pair<std::string, std::string>> left_out;  // linear layers that stay as they are, and why
  int64_t bytes_before = 0, bytes_after = 0;                  // of all tensors
};

// Routers of experts stay as they are. Errors: InvalidArgument where a scheme does not fit a layer, a pattern matches
// none or nothing is quantized; those of the import of the folder; FailedPrecondition where the output cannot be
// written, of which nothing is left then. Uses all cores; in memory are the codes of one weight, and what is mapped;
// with samples what LayerRunner says, too.
absl::StatusOr<QuantizeReport> QuantizeFolder(const QuantizeRequest& request);

}  // namespace llmc
