// sum = x + y; out = sum / sqrt(mean(sum^2) + eps) * weight. One block per row.
#pragma once
#include "kernels/common.cuh"

namespace llmc {

// What is normalized is the stored sum, rounded to T, as the ops give it one by one. `sum` may be x or y.
// C::T: element type.  C::kDim: row length.  C::kThreads: threads per block.
template <class C>
__device__ __forceinline__ void AddRmsNorm(typename C::T* sum, typename C::T* __restrict__ out, const typename C::T* x,
                                           const typename C::T* y, const typename C::T* __restrict__ weight,
                                           float eps) {
  using T = typename C::T;
  constexpr int kVec = VectorOf<T>(C::kDim);
  constexpr int kVecs = (C::kDim + kVec * C::kThreads - 1) / (kVec * C::kThreads);  // per thread
  const i64 row = static_cast<i64>(blockIdx.x) * C::kDim;

  // The row stays in registers between the two passes.
  float s[kVecs][kVec];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int col = kVec * (threadIdx.x + i * C::kThreads);
    if (col >= C::kDim) break;
    const Vec<T, kVec> a = Load<T, kVec>(x + row + col), b = Load<T, kVec>(y + row + col);
    Vec<T, kVec> r;
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      r.v[j] = FromFloat<T>(ToFloat(a.v[j]) + ToFloat(b.v[j]));
      s[i][j] = ToFloat(r.v[j]);
      squares += s[i][j] * s[i][j];
    }
    Store(sum + row + col, r);
  }
  const float scale = 1.0f / sqrtf(BlockReduce<C::kThreads>(squares, Sum()) / C::kDim + eps);

#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int col = kVec * (threadIdx.x + i * C::kThreads);
    if (col >= C::kDim) break;
    const Vec<T, kVec> w = Load<T, kVec>(weight + col);
    Vec<T, kVec> r;
#pragma unroll
    for (int j = 0; j < kVec; ++j) r.v[j] = FromFloat<T>(s[i][j] * scale * ToFloat(w.v[j]));
    Store(out + row + col, r);
  }
}

}  // namespace llmc
