// Codes of 4 bits as words of 16 bits, which tensor cores multiply as two bytes each (word_tile.cuh). From sm_90 on.
#pragma once
#include "kernels/layout/linear.h"
#include "kernels/linear/code_pairs.cuh"

namespace llmc {

template <class Q>
struct CodeWords {
  static constexpr bool kIsThere = false;
};

// A permutation looks up four of eight bytes by three bits of each code; the fourth bit, if it is set, repeats the
// first bit of the byte instead, which is 0 in kFirst. So a byte is that of the last eight numbers, changed for the
// first eight by what is in kFirst: the high byte by an addition, the low one bit by bit.
template <u32... kBits>
struct CodeWords<Codebook<kBits...>> {
  using Q = Codebook<kBits...>;

  static constexpr double NumberOf(u32 bits) {
    const int exponent = static_cast<int>(bits >> 23 & 255);
    double number = (bits & 0x7fffffu) + (exponent == 0 ? 0.0 : 8388608.0);
    for (int i = exponent == 0 ? 1 : exponent; i < 150; ++i) number /= 2;
    for (int i = 150; i < exponent; ++i) number *= 2;
    return bits >> 31 != 0 ? -number : number;
  }
  static constexpr bool AreNear() {
    double numbers[16] = {};
    for (int i = 0; i < 16; ++i) numbers[i] = NumberOf(Q::Bits(i));
    return AreCodeWords(numbers);
  }
  static constexpr bool kIsThere = AreNear();

  static constexpr u32 WordOf(int i) { return static_cast<u32>(CodeWordOf(NumberOf(Q::Bits(i)))); }
  // Bytes of four numbers, from `four` on, of the last eight; or what changes them.
  static constexpr u32 Table(bool is_high, bool is_first, int four) {
    u32 table = 0;
    for (int i = four; i < four + 4; ++i) {
      const u32 last = WordOf(i + 8) >> (is_high ? 8 : 0) & 255, first = WordOf(i) >> (is_high ? 8 : 0) & 255;
      const u32 change = is_high ? first - last : first ^ last;
      table |= (is_first ? change : last) << (8 * (i - four));
    }
    return table;
  }
  template <bool kIsHigh>
  static __device__ __forceinline__ u32 Look(u32 codes, u32 three_bits) {
    constexpr u32 kFirst = Table(kIsHigh, true, 0), kSecond = Table(kIsHigh, true, 4);
    constexpr u32 kLast = Table(kIsHigh, false, 0), kVeryLast = Table(kIsHigh, false, 4);
    const u32 change = Permute(kFirst, kSecond, codes), last = Permute(kLast, kVeryLast, three_bits);
    return kIsHigh ? change + last : change ^ last;
  }
  // Of codes first to first + 7 the low bytes and the high ones, each four in a word.
  template <int kCount>
  static __device__ __forceinline__ void Of(const Codes<Q, kCount>& codes, int first, u32 (&low)[2], u32 (&high)[2]) {
    const u32 all = codes.word[first / 8], three_bits = all & 0x77777777u;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      low[i] = Look<false>(all >> (16 * i), three_bits >> (16 * i));
      high[i] = Look<true>(all >> (16 * i), three_bits >> (16 * i));
    }
  }
};

}  // namespace llmc
