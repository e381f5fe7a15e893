// Copies in which the last axis of x becomes another one: through square tiles in shared memory, so that both reads and
// writes are of neighbouring elements.
#pragma once
#include "kernels/elementwise/elementwise.cuh"
#include "kernels/layout/movement.h"

namespace llmc {

// out is contiguous over `axes`; x moves by 1 along axis kFast, which is not the last. Blocks take the tiles of kFast
// and the last axis, of all the other axes.
// C::T: element type (only its size matters).  C::kFast.  C::kThreads: 256.
template <class C, class Context, int kRank>
__device__ __forceinline__ void Transpose(const Context& context, typename C::T* __restrict__ out,
                                          const Axes<kRank>& axes, const Strided<const typename C::T, kRank>& x) {
  constexpr int kTile = kTransposeTile, kLast = kRank - 1, kRows = C::kThreads / kTile;
  static_assert(C::kThreads == 256, "kThreads: 256, which copy a tile in four turns");
  static_assert(C::kFast >= 0, "kFast: an axis");
  static_assert(C::kFast < kLast, "the last axis is read with a stride");
  struct Shared {
    typename C::T at[kTile][kTile + 1];
  };
  auto& tile = context.template Shared<Shared>().at;
  i64 block = context.TileX();
  const i64 wide = (axes.size[kLast] + kTile - 1) / kTile, high = (axes.size[C::kFast] + kTile - 1) / kTile;
  const i64 last = block % wide * kTile;
  block /= wide;
  const i64 fast = block % high * kTile;
  block /= high;
  i64 from = 0, to = 0, step = 1, fast_step = 1;
#pragma unroll
  for (int axis = kLast; axis >= 0; --axis) {
    if (axis == C::kFast) fast_step = step;
    if (axis != C::kFast && axis != kLast) {
      const i64 index = block % axes.size[axis];
      block /= axes.size[axis];
      from += index * x.stride[axis];
      to += index * step;
    }
    step *= axes.size[axis];
  }
  const int column = threadIdx.x % kTile, row = threadIdx.x / kTile;
  for (int i = row; i < kTile; i += kRows) {
    if (last + i < axes.size[kLast] && fast + column < axes.size[C::kFast]) {
      tile[i][column] = x.at[from + (last + i) * x.stride[kLast] + fast + column];
    }
  }
  context.Sync();
  for (int i = row; i < kTile; i += kRows) {
    if (fast + i < axes.size[C::kFast] && last + column < axes.size[kLast]) {
      out[to + (fast + i) * fast_step + last + column] = tile[column][i];
    }
  }
}

}  // namespace llmc
