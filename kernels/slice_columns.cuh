// out[r, :] = x[r, start : start + kOut]: some columns of each row.
#pragma once
#include "kernels/common.cuh"

namespace llmc {

// C::T: element type (only its size matters).  C::kIn, C::kOut: columns of x and out.  C::kStart.  C::kThreads.
template <class C>
__device__ __forceinline__ void SliceColumns(typename C::T* __restrict__ out, const typename C::T* __restrict__ x,
                                             i64 rows) {
  using T = typename C::T;
  constexpr int kA = VectorOf<T>(C::kIn), kB = VectorOf<T>(C::kOut), kS = C::kStart == 0 ? 16 : VectorOf<T>(C::kStart);
  constexpr int kVec = kA < kB ? (kA < kS ? kA : kS) : (kB < kS ? kB : kS), kVectors = C::kOut / kVec;
  const i64 at = static_cast<i64>(blockIdx.x) * C::kThreads + threadIdx.x;
  if (at >= rows * kVectors) return;
  const i64 row = at / kVectors, column = at % kVectors * kVec;
  Store(out + row * C::kOut + column, Load<T, kVec>(x + row * C::kIn + C::kStart + column));
}

}  // namespace llmc
