// softmax along an axis: exp(x - max) / sum(exp(x - max)), or its logarithm.
#pragma once
#include "kernels/elementwise/reduce.cuh"

namespace llmc {

// x[outer, n, inner]: rows of n elements, `inner` apart. A row is read three times, after the first from cache.
// C::T: element type.  C::kLog: the logarithm of it.  C::kLanes: threads of a row, 1, 32 or kThreads.
// C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void Softmax(const Context& context, typename C::T* __restrict__ out,
                                        const typename C::T* __restrict__ x, i64 rows, i64 n, i64 inner) {
  using X = Wide<typename C::T>;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(IsTeam(C::kLanes, C::kThreads), "kLanes: 1, 32 or kThreads");
  static_assert(!kSame<X, i64> && !kSame<X, bool>, "T: floats");
  i64 row = (static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x) / C::kLanes;
  const bool inside = row < rows;
  if (C::kLanes == 1 && !inside) return;
  if (!inside) row = 0;
  const int lane = threadIdx.x % C::kLanes;
  const i64 begin = row / inner * n * inner + row % inner;
  X top = Lowest<X>();
  for (i64 i = lane; i < n; i += C::kLanes) {
    const X a = Widen(x[begin + i * inner]);
    top = a > top ? a : top;
  }
  top = ReduceLanes<C::kLanes>(context, top, [](X a, X b) { return a > b ? a : b; });
  X sum = 0;
  for (i64 i = lane; i < n; i += C::kLanes) sum += op::Exp(Widen(x[begin + i * inner]) - top);
  sum = ReduceLanes<C::kLanes>(context, sum, [](X a, X b) { return a + b; });
  const X log_sum = C::kLog ? op::Log(sum) : X(0);
  if (!inside) return;
  for (i64 i = lane; i < n; i += C::kLanes) {
    const X a = Widen(x[begin + i * inner]) - top;
    out[begin + i * inner] = Narrow<typename C::T>(C::kLog ? a - log_sum : op::Div(op::Exp(a), sum));
  }
}

}  // namespace llmc
