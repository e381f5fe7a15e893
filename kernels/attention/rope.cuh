// Rotary position embedding (arXiv:2104.09864) of heads, alone or with the write to the KV cache.
#pragma once
#include "kernels/common/context.cuh"

namespace llmc {

// What the pairs of a head turn by that thread `thread` of kHeadThreads turns: i = thread, thread + kHeadThreads, … cos
// and sin in full precision: angles reach the context length in radians.
template <class C>
struct Angles {
  static constexpr int kPairs = C::kRotary / 2, kEach = (kPairs + C::kHeadThreads - 1) / C::kHeadThreads;
  float sin[kEach], cos[kEach];

  __device__ __forceinline__ void Load(const float* inv_freq, const i32* pos, float scale, int thread) {
    const float position = static_cast<float>(*pos);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int i = thread + j * C::kHeadThreads;
      if (i >= kPairs) break;
      sincosf(position * inv_freq[i], &sin[j], &cos[j]);
      sin[j] *= scale;
      cos[j] *= scale;
    }
  }
};

// Writes the rotated head whose element i is from(i), as a float, to `to`. Pair i is (i, i + kRotary / 2), or (2i, 2i +
// 1) if interleaved; what is past kRotary is copied.
template <class C, class From>
__device__ __forceinline__ void RotateHead(typename C::T* to, const From& from, const Angles<C>& angles, int thread) {
  using T = typename C::T;
  static_assert(kIsModelType<T>, "T: float, f16 or bf16");
  static_assert(C::kRotary % 2 == 0 && C::kRotary <= C::kHeadDim, "kRotary: pairs of a head");
#pragma unroll
  for (int j = 0; j < Angles<C>::kEach; ++j) {
    const int i = thread + j * C::kHeadThreads;
    if (i >= Angles<C>::kPairs) break;
    const int a = C::kInterleaved ? 2 * i : i, b = C::kInterleaved ? 2 * i + 1 : i + C::kRotary / 2;
    const float x = from(a), y = from(b);
    to[a] = FromFloat<T>(x * angles.cos[j] - y * angles.sin[j]);
    to[b] = FromFloat<T>(y * angles.cos[j] + x * angles.sin[j]);
  }
  for (int i = C::kRotary + thread; i < C::kHeadDim; i += C::kHeadThreads) to[i] = FromFloat<T>(from(i));
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
// C::kHeadThreads: threads of a head.  C::kThreads: threads per block.  C::kEarly: no kernel of the same step writes
// pos and inv_freq.
template <class C, class Context>
__device__ __forceinline__ void Rope(const Context& context, typename C::T* out, const typename C::T* x, const i32* pos,
                                     const float* inv_freq, float scale) {
  const int h = HeadOf<C>(context), thread = threadIdx.x % C::kHeadThreads;
  if (h >= C::kHeads) return;
  Angles<C> angles;
  if (C::kEarly) angles.Load(inv_freq, pos + context.TileX(), scale, thread);
  context.Wait();
  if (!C::kEarly) angles.Load(inv_freq, pos + context.TileX(), scale, thread);
  const i64 at = (static_cast<i64>(context.TileX()) * C::kHeads + h) * C::kHeadDim;
  RotateHead<C>(
      out + at, [=](int i) { return ToFloat(x[at + i]); }, angles, thread);
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
// their slots; turn(head, to) writes a rotated head of queries or keys. A slot below 0 is none: the token fills up a
// batch. Blocks as in Rope, over all heads of qkv.
// Besides Rope's: C::kKvHeads, C::kPageSize.
template <class C, class Turn>
__device__ __forceinline__ void TurnAndWrite(int h, i64 token, i64 slot, typename C::T* out, typename C::T* kv,
                                             const typename C::T* from, const Turn& turn) {
  if (h < C::kHeads) {
    turn(out + (token * C::kHeads + h) * C::kHeadDim);
  } else if (slot >= 0 && h < C::kHeads + C::kKvHeads) {
    turn(kv + KvOffset<C>(slot, 0, h - C::kHeads));
  } else if (slot >= 0) {
    typename C::T* to = kv + KvOffset<C>(slot, 1, h - C::kHeads - C::kKvHeads);
    for (int i = threadIdx.x % C::kHeadThreads; i < C::kHeadDim; i += C::kHeadThreads) to[i] = from[i];
  }
}

template <class C, class Context>
__device__ __forceinline__ void RopeKvWrite(const Context& context, typename C::T* out, typename C::T* kv,
                                            const typename C::T* qkv, const i32* pos, const float* inv_freq,
                                            const i32* slots, float scale) {
  constexpr int kAll = C::kHeads + 2 * C::kKvHeads;
  const int h = HeadOf<C>(context), thread = threadIdx.x % C::kHeadThreads;
  if (h >= kAll) return;
  const i64 token = context.TileX();
  const bool turns = h < C::kHeads + C::kKvHeads;
  Angles<C> angles;
  if (C::kEarly && turns) angles.Load(inv_freq, pos + token, scale, thread);
  context.Wait();
  if (!C::kEarly && turns) angles.Load(inv_freq, pos + token, scale, thread);
  const typename C::T* from = qkv + (token * kAll + h) * C::kHeadDim;
  TurnAndWrite<C>(h, token, slots[token], out, kv, from, [&](typename C::T* to) {
    RotateHead<C>(
        to, [=](int i) { return ToFloat(from[i]); }, angles, thread);
  });
}

// The same with rms_norm of each head of the queries (weights q_norm[kHeadDim]) and keys (k_norm) before.
template <class C, class Context>
__device__ __forceinline__ void NormRopeKvWrite(const Context& context, typename C::T* out, typename C::T* kv,
                                                const typename C::T* qkv, const i32* pos, const float* inv_freq,
                                                const i32* slots, const typename C::T* q_norm,
                                                const typename C::T* k_norm, float scale, float eps) {
  using T = typename C::T;
  static_assert(C::kHeadThreads <= 32, "kHeadThreads: a team is part of a warp");
  constexpr int kAll = C::kHeads + 2 * C::kKvHeads;
  // Whole warps go on, for the sums below; a team without a head looks at the last one.
  const int own = HeadOf<C>(context), h = own < kAll ? own : kAll - 1, thread = threadIdx.x % C::kHeadThreads;
  const i64 token = context.TileX();
  Angles<C> angles;
  if (C::kEarly) angles.Load(inv_freq, pos + token, scale, thread);
  context.Wait();
  if (!C::kEarly) angles.Load(inv_freq, pos + token, scale, thread);
  const T* from = qkv + (token * kAll + h) * C::kHeadDim;
  const T* weight = h < C::kHeads ? q_norm : k_norm;
  float squares = 0;
  for (int i = thread; i < C::kHeadDim; i += C::kHeadThreads) squares += ToFloat(from[i]) * ToFloat(from[i]);
  const float factor = 1.0f / sqrtf(WarpReduce<C::kHeadThreads>(squares, Sum()) / C::kHeadDim + eps);
  if (own >= kAll) return;
  TurnAndWrite<C>(h, token, slots[token], out, kv, from, [&](T* to) {
    RotateHead<C>(
        to, [=](int i) { return Rounded<T>(ToFloat(from[i]) * factor * ToFloat(weight[i])); }, angles, thread);
  });
}

// Rotated k and v [T, kKvHeads * kHeadDim] to their slots. Blocks as in Rope.
template <class C, class Context>
__device__ __forceinline__ void RopeWrite(const Context& context, typename C::T* kv, const typename C::T* k,
                                          const typename C::T* v, const i32* pos, const float* inv_freq,
                                          const i32* slots, float scale) {
  const int h = HeadOf<C>(context), thread = threadIdx.x % C::kHeadThreads;
  if (h >= C::kKvHeads) return;
  const i64 token = context.TileX();
  Angles<C> angles;
  if (C::kEarly) angles.Load(inv_freq, pos + token, scale, thread);
  context.Wait();
  if (!C::kEarly) angles.Load(inv_freq, pos + token, scale, thread);
  const i64 slot = slots[token];
  if (slot < 0) return;
  const i64 from = (token * C::kKvHeads + h) * C::kHeadDim;
  RotateHead<C>(
      kv + KvOffset<C>(slot, 0, h), [=](int i) { return ToFloat(k[from + i]); }, angles, thread);
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
