// What products of 8-bit integers less zero points, times their scales, share. Sums are exact; zero points are taken
// off them:
//   sum (x - a)(y - b) = sum x y - a sum y - b sum x + k a b
#pragma once
#include "kernels/common/mma.cuh"
#include "kernels/elementwise/elementwise.cuh"
#include "kernels/layout/linear.h"

namespace llmc {

template <class T>
inline constexpr bool kIsSigned = static_cast<T>(-1) < static_cast<T>(0);

// sum + the four products of bytes.
template <class A, class B>
__device__ __forceinline__ i32 Dot4(u32 a, u32 b, i32 sum) {
  if constexpr (kIsSigned<A> && kIsSigned<B>) {
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  } else if constexpr (kIsSigned<A>) {
    asm("dp4a.s32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  } else if constexpr (kIsSigned<B>) {
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  } else {
    asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  }
  return sum;
}
constexpr u32 kOnes = 0x01010101u;

// mma.sync m16n8k32: as that of mma.cuh, with four bytes where that has two elements of 16 bits.
template <class A, class B>
__device__ __forceinline__ void MultiplyAddBytes(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#define LLMC_MMA(types)                                     \
  asm("mma.sync.aligned.m16n8k32.row.col.s32." types        \
      ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
      "{%0, %1, %2, %3};"                                   \
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])      \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (kIsSigned<A> && kIsSigned<B>) {
    LLMC_MMA("s8.s8");
  } else if constexpr (kIsSigned<A>) {
    LLMC_MMA("s8.u8");
  } else if constexpr (kIsSigned<B>) {
    LLMC_MMA("u8.s8");
  } else {
    LLMC_MMA("u8.u8");
  }
#undef LLMC_MMA
}
// m16n8k16: of the first 16 terms alone.
template <class A, class B>
__device__ __forceinline__ void MultiplyAddBytes(i32 (&c)[4], u32 low, u32 high, u32 b) {
#define LLMC_MMA(types)                                \
  asm("mma.sync.aligned.m16n8k16.row.col.s32." types   \
      ".s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "        \
      "{%0, %1, %2, %3};"                              \
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) \
      : "r"(low), "r"(high), "r"(b))
  if constexpr (kIsSigned<A> && kIsSigned<B>) {
    LLMC_MMA("s8.s8");
  } else if constexpr (kIsSigned<A>) {
    LLMC_MMA("s8.u8");
  } else if constexpr (kIsSigned<B>) {
    LLMC_MMA("u8.s8");
  } else {
    LLMC_MMA("u8.u8");
  }
#undef LLMC_MMA
}

// What both kernels are given besides the factors.
// C::A, C::B: i8 or u8.  C::T: of the result.  C::Scale: of scales.  C::ZeroA, C::ZeroB: of zero points.
// C::kZeroA: there is one of the left factor.  C::kScaleA: its scale is that of all, or of each row.
// C::kScale, C::kZero: PartKinds of the right factor, none of blocks.
template <class C>
struct QuantizedParts {
  static_assert(C::kScale != kOfBlocks && C::kZero != kOfBlocks, "kScale, kZero: one for all, or for each column");
  static_assert(C::kScaleA == kOneNumber || C::kScaleA == kOfColumns, "kScaleA: one for all, or for each row");
  const typename C::Scale* scale;
  const typename C::ZeroB* zero;
  const typename C::Scale* scale_a;
  const typename C::ZeroA* zero_a;

  // What the sums of a column become results with.
  struct OfColumn {
    i64 zero, added;  // the zero point, and what is added to sums of products
    Wide<typename C::Scale> factor;

    // With the scale of the row.
    __device__ __forceinline__ typename C::T Result(i64 sum, i64 row_sum, Wide<typename C::Scale> row_scale) const {
      const auto whole = static_cast<Wide<typename C::Scale>>(sum + added - zero * row_sum);
      return Narrow<typename C::T>(whole * (row_scale * factor));
    }
  };
  __device__ __forceinline__ Wide<typename C::Scale> RowScale(i64 row) const {
    return Widen(scale_a[C::kScaleA == kOfColumns ? row : 0]);
  }
  __device__ __forceinline__ OfColumn Column(i64 column_sum, i64 k, i64 column) const {
    const i64 a = C::kZeroA ? static_cast<i64>(Widen(ReadElement(zero_a, 0))) : 0;
    i64 b = 0;
    if constexpr (C::kZero != kNoPart)
      b = static_cast<i64>(Widen(ReadElement(zero, C::kZero == kOfColumns ? column : 0)));
    return {b, k * a * b - a * column_sum, Widen(scale[C::kScale == kOfColumns ? column : 0])};
  }
  // The sums of products, of the row of the left factor and of the column of the right one, to the result.
  __device__ __forceinline__ typename C::T Result(i64 sum, i64 row_sum, i64 column_sum, i64 k, i64 row,
                                                  i64 column) const {
    return Column(column_sum, k, column).Result(sum, row_sum, RowScale(row));
  }
};

}  // namespace llmc
