// out[t, i] = silu(gate_up[t, i]) * gate_up[t, kDim + i]. A thread makes one vector.
#pragma once
#include "kernels/common/context.cuh"

namespace llmc {

// C::T: element type.  C::kDim: columns of the result.  C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void SiluMul(const Context& context, typename C::T* out, const typename C::T* gate_up,
                                        i64 rows) {
  using T = typename C::T;
  static_assert(kIsModelType<T>, "T: float, f16 or bf16");
  static_assert(C::kDim > 0, "kDim: a row has elements");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  constexpr int kVec = VectorOf<T>(C::kDim), kVectors = C::kDim / kVec;
  context.Wait();
  const i64 at = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (at >= rows * kVectors) return;
  const i64 row = at / kVectors, column = at % kVectors * kVec;
  const T* from = gate_up + row * 2 * C::kDim + column;
  const Vec<T, kVec> gate = Load<T, kVec>(from), up = Load<T, kVec>(from + C::kDim);
  Vec<T, kVec> r;
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    r.v[j] = FromFloat<T>(SiluMul(ToFloat(gate.v[j]), ToFloat(up.v[j])));
  }
  Store(out + row * C::kDim + column, r);
}

}  // namespace llmc
