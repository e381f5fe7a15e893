// out = (x - mean) / sqrt(variance + eps) * weight + bias over rows of known length (arXiv:1607.06450).
#pragma once
#include "kernels/elementwise/reduce.cuh"

namespace llmc {

// The row stays in registers while its mean and then its variance are found; both are in float.
// C::T: element type.  C::kDim: row length.  C::kBias: there is a bias.  C::kLanes: threads of a row, 32 or kThreads.
// C::kWeightFirst: weight and bias are there before the step.  C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void LayerNorm(const Context& context, typename C::T* out, const typename C::T* x,
                                          const typename C::T* weight, const typename C::T* bias, i64 rows, float eps) {
  using T = typename C::T;
  static_assert(kIsModelType<T>, "T: float, f16 or bf16");
  static_assert(C::kDim > 0, "kDim: a row has elements");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kLanes == 32 || C::kLanes == C::kThreads, "kLanes: 32 or kThreads");
  constexpr int kVec = VectorOf<T>(C::kDim);
  constexpr int kVecs = (C::kDim + kVec * C::kLanes - 1) / (kVec * C::kLanes);  // per thread
  i64 row = (static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x) / C::kLanes;
  const bool inside = row < rows;
  if (!inside) row = 0;
  x += row * C::kDim;
  out += row * C::kDim;
  const auto add = [](float a, float b) { return a + b; };
  // each(vector of the thread, its first column)
  const auto for_vectors = [](const auto& each) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int column = kVec * static_cast<int>(threadIdx.x % C::kLanes + i * C::kLanes);
      if (column < C::kDim) each(i, column);
    }
  };

  if constexpr (!C::kWeightFirst) context.Wait();
  Vec<T, kVec> a[kVecs], w[kVecs], b[kVecs];
  for_vectors([&](int i, int column) {
    w[i] = Load<T, kVec>(weight + column);
    if constexpr (C::kBias) b[i] = Load<T, kVec>(bias + column);
  });
  if constexpr (C::kWeightFirst) context.Wait();
  for_vectors([&](int i, int column) { a[i] = Load<T, kVec>(x + column); });
  float sum = 0, squares = 0;
  for_vectors([&](int i, int) {
#pragma unroll
    for (int j = 0; j < kVec; ++j) sum += ToFloat(a[i].v[j]);
  });
  const float mean = ReduceLanes<C::kLanes>(context, sum, add) / C::kDim;
  for_vectors([&](int i, int) {
#pragma unroll
    for (int j = 0; j < kVec; ++j) squares += (ToFloat(a[i].v[j]) - mean) * (ToFloat(a[i].v[j]) - mean);
  });
  const float scale = 1.0f / sqrtf(ReduceLanes<C::kLanes>(context, squares, add) / C::kDim + eps);
  if (!inside) return;
  for_vectors([&](int i, int column) {
    Vec<T, kVec> r;
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      float y = (ToFloat(a[i].v[j]) - mean) * scale * ToFloat(w[i].v[j]);
      if constexpr (C::kBias) y += ToFloat(b[i].v[j]);
      r.v[j] = FromFloat<T>(y);
    }
    Store(out + column, r);
  });
}

}  // namespace llmc
