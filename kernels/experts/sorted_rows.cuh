// Rows of x of the pairs of a token and an expert, as expert_order.cuh has sorted them, for expert_gemm.cuh: each in
// the order of columns in which the weight is read.
#pragma once
#include "kernels/layout/experts.h"
#include "kernels/linear/order_columns.cuh"

namespace llmc {

// out[p, k] = x[sorted[p] / kShare, k], of `pairs` pairs at the most; a thread for 16 elements, or for 8 where rows are
// not of whole slabs.  C: as LeftOperand takes it.  C::kExperts.  C::kShare: pairs that share a row of x.
template <class C, class Context>
__device__ __forceinline__ void SortedRows(const Context& context, typename C::T* out, const typename C::T* x,
                                           const i32* table, i64 pairs) {
#if LLMC_SM90
  using T = typename C::T;
  constexpr bool kSlabs = C::kIn % kLeftSlab == 0;
  constexpr int kEach = kSlabs ? 16 : 8, kParts = C::kIn / kEach;  // of a row
  static_assert(C::kIn % kEach == 0, "kIn: whole vectors");
  context.Wait();
  const i64 at = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x, pair = at / kParts;
  // Those whose expert is a device error are not sorted.
  if (pair >= pairs || pair >= table[C::kExperts]) return;
  const i64 row = table[ExpertPairsAt(C::kExperts) + pair] / C::kShare, part = at % kParts;
  const T* const from = x + row * C::kIn;
  T* const to = out + pair * C::kIn;
  if constexpr (kSlabs) {
    OrderSixteen<LeftOperand<C, Weight<C>, 128>::kOrder>(to, from, part);
  } else {
    static_assert(LeftOperand<C, Weight<C>, 128>::kOrder == ColumnOrder::kAsTheyAre, "kIn: whole slabs");
    Store(to + part * 8, Load<T, 8>(from + part * 8));
  }
#endif
}

}  // namespace llmc
