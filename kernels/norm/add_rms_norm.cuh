// sum = x + y; out = sum / sqrt(mean(sum^2) + eps) * weight. One block per row.
#pragma once
#include "kernels/norm/row_sink.cuh"

namespace llmc {

// What is normalized is the stored sum, rounded to T, as the ops give it one by one. `sum` may be x or y. The row stays
// in registers between the two passes.
// C::T: element type.  C::kDim: row length.  C::kThreads: threads per block.  C::Sink: see row_sink.cuh.
template <class C, class Context>
__device__ __forceinline__ void AddRmsNorm(const Context& context, typename C::T* sum, const RowSink<C>& sink,
                                           const typename C::T* x, const typename C::T* y, const typename C::T* weight,
                                           float eps) {
  using T = typename C::T;
  static_assert(kIsModelType<T>, "T: float, f16 or bf16");
  static_assert(C::kDim > 0, "kDim: a row has elements");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  constexpr int kVec = VectorOf<T>(C::kDim);
  constexpr int kVecs = (C::kDim + kVec * C::kThreads - 1) / (kVec * C::kThreads);  // per thread
  auto& shared = context.template Shared<RowShared<C::kThreads>>();
  context.Wait();
  const i64 row = static_cast<i64>(context.TileX()) * C::kDim;

  Vec<T, kVec> a[kVecs], b[kVecs], w[kVecs];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int col = kVec * (threadIdx.x + i * C::kThreads);
    if (col >= C::kDim) break;
    a[i] = Load<T, kVec>(x + row + col);
    b[i] = Load<T, kVec>(y + row + col);
    w[i] = Load<T, kVec>(weight + col);
  }
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int col = kVec * (threadIdx.x + i * C::kThreads);
    if (col >= C::kDim) break;
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      a[i].v[j] = FromFloat<T>(ToFloat(a[i].v[j]) + ToFloat(b[i].v[j]));
      squares += ToFloat(a[i].v[j]) * ToFloat(a[i].v[j]);
    }
    Store(sum + row + col, a[i]);
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
