// The arithmetic of the language on single elements. An element is stored as f64, f32, f16, bf16, f8, an integer or
// bool, and computed with as f64 for f64, f32 for other floats, i64 for integers and bool for bool: `Widen` goes from
// the one to the other, `Narrow` back. The functions in `op` have the names of the language's ops, in CamelCase,
// and give the numbers of its evaluator: products and sums are not contracted, integers wrap around.
#pragma once
#include "kernels/common/device_error.cuh"

namespace llmc {

struct f8e4m3 {
  u8 bits;
};
struct f8e5m2 {
  u8 bits;
};
// One element; two share a byte in memory, the first in the low half (see Packed in
// kernels/elementwise/elementwise.cuh).
struct i4 {
  u8 bits;
};
struct u4 {
  u8 bits;
};

// ---- floats of 8 bits ---------------------------------------------------------------------------------------------
// A float of kExponent and kMantissa bits. kFinite: the largest exponent holds numbers too, only all ones is NaN.
template <int kExponent, int kMantissa, bool kFinite>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr u32 kAllOnes = (1u << (kExponent + kMantissa)) - 1;
  static constexpr u32 kInfinity = ((1u << kExponent) - 1) << kMantissa;
  static constexpr int kShift = 23 - kMantissa;

  static __device__ float Widen(u32 bits) {
    const u32 sign = bits >> (kExponent + kMantissa) << 31, magnitude = bits & kAllOnes;
    if (kFinite ? magnitude == kAllOnes : magnitude > kInfinity) return __uint_as_float(sign | 0x7fc00000u);
    if (!kFinite && magnitude == kInfinity) return __uint_as_float(sign | 0x7f800000u);
    if (magnitude >> kMantissa == 0) {  // subnormal
      const float unit = __uint_as_float(static_cast<u32>(128 - kBias - kMantissa) << 23);
      return __uint_as_float(sign | __float_as_uint(static_cast<float>(magnitude) * unit));
    }
    return __uint_as_float(sign | ((magnitude << kShift) + (static_cast<u32>(127 - kBias) << 23)));
  }

  // To nearest, halves to even.
  static __device__ u32 Narrow(float x) {
    const u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    const u32 sign = bits >> 31 << (kExponent + kMantissa);
    if (magnitude > 0x7f800000u) return sign | kAllOnes;
    const int exponent = static_cast<int>(magnitude >> 23) - 127 + kBias;
    u32 rounded = 0;
    if (exponent >= 1) {
      const u32 odd = magnitude >> kShift & 1;
      rounded = ((magnitude + (1u << (kShift - 1)) - 1 + odd) >> kShift) - (static_cast<u32>(127 - kBias) << kMantissa);
    } else if (kShift + 1 - exponent <= 24) {
      const int shift = kShift + 1 - exponent;
      const u32 significand = (magnitude & 0x7fffffu) | 0x800000u, kept = significand >> shift;
      const u32 lost = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
      rounded = kept + (lost > half || (lost == half && (kept & 1)) ? 1 : 0);
    }
    constexpr u32 kMost = kFinite ? kAllOnes : kInfinity;
    return sign | (rounded >= kMost ? kMost : rounded);
  }
};
using E4M3 = SmallFloat<4, 3, true>;
using E5M2 = SmallFloat<5, 2, false>;

// ---- storage to arithmetic and back -------------------------------------------------------------------------------
__device__ __forceinline__ double Widen(double x) { return x; }
__device__ __forceinline__ float Widen(float x) { return x; }
__device__ __forceinline__ float Widen(f16 x) { return ToFloat(x); }
__device__ __forceinline__ float Widen(bf16 x) { return ToFloat(x); }
__device__ __forceinline__ float Widen(f8e4m3 x) { return E4M3::Widen(x.bits); }
__device__ __forceinline__ float Widen(f8e5m2 x) { return E5M2::Widen(x.bits); }
__device__ __forceinline__ i64 Widen(i64 x) { return x; }
__device__ __forceinline__ i64 Widen(i32 x) { return x; }
__device__ __forceinline__ i64 Widen(i16 x) { return x; }
__device__ __forceinline__ i64 Widen(i8 x) { return x; }
__device__ __forceinline__ i64 Widen(u8 x) { return x; }
__device__ __forceinline__ i64 Widen(i4 x) { return (x.bits & 15) >= 8 ? (x.bits & 15) - 16 : x.bits & 15; }
__device__ __forceinline__ i64 Widen(u4 x) { return x.bits & 15; }
__device__ __forceinline__ bool Widen(bool x) { return x; }

// The type that elements stored as T are computed with.
template <class T>
using Wide = decltype(Widen(T()));

// f64 has its own; integers wrap around.
template <class T>
struct Rounding {
  template <class X>
  static __device__ __forceinline__ T Of(X x) {
    return static_cast<T>(x);
  }
};
template <>
struct Rounding<f16> {
  static __device__ __forceinline__ f16 Of(float x) { return FromFloat<f16>(x); }
};
template <>
struct Rounding<bf16> {
  static __device__ __forceinline__ bf16 Of(float x) { return FromFloat<bf16>(x); }
};
template <>
struct Rounding<f8e4m3> {
  static __device__ __forceinline__ f8e4m3 Of(float x) { return {static_cast<u8>(E4M3::Narrow(x))}; }
};
template <>
struct Rounding<f8e5m2> {
  static __device__ __forceinline__ f8e5m2 Of(float x) { return {static_cast<u8>(E5M2::Narrow(x))}; }
};
template <>
struct Rounding<i4> {
  static __device__ __forceinline__ i4 Of(i64 x) { return {static_cast<u8>(x & 15)}; }
};
template <>
struct Rounding<u4> {
  static __device__ __forceinline__ u4 Of(i64 x) { return {static_cast<u8>(x & 15)}; }
};
template <class T, class X>
__device__ __forceinline__ T Narrow(X x) {
  return Rounding<T>::Of(x);
}
// What a result becomes when it is stored as T and read again.
template <class T, class X>
__device__ __forceinline__ Wide<T> Stored(X x) {
  return Widen(Narrow<T>(x));
}

// ---- cast -----------------------------------------------------------------------------------------------------------
// The nearest f32, but an inexact one gets an odd last bit, so that rounding it again to a narrower float gives what
// rounding x itself would.
__device__ __forceinline__ float RoundToOdd(double x) {
  const float nearest = static_cast<float>(x);
  if (x != x || static_cast<double>(nearest) == x) return nearest;
  u32 bits = __float_as_uint(nearest);
  if (fabs(static_cast<double>(nearest)) > fabs(x)) --bits;
  return __uint_as_float(bits | 1);
}

template <class T>
inline constexpr bool kIsFloatType = false;
template <>
inline constexpr bool kIsFloatType<float> = true;
template <>
inline constexpr bool kIsFloatType<f16> = true;
template <>
inline constexpr bool kIsFloatType<bf16> = true;
template <>
inline constexpr bool kIsFloatType<f8e4m3> = true;
template <>
inline constexpr bool kIsFloatType<f8e5m2> = true;

template <class A, class B>
inline constexpr bool kSame = false;
template <class A>
inline constexpr bool kSame<A, A> = true;

// The range of an integer type: [-kLimit or 0, kLimit).
template <class T>
struct Integer {
  static constexpr bool kSigned = static_cast<T>(-1) < static_cast<T>(0);
  static constexpr int kDigits = static_cast<int>(sizeof(T)) * 8 - (kSigned ? 1 : 0);
};
template <>
struct Integer<i4> {
  static constexpr bool kSigned = true;
  static constexpr int kDigits = 3;
};
template <>
struct Integer<u4> {
  static constexpr bool kSigned = false;
  static constexpr int kDigits = 4;
};

// Truncates; saturates; NaN is 0.
template <class T>
__device__ __forceinline__ i64 FloatToInteger(double x) {
  constexpr int kDigits = Integer<T>::kDigits;
  constexpr i64 kMost = static_cast<i64>((1ull << kDigits) - 1);
  constexpr i64 kLeast = Integer<T>::kSigned ? -kMost - 1 : 0;
  if (x != x) return 0;
  if (x >= static_cast<double>(1ull << kDigits)) return kMost;
  if (x <= static_cast<double>(kLeast)) return kLeast;
  return static_cast<i64>(x);
}

template <class T, class X>
__device__ __forceinline__ Wide<T> Cast(X x) {
  constexpr bool kFromFloat = kSame<X, float> || kSame<X, double>;
  if constexpr (kSame<T, bool>) {
    return x != static_cast<X>(0);  // NaN is true
  } else if constexpr (kSame<T, double>) {
    return static_cast<double>(x);
  } else if constexpr (kSame<T, float>) {
    return static_cast<float>(x);
  } else if constexpr (kIsFloatType<T>) {
    if constexpr (kSame<X, float>) return Stored<T>(x);
    if constexpr (kSame<X, double>) return Stored<T>(RoundToOdd(x));
    // Exact up to 2^53, with the lost bits gathered in the last one above that.
    const i64 value = static_cast<i64>(x);
    u64 magnitude = value < 0 ? 0 - static_cast<u64>(value) : static_cast<u64>(value);
    if (magnitude >> 53) magnitude = (magnitude & ~2047ull) | ((magnitude & 2047) ? 2048 : 0);
    const double exact = static_cast<double>(magnitude);
    return Stored<T>(RoundToOdd(value < 0 ? -exact : exact));
  } else if constexpr (kFromFloat) {
    return FloatToInteger<T>(static_cast<double>(x));
  } else {
    return Stored<T>(static_cast<i64>(x));
  }
}

namespace op {

// ---- one operand --------------------------------------------------------------------------------------------------
// Sums and products that no later operation is contracted with.
__device__ __forceinline__ float Add(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double Add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ float Sub(float a, float b) { return __fadd_rn(a, -b); }
__device__ __forceinline__ double Sub(double a, double b) { return __dadd_rn(a, -b); }
__device__ __forceinline__ float Mul(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double Mul(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float Div(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ double Div(double a, double b) { return __ddiv_rn(a, b); }

__device__ __forceinline__ i64 Wrapped(u64 x) { return static_cast<i64>(x); }
__device__ __forceinline__ u64 Bits(i64 x) { return static_cast<u64>(x); }

template <class X>
__device__ __forceinline__ X Identity(X x) {
  return x;
}
__device__ __forceinline__ float Neg(float x) { return -x; }
__device__ __forceinline__ double Neg(double x) { return -x; }
__device__ __forceinline__ i64 Neg(i64 x) { return Wrapped(0 - Bits(x)); }
__device__ __forceinline__ float Abs(float x) { return fabsf(x); }
__device__ __forceinline__ double Abs(double x) { return fabs(x); }
__device__ __forceinline__ i64 Abs(i64 x) { return x < 0 ? Neg(x) : x; }
template <class X>
__device__ __forceinline__ X Sign(X x) {  // NaN stays, and so does the sign of zero
  return x > X(0) ? X(1) : x < X(0) ? X(-1) : x;
}
template <class X>
__device__ __forceinline__ X Relu(X x) {  // NaN stays
  return x < X(0) ? X(0) : x;
}
__device__ __forceinline__ bool Not(bool x) { return !x; }
__device__ __forceinline__ i64 Not(i64 x) { return ~x; }
template <class X>
__device__ __forceinline__ bool IsNan(X x) {
  return x != x;
}
__device__ __forceinline__ bool IsInf(float x) { return fabsf(x) == __uint_as_float(0x7f800000u); }
__device__ __forceinline__ bool IsInf(double x) { return fabs(x) == static_cast<double>(__uint_as_float(0x7f800000u)); }

// NAME(x) for float and double.
#define LLMC_FUNCTION(NAME, IN_FLOAT, IN_DOUBLE)                         \
  __device__ __forceinline__ float NAME(float x) { return IN_FLOAT(x); } \
  __device__ __forceinline__ double NAME(double x) { return IN_DOUBLE(x); }
LLMC_FUNCTION(Floor, floorf, floor)
LLMC_FUNCTION(Ceil, ceilf, ceil)
LLMC_FUNCTION(Round, rintf, rint)
LLMC_FUNCTION(Exp, expf, exp)
LLMC_FUNCTION(Expm1, expm1f, expm1)
LLMC_FUNCTION(Log, logf, log)
LLMC_FUNCTION(Sqrt, __fsqrt_rn, __dsqrt_rn)
LLMC_FUNCTION(Sin, sinf, sin)
LLMC_FUNCTION(Cos, cosf, cos)
LLMC_FUNCTION(Tan, tanf, tan)
LLMC_FUNCTION(Atan, atanf, atan)
LLMC_FUNCTION(Tanh, tanhf, tanh)
LLMC_FUNCTION(Erf, erff, erf)
LLMC_FUNCTION(Log1p, log1pf, log1p)
#undef LLMC_FUNCTION

template <class X>
__device__ __forceinline__ X Reciprocal(X x) {
  return Div(X(1), x);
}
template <class X>
__device__ __forceinline__ X Rsqrt(X x) {
  return Div(X(1), Sqrt(x));
}
template <class X>
__device__ __forceinline__ X Sigmoid(X x) {
  return Div(X(1), Add(X(1), Exp(-x)));
}
template <class X>
__device__ __forceinline__ X Silu(X x) {
  return Div(x, Add(X(1), Exp(-x)));
}
template <class X>
__device__ __forceinline__ X Gelu(X x) {
  return Mul(Mul(x, Add(X(1), Erf(Mul(x, X(0.70710678118654752440))))), X(0.5));
}
template <class X>
__device__ __forceinline__ X GeluTanh(X x) {
  const X cube = Mul(Mul(Mul(X(0.044715), x), x), x);
  return Mul(Mul(x, Add(X(1), Tanh(Mul(X(0.79788456080286535588), Add(x, cube))))), X(0.5));
}
template <class X>
__device__ __forceinline__ X Softplus(X x) {
  return Add(Relu(x), Log1p(Exp(-Abs(x))));
}

// ---- two operands -------------------------------------------------------------------------------------------------
__device__ __forceinline__ i64 Add(i64 a, i64 b) { return Wrapped(Bits(a) + Bits(b)); }
__device__ __forceinline__ i64 Sub(i64 a, i64 b) { return Wrapped(Bits(a) - Bits(b)); }
__device__ __forceinline__ i64 Mul(i64 a, i64 b) { return Wrapped(Bits(a) * Bits(b)); }
// A zero divisor has no quotient: 0, beside a device error where it is not known to be another number.
__device__ __forceinline__ i64 Div(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? Neg(a) : a / b; }
__device__ __forceinline__ i64 Fmod(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }
__device__ __forceinline__ float Fmod(float a, float b) { return fmodf(a, b); }
__device__ __forceinline__ double Fmod(double a, double b) { return fmod(a, b); }
template <class X>
__device__ __forceinline__ X Mod(X a, X b) {
  const X rest = Fmod(a, b);
  return rest != X(0) && (rest < X(0)) != (b < X(0)) ? Add(rest, b) : rest;
}

__device__ __forceinline__ i64 Pow(i64 base, i64 exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  u64 power = 1, square = Bits(base);
  for (; exponent > 0; exponent >>= 1, square *= square) {
    if (exponent & 1) power *= square;
  }
  return Wrapped(power);
}
template <class X>
__device__ __forceinline__ float Pow(float a, X b) {
  return powf(a, static_cast<float>(b));
}
template <class X>
__device__ __forceinline__ double Pow(double a, X b) {
  return pow(a, static_cast<double>(b));
}
// Truncated; what pow misses a whole number by is its error.
__device__ __forceinline__ i64 Pow(i64 a, double b) {
  const double power = pow(static_cast<double>(a), b), whole = rint(power);
  return static_cast<i64>(fabs(power - whole) <= 1e-15 * fabs(whole) ? whole : power);
}
__device__ __forceinline__ i64 Pow(i64 a, float b) { return Pow(a, static_cast<double>(b)); }

// Integers that may have no result, which is a device error then.
__device__ __forceinline__ i64 Div(i64 a, i64 b, const DeviceErrorSite& device_error) {
  if (b == 0) device_error.Raise();
  return Div(a, b);
}
__device__ __forceinline__ i64 Fmod(i64 a, i64 b, const DeviceErrorSite& device_error) {
  if (b == 0) device_error.Raise();
  return Fmod(a, b);
}
__device__ __forceinline__ i64 Mod(i64 a, i64 b, const DeviceErrorSite& device_error) {
  if (b == 0) device_error.Raise();
  return Mod(a, b);
}
__device__ __forceinline__ i64 Pow(i64 a, i64 b, const DeviceErrorSite& device_error) {
  if (a == 0 && b < 0) device_error.Raise();
  return Pow(a, b);
}
__device__ __forceinline__ i64 Pow(i64 a, double b, const DeviceErrorSite& device_error) {
  const double power = trunc(pow(static_cast<double>(a), b));
  if (!(power >= -9223372036854775808.0 && power < 9223372036854775808.0)) device_error.Raise();  // NaN too
  return Pow(a, b);
}
__device__ __forceinline__ i64 Pow(i64 a, float b, const DeviceErrorSite& device_error) {
  return Pow(a, static_cast<double>(b), device_error);
}

template <class X>
__device__ __forceinline__ X Max(X a, X b) {  // NaN if either is
  return a > b || a != a ? a : b;
}
template <class X>
__device__ __forceinline__ X Min(X a, X b) {
  return a < b || a != a ? a : b;
}
template <class X>
__device__ __forceinline__ bool Equal(X a, X b) {
  return a == b;
}
template <class X>
__device__ __forceinline__ bool Less(X a, X b) {
  return a < b;
}
template <class X>
__device__ __forceinline__ bool LessEqual(X a, X b) {
  return a <= b;
}
template <class X>
__device__ __forceinline__ bool Greater(X a, X b) {
  return a > b;
}
template <class X>
__device__ __forceinline__ bool GreaterEqual(X a, X b) {
  return a >= b;
}
__device__ __forceinline__ bool And(bool a, bool b) { return a && b; }
__device__ __forceinline__ i64 And(i64 a, i64 b) { return a & b; }
__device__ __forceinline__ bool Or(bool a, bool b) { return a || b; }
__device__ __forceinline__ i64 Or(i64 a, i64 b) { return a | b; }
__device__ __forceinline__ bool Xor(bool a, bool b) { return a != b; }
__device__ __forceinline__ i64 Xor(i64 a, i64 b) { return a ^ b; }
template <class X>
__device__ __forceinline__ X Where(bool condition, X a, X b) {
  return condition ? a : b;
}

}  // namespace op
}  // namespace llmc
