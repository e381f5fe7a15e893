// out[m, n] = sum over k of x[m, k] * weight[n, k], for a few rows m: bound by reading the weights once.
#pragma once
#include "kernels/common.cuh"

namespace llmc {

// A warp makes C::kRows neighbouring columns n for all C::kTokens rows; sums are in float. `tokens` <= C::kTokens rows
// exist.
// C::T: element type.  C::Out: type of the result.  C::kIn: length of the sums.  C::kOut: columns of the result.
// C::kTokens, C::kRows, C::kThreads.
template <class C>
__device__ __forceinline__ void MatVec(typename C::Out* __restrict__ out, const typename C::T* __restrict__ x,
                                       const typename C::T* __restrict__ weight, i64 tokens) {
  using T = typename C::T;
  constexpr int kVec = VectorOf<T>(C::kIn);
  const int lane = threadIdx.x % 32;
  const i64 first = (static_cast<i64>(blockIdx.x) * (C::kThreads / 32) + threadIdx.x / 32) * C::kRows;
  if (first >= C::kOut) return;
  float sums[C::kTokens][C::kRows] = {};
#pragma unroll 2
  for (int i = kVec * lane; i < C::kIn; i += kVec * 32) {
    Vec<T, kVec> w[C::kRows];
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      const i64 row = first + r < C::kOut ? first + r : C::kOut - 1;
      w[r] = Load<T, kVec>(weight + row * C::kIn + i);
    }
#pragma unroll
    for (int t = 0; t < C::kTokens; ++t) {
      if (t >= tokens) break;
      const Vec<T, kVec> a = Load<T, kVec>(x + static_cast<i64>(t) * C::kIn + i);
#pragma unroll
      for (int r = 0; r < C::kRows; ++r) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) sums[t][r] += ToFloat(a.v[j]) * ToFloat(w[r].v[j]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < C::kTokens; ++t) {
    if (t >= tokens) break;
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      const float sum = WarpReduce(sums[t][r], Sum());
      if (lane == 0 && first + r < C::kOut)
        out[t * static_cast<i64>(C::kOut) + first + r] = FromFloat<typename C::Out>(sum);
    }
  }
}

}  // namespace llmc
