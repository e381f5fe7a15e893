// Factors of input channels that make a weight easier to round: x W^T = (x / s) (W s)^T.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/quantize.h"
#include "quantize/input_stats.h"

namespace llmc {

// A weight f32[n, k] that reads the inputs, and what it is rounded to.
struct ScaledReader {
  Tensor numbers;
  const Encoding* encoding = nullptr;
  QuantizeOptions options;
};

// Which channels have a factor together: that of channel c is the one of index[c].
struct ChannelSharing {
  std::vector<int64_t> index;
  int64_t count = 0;
};

// AWQ (Lin et al., arXiv:2306.00978, section 3.2): s = mean |x|^alpha, and as in its code that divided by
// mean |w|^(1 - alpha), with the alpha of a grid in [0, 1) for which the outputs of rounded weights differ least. Looks
// at some hundred rows of each weight. k factors; all 1 where nothing is
// better.
absl::StatusOr<std::vector<float>> AwqFactors(const InputStats& stats, const std::vector<ScaledReader>& readers,
                                              const ChannelSharing& sharing);

// SmoothQuant (Xiao et al., arXiv:2211.10438, equation 4): max |x|^alpha / max |W|^(1 - alpha) with alpha = 0.5.
std::vector<float> SmoothFactors(const InputStats& stats, const std::vector<ScaledReader>& readers,
                                 const ChannelSharing& sharing);

// Scales of groups for the range of numbers, made smaller where that changes the outputs less (AWQ's search for
// clipping in its code: 0.55 to 1 of the range). Of encodings with groups along k; others get PartsFor.
absl::StatusOr<QuantizedParts> ClippedParts(const ScaledReader& reader, const InputStats& stats);

// |x (decoded - numbers)^T| / |x numbers^T| over all inputs, of weights [n, k].
absl::StatusOr<double> OutputError(const Tensor& decoded, const Tensor& numbers, const InputStats& stats);

// W s, column by column.
Tensor ScaledColumns(const Tensor& numbers, const std::vector<float>& factors);

}  // namespace llmc
