// Numbers of which quantized factors are made, for tests of their products.
#pragma once

#include <cmath>
#include <string>
#include <utility>

#include "tests/gpu/device_check.h"

namespace llmc {

// Of a product: m rows of x, n columns, k terms.
struct Sizes {
  int64_t m, n, k;
};

inline std::string NameOf(DType dtype) { return std::string(DTypeName(dtype)); }

// The encoding whose codes these are: "int8".
inline std::string FormatOf(DType dtype) {
  for (const EncodingFormat& format : EncodingFormats()) {
    if (format.is_integer() && format.codes == dtype) return std::string(format.name);
  }
  return "";
}

inline constexpr DType kBytes[] = {DType::kI8, DType::kU8};

// All numbers that the type holds.
inline Tensor Any(DType dtype, Shape shape, uint64_t seed) {
  const bool is_signed = dtype == DType::kI8 || dtype == DType::kI4;
  const int64_t count = DTypeBits(dtype) == 8 ? 256 : 16;
  return RandomInts(dtype, std::move(shape), is_signed ? -count / 2 : 0, is_signed ? count / 2 : count, seed);
}

// Powers of two, from 1/16 to 2.
inline Tensor Powers(DType dtype, Shape shape, uint64_t seed) {
  const Tensor exponents = RandomInts(DType::kI64, shape, -4, 2, seed);
  Tensor scales(dtype, std::move(shape));
  for (int64_t i = 0; i < scales.size(); ++i)
    scales.SetFloat(i, std::ldexp(1.0, static_cast<int>(exponents.GetInt(i))));
  return scales;
}

// What is compared has been rounded up to three times on the way, each time perhaps to the other neighbour.
inline double FusedTolerance(const std::string& type) {
  return type == "f32" ? 2e-5 : type == "f16" ? 3.0 / 1024 : 3.0 / 128;
}

}  // namespace llmc
