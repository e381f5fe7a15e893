// Rows of x in the order in which left_operand.cuh reads the weight, so that tiles of x go to tensor cores as they are.
#pragma once
#include "kernels/linear/left_operand.cuh"

namespace llmc {

// Elements 16 i to 16 i + 15, of 16 bits, of rows of whole slabs.
template <ColumnOrder kOrder>
__device__ __forceinline__ void OrderSixteen(void* out, const void* x, i64 i) {
  const u32* const from = static_cast<const u32*>(x) + i * 8;
  u32* const to = static_cast<u32*>(out);
  Vec<u32, 4> v[2] = {Load<u32, 4>(from), Load<u32, 4>(from + 4)};
  if constexpr (kOrder == ColumnOrder::kAsTheyAre) {
    Store(to + i * 8, v[0]);
    Store(to + i * 8 + 4, v[1]);
  } else if constexpr (kOrder == ColumnOrder::kQuads) {
    Store(to + i * 8, Vec<u32, 4>{v[0].v[0], v[0].v[2], v[1].v[0], v[1].v[2]});
    Store(to + i * 8 + 4, Vec<u32, 4>{v[0].v[1], v[0].v[3], v[1].v[1], v[1].v[3]});
  } else {
    u32* const slab = to + i / 4 * 32 + i % 4;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if constexpr (kOrder == ColumnOrder::kEightsFourApart) v[e] = PairFourApart(v[e]);
#pragma unroll
      for (int p = 0; p < 4; ++p) slab[(4 * e + p) * 4] = v[e].v[p];
    }
  }
}

// out[r, k] of x[r, k], of `count` times 16 elements, a thread each.  C: as LeftOperand takes it.
template <class C, class Context>
__device__ __forceinline__ void OrderColumns(const Context& context, typename C::T* out, const typename C::T* x,
                                             i64 count) {
#if LLMC_SM90
  static_assert(C::kIn % kLeftSlab == 0, "kIn: whole slabs");
  context.Wait();
  const i64 at = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (at < count) OrderSixteen<LeftOperand<C, Weight<C>, 128>::kOrder>(out, x, at);
#endif
}

}  // namespace llmc
