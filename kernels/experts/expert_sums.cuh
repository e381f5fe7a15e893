// What becomes of the sums of a pair of a token and an expert.
#pragma once
#include "kernels/common/common.cuh"

namespace llmc {

// Columns of the result for n rows of the weight: two of them make one where the product is gated.
template <class C>
__device__ __forceinline__ i64 ExpertColumnsOf(i64 n) {
  return C::kGated ? n / 2 : n;
}

// The row of the weight that is half `half` of a column: its gate, then its up.
template <class C>
__device__ __forceinline__ i64 ExpertRowOf(i64 n, i64 column, int half) {
  return column + (half == 0 ? 0 : n / 2);
}

// Element `column` of a pair's row: the sum and the bias, or silu(gate) * up of both sums with theirs.
// C::T: element type.  C::kBias: whether there is one; `bias` is that of the expert, [n].  C::kGated.
template <class C>
__device__ __forceinline__ typename C::T ExpertSum(const typename C::T* bias, i64 n, i64 column, float sum, float up) {
  using T = typename C::T;
  static_assert(kIsModelType<T>, "T: float, f16 or bf16");
  if constexpr (C::kBias) sum += ToFloat(bias[column]);
  if constexpr (C::kGated) {
    if constexpr (C::kBias) up += ToFloat(bias[ExpertRowOf<C>(n, column, 1)]);
    sum = SiluMul(Rounded<T>(sum), Rounded<T>(up));
  }
  return FromFloat<T>(sum);
}
template <class C>
__device__ __forceinline__ void StoreExpertSum(typename C::T* out, const typename C::T* bias, i64 n, i64 column,
                                               float sum, float up) {
  out[column] = ExpertSum<C>(bias, n, column, sum, up);
}

}  // namespace llmc
