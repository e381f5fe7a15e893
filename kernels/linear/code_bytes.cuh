// Codes as bytes, which tensor cores multiply with integers (integer_tile.cuh). From sm_90 on. CodeBytes<Q> has
//   kIsThere     whether codes of Q can be such
//   Byte         i8 or u8
//   kFactor      what a code stands for is (byte - kZero) / kFactor
//   kMost        the most by which a byte differs from kZero
//   kEvensFirst  of eight codes, the first word has those of even places; else the first four
//   Of(codes, first, words)  codes first to first + 7, of which there are kCount
#pragma once
#include "kernels/linear/code_pairs.cuh"

namespace llmc {

template <class Q>
struct CodeBytes {
  static constexpr bool kIsThere = false;
};

// Codes of 8 bits are bytes.
template <class Q>
struct BytesAsTheyAre {
  using Byte = Q;
  static constexpr bool kIsThere = true, kEvensFirst = false;
  static constexpr int kFactor = 1, kZero = 0, kMost = kSame<Q, i8> ? 128 : 255;
  template <int kCount>
  static __device__ __forceinline__ void Of(const Codes<Q, kCount>& codes, int first, u32 (&words)[2]) {
    words[0] = codes.word[first / 4];
    words[1] = codes.word[first / 4 + 1];
  }
};
template <>
struct CodeBytes<i8> : BytesAsTheyAre<i8> {};
template <>
struct CodeBytes<u8> : BytesAsTheyAre<u8> {};

// Signed codes stay in the high halves of bytes, where their sign is that of the byte.
template <>
struct CodeBytes<i4> {
  using Byte = i8;
  static constexpr bool kIsThere = true, kEvensFirst = true;
  static constexpr int kFactor = 16, kZero = 0, kMost = 128;
  template <int kCount>
  static __device__ __forceinline__ void Of(const Codes<i4, kCount>& codes, int first, u32 (&words)[2]) {
    words[0] = codes.word[first / 8] << 4 & 0xf0f0f0f0u;
    words[1] = codes.word[first / 8] & 0xf0f0f0f0u;
  }
};
template <>
struct CodeBytes<u4> {
  using Byte = u8;
  static constexpr bool kIsThere = true, kEvensFirst = true;
  static constexpr int kFactor = 1, kZero = 0, kMost = 15;
  template <int kCount>
  static __device__ __forceinline__ void Of(const Codes<u4, kCount>& codes, int first, u32 (&words)[2]) {
    words[0] = codes.word[first / 8] & 0x0f0f0f0fu;
    words[1] = codes.word[first / 8] >> 4 & 0x0f0f0f0fu;
  }
};

// Numbers of a codebook that are whole halves below 8. Two permutations look up four codes each in the bytes of the
// first and of the last eight numbers: three bits of a code choose, and the fourth one, which is set for one of them,
// repeats the sign of a byte instead, which is 0. Their sum is by an addition, which may be of the pipe of products:
// that of bits and permutations is what binds.
template <u32... kBits>
struct CodeBytes<Codebook<kBits...>> {
  using Q = Codebook<kBits...>;
  using Byte = u8;
  static constexpr int kFactor = 2, kZero = 16, kMost = 15;
  static constexpr bool kEvensFirst = false;

  static constexpr u32 Significand(u32 bits) { return (bits >> 23 & 255) == 0 ? 0 : (bits & 0x7fffffu) | 0x800000u; }
  static constexpr int ByteOf(u32 bits) {
    const int shift = 149 - static_cast<int>(bits >> 23 & 255);
    const int twice = shift < 0 || shift > 31 ? 0 : static_cast<int>(Significand(bits) >> shift);
    return kZero + (bits >> 31 != 0 ? -twice : twice);
  }
  static constexpr bool IsWhole() {
    for (int i = 0; i < 16; ++i) {
      const u32 bits = Q::Bits(i);
      const int shift = 149 - static_cast<int>(bits >> 23 & 255);
      if ((bits & 0x7fffffffu) != 0 && (shift < 20 || shift > 23 || Significand(bits) << (32 - shift) != 0))
        return false;
    }
    return true;
  }
  static constexpr bool kIsThere = IsWhole();
  static constexpr u32 Table(int four) {
    u32 table = 0;
    for (int i = 0; i < 4; ++i) table |= static_cast<u32>(ByteOf(Q::Bits(4 * four + i))) << (8 * i);
    return table;
  }
  static constexpr u32 kA = Table(0), kB = Table(1), kC = Table(2), kD = Table(3);

  template <int kCount>
  static __device__ __forceinline__ void Of(const Codes<Q, kCount>& codes, int first, u32 (&words)[2]) {
    const u32 low = codes.word[first / 8], high = low ^ 0x88888888u;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      words[i] = Permute(kA, kB, low >> (16 * i)) + Permute(kC, kD, high >> (16 * i));
    }
  }
};

}  // namespace llmc
