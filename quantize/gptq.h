// GPTQ (Frantar et al., arXiv:2210.17323): rounds a weight column by column, and has the columns that are not rounded
// yet make up for each error, so that the outputs on the calibration text change least.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "ir/quantize.h"

namespace llmc {

struct GptqOptions {
  // Columns in the order of falling activations, so that the columns that matter most have the others make up for them.
  // Scales are those of the columns as they lie in memory, found before any is rounded: nothing is permuted at run
  // time.
  bool act_order = false;
  double damping = 0.01;  // of the mean of the diagonal, which is added to it (section 3.3, step 3)
  QuantizeOptions quantize;
};

// numbers f32[n, k]; gram[k, k]: the sum of x^T x over inputs x. InvalidArgument as of PartsFor, and where gram has no
// inverse.
absl::StatusOr<Tensor> GptqQuantized(const Tensor& numbers, const Encoding* encoding, DType dtype,
                                     const std::vector<float>& gram, const GptqOptions& options);

}  // namespace llmc
