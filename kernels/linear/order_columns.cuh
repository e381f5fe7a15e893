// Rows of x in the order in which left_operand.cuh reads the weight, so that tiles of x go to tensor cores as they are.
#pragma once
#include "kernels/linear/left_operand.cuh"

namespace llmc {

// out[r, k] of x[r, k], of `count` times 16 elements, a thread each.  C: as LeftOperand takes it.
template <class C, class Context>
__device__ __forceinline__ void OrderColumns(const Context& context, typename C::T* out, const typename C::T* x,
                                             i64 count) {
#if LLMC_SM90
  constexpr ColumnOrder kOrder = LeftOperand<C, Weight<C>, 128>::kOrder;
  static_assert(kOrder != ColumnOrder::kAsTheyAre && C::kIn % kLeftSlab == 0, "kIn: whole slabs");
  context.Wait();
  const i64 at = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (at >= count) return;
  const u32* const from = reinterpret_cast<const u32*>(x) + at * 8;
  u32* const to = reinterpret_cast<u32*>(out);
  Vec<u32, 4> v[2] = {Load<u32, 4>(from), Load<u32, 4>(from + 4)};
  if constexpr (kOrder == ColumnOrder::kQuads) {
    Store(to + at * 8, Vec<u32, 4>{v[0].v[0], v[0].v[2], v[1].v[0], v[1].v[2]});
    Store(to + at * 8 + 4, Vec<u32, 4>{v[0].v[1], v[0].v[3], v[1].v[1], v[1].v[3]});
  } else {
    u32* const slab = to + at / 4 * 32 + at % 4;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if constexpr (kOrder == ColumnOrder::kEightsFourApart) v[e] = PairFourApart(v[e]);
#pragma unroll
      for (int p = 0; p < 4; ++p) slab[(4 * e + p) * 4] = v[e].v[p];
    }
  }
#endif
}

}  // namespace llmc
