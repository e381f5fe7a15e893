// Norms of rows of any type and length: layer_norm (arXiv:1607.06450) and rms_norm (arXiv:1910.07467).
#pragma once
#include "kernels/elementwise/reduce.cuh"

namespace llmc {

// out = (x - mean) / sqrt(variance + eps) * weight + bias; without kCenter the mean counts as 0.
// C::T, C::Weight, C::Bias: element types.  C::kCenter.  C::kBias: there is a bias.  C::kLanes: threads of a row, 32 or
// kThreads.  C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void RowNorm(const Context& context, typename C::T* __restrict__ out,
                                        const typename C::T* __restrict__ x,
                                        const typename C::Weight* __restrict__ weight,
                                        const typename C::Bias* __restrict__ bias, i64 rows, i64 n,
                                        Wide<typename C::T> eps) {
  using X = Wide<typename C::T>;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kLanes == 32 || C::kLanes == C::kThreads, "kLanes: 32 or kThreads");
  static_assert(!kSame<X, i64> && !kSame<X, bool>, "T: floats");
  i64 row = (static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x) / C::kLanes;
  const bool inside = row < rows;
  if (!inside) row = 0;
  const int lane = threadIdx.x % C::kLanes;
  const auto add = [](X a, X b) { return a + b; };
  x += row * n;
  out += row * n;
  X mean = 0, squares = 0;
  if constexpr (C::kCenter) {
    for (i64 i = lane; i < n; i += C::kLanes) mean += Widen(x[i]);
    mean = ReduceLanes<C::kLanes>(context, mean, add) / static_cast<X>(n);
  }
  for (i64 i = lane; i < n; i += C::kLanes) squares += (Widen(x[i]) - mean) * (Widen(x[i]) - mean);
  squares = ReduceLanes<C::kLanes>(context, squares, add);
  const X factor = op::Rsqrt(squares / static_cast<X>(n) + eps);
  if (!inside) return;
  for (i64 i = lane; i < n; i += C::kLanes) {
    X a = (Widen(x[i]) - mean) * factor * static_cast<X>(Widen(weight[i]));
    if constexpr (C::kBias) a += static_cast<X>(Widen(bias[i]));
    out[i] = Narrow<typename C::T>(a);
  }
}

}  // namespace llmc
