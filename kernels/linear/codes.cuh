// The codes that numbers become, as the language's quantize makes them: the nearest, ties to the even code, none past
// the ends.
#pragma once
#include "kernels/elementwise/elementwise.cuh"

namespace llmc {

// NaN is larger than all numbers: magnitudes are compared by their bits.
struct LargestMagnitude {
  static constexpr float kIdentity = 0;
  __device__ __forceinline__ float operator()(float a, float b) const {
    return __float_as_uint(a) > __float_as_uint(b) ? a : b;
  }
};

// By its exponent plus 127; 255 is NaN.
__device__ __forceinline__ float PowerOfTwo(int exponent) {
  if (exponent == 255) return __uint_as_float(0x7fc00000u);
  return __uint_as_float(exponent == 0 ? 0x00400000u : static_cast<u32>(exponent) << 23);
}
// The exponent plus 127 of the power of two with limit / 2 <= most / power < limit; 255 of what is not finite.
__device__ __forceinline__ int ExponentOf(float most, float limit) {
  if (!(most <= 3.402823466e38f)) return 255;
  if (most == 0) return 0;
  const bool is_subnormal = most < 1.17549435e-38f;
  const u32 bits = __float_as_uint(is_subnormal ? most * 16777216.0f : most);  // by 2^24
  // Of numbers above 0 the bits grow with the numbers, and an exponent's step is 2^23: this rounds the quotient down.
  const int quotient = (static_cast<int>(bits) - static_cast<int>(__float_as_uint(limit))) >> 23;
  const int exponent = quotient + 1 + 127 - (is_subnormal ? 24 : 0);
  return exponent < 0 ? 0 : exponent > 254 ? 254 : exponent;
}

// Integers and floats of 8 bits, and integers of 4.
template <class Q>
struct RoundedCodes {
  using Storage = Q;
  static __device__ __forceinline__ Q Of(float x) {
    if constexpr (kIsFloatType<Q>) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
      return {static_cast<u8>(Two(x, 0))};
#else
      constexpr float kMost = kSame<Q, f8e4m3> ? 448.0f : 57344.0f;
      return Narrow<Q>(fabsf(x) > kMost ? copysignf(kMost, x) : x);
#endif
    } else {
      constexpr float kHigh = static_cast<float>((1 << Integer<Q>::kDigits) - 1);
      constexpr float kLow = Integer<Q>::kSigned ? -kHigh - 1 : 0.0f;
      const float inside = x < kLow ? kLow : x > kHigh ? kHigh : x;
      return Narrow<Q>(static_cast<i64>(inside == inside ? __float2int_rn(inside) : 0));
    }
  }
  // Of neighbours. Floats are rounded two at a time.
  template <int kCount>
  static __device__ __forceinline__ Vec<Q, kCount> OfAll(const float (&x)[kCount]) {
    Vec<Q, kCount> codes;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if constexpr (kIsFloatType<Q> && kCount % 2 == 0) {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        const u16 bits = Two(x[i], x[i + 1]);
        codes.v[i] = {static_cast<u8>(bits)};
        codes.v[i + 1] = {static_cast<u8>(bits >> 8)};
      }
      return codes;
    }
#endif
#pragma unroll
    for (int i = 0; i < kCount; ++i) codes.v[i] = Of(x[i]);
    return codes;
  }

 private:
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  static __device__ __forceinline__ u16 Two(float low, float high) {
    u16 bits;
    if constexpr (kSame<Q, f8e4m3>) {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    }
    return bits;
  }
#endif
};

// Many numbers by one scale, to be rounded to codes: x / scale to the last bit, or x * (1 / scale) if kInverse, and 0
// if the scale is 0.
template <bool kInverse>
class Quotients {
 public:
  __device__ __forceinline__ explicit Quotients(float scale) : is_zero_(scale == 0) {
    const float size = fabsf(scale);
    if (!kInverse && size <= 0x1p-60f) power_ = 0x1p100f;
    if (!kInverse && size >= 0x1p60f) power_ = 0x1p-100f;
    scale_ = scale * power_;
    inverse_ = 1.0f / scale_;
    is_finite_ = fabsf(scale_) < 0x1p60f;
  }

  // The quotient by the reciprocal, corrected twice by what remains, is x / scale to the last bit where no step leaves
  // the range of normal floats (Markstein, Computation of elementary functions on the IBM RISC System/6000, 1990). So
  // both are multiplied with a power of two that brings the scale far from its ends. What x loses by that, or becomes
  // infinite, has a quotient that is rounded to 0, or is past all codes, either way.
  __device__ __forceinline__ float Of(float x) const {
    if (is_zero_) return 0.0f;
    if constexpr (kInverse) return x * inverse_;
    x *= power_;
    float q = x * inverse_;
    if (q == 0 || !is_finite_ || !(fabsf(q) < 0x1p40f)) return q;  // past all codes, infinite or NaN, or 0 of its sign
    q = fmaf(fmaf(-scale_, q, x), inverse_, q);
    return fmaf(fmaf(-scale_, q, x), inverse_, q);
  }

 private:
  float scale_, inverse_, power_ = 1;
  bool is_zero_, is_finite_;
};

// 16 numbers, given by their bits.
template <u32... kBits>
struct NearestCodes {
  using Storage = u4;
  static __device__ u4 Of(float x) {
    constexpr u32 kNumbers[16] = {kBits...};
    int best = 0;
    float number = __uint_as_float(kNumbers[0]);
#pragma unroll
    for (int code = 1; code < 16; ++code) {
      const float other = __uint_as_float(kNumbers[code]), distance = fabsf(other - x), before = fabsf(number - x);
      if (distance < before || (distance == before && code % 2 == 0 && other != number)) {
        best = code;
        number = other;
      }
    }
    if (number == 0 && signbit(x) && kNumbers[8] == 0x80000000u) best = 8;
    return {static_cast<u8>(x == x ? best : 0)};
  }
};

}  // namespace llmc
