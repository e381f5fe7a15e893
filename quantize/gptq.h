// GPTQ (Frantar et al., arXiv:2210.17323): rounds a weight column by column, and has the columns that are not rounded
// yet make up for each error, so that the outputs on the calibration text change least.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "ir/quantize.h"
#include "quantize/gptq_factor.h"

namespace llmc {

// What the factor must be made with for weights of this encoding. With act_order scales are those of the columns as
// they lie in memory, found before any is rounded: nothing is permuted at run time.
GptqFactor::Options GptqOptionsFor(const Encoding& encoding, bool act_order);

// numbers f32[n, k]; `factor` of their inputs, of options as above. InvalidArgument as of PartsFor.
absl::StatusOr<Tensor> GptqQuantized(const Tensor& numbers, const Encoding* encoding, DType dtype,
                                     const GptqFactor& factor, const QuantizeOptions& options);

}  // namespace llmc
