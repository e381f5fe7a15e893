// The row that latent attention keeps of a token (arXiv:2405.04434): the norm of its first kLatentDim elements, and the
// rest rotated as one head. From x[T, kRow], in whose rows it begins at kRowBegins, to its slot; one block per token.
//
// C::T: element type.  C::kLatentDim, C::kHeadDim: of the row; where it lies: paged_kv.cuh.  C::kRow, C::kRowBegins:
// elements from one token to the next, and those before.  C::kRotary, C::kInterleaved, C::kHeadThreads, C::kEarly: see rope.cuh.
#pragma once
#include "kernels/attention/rope.cuh"

namespace llmc {

template <class C>
struct LatentHead {
  using T = typename C::T;
  static constexpr int kHeadDim = C::kHeadDim - C::kLatentDim, kRotary = C::kRotary, kHeadThreads = C::kHeadThreads;
  static constexpr bool kInterleaved = C::kInterleaved;
};

template <class C, class Context>
__device__ __forceinline__ void LatentWrite(const Context& context, typename C::T* kv, const typename C::T* x,
                                            const typename C::T* weight, const i32* pos, const float* inv_freq,
                                            const i32* slots, float scale, float eps) {
  using T = typename C::T;
  using Head = LatentHead<C>;
  static_assert(IsBlock(C::kThreads) && C::kThreads >= C::kHeadThreads, "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kLatentDim > 0 && C::kLatentDim < C::kHeadDim, "kLatentDim: the first elements of the row");
  constexpr int kVec = VectorOf<T>(C::kLatentDim | C::kRow);                     // divides both
  constexpr int kVecs = (C::kLatentDim / kVec + C::kThreads - 1) / C::kThreads;  // of a thread
  auto& shared = context.template Shared<RowShared<C::kThreads>>();
  const i64 token = context.TileX();
  Angles<Head> angles;
  Vec<T, kVec> w[kVecs];
  i32 slot;
  const auto prepare = [&] {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int column = (i * C::kThreads + threadIdx.x) * kVec;
      if (column < C::kLatentDim) w[i] = Load<T, kVec>(weight + column);
    }
    if (threadIdx.x < C::kHeadThreads) angles.Load(inv_freq, pos + token, scale, threadIdx.x);
    slot = slots[token];
  };
  if (C::kEarly) prepare();
  context.Wait();
  if (!C::kEarly) prepare();
  if (slot < 0) return;
  x += token * C::kRow + C::kRowBegins;
  T* const to = kv + C::kKeysAt + RowOfSlot<C, C::kHeadDim>(static_cast<u32>(slot));

  Vec<T, kVec> a[kVecs];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int column = (i * C::kThreads + threadIdx.x) * kVec;
    a[i] = {};
    if (column < C::kLatentDim) a[i] = Load<T, kVec>(x + column);
  }
  if (threadIdx.x < C::kHeadThreads) {
    HeadPart<Head> head;
    head.Pairs(threadIdx.x, [&](int i, float& at) { at = ToFloat(x[C::kLatentDim + i]); });
    head.Past(threadIdx.x, [&](int i, float& at) { at = ToFloat(x[C::kLatentDim + i]); });
    angles.Turn(&head);
    head.Pairs(threadIdx.x, [&](int i, float& at) { to[C::kLatentDim + i] = FromFloat<T>(at); });
    head.Past(threadIdx.x, [&](int i, float& at) { to[C::kLatentDim + i] = FromFloat<T>(at); });
  }
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
#pragma unroll
    for (int j = 0; j < kVec; ++j) squares += ToFloat(a[i].v[j]) * ToFloat(a[i].v[j]);
  }
  const float factor =
      1.0f / sqrtf(BlockReduce<C::kThreads>(context, shared.warps, squares, Sum()) / C::kLatentDim + eps);
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int column = (i * C::kThreads + threadIdx.x) * kVec;
    if (column >= C::kLatentDim) continue;
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      to[column + j] = FromFloat<T>(ToFloat(a[i].v[j]) * factor * ToFloat(w[i].v[j]));
    }
  }
}

}  // namespace llmc
