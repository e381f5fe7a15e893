// Double quantization (Dettmers et al., arXiv:2305.14314, section 3): scales of blocks, less an offset, are themselves
// quantized to 8 bits, in blocks of 256, as bitsandbytes has it.
#pragma once

#include <vector>

#include "ir/tensor.h"

namespace llmc {

struct NestedScales {
  static constexpr int64_t kBlock = 256;

  Tensor codes;        // u8, of the scales one behind the other: places in NestedScaleMap()
  Tensor block_scale;  // f32, of each block of them
  float offset = 0;    // the mean of the scales

  // f32, of the shape of the scales: what a reader makes of it.
  Tensor Decoded(Shape shape) const;
};
NestedScales NestScales(const Tensor& scales);

// The 256 numbers that codes stand for, growing: bitsandbytes' dynamic map of signed numbers of 7 exponents (arXiv:
// 1511.04561). Readers take it from the file.
const std::vector<float>& NestedScaleMap();

}  // namespace llmc
