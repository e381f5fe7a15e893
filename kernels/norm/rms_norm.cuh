// out = x / sqrt(mean(x^2) + eps) * weight over rows (arXiv:1910.07467). One block per row.
#pragma once
#include "kernels/norm/row_sink.cuh"

namespace llmc {

// The row stays in registers between the two passes; the sum of squares is in float.
// C::T: element type.  C::kDim: row length.  C::kThreads: threads per block.  C::Sink: see row_sink.cuh.
template <class C, class Context>
__device__ __forceinline__ void RmsNorm(const Context& context, const RowSink<C>& sink, const typename C::T* x,
                                        const typename C::T* weight, float eps) {
  using T = typename C::T;
  static_assert(kIsModelType<T>, "T: float, f16 or bf16");
  static_assert(C::kDim > 0, "kDim: a row has elements");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  constexpr int kVec = VectorOf<T>(C::kDim);
  constexpr int kVecs = (C::kDim + kVec * C::kThreads - 1) / (kVec * C::kThreads);  // per thread
  auto& shared = context.template Shared<RowShared<C::kThreads>>();
  context.Wait();
  x += static_cast<i64>(context.TileX()) * C::kDim;

  Vec<T, kVec> a[kVecs], w[kVecs];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int col = kVec * (threadIdx.x + i * C::kThreads);
    if (col >= C::kDim) break;
    a[i] = Load<T, kVec>(x + col);
    w[i] = Load<T, kVec>(weight + col);
  }
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    if (kVec * (threadIdx.x + i * C::kThreads) >= C::kDim) break;
#pragma unroll
    for (int j = 0; j < kVec; ++j) squares += ToFloat(a[i].v[j]) * ToFloat(a[i].v[j]);
  }
  const float scale = 1.0f / sqrtf(BlockReduce<C::kThreads>(context, shared.warps, squares, Sum()) / C::kDim + eps);

#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    if (kVec * (threadIdx.x + i * C::kThreads) >= C::kDim) break;
#pragma unroll
    for (int j = 0; j < kVec; ++j) a[i].v[j] = FromFloat<T>(ToFloat(a[i].v[j]) * scale * ToFloat(w[i].v[j]));
  }
  sink.template Take<C>(context, shared, context.TileX(), a);
}

}  // namespace llmc
