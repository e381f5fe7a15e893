// Keys and values that are cached as codes (ir/cached_rows.h says how numbers become codes): where they lie in a page,
// how a head is written, how its numbers are read.
//
// A Config of an encoded cache has, besides what paged_kv.cuh says, in bytes:
// C::KvCode: the type of codes.  C::KvScale: that of scales.  C::kKvGroup: elements of a head that share a scale.
// C::kKvZeros: whether there are zero points, u8.  C::kStaticScales: 0 where each token has its own scales, 1 for one
// of all, 2 for one of each head.  C::kPageBytes.  C::kKeysAt, C::kValuesAt: codes.  C::kKeyScalesAt,
// C::kValueScalesAt, C::kKeyZerosAt, C::kValueZerosAt: what else is in a page.
#pragma once
#include "kernels/common/arithmetic.cuh"

namespace llmc {

template <class...>
using Void = void;

template <class C, class = void>
inline constexpr bool kIsEncoded = false;
template <class C>
inline constexpr bool kIsEncoded<C, Void<typename C::KvCode>> = true;

template <class C, bool kEncoded>
struct CacheElementOf {
  using Type = typename C::T;
};
template <class C>
struct CacheElementOf<C, true> {
  using Type = u8;
};
// What a pointer to the cache points to: elements, or bytes.
template <class C>
using CacheElement = typename CacheElementOf<C, kIsEncoded<C>>::Type;

// The scales that all tokens share, f32: one, or one for each KV head; null where tokens have their own. Plain
// pointers, read only after Context::Wait.
struct StaticScales {
  const float* keys = nullptr;
  const float* values = nullptr;

  template <class C>
  __device__ __forceinline__ float Of(int part, int head) const {
    static_assert(C::kStaticScales > 0, "kStaticScales: there are such");
    return (part == 0 ? keys : values)[C::kStaticScales == 2 ? head : 0];
  }
};

// ---- formats ------------------------------------------------------------------------------------------------------
template <class Code>
struct CodeFormat;
template <>
struct CodeFormat<f8e4m3> {
  static constexpr int kBits = 8;
  static constexpr bool kFloat = true;
  static constexpr float kLow = -448, kHigh = 448;
};
template <>
struct CodeFormat<f8e5m2> {
  static constexpr int kBits = 8;
  static constexpr bool kFloat = true;
  static constexpr float kLow = -57344, kHigh = 57344;
};
template <>
struct CodeFormat<i8> {
  static constexpr int kBits = 8;
  static constexpr bool kFloat = false;
  static constexpr float kLow = -128, kHigh = 127;
};
template <>
struct CodeFormat<u8> {
  static constexpr int kBits = 8;
  static constexpr bool kFloat = false;
  static constexpr float kLow = 0, kHigh = 255;
};
template <>
struct CodeFormat<i4> {
  static constexpr int kBits = 4;
  static constexpr bool kFloat = false;
  static constexpr float kLow = -8, kHigh = 7;
};
template <>
struct CodeFormat<u4> {
  static constexpr int kBits = 4;
  static constexpr bool kFloat = false;
  static constexpr float kLow = 0, kHigh = 15;
};

__device__ __forceinline__ bool IsFinite(float x) { return fabsf(x) <= 3.402823466e38f; }

// The code of x / scale, in the low bits.
template <class Code>
__device__ __forceinline__ u32 CodeOf(float x, float scale, float zero) {
  using F = CodeFormat<Code>;
  const float quotient = scale == 0 ? 0.0f : __fdiv_rn(x, scale);
  if constexpr (F::kFloat) {
    const float code = IsFinite(x) ? fminf(fmaxf(quotient, F::kLow), F::kHigh) : __uint_as_float(0x7fc00000u);
    // fmaxf takes the other one of a NaN.
    return Narrow<Code>(quotient == quotient ? code : quotient).bits;
  } else {
    const float code = fminf(fmaxf(rintf(quotient), -512.0f), 512.0f);
    const float moved = fminf(fmaxf(code + zero, F::kLow), F::kHigh);
    return static_cast<u32>(quotient == quotient ? static_cast<int>(moved) : 0) & ((1u << F::kBits) - 1);
  }
}

template <class Scale>
inline constexpr float kGreatestScale = 3.402823466e38f;
template <>
inline constexpr float kGreatestScale<f16> = 65504.0f;
template <>
inline constexpr float kGreatestScale<bf16> = 3.3895313892515355e38f;

// ---- places -------------------------------------------------------------------------------------------------------
// Part 0 are keys, 1 values.
template <class C>
struct CodePlaces {
  using Format = CodeFormat<typename C::KvCode>;
  static constexpr int kRowBytes = C::kHeadDim * Format::kBits / 8;
  static constexpr int kGroups = C::kHeadDim / C::kKvGroup;
  static_assert(C::kHeadDim % C::kKvGroup == 0, "kKvGroup: whole groups in a head");
  static_assert(C::kHeadDim * Format::kBits % 8 == 0, "rows are whole bytes");

  // From the first row of a part of the page on.
  template <int kBytes>
  static __device__ __forceinline__ i64 Row(u32 slot, int begin, int head) {
    return static_cast<i64>(slot / C::kPageSize) * C::kPageBytes + begin +
           static_cast<i64>(head * C::kPageSize + static_cast<int>(slot % C::kPageSize)) * kBytes;
  }
  static __device__ __forceinline__ i64 Codes(u32 slot, int part, int head) {
    return Row<kRowBytes>(slot, part == 0 ? C::kKeysAt : C::kValuesAt, head);
  }
  static __device__ __forceinline__ i64 Scales(u32 slot, int part, int head) {
    return Row<kGroups* static_cast<int>(sizeof(typename C::KvScale))>(
        slot, part == 0 ? C::kKeyScalesAt : C::kValueScalesAt, head);
  }
  static __device__ __forceinline__ i64 Zeros(u32 slot, int part, int head) {
    return Row<kGroups>(slot, part == 0 ? C::kKeyZerosAt : C::kValueZerosAt, head);
  }
};

// ---- writing ------------------------------------------------------------------------------------------------------
// Over the kTeam neighbouring lanes of a team, of which there may be one alone in a warp.
template <int kTeam, class Op>
__device__ __forceinline__ float TeamReduce(float x, Op op) {
  static_assert(kTeam <= 32 && (kTeam & (kTeam - 1)) == 0, "kTeam: a part of a warp");
  const u32 mask = kTeam == 32 ? ~0u : ((1u << (kTeam % 32)) - 1) << (threadIdx.x % 32 / kTeam * kTeam);
#pragma unroll
  for (int offset = kTeam / 2; offset > 0; offset /= 2) x = op(x, __shfl_xor_sync(mask, x, offset));
  return x;
}

// Makes codes of a head, element i of which is x(i), as it would be stored without encoding; by the lanes of a team.
template <class C, int kTeam, class At>
__device__ __forceinline__ void WriteCodes(u8* cache, u32 slot, int part, int head, int lane,
                                           const StaticScales& static_scales, const At& x) {
  using P = CodePlaces<C>;
  using Scale = typename C::KvScale;
  using Format = typename P::Format;
  constexpr int kGroup = C::kKvGroup;
  constexpr int kUnit = kGroup % 4 == 0 ? 4 : 8 / Format::kBits;  // codes that are stored at once
  static_assert(kGroup % kUnit == 0, "kKvGroup: whole bytes");
  u8* const codes = cache + P::Codes(slot, part, head);
  for (int group = 0; group < P::kGroups; ++group) {
    const int begin = group * kGroup;
    float scale, zero = 0;
    if constexpr (C::kStaticScales > 0) {
      scale = static_scales.Of<C>(part, head);
    } else {
      float low = 0, high = 0;
      for (int i = lane; i < kGroup; i += kTeam) {
        const float v = IsFinite(x(begin + i)) ? x(begin + i) : __uint_as_float(0x7f800000u);
        high = fmaxf(high, C::kKvZeros ? v : fabsf(v));
        if (C::kKvZeros) low = fminf(low, v);
      }
      high = TeamReduce<kTeam>(high, [](float a, float b) { return fmaxf(a, b); });
      if constexpr (C::kKvZeros != 0) low = TeamReduce<kTeam>(low, [](float a, float b) { return fminf(a, b); });
      scale = __fdiv_rn(high - low, Format::kHigh);
      scale = IsFinite(scale) ? fminf(scale, kGreatestScale<Scale>) : __uint_as_float(0x7fc00000u);
      const Scale stored = FromFloat<Scale>(scale);
      scale = ToFloat(stored);
      if (lane == 0) reinterpret_cast<Scale*>(cache + P::Scales(slot, part, head))[group] = stored;
      if constexpr (C::kKvZeros != 0) {
        zero = scale == 0 ? 0.0f : fminf(fmaxf(rintf(__fdiv_rn(-low, scale)), 0.0f), Format::kHigh);
        if (zero != zero) zero = 0;
        if (lane == 0) cache[P::Zeros(slot, part, head) + group] = static_cast<u8>(zero);
      }
    }
    for (int i = lane * kUnit; i < kGroup; i += kTeam * kUnit) {
      u32 packed = 0;
#pragma unroll
      for (int j = 0; j < kUnit; ++j) {
        packed |= CodeOf<typename C::KvCode>(x(begin + i + j), scale, zero) << (j * Format::kBits);
      }
      u8* const to = codes + (begin + i) * Format::kBits / 8;
      if constexpr (kUnit * Format::kBits == 32) {
        *reinterpret_cast<u32*>(to) = packed;
      } else if constexpr (kUnit * Format::kBits == 16) {
        *reinterpret_cast<u16*>(to) = static_cast<u16>(packed);
      } else {
        *to = static_cast<u8>(packed);
      }
    }
  }
}

// One element of a head with a static scale, of bytes.
template <class C>
__device__ __forceinline__ void WriteCode(u8* cache, u32 slot, int part, int head, int element, float x,
                                          const StaticScales& scales) {
  static_assert(C::kStaticScales > 0 && CodeFormat<typename C::KvCode>::kBits == 8, "bytes, and a scale that is known");
  cache[CodePlaces<C>::Codes(slot, part, head) + element] =
      static_cast<u8>(CodeOf<typename C::KvCode>(x, scales.Of<C>(part, head), 0));
}

// ---- reading ------------------------------------------------------------------------------------------------------
// What kernels of the same step have not written, or wrote before Context::Wait: not moved above that.
template <int kBytes>
__device__ __forceinline__ void LoadCached(const void* from, u32 (&to)[(kBytes + 3) / 4]) {
  static_assert(kBytes == 16 || kBytes == 8 || kBytes == 4 || kBytes == 2 || kBytes == 1, "one load");
  if constexpr (kBytes == 16) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from)
                 : "memory");
  } else if constexpr (kBytes == 8) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from) : "memory");
  } else if constexpr (kBytes == 4) {
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(to[0]) : "l"(from) : "memory");
  } else if constexpr (kBytes == 2) {
    asm volatile("ld.global.u16 %0, [%1];" : "=r"(to[0]) : "l"(from) : "memory");
  } else {
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(to[0]) : "l"(from) : "memory");
  }
}

// The scale and zero point of elements of a row.
struct ScaleAndZero {
  float scale, zero;
};
template <class C>
__device__ __forceinline__ ScaleAndZero ScaleOf(const u8* cache, u32 slot, int part, int head, int column,
                                                const StaticScales& static_scales) {
  using P = CodePlaces<C>;
  ScaleAndZero s = {1, 0};
  if constexpr (C::kStaticScales > 0) {
    s.scale = static_scales.Of<C>(part, head);
  } else {
    const int group = column / C::kKvGroup;
    u32 bits[1];
    LoadCached<sizeof(typename C::KvScale)>(
        cache + P::Scales(slot, part, head) + group * static_cast<int>(sizeof(typename C::KvScale)), bits);
    if constexpr (sizeof(typename C::KvScale) == 4) {
      s.scale = __uint_as_float(bits[0]);
    } else {
      s.scale = ToFloat(typename C::KvScale{static_cast<u16>(bits[0])});
    }
    if constexpr (C::kKvZeros != 0) {
      LoadCached<1>(cache + P::Zeros(slot, part, head) + group, bits);
      s.zero = static_cast<float>(bits[0]);
    }
  }
  return s;
}

// Code number i of a word.
template <class Code>
__device__ __forceinline__ float CodeValue(u32 word, int i) {
  constexpr int kBits = CodeFormat<Code>::kBits;
  const u32 bits = word >> (i * kBits) & ((1u << kBits) - 1);
  if constexpr (CodeFormat<Code>::kFloat || kBits == 4) {
    return static_cast<float>(Widen(Code{static_cast<u8>(bits)}));
  } else {
    return static_cast<float>(static_cast<Code>(bits));
  }
}

// kCount neighbouring elements of a row, decoded: (code - zero) * scale. They share a scale.
template <class C, int kCount>
__device__ __forceinline__ void ReadCodes(const u8* cache, u32 slot, int part, int head, int column,
                                          const StaticScales& static_scales, float (&out)[kCount]) {
  constexpr int kBits = CodeFormat<typename C::KvCode>::kBits, kBytes = kCount * kBits / 8;
  static_assert(kBytes * 8 == kCount * kBits && C::kKvGroup % kCount == 0, "kCount: whole bytes of one group");
  const u8* row = cache + CodePlaces<C>::Codes(slot, part, head) + column * kBits / 8;
  const ScaleAndZero s = ScaleOf<C>(cache, slot, part, head, column, static_scales);
#pragma unroll
  for (int i = 0; i < kBytes; ++i) {
    u32 word[1];
    LoadCached<1>(row + i, word);
#pragma unroll
    for (int j = 0; j < 8 / kBits; ++j) {
      out[i * (8 / kBits) + j] = (CodeValue<typename C::KvCode>(word[0], j) - s.zero) * s.scale;
    }
  }
}

}  // namespace llmc
