// x as integers, for products with codes that are integers, too (integer_tile.cuh).
//
// A block of 32 to 256 columns has a power of two, 2^e, such that all of its x / 2^e are below 2^22; these are
// rounded to integers, which are written as three digits of 8 bits with signs, to base 256. So an x that has p bits is
// exact down to 2^-(22 - p) times the block's largest, and what is rounded away of others is at most 2^-22 times that:
// the last bit or two of a sum in f32 in which the largest takes part. Below 2^-126 e does not fall further. A number
// that is not finite makes 2^e of its block NaN, and so all results of its row.
#pragma once
#include "kernels/linear/code_bytes.cuh"
#include "kernels/linear/gemv_tile.cuh"

namespace llmc {

// What a block has behind its digits: digits of the sum of its integers, and 2^e. Where it has parts, words of theirs
// follow, and there are no digits; nor are there where codes become words, whose sums begin at what follows.
struct alignas(16) IntegerBlockSums {
  i32 digits[kXDigits];
  float step;
};

#if LLMC_SM90
// 2^23 + 2^22: an integer below 2^22 is added to its last bits.
constexpr float kRaisedInteger = 12582912.0f;
constexpr u32 kRaisedIntegerBits = 0x4b400000u;

__device__ __forceinline__ u32 MaxOfHalves(u32 a, u32 b) {
  u32 r;
  asm("max.u16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// The greatest half of the words of kLanes neighbouring lanes. All lanes of a warp call it.
template <u32 kLanes>
__device__ __forceinline__ u32 GreatestHalf(u32 x) {
  if constexpr (kLanes == 32) {
    return __reduce_max_sync(~0u, x >> 16 > (x & 0xffffu) ? x >> 16 : x & 0xffffu);
  } else if constexpr (kLanes == 16) {
    const bool is_low = threadIdx.x % 32 < 16;
    const u32 own = x >> 16 > (x & 0xffffu) ? x >> 16 : x & 0xffffu;
    const u32 low = __reduce_max_sync(~0u, is_low ? own : 0), high = __reduce_max_sync(~0u, is_low ? 0 : own);
    return is_low ? low : high;
  }
#pragma unroll
  for (u32 offset = 1; offset < kLanes; offset *= 2) x = MaxOfHalves(x, __shfl_xor_sync(~0u, x, offset));
  return x >> 16 > (x & 0xffffu) ? x >> 16 : x & 0xffffu;
}

// The field of the exponent, as f32 has it, of the largest of what kLanes neighbouring lanes have.
template <u32 kLanes, class T>
__device__ __forceinline__ u32 ExponentField(const Vec<u32, 4>& x) {
  u32 most = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) most = MaxOfHalves(most, x.v[i] & 0x7fff7fffu);
  return __float_as_uint(ToFloat(T{static_cast<u16>(GreatestHalf<kLanes>(most))})) >> 23;
}

// Bytes `place` 0, 1, 2 of four words, as words[place].
__device__ __forceinline__ void GatherDigits(u32 a, u32 b, u32 c, u32 d, u32 (&words)[kXDigits]) {
  const u32 low[2] = {__byte_perm(a, b, 0x5140), __byte_perm(c, d, 0x5140)};
  const u32 high[2] = {__byte_perm(a, b, 0x0062), __byte_perm(c, d, 0x0062)};
  words[0] = __byte_perm(low[0], low[1], 0x5410);
  words[1] = __byte_perm(low[0], low[1], 0x7632);
  words[2] = __byte_perm(high[0], high[1], 0x5410);
}

// Digits of eight columns, which are greater by 128, of two times four of them; column: the first, of its block.
template <class S>
__device__ __forceinline__ void StoreDigits(u8* block, u32 column, const u32 (&words)[2][kXDigits]) {
  constexpr IntegerXLayout kX = S::kLayout.IntegerX();
  u8* const to = block + (kX.of_quads ? kX.QuadAt(column / 4) : kX.DigitsAt(column / 8));
#pragma unroll
  for (u32 place = 0; place < kXDigits; ++place) {
    const Vec<u32, 2> digits = {words[0][place] ^ 0x80808080u, words[1][place] ^ 0x80808080u};
    if constexpr (kX.of_quads) {
      *reinterpret_cast<u32*>(to + place * kX.Half()) = digits.v[0];
      *reinterpret_cast<u32*>(to + place * kX.Half() + kX.QuadAt(1)) = digits.v[1];
    } else {
      *reinterpret_cast<Vec<u32, 2>*>(to + place * kX.Half()) = digits;
    }
  }
}

// Where sums of products with words begin: what the zero point of words is times the sum of a block, taken off.
__device__ __forceinline__ void StoreBegin(IntegerBlockSums* to, i32 sum, float step) {
  i64 rest = -static_cast<i64>(kCodeWordZero) * sum;
  Vec<i32, 4> begin;
#pragma unroll
  for (int place = 0; place < 4; ++place) {
    begin.v[place] = place == 3 ? static_cast<i32>(rest) : static_cast<i8>(rest);
    rest = (rest - begin.v[place]) >> 8;
  }
  to->step = step;
  *reinterpret_cast<Vec<i32, 4>*>(to + 1) = begin;
}

// Eight neighbours of a row, from column `column` on. Of parts Tile says what their sums become, PartOf. All lanes of a
// warp call it, with neighbouring columns; those that share an exponent are or are not there together.  row: of shared
// memory. Tile: integer_tile.cuh.
template <class S, class T, class Tile>
__device__ __forceinline__ void StoreIntegers(u8* row, u32 column, bool is_there, const Vec<u32, 4>& x) {
  constexpr IntegerXLayout kX = S::kLayout.IntegerX();
  constexpr u32 kBlock = kX.block, kLanes = kX.exponent_columns / 8;  // lanes that share an exponent
  constexpr u32 kPart = kBlock / kX.parts;
  constexpr bool kSums = Tile::kSums, kEvensFirst = Tile::Bytes::kEvensFirst;
  const u32 field = ExponentField<kLanes, T>(x), exponent = field < 22 ? 22 : field;
  const float factor = __uint_as_float((275u - exponent) << 23);  // 2^22 / 2^(exponent - 126)
  u32 bits[8], sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float number = i % 2 == 0 ? LowOf<T>(x.v[i / 2]) : HighOf<T>(x.v[i / 2]);
    bits[i] = __float_as_uint(fmaf(number, factor, kRaisedInteger)) - kRaisedIntegerBits;
    if constexpr (kSums) sum += bits[i];
    bits[i] += 0x808080u;  // digits are greater by 128
  }
  if constexpr (kSums) sum = WarpReduce<static_cast<int>(kPart / 8)>(sum, Sum());
  u32 words[2][kXDigits];
  constexpr int kStep = kEvensFirst ? 2 : 1, kSecond = kEvensFirst ? 1 : 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = i * kSecond;
    GatherDigits(bits[at], bits[at + kStep], bits[at + 2 * kStep], bits[at + 3 * kStep], words[i]);
  }
  if (!is_there) return;
  u8* const block = row + column / kBlock * kX.BlockBytes();
  StoreDigits<S>(block, column % kBlock, words);
  if (column % kPart != 0) return;
  const float step = __uint_as_float(field == 255 ? 0x7fc00000u : (exponent - 21u) << 23);  // 1 / factor
  auto* const sums_at = reinterpret_cast<IntegerBlockSums*>(block + kX.SumsAt());
  if constexpr (kX.of_words) {
    StoreBegin(sums_at, static_cast<i32>(sum), step);
  } else if constexpr (kX.parts > 1) {
    auto* const of_parts = reinterpret_cast<typename Tile::OfPart*>(sums_at + 1);
    if constexpr (kSums) of_parts[column % kBlock / kPart] = Tile::PartOf(static_cast<i32>(sum));
    if (column % kBlock == 0) sums_at->step = step;
  } else if constexpr (!kSums) {
    sums_at->step = step;
  } else {
    IntegerBlockSums sums = {{}, step};
    i32 rest = static_cast<i32>(sum);
#pragma unroll
    for (u32 place = 0; place < kXDigits; ++place) {
      sums.digits[place] = place == kXDigits - 1 ? rest : static_cast<i8>(rest);
      rest = (rest - sums.digits[place]) >> 8;
    }
    *sums_at = sums;
  }
}
#endif

}  // namespace llmc
