// Rotary position embedding (arXiv:2104.09864) of heads, alone or with the write to the KV cache.
#pragma once
#include "kernels/common/context.cuh"

namespace llmc {

// Writes the rotated head `from` to `to`, with `threads` threads of which this is number `thread`. Pair i is (i, i +
// kRotary / 2), or (2i, 2i + 1) if interleaved; what is past kRotary is copied. cos and sin in full precision: angles
// reach the context length in radians.
template <class C>
__device__ __forceinline__ void RotateHead(typename C::T* to, const typename C::T* from, const float* inv_freq,
                                           float position, float scale, int thread, int threads) {
  using T = typename C::T;
  static_assert(kIsModelType<T>, "T: float, f16 or bf16");
  static_assert(C::kRotary % 2 == 0 && C::kRotary <= C::kHeadDim, "kRotary: pairs of a head");
  for (int i = thread; i < C::kRotary / 2; i += threads) {
    const int a = C::kInterleaved ? 2 * i : i, b = C::kInterleaved ? 2 * i + 1 : i + C::kRotary / 2;
    float sin, cos;
    sincosf(position * inv_freq[i], &sin, &cos);
    const float x = ToFloat(from[a]), y = ToFloat(from[b]);
    to[a] = FromFloat<T>(x * (cos * scale) - y * (sin * scale));
    to[b] = FromFloat<T>(y * (cos * scale) + x * (sin * scale));
  }
  for (int i = C::kRotary + thread; i < C::kHeadDim; i += threads) to[i] = from[i];
}

// The head that this thread works on.
template <class C, class Context>
__device__ __forceinline__ int HeadOf(const Context& context) {
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kHeadThreads > 0 && C::kThreads % C::kHeadThreads == 0, "kHeadThreads: a block is whole teams");
  return context.TileY() * (C::kThreads / C::kHeadThreads) + threadIdx.x / C::kHeadThreads;
}

// x[T, kHeads * kHeadDim]. Blocks (token, some heads): each team of kHeadThreads threads turns a head.
// C::T: element type.  C::kHeads, C::kHeadDim, C::kRotary, C::kInterleaved: see RotateHead.
// C::kHeadThreads: threads of a head.  C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void Rope(const Context& context, typename C::T* out, const typename C::T* x, const i32* pos,
                                     const float* inv_freq, float scale) {
  const int h = HeadOf<C>(context);
  if (h >= C::kHeads) return;
  context.Wait();
  const i64 at = (static_cast<i64>(context.TileX()) * C::kHeads + h) * C::kHeadDim;
  RotateHead<C>(out + at, x + at, inv_freq, static_cast<float>(pos[context.TileX()]), scale,
                threadIdx.x % C::kHeadThreads, C::kHeadThreads);
}

// Where position `slot` of a KV state [pages, 2, kPageSize, kKvHeads, kHeadDim] keeps head `head` of its key (part 0)
// or value (part 1).
template <class C>
__device__ __forceinline__ i64 KvOffset(i64 slot, int part, int head) {
  static_assert(C::kPageSize > 0 && C::kKvHeads > 0 && C::kHeadDim > 0, "kPageSize, kKvHeads, kHeadDim: of the state");
  const i64 page = slot / C::kPageSize, offset = slot % C::kPageSize;
  return (((page * 2 + part) * C::kPageSize + offset) * C::kKvHeads + head) * C::kHeadDim;
}

// qkv[T, (kHeads + 2 kKvHeads) * kHeadDim]: rotated queries to out[T, kHeads * kHeadDim], rotated keys and values to
// their slots. A slot below 0 is none: the token fills up a batch. Blocks as in Rope, over all heads of qkv.
// Besides Rope's: C::kKvHeads, C::kPageSize.
template <class C, class Context>
__device__ __forceinline__ void RopeKvWrite(const Context& context, typename C::T* out, typename C::T* kv,
                                            const typename C::T* qkv, const i32* pos, const float* inv_freq,
                                            const i32* slots, float scale) {
  constexpr int kAll = C::kHeads + 2 * C::kKvHeads;
  const int h = HeadOf<C>(context), thread = threadIdx.x % C::kHeadThreads;
  if (h >= kAll) return;
  context.Wait();
  const i64 token = context.TileX(), slot = slots[token];
  const float position = static_cast<float>(pos[token]);
  const typename C::T* from = qkv + (token * kAll + h) * C::kHeadDim;
  if (h < C::kHeads) {
    RotateHead<C>(out + (token * C::kHeads + h) * C::kHeadDim, from, inv_freq, position, scale, thread,
                  C::kHeadThreads);
  } else if (slot >= 0 && h < C::kHeads + C::kKvHeads) {
    RotateHead<C>(kv + KvOffset<C>(slot, 0, h - C::kHeads), from, inv_freq, position, scale, thread, C::kHeadThreads);
  } else if (slot >= 0) {
    typename C::T* to = kv + KvOffset<C>(slot, 1, h - C::kHeads - C::kKvHeads);
    for (int i = thread; i < C::kHeadDim; i += C::kHeadThreads) to[i] = from[i];
  }
}

// Rotated k and v [T, kKvHeads * kHeadDim] to their slots. Blocks as in Rope.
template <class C, class Context>
__device__ __forceinline__ void RopeWrite(const Context& context, typename C::T* kv, const typename C::T* k,
                                          const typename C::T* v, const i32* pos, const float* inv_freq,
                                          const i32* slots, float scale) {
  const int h = HeadOf<C>(context), thread = threadIdx.x % C::kHeadThreads;
  if (h >= C::kKvHeads) return;
  context.Wait();
  const i64 token = context.TileX(), slot = slots[token];
  if (slot < 0) return;
  const i64 from = (token * C::kKvHeads + h) * C::kHeadDim;
  RotateHead<C>(kv + KvOffset<C>(slot, 0, h), k + from, inv_freq, static_cast<float>(pos[token]), scale, thread,
                C::kHeadThreads);
  for (int i = thread; i < C::kHeadDim; i += C::kHeadThreads) kv[KvOffset<C>(slot, 1, h) + i] = v[from + i];
}

// k and v [T, kKvHeads * kHeadDim] to their slots; one block per token.
template <class C, class Context>
__device__ __forceinline__ void KvWrite(const Context& context, typename C::T* kv, const typename C::T* k,
                                        const typename C::T* v, const i32* slots) {
  constexpr int kRow = C::kKvHeads * C::kHeadDim;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  context.Wait();
  const i64 token = context.TileX(), slot = slots[token];
  if (slot < 0) return;
  for (int i = threadIdx.x; i < kRow; i += C::kThreads) {
    kv[KvOffset<C>(slot, 0, 0) + i] = k[token * kRow + i];
    kv[KvOffset<C>(slot, 1, 0) + i] = v[token * kRow + i];
  }
}

}  // namespace llmc
