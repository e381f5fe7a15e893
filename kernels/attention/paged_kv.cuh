// Where the keys and values of a sequence lie in a paged cache [pages, 2, kPageSize, kKvHeads, kHeadDim].
#pragma once
#include "kernels/common/common.cuh"

namespace llmc {

// The row [kKvHeads, kHeadDim] of a position's keys; its values lie kPageSize rows on. `table` is the sequence's.
template <class C>
__device__ __forceinline__ i32 KeyRow(const i32* __restrict__ table, i32 position) {
  static_assert(C::kPageSize > 0, "kPageSize: positions of a page");
  return table[position / C::kPageSize] * (2 * C::kPageSize) + position % C::kPageSize;
}

// The first position that a token at `position` sees.
template <class C>
__device__ __forceinline__ i32 FirstSeen(i32 position) {
  static_assert(C::kWindow >= 0, "kWindow: positions that a token sees, 0 for all");
  return C::kWindow > 0 && position >= C::kWindow ? position - C::kWindow + 1 : 0;
}

}  // namespace llmc
