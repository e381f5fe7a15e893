// Codes as bytes, which tensor cores multiply with integers (integer_tile.cuh). From sm_90 on. CodeBytes<Q> has
//   kIsThere     whether codes of Q can be such
//   Byte         i8 or u8
//   kFactor      what a code stands for is (byte - kZero) / kFactor
//   kEvensFirst  of eight codes, the first word has those of even places; else the first four
//   Of(codes, first, words)  codes first to first + 7, of which there are kCount
#pragma once
#include "kernels/linear/code_pairs.cuh"

namespace llmc {

template <class Q>
struct CodeBytes {
  static constexpr bool kIsThere = false;
};

// Signed codes stay in the high halves of bytes, where their sign is that of the byte.
template <>
struct CodeBytes<i4> {
  using Byte = i8;
  static constexpr bool kIsThere = true, kEvensFirst = true;
  static constexpr int kFactor = 16, kZero = 0;
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
  static constexpr int kFactor = 1, kZero = 0;
  template <int kCount>
  static __device__ __forceinline__ void Of(const Codes<u4, kCount>& codes, int first, u32 (&words)[2]) {
    words[0] = codes.word[first / 8] & 0x0f0f0f0fu;
    words[1] = codes.word[first / 8] >> 4 & 0x0f0f0f0fu;
  }
};

}  // namespace llmc
