// Rows to codes of 8 bits with scales, of x or of the gate of an MLP, silu(x[t, i]) * x[t, kDim + i]. One block per
// row.
#pragma once
#include "kernels/norm/row_sink.cuh"

namespace llmc {

// C::T: element type.  C::kDim: columns of the result.  C::kGated: x has twice as many.  C::Sink: see row_sink.cuh.
template <class C, class Context>
__device__ __forceinline__ void QuantizeRows(const Context& context, const RowSink<C>& sink, const typename C::T* x) {
  using T = typename C::T;
  static_assert(kIsModelType<T>, "T: float, f16 or bf16");
  static_assert(C::kDim > 0, "kDim: a row has elements");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  constexpr int kVec = VectorOf<T>(C::kDim);
  constexpr int kVecs = (C::kDim + kVec * C::kThreads - 1) / (kVec * C::kThreads);  // per thread
  auto& shared = context.template Shared<RowShared<C::kThreads>>();
  context.Wait();
  x += static_cast<i64>(context.TileX()) * (C::kGated ? 2 : 1) * C::kDim;
  Vec<T, kVec> a[kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int col = kVec * (threadIdx.x + i * C::kThreads);
    if (col >= C::kDim) break;
    a[i] = Load<T, kVec>(x + col);
    if constexpr (C::kGated) {
      const Vec<T, kVec> up = Load<T, kVec>(x + C::kDim + col);
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        a[i].v[j] = FromFloat<T>(SiluMul(ToFloat(a[i].v[j]), ToFloat(up.v[j])));
      }
    }
  }
  sink.template Take<C>(context, shared, context.TileX(), a);
}

}  // namespace llmc
