// out = x / sqrt(mean(x^2) + eps) * weight over rows (arXiv:1910.07467). One block per row.
#pragma once
#include "kernels/common.cuh"

namespace llmc {

// The sum of squares is in float; the row is read twice, the second time from cache.
// C::T: element type.  C::kDim: row length.  C::kThreads: threads per block.
template <class C>
__device__ __forceinline__ void RmsNorm(typename C::T* __restrict__ out, const typename C::T* __restrict__ x,
                                        const typename C::T* __restrict__ weight, float eps) {
  using T = typename C::T;
  constexpr int kVec = VectorOf<T>(C::kDim);
  x += static_cast<i64>(blockIdx.x) * C::kDim;
  out += static_cast<i64>(blockIdx.x) * C::kDim;

  float squares = 0;
  for (int i = kVec * threadIdx.x; i < C::kDim; i += kVec * C::kThreads) {
    const Vec<T, kVec> a = Load<T, kVec>(x + i);
#pragma unroll
    for (int j = 0; j < kVec; ++j) squares += ToFloat(a.v[j]) * ToFloat(a.v[j]);
  }
  const float scale = 1.0f / sqrtf(BlockReduce<C::kThreads>(squares, Sum()) / C::kDim + eps);

  for (int i = kVec * threadIdx.x; i < C::kDim; i += kVec * C::kThreads) {
    const Vec<T, kVec> a = Load<T, kVec>(x + i), w = Load<T, kVec>(weight + i);
    Vec<T, kVec> r;
#pragma unroll
    for (int j = 0; j < kVec; ++j) r.v[j] = FromFloat<T>(ToFloat(a.v[j]) * scale * ToFloat(w.v[j]));
    Store(out + i, r);
  }
}

}  // namespace llmc
