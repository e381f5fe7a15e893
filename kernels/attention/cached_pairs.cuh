// Codes of a cache as 16-bit elements, two in a register, as tensor cores take them. Every code is such an element
// exactly, with its zero point taken off.
#pragma once
#include "kernels/attention/cached_codes.cuh"
#include "kernels/common/float_pairs.cuh"

namespace llmc {

// Words of codes. kCodes: of a word.  kPairs: registers that they fill; register i has the codes First(i) and
// Second(i). Pairs takes the negative of kOffset + zero point in both halves of `offset`, where there are zero points.
// Join: of words of two rows a word whose register i has code JoinedCode(half, i) of both.
template <class T, class Code, int kBits = CodeFormat<Code>::kBits>
struct CachedPairs;

template <class T, class Code>
struct CachedPairs<T, Code, 8> {
  static constexpr int kCodes = 4, kPairs = 2;
  static constexpr float kOffset = 0;
  static __device__ __forceinline__ constexpr int First(int i) { return 2 * i; }
  static __device__ __forceinline__ constexpr int Second(int i) { return 2 * i + 1; }
  static __device__ __forceinline__ constexpr int JoinedCode(int half, int i) { return 2 * half + i; }
  static __device__ __forceinline__ u32 Join(u32 x, u32 y, int half) {
    return __byte_perm(x, y, half == 0 ? 0x5140 : 0x7362);
  }

  static __device__ __forceinline__ void Pairs(u32 word, u32, u32 (&out)[2]) {
    if constexpr (CodeFormat<Code>::kFloat) {
      HalvesOfWord<Code>(word, out);
#pragma unroll
      for (int i = 0; i < 2; ++i) out[i] = OfHalves<T>(out[i]);
    } else {
      static_assert(CodeFormat<Code>::kLow == -128, "bytes with a sign");
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const u32 sel = i == 0 ? 0x4140 : 0x4342;
        if constexpr (kSame<T, f16>) {  // 1024 + (x + 128), less 1152
          out[i] = AddPairs<T>(__byte_perm(word ^ 0x80808080u, 0x64646464u, sel), 0xe480e480u);
        } else {  // 128 + the low seven bits of x, less 128, or 256 if x is negative
          const u32 bytes = __byte_perm(word, 0x43434343u, sel);
          out[i] = AddPairs<T>(bytes & 0xff7fff7fu, (bytes & 0xff80ff80u) | 0x80008000u);
        }
      }
    }
  }
};

template <class T, class Code>
struct CachedPairs<T, Code, 4> {
  static constexpr bool kSigned = CodeFormat<Code>::kLow < 0;
  static constexpr int kCodes = 8, kPairs = 4;
  static constexpr float kOffset = kRaised<T> + (kSigned ? 8 : 0);
  static __device__ __forceinline__ constexpr int First(int i) { return i; }
  static __device__ __forceinline__ constexpr int Second(int i) { return i + 4; }
  static __device__ __forceinline__ constexpr int JoinedCode(int half, int i) { return 4 * half + i; }
  static __device__ __forceinline__ u32 Join(u32 x, u32 y, int half) {
    return __byte_perm(x, y, half == 0 ? 0x5410 : 0x7632);
  }

  static __device__ __forceinline__ void Pairs(u32 word, u32 offset, u32 (&out)[4]) {
    if constexpr (kSigned) {
      word ^= 0x88888888u;
      offset = Pack<T>(-kOffset, -kOffset);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = AddPairs<T>(AndOr<0x000f000f>(word >> (4 * i), kRaisedPair<T>), offset);
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
