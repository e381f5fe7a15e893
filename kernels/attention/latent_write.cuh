// The row that latent attention keeps of a token (arXiv:2405.04434): the norm of its first kLatentDim elements, and the
// rest rotated as one head. From x[T, kRow], in whose rows it begins at kRowBegins, to its slot; one block per token.
//
// C::T: element type.  C::kLatentDim, C::kHeadDim: of the row; where it lies: paged_kv.cuh.  C::kRow, C::kRowBegins:
// elements from one token to the next, and those before.  C::kRotary, C::kInterleaved, C::kHeadThreads, C::kEarly: see
// rope.cuh.
#pragma once
#include "kernels/attention/rope.cuh"

namespace llmc {

template <class C>
struct LatentHead {
  using T = typename C::T;
  static constexpr int kHeadDim = C::kHeadDim - C::kLatentDim, kRotary = C::kRotary, kHeadThreads = C::kHeadThreads;
  static constexpr bool kInterleaved = C::kInterleaved;
};

// A thread's part of the elements that are normalized.
template <class C>
struct LatentPart {
  using T = typename C::T;
  static constexpr int kVec = VectorOf<T>(C::kLatentDim | C::kRow | C::kRowBegins);  // divides all
  static constexpr int kVecs = (C::kLatentDim / kVec + C::kThreads - 1) / C::kThreads;
  Vec<T, kVec> of[kVecs];

  static __device__ __forceinline__ int Column(int i) { return (i * C::kThreads + threadIdx.x) * kVec; }
  __device__ __forceinline__ void Load(const T* from) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      of[i] = {};
      if (Column(i) < C::kLatentDim) of[i] = llmc::Load<T, kVec>(from + Column(i));
    }
  }
  __device__ __forceinline__ float Squares() const {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) squares += ToFloat(of[i].v[j]) * ToFloat(of[i].v[j]);
    }
    return squares;
  }
  __device__ __forceinline__ void StoreScaled(const LatentPart& weight, float factor, T* to) const {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (Column(i) >= C::kLatentDim) continue;
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        to[Column(i) + j] = FromFloat<T>(ToFloat(of[i].v[j]) * factor * ToFloat(weight.of[i].v[j]));
      }
    }
  }
};

template <class C, class Context>
__device__ __forceinline__ void LatentWrite(const Context& context, typename C::T* kv, const typename C::T* x,
                                            const typename C::T* weight, const i32* pos, const float* inv_freq,
                                            const i32* slots, float scale, float eps) {
  using T = typename C::T;
  using Head = LatentHead<C>;
  static_assert(IsBlock(C::kThreads) && C::kThreads >= C::kHeadThreads, "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kLatentDim > 0 && C::kLatentDim < C::kHeadDim, "kLatentDim: the first elements of the row");
  auto& shared = context.template Shared<RowShared<C::kThreads>>();
  const i64 token = context.TileX();
  Angles<Head> angles;
  LatentPart<C> weights, latent;
  i32 slot;
  const auto prepare = [&] {
    weights.Load(weight);
    if (threadIdx.x < C::kHeadThreads) angles.Load(inv_freq, pos + token, scale, threadIdx.x);
    slot = slots[token];
  };
  if (C::kEarly) prepare();
  context.Wait();
  if (!C::kEarly) prepare();
  if (slot < 0) return;
  x += token * C::kRow + C::kRowBegins;
  T* const to = kv + C::kKeysAt + RowOfSlot<C, C::kHeadDim>(static_cast<u32>(slot));
  latent.Load(x);
  if (threadIdx.x < C::kHeadThreads) {
    const T* const from = x + C::kLatentDim;
    T* const rotated = to + C::kLatentDim;
    HeadPart<Head> head;
    const auto load = [&](int i, float& at) { at = ToFloat(from[i]); };
    const auto store = [&](int i, float& at) { rotated[i] = FromFloat<T>(at); };
    head.Pairs(threadIdx.x, load);
    head.Past(threadIdx.x, load);
    angles.Turn(&head);
    head.Pairs(threadIdx.x, store);
    head.Past(threadIdx.x, store);
  }
  const float squares = BlockReduce<C::kThreads>(context, shared.warps, latent.Squares(), Sum());
  latent.StoreScaled(weights, 1.0f / sqrtf(squares / C::kLatentDim + eps), to);
}

}  // namespace llmc
