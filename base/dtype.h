// Element types of tensors, and conversions of single values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

enum class DType : uint8_t { kF64, kF32, kF16, kBF16, kF8E4M3, kF8E5M2, kI64, kI32, kI16, kI8, kI4, kU8, kU4, kBool };
inline constexpr int kNumDTypes = 14;

// "f32", "bf16", "f8e4m3", "i64", "bool", …
absl::string_view DTypeName(DType dtype);
absl::StatusOr<DType> ParseDType(absl::string_view name);

int DTypeBits(DType dtype);  // 64, 32, 16, 8 or 4; bool is 8.
bool IsFloat(DType dtype);
bool IsInteger(DType dtype);  // bool is not an integer.

// Conversions follow IEEE 754 round-to-nearest-even. f8e4m3 is the "fn" form (no infinity, saturates to NaN at overflow
// as in OFP8), f8e5m2 has infinities.
float HalfToFloat(uint16_t bits);
uint16_t FloatToHalf(float value);
// n of them at any address.
void HalvesToFloats(const char* raw, int64_t n, float* out);
float BFloat16ToFloat(uint16_t bits);
uint16_t FloatToBFloat16(float value);
float F8E4M3ToFloat(uint8_t bits);
uint8_t FloatToF8E4M3(float value);
float F8E5M2ToFloat(uint8_t bits);
uint8_t FloatToF8E5M2(float value);

}  // namespace llmc
