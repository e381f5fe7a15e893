// The inverse of Decoded (encoding.h): numbers to codes, scales and zero points of an encoding, by round to nearest.
//
// Scales, of the numbers that share one, with amax = max |x|, lowest and highest the ends of the codes:
// - integers without zero points: amax / ((highest - lowest) / 2), so amax / 127.5 and amax / 7.5, with which both ends
//   of the codes are used (as compressed-tensors and torchao have it); `restricted`: amax / highest, so amax / 127 and
//   amax / 7, with which the lowest code is not used (as bitsandbytes has it: arXiv:2208.07339, section 2);
// - integers with zero points: of min(x, 0) to max(x, 0), (max - min) / (highest - lowest), and the zero point is
//   lowest - min / scale, rounded where zero points are integers and held between the ends (arXiv:1712.05877, 2.1);
// - floats and codebooks: amax / the largest code's number: 448 (f8e4m3), 57344 (f8e5m2), 1 (nf4: arXiv:2305.14314);
// - powers of two (MX): 2^(floor(log2(amax)) - e) where 2^e is the power of two in the largest code's number (OCP
//   Microscaling Formats 1.0, section 6.3); larger numbers become that largest one;
// - two levels (nvfp4): the tensor's is amax / (6 * 448), a group's amax / 6 / the tensor's, rounded to f8e4m3.
// Codes are made with scales as they are stored, that is, rounded. Numbers that are all 0 get the scale 1.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/encoding.h"
#include "ir/tensor.h"

namespace llmc {

struct QuantizeOptions {
  bool restricted = false;
  // Of two levels: the outer scale is found for numbers as large as this, if the tensor has no larger ones, so that
  // tensors that become one share it.
  float outer_amax = 0;
};

// What the numbers that share a scale are rounded to, one at a time: for algorithms that choose what to round.
class Quantizer {
 public:
  // A scale as it is decoded, without the outer one, and the zero point.
  struct Grid {
    float scale = 1, zero = 0;
  };

  // `encoding` must be one that CheckQuantizable accepts.
  explicit Quantizer(const Encoding& encoding, const QuantizeOptions& options = {}, float outer_scale = 1);

  // That of a tensor with this largest |x|; 1 for encodings that have none.
  float OuterScaleFor(float amax) const;
  void set_outer_scale(float outer_scale) { outer_ = outer_scale; }

  // For numbers from `min` to `max`, rounded as it is stored.
  Grid GridFor(float min, float max) const;
  // The number of the code of the nearest number; of two as near the one with the even code. Of integers the code
  // itself, else its bits.
  int Code(float x, Grid grid) const;
  // As Decoded computes it.
  float Decoded(int code, Grid grid) const;
  float Nearest(float x, Grid grid) const { return Decoded(Code(x, grid), grid); }

 private:
  float NumberOf(int code) const {
    return is_integer_ ? static_cast<float>(code) : numbers_[static_cast<size_t>(code)];
  }

  const Encoding& e_;
  bool is_integer_ = false, is_float_ = false;
  float lowest_ = 0, highest_ = 0;
  float span_ = 1;  // what amax is divided by
  float outer_ = 1;
  std::array<float, 256> numbers_ = {};          // by code, of what is no integer
  std::vector<std::pair<float, int>> codebook_;  // sorted, with codes
};

// Unimplemented: there is no rule for it (superblocks, scales that are shared otherwise than zero points).
absl::Status CheckQuantizable(const Encoding& encoding);

// Components of an encoding but the codes, each of its type; empty where the encoding has none.
struct QuantizedParts {
  Tensor scale, zero, outer;
};
// The grid of the i-th scale, and the other way round; the outer scale is apart.
Quantizer::Grid GridAt(const QuantizedParts& parts, const Encoding& encoding, int64_t i);
void SetGrid(Quantizer::Grid grid, const Encoding& encoding, int64_t i, QuantizedParts* parts);
// InvalidArgument: `numbers`, of any float type, cannot have the encoding, or are not all finite.
absl::StatusOr<QuantizedParts> PartsFor(const Tensor& numbers, const Encoding& encoding,
                                        const QuantizeOptions& options = {});
// Codes by given parts, bundled with them to a tensor of the logical type `dtype`.
Tensor QuantizedWith(const Tensor& numbers, const Encoding* encoding, DType dtype, const QuantizedParts& parts,
                     const QuantizeOptions& options = {});
// Both.
absl::StatusOr<Tensor> Quantized(const Tensor& numbers, const Encoding* encoding, DType dtype,
                                 const QuantizeOptions& options = {});

}  // namespace llmc
