// Codes of a cache as elements of tensor cores: as pairs of f16, two in a register, and as numbers rounded to T.
#pragma once
#include "kernels/attention/cached_codes.cuh"
#include "kernels/common/float_pairs.cuh"

namespace llmc {

// Words of codes as pairs of f16, exactly. Floats are themselves. Integers, made unsigned by kOffset, are the last bits
// of subnormal numbers, so that they are multiples of 2^-24 (kUnits times that is 1), and stay where they are in the
// word: those of odd registers of 4 bits 4 bits further left, as multiples of Weight() times 2^-24.
//
// kCodes: of a word.  kPairs: registers that they fill; register i has the codes First(i) and Second(i). Join: of words
// of two rows a word whose register i has code JoinedCode(half, i) of both. Weight(i): also of a code, by its number.
template <class Code, int kBits = CodeFormat<Code>::kBits, bool kFloat = CodeFormat<Code>::kFloat>
struct CachedPairs;

template <class Code>
struct CachedPairs<Code, 8, true> {
  static constexpr int kCodes = 4, kPairs = 2;
  static constexpr float kUnits = 1;
  static constexpr u32 kOffset = 0;
  static __device__ __forceinline__ constexpr int First(int i) { return 2 * i; }
  static __device__ __forceinline__ constexpr int Second(int i) { return 2 * i + 1; }
  static __device__ __forceinline__ constexpr float Weight(int) { return 1; }
  static __device__ __forceinline__ constexpr int JoinedCode(int half, int i) { return 2 * half + i; }
  static __device__ __forceinline__ u32 Join(u32 x, u32 y, int half) {
    return __byte_perm(x, y, half == 0 ? 0x5140 : 0x7362);
  }
  static __device__ __forceinline__ void Pairs(u32 word, u32 (&out)[2]) { HalvesOfWord<Code>(word, out); }
};

template <class Code>
struct CachedPairs<Code, 8, false> {
  static constexpr int kCodes = 4, kPairs = 2;
  static constexpr float kUnits = 16777216;
  static constexpr u32 kOffset = static_cast<u32>(-CodeFormat<Code>::kLow);
  static __device__ __forceinline__ constexpr int First(int i) { return i; }
  static __device__ __forceinline__ constexpr int Second(int i) { return i + 2; }
  static __device__ __forceinline__ constexpr float Weight(int) { return 1; }
  static __device__ __forceinline__ constexpr int JoinedCode(int half, int i) { return 2 * half + i; }
  static __device__ __forceinline__ u32 Join(u32 x, u32 y, int half) {
    return __byte_perm(x, y, half == 0 ? 0x5410 : 0x7632);
  }
  static __device__ __forceinline__ void Pairs(u32 word, u32 (&out)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) out[i] = AndXor<0x00ff00ff>(word >> (8 * i), kOffset * 0x10001u);
  }
};

template <class Code>
struct CachedPairs<Code, 4, false> {
  static constexpr int kCodes = 8, kPairs = 4;
  static constexpr float kUnits = 16777216;
  static constexpr u32 kOffset = static_cast<u32>(-CodeFormat<Code>::kLow);
  static __device__ __forceinline__ constexpr int First(int i) { return i; }
  static __device__ __forceinline__ constexpr int Second(int i) { return i + 4; }
  static __device__ __forceinline__ constexpr float Weight(int i) { return i % 2 == 0 ? 1.0f : 16.0f; }
  static __device__ __forceinline__ constexpr int JoinedCode(int half, int i) { return 4 * half + i; }
  static __device__ __forceinline__ u32 Join(u32 x, u32 y, int half) {
    return __byte_perm(x, y, half == 0 ? 0x5410 : 0x7632);
  }
  static __device__ __forceinline__ void Pairs(u32 word, u32 (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      out[i] = AndXor<0x000f000f>(word >> (4 * i), kOffset * 0x10001u);
      out[i + 1] = AndXor<0x00f000f0>(word >> (4 * i), kOffset * 0x100010u);
    }
  }
};

// Eight neighbouring elements of a row, decoded and rounded to T: (code - zero) * scale.
template <class C>
struct CachedChunk {
  using T = typename C::T;
  using Format = CodeFormat<typename C::KvCode>;
  static constexpr int kWords = Format::kBits / 4;
  u32 codes[kWords];
  ScaleAndZero scale;

  __device__ __forceinline__ void Load(const u8* cache, u32 slot, int part, int head, int column,
                                       const StaticScales& static_scales) {
    LoadCached<4 * kWords>(cache + CodePlaces<C>::Codes(slot, part, head) + column * Format::kBits / 8, codes);
    scale = ScaleOf<C>(cache, slot, part, head, column, static_scales);
  }
  __device__ __forceinline__ void Decode(u32 (&out)[4]) const {
    float x[8];
    if constexpr (Format::kFloat) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        u32 halves[2];
        HalvesOfWord<typename C::KvCode>(codes[i % kWords], halves);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          x[4 * i + 2 * j] = LowOf<f16>(halves[j]);
          x[4 * i + 2 * j + 1] = HighOf<f16>(halves[j]);
        }
      }
    } else {
      // As the last bits of 2^23.
      constexpr float kMoved = 8388608.0f - Format::kLow;
      const float off = kMoved + scale.zero;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        constexpr int kOf = 32 / Format::kBits;
        const u32 word = codes[i / kOf % kWords] ^ (Format::kLow == 0    ? 0
                                                    : Format::kBits == 4 ? 0x88888888u
                                                                         : 0x80808080u);
        const u32 code = word >> (i % kOf * Format::kBits) & ((1u << Format::kBits) - 1);
        x[i] = __uint_as_float(code | 0x4b000000u) - off;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = Pack<T>(x[2 * i] * scale.scale, x[2 * i + 1] * scale.scale);
  }
};

// What a source of rows (flash_attention.cuh) has besides where they are encoded: `LoadChunk<part>(offset, column,
// chunk)`, of a CachedChunk.
template <class Source, class = void>
inline constexpr bool kHasCodes = false;
template <class Source>
inline constexpr bool kHasCodes<Source, Void<typename Source::Chunk>> = true;

__device__ __forceinline__ void StoreShared(u32 to, const u32 (&x)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

}  // namespace llmc
