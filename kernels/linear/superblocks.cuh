// Superblocks of GGUF, under the names of their encodings: what a format adds on the device is a struct here, for
// DecodeSuperblocks (decode.cuh) and for GEMV (superblock_weight.cuh). Element i of a block stands for
//   (code - kShift) * scale + offset
// rounded after the multiplication, where scale and offset are those of its group. A struct has
//   kElements, kBytes   of a block
//   kGroup              neighbours that share a scale: 16, or a multiple of 32
//   kShift              what is taken off a code
//   kCodeBits           of the largest code
//   kOffsets            whether there are offsets
//   kAligned            what divides addresses of blocks, in bytes: 4, 2 or 1
//   Quad(block, j, at)  the codes of elements 16 j + at to 16 j + at + 3, a byte each; 4 divides at. If kShift is half
//   of
//                       a range below 256, there is Quad(block, j, at, to), too, with codes from bit `to` of bytes on
//   Parts               what scales are made of: Load, of a block; d and offset, which Step(group) and
//                       OffsetStep(group) are multiplied with where a block has several groups. There, too:
//                       WholeStep(group), the same as an integer; if there are offsets of groups of 32,
//                       LaneOffsets<kCount>(group), OffsetSteps of one or two groups, which are not known before, as
//                       the lowest bytes; of groups of 16 WholeOffsetStep(group)
//   kByTurns            whether there is SignedByTurns(block, j, at, bytes): of a group of 32 from quad j on, codes
//   less
//                       kShift of elements `at` and at + 16, at + 1 and at + 17, and so on, as signed bytes
// j and groups are constants once loops are unrolled, so that what several quads have in common is read once.
#pragma once
#include "kernels/elementwise/elementwise.cuh"

namespace llmc {
namespace superblock {

__device__ __forceinline__ float HalfAt(const u8* bytes) { return Widen(*reinterpret_cast<const f16*>(bytes)); }

// Four bytes at a multiple of kAligned.
template <int kAligned>
__device__ __forceinline__ u32 WordAt(const u8* at) {
  if constexpr (kAligned == 4) return *reinterpret_cast<const u32*>(at);
  if constexpr (kAligned == 2) {
    const auto* halves = reinterpret_cast<const u16*>(at);
    return halves[0] | static_cast<u32>(halves[1]) << 16;
  }
  return at[0] | static_cast<u32>(at[1]) << 8 | static_cast<u32>(at[2]) << 16 | static_cast<u32>(at[3]) << 24;
}
constexpr u32 kLowHalves = 0x0f0f0f0f, kLowPairs = 0x03030303, kLowBits = 0x01010101;

// Of each byte the bits of `mask` from bit `from` on, moved to bit `to`: a shift, since both are known.
__device__ __forceinline__ u32 MoveBits(u32 word, int from, int to, u32 mask) {
  return (from >= to ? word >> (from - to) : word << (to - from)) & mask << to;
}

// Byte i of words, less a number, as a float: the last bits of 2^23.
template <int kWords>
__device__ __forceinline__ float ByteOf(const u32 (&words)[kWords], int i, int less = 0) {
  u32 word = words[0];
#pragma unroll
  for (int k = 1; k < kWords; ++k) word = i / 4 == k ? words[k] : word;  // an array that is indexed would need memory
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + i % 4)) - static_cast<float>(8388608 + less);
}

// Bytes of a word by places whose highest bits say to repeat the sign instead, which __byte_perm does not take.
__device__ __forceinline__ u32 PermuteBytes(u32 word, u32 places) {
  u32 r;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(word), "r"(places));
  return r;
}
template <int kWords>
__device__ __forceinline__ i32 WholeByteOf(const u32 (&words)[kWords], int i) {
  return static_cast<i32>(__byte_perm(words[i / 4], 0, 0x4440 + i % 4));
}

// Bits `at` to at + 3 of a word, a byte each.
__device__ __forceinline__ u32 SpreadBits(u32 word, int at) { return ((word >> at & 15) * 0x00204081u) & kLowBits; }

// Bytes of a table of 16 by the low halves of the bytes of a word.
template <u32 k0, u32 k1, u32 k2, u32 k3>
__device__ __forceinline__ u32 Choose(u32 word) {
  u32 places = (word | word >> 4) & 0x00ff00ffu;  // four halves, one after the other
  places = (places | places >> 8) & 0x7777u;
  const u32 low = __byte_perm(k0, k1, places), high = __byte_perm(k2, k3, places);
  const u32 is_high = (word >> 3 & kLowBits) * 255;
  return (low & ~is_high) | (high & is_high);
}

// ---- 32 elements --------------------------------------------------------------------------------------------------
// Codes of 4 bits in 16 bytes from kCodes on, the second half of them in high halves.
template <int kBlockBytes, int kCodes, int kAlignment>
struct Halves {
  using Storage = u8;
  static constexpr int kElements = 32, kBytes = kBlockBytes, kGroup = 32, kAligned = kAlignment;
  static constexpr bool kByTurns = false;

  static __device__ __forceinline__ u32 Quad(const u8* block, int j, int at, int to = 0) {
    return MoveBits(WordAt<kAligned>(block + kCodes + at), 4 * j, to, kLowHalves);
  }
};
struct NoSteps {
  static constexpr float offset = 0;
  __device__ __forceinline__ float Step(int) const { return 1; }
  __device__ __forceinline__ float OffsetStep(int) const { return 1; }
};
// A scale, before everything else.
struct OneScale : NoSteps {
  float d;
  __device__ __forceinline__ void Load(const u8* block) { d = HalfAt(block); }
};
// A scale and what code 0 stands for.
struct ScaleAndOffset : NoSteps {
  float d, offset;
  __device__ __forceinline__ void Load(const u8* block) {
    d = HalfAt(block);
    offset = HalfAt(block + 2);
  }
};

struct q4_0 : Halves<18, 2, 2> {
  static constexpr int kShift = 8, kCodeBits = 4;
  static constexpr bool kOffsets = false;
  using Parts = OneScale;
};
struct q4_1 : Halves<20, 4, 4> {
  static constexpr int kShift = 0, kCodeBits = 4;
  static constexpr bool kOffsets = true;
  using Parts = ScaleAndOffset;
};
struct q5_0 : Halves<22, 6, 2> {  // fifth bits before the others
  static constexpr int kShift = 16, kCodeBits = 5;
  static constexpr bool kOffsets = false;
  using Parts = OneScale;
  static __device__ __forceinline__ u32 Quad(const u8* block, int j, int at, int to = 0) {
    return Halves::Quad(block, j, at, to) | SpreadBits(WordAt<2>(block + 2), 16 * j + at) << (4 + to);
  }
};
struct q5_1 : Halves<24, 8, 4> {
  static constexpr int kShift = 0, kCodeBits = 5;
  static constexpr bool kOffsets = true;
  using Parts = ScaleAndOffset;
  static __device__ __forceinline__ u32 Quad(const u8* block, int j, int at) {
    return Halves::Quad(block, j, at) | SpreadBits(WordAt<4>(block + 4), 16 * j + at) << 4;
  }
};
struct q8_0 {
  using Storage = u8;
  static constexpr int kElements = 32, kBytes = 34, kGroup = 32, kAligned = 2, kShift = 128, kCodeBits = 8;
  static constexpr bool kOffsets = false, kByTurns = false;
  using Parts = OneScale;
  static __device__ __forceinline__ u32 Quad(const u8* block, int j, int at) {
    return WordAt<2>(block + 2 + 16 * j + at) ^ 0x80808080u;  // signed bytes
  }
};
// The numbers of the codes of iq4_nl and iq4_xs, greater by 128.
__device__ __forceinline__ u32 ChooseIq4(u32 word) {
  return Choose<0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u>(word);
}
// The same numbers of the low and the high halves of a word's bytes, which stand by turns, as signed bytes: a
// permutation chooses among eight by three bits of each code, of the first and of the last eight, and another one by
// the fourth bit.
__device__ __forceinline__ void ChooseIq4ByTurns(u32 word, u32 (&bytes)[2]) {
  const u32 three_bits = word & 0x77777777u, fourth_bit = (word >> 1 & 0x44444444u) | 0x32103210u;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const u32 places = three_bits >> (16 * i);
    bytes[i] = __byte_perm(__byte_perm(0xbfad9881u, 0xf6eaddcfu, places), __byte_perm(0x26190d01u, 0x71594535u, places),
                           fourth_bit >> (16 * i));
  }
}
struct iq4_nl : Halves<18, 2, 2> {
  static constexpr int kShift = 128, kCodeBits = 8;
  static constexpr bool kByTurns = true;
  static constexpr bool kOffsets = false;
  using Parts = OneScale;
  static __device__ __forceinline__ u32 Quad(const u8* block, int j, int at) {
    return ChooseIq4(Halves::Quad(block, j, at));
  }
  static __device__ __forceinline__ void SignedByTurns(const u8* block, int, int at, u32 (&bytes)[2]) {
    ChooseIq4ByTurns(WordAt<2>(block + 2 + at), bytes);
  }
};
struct mxfp4_gguf : Halves<17, 1, 1> {  // the exponent of a power of two; codes of twice e2m1, greater by 12
  static constexpr int kShift = 12, kCodeBits = 5;
  static constexpr bool kOffsets = false;
  struct Parts : NoSteps {
    float d;
    __device__ __forceinline__ void Load(const u8* block) {
      const u32 e = block[0];
      d = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
  };
  static __device__ __forceinline__ u32 Quad(const u8* block, int j, int at) {
    return Choose<0x0f0e0d0cu, 0x18141210u, 0x090a0b0cu, 0x00040608u>(Halves::Quad(block, j, at));
  }
};

// ---- 256 elements -------------------------------------------------------------------------------------------------
struct Block256 {
  using Storage = u8;
  static constexpr int kElements = 256;
  static constexpr bool kByTurns = false;
};
// Codes of 4 bits in 128 bytes: of each 64 elements, the second half lies in high halves.
template <int kAligned>
__device__ __forceinline__ u32 HalvesOf256(const u8* codes, int j, int at) {
  return WordAt<kAligned>(codes + j / 4 * 32 + j % 2 * 16 + at) >> j / 2 % 2 * 4 & kLowHalves;
}
// Codes of 2 bits in 64 bytes: of each 128 elements, those of quarter q lie in bits 2q of 32 bytes.
template <int kAligned>
__device__ __forceinline__ u32 PairsOf256(const u8* codes, int j, int at, int to = 0) {
  return MoveBits(WordAt<kAligned>(codes + j / 8 * 32 + j % 2 * 16 + at), j / 2 % 4 * 2, to, kLowPairs);
}
// 32 bytes of single bits: bits 0 are those of the first 32 elements.
template <int kAligned>
__device__ __forceinline__ u32 BitsOf256(const u8* bits, int j, int at, int to = 0) {
  return MoveBits(WordAt<kAligned>(bits + j % 2 * 16 + at), j / 2, to, kLowBits);
}

// Of q4_k and q5_k: d, that of minima, 12 bytes of 8 scales and minima of 6 bits. The first four of both lie in the low
// bits of a byte of their own; the others' low halves share bytes, their high bits fill the first eight.
struct ScalesAndMinima {
  float d, offset;
  u32 scales[2], minima[2];
  __device__ __forceinline__ void Load(const u8* block) {
    d = HalfAt(block);
    offset = -HalfAt(block + 2);
    const u32 w0 = WordAt<4>(block + 4), w1 = WordAt<4>(block + 8), w2 = WordAt<4>(block + 12);
    scales[0] = w0 & 0x3f3f3f3fu;
    minima[0] = w1 & 0x3f3f3f3fu;
    scales[1] = (w2 & kLowHalves) | (w0 >> 2 & 0x30303030u);
    minima[1] = (w2 >> 4 & kLowHalves) | (w1 >> 2 & 0x30303030u);
  }
  __device__ __forceinline__ float Step(int group) const { return ByteOf(scales, group); }
  __device__ __forceinline__ i32 WholeStep(int group) const { return WholeByteOf(scales, group); }
  __device__ __forceinline__ float OffsetStep(int group) const { return ByteOf(minima, group); }
  template <int kCount>
  __device__ __forceinline__ u32 LaneOffsets(int group) const {
    static_assert(kCount <= 2, "a lane has one or two");
    return __byte_perm(minima[0], minima[1], 0x10 + 0x11 * group);
  }
};

struct q4_k : Block256 {
  static constexpr int kBytes = 144, kGroup = 32, kAligned = 4, kShift = 0, kCodeBits = 4;
  static constexpr bool kOffsets = true;
  using Parts = ScalesAndMinima;
  static __device__ __forceinline__ u32 Quad(const u8* block, int j, int at) {
    return HalvesOf256<4>(block + 16, j, at);
  }
};
struct q5_k : Block256 {  // fifth bits before the others
  static constexpr int kBytes = 176, kGroup = 32, kAligned = 4, kShift = 0, kCodeBits = 5;
  static constexpr bool kOffsets = true;
  using Parts = ScalesAndMinima;
  static __device__ __forceinline__ u32 Quad(const u8* block, int j, int at) {
    return HalvesOf256<4>(block + 48, j, at) | BitsOf256<4>(block + 16, j, at, 4);
  }
};
struct q2_k : Block256 {  // 16 bytes of a scale and a minimum, codes, d, that of minima
  static constexpr int kBytes = 84, kGroup = 16, kAligned = 4, kShift = 0, kCodeBits = 2;
  static constexpr bool kOffsets = true;
  struct Parts {
    float d, offset;
    u32 scales[4], minima[4];
    __device__ __forceinline__ void Load(const u8* block) {
      d = HalfAt(block + 80);
      offset = -HalfAt(block + 82);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const u32 both = WordAt<4>(block + 4 * i);
        scales[i] = both & kLowHalves;
        minima[i] = both >> 4 & kLowHalves;
      }
    }
    __device__ __forceinline__ float Step(int group) const { return ByteOf(scales, group); }
    __device__ __forceinline__ i32 WholeStep(int group) const { return WholeByteOf(scales, group); }
    __device__ __forceinline__ float OffsetStep(int group) const { return ByteOf(minima, group); }
    __device__ __forceinline__ i32 WholeOffsetStep(int group) const { return WholeByteOf(minima, group); }
  };
  static __device__ __forceinline__ u32 Quad(const u8* block, int j, int at) {
    return PairsOf256<4>(block + 16, j, at);
  }
};
// Third bits, codes of 2 bits, 12 bytes of 16 scales of 6 bits, which are greater by 32; d. Low halves of scales lie in
// 8 bytes, those of the last 8 in high halves; two high bits of scale s in bits s / 4 * 2 of byte s % 4 of the last 4.
struct q3_k : Block256 {
  static constexpr int kBytes = 110, kGroup = 16, kAligned = 2, kShift = 4, kCodeBits = 3;
  static constexpr bool kOffsets = false;
  struct Parts : NoSteps {
    float d;
    u32 scales[4];
    __device__ __forceinline__ void Load(const u8* block) {
      d = HalfAt(block + 108);
      const u32 low[2] = {WordAt<2>(block + 96), WordAt<2>(block + 100)}, high = WordAt<2>(block + 104);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scales[i] = (low[i % 2] >> i / 2 * 4 & kLowHalves) | (high >> 2 * i & kLowPairs) << 4;
      }
    }
    __device__ __forceinline__ float Step(int group) const { return ByteOf(scales, group, 32); }
    __device__ __forceinline__ i32 WholeStep(int group) const { return WholeByteOf(scales, group) - 32; }
  };
  static __device__ __forceinline__ u32 Quad(const u8* block, int j, int at, int to = 0) {
    return PairsOf256<2>(block + 32, j, at, to) | BitsOf256<2>(block, j, at, 2 + to);
  }
};
struct q6_k : Block256 {  // low halves, two high bits, 16 signed scales, d
  static constexpr int kBytes = 210, kGroup = 16, kAligned = 2, kShift = 32, kCodeBits = 6;
  static constexpr bool kOffsets = false;
  struct Parts : NoSteps {
    float d;
    u32 scales[4];
    __device__ __forceinline__ void Load(const u8* block) {
      d = HalfAt(block + 208);
#pragma unroll
      for (int i = 0; i < 4; ++i) scales[i] = WordAt<2>(block + 192 + 4 * i) ^ 0x80808080u;
    }
    __device__ __forceinline__ float Step(int group) const { return ByteOf(scales, group, 128); }
    __device__ __forceinline__ i32 WholeStep(int group) const {  // repeats the sign of the byte
      return static_cast<i32>(PermuteBytes(scales[group / 4] ^ 0x80808080u, 0x8880 + group % 4 * 0x1111));
    }
  };
  // Of each 128 elements, the second half of the low halves lies in high halves of 64 bytes.
  static __device__ __forceinline__ u32 Quad(const u8* block, int j, int at, int to = 0) {
    const u32 low = MoveBits(WordAt<2>(block + j / 8 * 64 + j % 4 * 16 + at), j / 4 % 2 * 4, to, kLowHalves);
    return low | PairsOf256<2>(block + 128, j, at, 4 + to);
  }
};
// d, two high bits of 8 scales, their low halves, the codes of 32 elements 8 times. Scales are greater by 32.
struct iq4_xs : Block256 {
  static constexpr int kBytes = 136, kGroup = 32, kAligned = 4, kShift = 128, kCodeBits = 8;
  static constexpr bool kOffsets = false, kByTurns = true;
  struct Parts : NoSteps {
    float d;
    u32 low, high;
    __device__ __forceinline__ void Load(const u8* block) {
      d = HalfAt(block);
      high = *reinterpret_cast<const u16*>(block + 2);
      low = WordAt<4>(block + 4);
    }
    __device__ __forceinline__ i32 WholeStep(int group) const {
      return static_cast<i32>((low >> 4 * group & 15) | (high >> 2 * group & 3) << 4) - 32;
    }
    __device__ __forceinline__ float Step(int group) const { return static_cast<float>(WholeStep(group)); }
  };
  static __device__ __forceinline__ u32 Quad(const u8* block, int j, int at) {
    return ChooseIq4(WordAt<4>(block + 8 + j / 2 * 16 + at) >> j % 2 * 4 & kLowHalves);
  }
  static __device__ __forceinline__ void SignedByTurns(const u8* block, int j, int at, u32 (&bytes)[2]) {
    ChooseIq4ByTurns(WordAt<4>(block + 8 + j / 2 * 16 + at), bytes);
  }
};

template <class Format>
__device__ __forceinline__ float ScaleOf(const typename Format::Parts& parts, int group) {
  return Format::kGroup == Format::kElements ? parts.d : parts.d * parts.Step(group);
}
template <class Format>
__device__ __forceinline__ float OffsetOf(const typename Format::Parts& parts, int group) {
  return Format::kGroup == Format::kElements ? parts.offset : parts.offset * parts.OffsetStep(group);
}

}  // namespace superblock
}  // namespace llmc
