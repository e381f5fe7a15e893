// Rotary position embedding (arXiv:2104.09864) of heads, alone or with the write to the KV cache.
#pragma once
#include "kernels/attention/paged_kv.cuh"
#include "kernels/common/context.cuh"
#include "kernels/common/strided_rows.cuh"

namespace llmc {

// The pairs of a head that turn together, and what lies past them, as the kHeadThreads threads of its team share them.
// Pair i is (i, i + kRotary / 2), or (2i, 2i + 1) if interleaved; thread t has pairs [t * kEach, (t + 1) * kEach), so
// that it reads neighbours at once.
template <class C>
struct PairsOf {
  static_assert(kIsModelType<typename C::T>, "T: float, f16 or bf16");
  static_assert(C::kRotary % 2 == 0 && C::kRotary <= C::kHeadDim, "kRotary: pairs of a head");
  static constexpr int kPairs = C::kRotary / 2, kEach = (kPairs + C::kHeadThreads - 1) / C::kHeadThreads;
  static constexpr int kPast = C::kHeadDim - C::kRotary, kPastEach = (kPast + C::kHeadThreads - 1) / C::kHeadThreads;
  // Elements of a vector: of a thread's part of one half of the head, or of its pairs; 1: there are none such.
  static constexpr int kWished = C::kInterleaved ? 2 * kEach : kEach;
  static constexpr bool kFits = (kWished & (kWished - 1)) == 0 && kWished * sizeof(typename C::T) <= 16 &&
                                kPairs % kEach == 0 && C::kHeadDim % kWished == 0;
  static constexpr int kVec = kFits ? kWished : 1;
};

// A thread's part of a head, in f32.
template <class C>
struct HeadPart {
  using T = typename C::T;
  using P = PairsOf<C>;
  float x[P::kEach], y[P::kEach], past[P::kPastEach > 0 ? P::kPastEach : 1];

  // each(index of an element, where it is kept)
  template <class Each>
  __device__ __forceinline__ void Past(int thread, const Each& each) {
#pragma unroll
    for (int j = 0; j < P::kPastEach; ++j) {
      const int i = thread + j * C::kHeadThreads;
      if (i < P::kPast) each(C::kRotary + i, past[j]);
    }
  }
  template <class Each>
  __device__ __forceinline__ void Pairs(int thread, const Each& each) {
#pragma unroll
    for (int j = 0; j < P::kEach; ++j) {
      const int i = thread * P::kEach + j;
      if (i >= P::kPairs) break;
      each(C::kInterleaved ? 2 * i : i, x[j]);
      each(C::kInterleaved ? 2 * i + 1 : i + P::kPairs, y[j]);
    }
  }

  __device__ __forceinline__ void Load(const T* from, int thread) {
    const int first = thread * P::kEach;
    if constexpr (P::kVec > 1) {
      if (first < P::kPairs) {
        if constexpr (C::kInterleaved) {
          const Vec<T, P::kVec> v = llmc::Load<T, P::kVec>(from + 2 * first);
#pragma unroll
          for (int j = 0; j < P::kVec; ++j) (j % 2 == 0 ? x : y)[j / 2] = ToFloat(v.v[j]);
        } else {
          const Vec<T, P::kVec> v = llmc::Load<T, P::kVec>(from + first);
          const Vec<T, P::kVec> w = llmc::Load<T, P::kVec>(from + first + P::kPairs);
#pragma unroll
          for (int j = 0; j < P::kVec; ++j) {
            x[j] = ToFloat(v.v[j]);
            y[j] = ToFloat(w.v[j]);
          }
        }
      }
    } else {
      Pairs(thread, [&](int i, float& at) { at = ToFloat(from[i]); });
    }
    Past(thread, [&](int i, float& at) { at = ToFloat(from[i]); });
  }

  __device__ __forceinline__ void Store(T* to, int thread) {
    const int first = thread * P::kEach;
    if constexpr (P::kVec > 1) {
      if (first < P::kPairs) {
        Vec<T, P::kVec> v, w;
        if constexpr (C::kInterleaved) {
#pragma unroll
          for (int j = 0; j < P::kVec; ++j) v.v[j] = FromFloat<T>((j % 2 == 0 ? x : y)[j / 2]);
          llmc::Store(to + 2 * first, v);
        } else {
#pragma unroll
          for (int j = 0; j < P::kVec; ++j) {
            v.v[j] = FromFloat<T>(x[j]);
            w.v[j] = FromFloat<T>(y[j]);
          }
          llmc::Store(to + first, v);
          llmc::Store(to + first + P::kPairs, w);
        }
      }
    } else {
      Pairs(thread, [&](int i, float& at) { to[i] = FromFloat<T>(at); });
    }
    Past(thread, [&](int i, float& at) { to[i] = FromFloat<T>(at); });
  }

  // rms_norm of the head, rounded to T; the whole team calls it, in whole warps.
  __device__ __forceinline__ void Normalize(HeadPart& weight, float eps, int thread) {
    static_assert(C::kHeadThreads <= 32, "kHeadThreads: a team is part of a warp");
    float squares = 0;
    const auto add = [&](int, float& at) { squares += at * at; };
    Pairs(thread, add);
    Past(thread, add);
    const float factor = 1.0f / sqrtf(WarpReduce<C::kHeadThreads>(squares, Sum()) / C::kHeadDim + eps);
#pragma unroll
    for (int j = 0; j < P::kEach; ++j) {
      x[j] = Rounded<T>(x[j] * factor * weight.x[j]);
      y[j] = Rounded<T>(y[j] * factor * weight.y[j]);
    }
#pragma unroll
    for (int j = 0; j < P::kPastEach; ++j) past[j] = Rounded<T>(past[j] * factor * weight.past[j]);
  }
};

// What a thread's pairs turn by. cos and sin in full precision: angles reach the context length in radians.
template <class C>
struct Angles {
  using P = PairsOf<C>;
  float sin[P::kEach], cos[P::kEach];

  __device__ __forceinline__ void Load(const float* inv_freq, const i32* pos, float scale, int thread) {
    const float position = static_cast<float>(*pos);
#pragma unroll
    for (int j = 0; j < P::kEach; ++j) {
      const int i = thread * P::kEach + j;
      if (i >= P::kPairs) break;
      sincosf(position * inv_freq[i], &sin[j], &cos[j]);
      sin[j] *= scale;
      cos[j] *= scale;
    }
  }
  __device__ __forceinline__ void Turn(HeadPart<C>* head) const {
#pragma unroll
    for (int j = 0; j < P::kEach; ++j) {
      const float x = head->x[j], y = head->y[j];
      head->x[j] = x * cos[j] - y * sin[j];
      head->y[j] = y * cos[j] + x * sin[j];
    }
  }
};

// The head that this thread works on.
template <class C, class Context>
__device__ __forceinline__ int HeadOf(const Context& context) {
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kHeadThreads > 0 && C::kThreads % C::kHeadThreads == 0, "kHeadThreads: a block is whole teams");
  return context.TileY() * (C::kThreads / C::kHeadThreads) + threadIdx.x / C::kHeadThreads;
}

// Rows (tokens) of x in batches (heads), to out[T, kHeads * kHeadDim]. Blocks (token, some heads): each team of
// kHeadThreads threads turns a head.
// C::T: element type.  C::kHeads, C::kHeadDim, C::kRotary, C::kInterleaved: see PairsOf.
// C::kHeadThreads: threads of a head.  C::kThreads: threads per block.  C::kEarly: no kernel of the same step writes
// pos and inv_freq.
template <class C, class Context>
__device__ __forceinline__ void Rope(const Context& context, typename C::T* out,
                                     const StridedRows<const typename C::T>& x, const i32* pos, const float* inv_freq,
                                     float scale) {
  const int h = HeadOf<C>(context), thread = threadIdx.x % C::kHeadThreads;
  if (h >= C::kHeads) return;
  Angles<C> angles;
  if (C::kEarly) angles.Load(inv_freq, pos + context.TileX(), scale, thread);
  context.Wait();
  if (!C::kEarly) angles.Load(inv_freq, pos + context.TileX(), scale, thread);
  const i64 at = (static_cast<i64>(context.TileX()) * C::kHeads + h) * C::kHeadDim;
  HeadPart<C> head;
  head.Load(x.At(context.TileX(), h), thread);
  angles.Turn(&head);
  head.Store(out + at, thread);
}

// Where a head goes.
template <class C>
struct HeadPlace {
  typename C::T* row = nullptr;
  // Or, in a cache that is encoded:
  i64 slot = -1;
  int part = 0, head = 0;  // part 0 are keys, 1 values

  __device__ __forceinline__ bool IsNowhere() const { return row == nullptr && slot < 0; }
};

// Of KV head `head`; nowhere if the slot is below 0.
template <class C>
__device__ __forceinline__ HeadPlace<C> PlaceInCache(i64 slot, int part, int head, CacheElement<C>* kv) {
  HeadPlace<C> place;
  if constexpr (kIsEncoded<C>) {
    place = {nullptr, slot, part, head};
  } else {
    if (slot >= 0) place.row = kv + KvOffset<C>(slot, part, head);
  }
  return place;
}

// Of head h of queries, keys and values.
template <class C>
__device__ __forceinline__ HeadPlace<C> PlaceOfHead(int h, i64 token, i64 slot, typename C::T* out,
                                                    CacheElement<C>* kv) {
  if (h < C::kHeads) return {out + (token * C::kHeads + h) * C::kHeadDim};
  const bool is_value = h >= C::kHeads + C::kKvHeads;
  return PlaceInCache<C>(slot, is_value ? 1 : 0, h - C::kHeads - (is_value ? C::kKvHeads : 0), kv);
}

// The heads of a block's teams, on their way to codes.
template <class C>
struct HeadRows {
  float rows[C::kThreads / C::kHeadThreads][C::kHeadDim];
};

template <int kTeam>
__device__ __forceinline__ void SyncTeam() {
  __syncwarp(kTeam == 32 ? ~0u : ((1u << (kTeam % 32)) - 1) << (threadIdx.x % 32 / kTeam * kTeam));
}

// The whole team calls it, with the same place, which is somewhere.
template <class C, class Context>
__device__ __forceinline__ void StoreHead(const Context& context, HeadPart<C>* head, const HeadPlace<C>& to,
                                          CacheElement<C>* kv, const StaticScales& scales, int thread) {
  if constexpr (kIsEncoded<C>) {
    if (to.row == nullptr) {
      float* const row = context.template Shared<HeadRows<C>>().rows[threadIdx.x / C::kHeadThreads];
      const auto keep = [&](int i, float& at) { row[i] = Rounded<typename C::T>(at); };
      SyncTeam<C::kHeadThreads>();  // the head before is read
      head->Pairs(thread, keep);
      head->Past(thread, keep);
      SyncTeam<C::kHeadThreads>();
      WriteCodes<C, C::kHeadThreads>(kv, static_cast<u32>(to.slot), to.part, to.head, thread, scales,
                                     [&](int i) { return row[i]; });
      return;
    }
  }
  head->Store(to.row, thread);
}

// qkv[T, (kHeads + 2 kKvHeads) * kHeadDim]: rotated queries to out[T, kHeads * kHeadDim], rotated keys and values to
// their slots. A slot below 0 is none: the token fills up a batch. Blocks as in Rope, over all heads of qkv, of which
// each team turns kHeadsEach: sines are made once for them, and all are read at once.
// Besides Rope's: C::kHeadsEach, C::kKvHeads, and those of paged_kv.cuh.
template <class C, class Context>
__device__ __forceinline__ void RopeKvWrite(const Context& context, typename C::T* out, CacheElement<C>* kv,
                                            const typename C::T* qkv, const i32* pos, const float* inv_freq,
                                            const i32* slots, float scale, const StaticScales& scales = {}) {
  constexpr int kAll = C::kHeads + 2 * C::kKvHeads, kTurned = C::kHeads + C::kKvHeads;
  static_assert(IsBlock(C::kThreads) && C::kThreads % C::kHeadThreads == 0, "kThreads: whole teams");
  constexpr int kTeams = C::kThreads / C::kHeadThreads;
  const int first = context.TileY() * (kTeams * C::kHeadsEach) + threadIdx.x / C::kHeadThreads;
  const int thread = threadIdx.x % C::kHeadThreads;
  if (first >= kAll) return;
  const i64 token = context.TileX();
  Angles<C> angles;
  HeadPlace<C> to[C::kHeadsEach];  // nowhere: there is no such head
  const auto prepare = [&] {
    if (first < kTurned) angles.Load(inv_freq, pos + token, scale, thread);
    const i64 slot = slots[token];
#pragma unroll
    for (int i = 0; i < C::kHeadsEach; ++i) {
      const int h = first + i * kTeams;
      if (h < kAll) to[i] = PlaceOfHead<C>(h, token, slot, out, kv);
    }
  };
  if (C::kEarly) prepare();
  context.Wait();
  if (!C::kEarly) prepare();
  HeadPart<C> heads[C::kHeadsEach];
#pragma unroll
  for (int i = 0; i < C::kHeadsEach; ++i) {
    if (!to[i].IsNowhere()) heads[i].Load(qkv + (token * kAll + first + i * kTeams) * C::kHeadDim, thread);
  }
#pragma unroll
  for (int i = 0; i < C::kHeadsEach; ++i) {
    if (to[i].IsNowhere()) continue;
    if (first + i * kTeams < kTurned) angles.Turn(&heads[i]);
    StoreHead(context, &heads[i], to[i], kv, scales, thread);
  }
}

// The same with rms_norm of each head of the queries (weights q_norm[kHeadDim]) and keys (k_norm) before.
template <class C, class Context>
__device__ __forceinline__ void NormRopeKvWrite(const Context& context, typename C::T* out, CacheElement<C>* kv,
                                                const typename C::T* qkv, const i32* pos, const float* inv_freq,
                                                const i32* slots, const typename C::T* q_norm,
                                                const typename C::T* k_norm, float scale, float eps,
                                                const StaticScales& scales = {}) {
  constexpr int kAll = C::kHeads + 2 * C::kKvHeads;
  // Whole warps go on, for the sums of the norms; a team without a head looks at the last one.
  const int own = HeadOf<C>(context), h = own < kAll ? own : kAll - 1, thread = threadIdx.x % C::kHeadThreads;
  const i64 token = context.TileX();
  const bool turns = h < C::kHeads + C::kKvHeads;
  Angles<C> angles;
  HeadPart<C> weight;
  HeadPlace<C> to;
  const auto prepare = [&] {
    weight.Load(h < C::kHeads ? q_norm : k_norm, thread);
    angles.Load(inv_freq, pos + token, scale, thread);
    to = PlaceOfHead<C>(h, token, slots[token], out, kv);
  };
  if (C::kEarly) prepare();
  context.Wait();
  if (!C::kEarly) prepare();
  HeadPart<C> head;
  head.Load(qkv + (token * kAll + h) * C::kHeadDim, thread);
  HeadPart<C> turned = head;
  turned.Normalize(weight, eps, thread);
  angles.Turn(&turned);
  if (own < kAll && !to.IsNowhere()) StoreHead(context, turns ? &turned : &head, to, kv, scales, thread);
}

// Rotated k and v [T, kKvHeads * kHeadDim] to their slots. Blocks as in Rope.
template <class C, class Context>
__device__ __forceinline__ void RopeWrite(const Context& context, CacheElement<C>* kv, const typename C::T* k,
                                          const typename C::T* v, const i32* pos, const float* inv_freq,
                                          const i32* slots, float scale, const StaticScales& scales = {}) {
  const int h = HeadOf<C>(context), thread = threadIdx.x % C::kHeadThreads;
  if (h >= C::kKvHeads) return;
  const i64 token = context.TileX();
  Angles<C> angles;
  i64 slot;
  const auto prepare = [&] {
    angles.Load(inv_freq, pos + token, scale, thread);
    slot = slots[token];
  };
  if (C::kEarly) prepare();
  context.Wait();
  if (!C::kEarly) prepare();
  if (slot < 0) return;
  const i64 from = (token * C::kKvHeads + h) * C::kHeadDim;
  HeadPart<C> key, value;
  key.Load(k + from, thread);
  value.Load(v + from, thread);
  angles.Turn(&key);
  StoreHead(context, &key, PlaceInCache<C>(slot, 0, h, kv), kv, scales, thread);
  StoreHead(context, &value, PlaceInCache<C>(slot, 1, h, kv), kv, scales, thread);
}

// k [T, kKvHeads * kHeadDim] and v [T, kKvHeads * kValueDim] to their slots; one block per token.
template <class C, class Context>
__device__ __forceinline__ void KvWrite(const Context& context, CacheElement<C>* kv, const typename C::T* k,
                                        const typename C::T* v, const i32* slots, const StaticScales& scales = {}) {
  constexpr int kKeys = C::kKvHeads * C::kHeadDim, kValues = C::kKvHeads * C::kValueDim;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kPageSize > 0 && C::kKvHeads > 0 && C::kHeadDim > 0, "kPageSize, kKvHeads, kHeadDim: of the state");
  context.Wait();
  const i64 token = context.TileX(), slot = slots[token];
  if (slot < 0) return;
  if constexpr (kIsEncoded<C>) {
    static_assert(C::kHeadDim == C::kValueDim, "keys and values lie alike");
    for (int h = threadIdx.x / 32; h < 2 * C::kKvHeads; h += C::kThreads / 32) {  // a warp for each head
      const int part = h / C::kKvHeads, head = h % C::kKvHeads;
      const typename C::T* const from = (part == 0 ? k : v) + token * kKeys + head * C::kHeadDim;
      WriteCodes<C, 32>(kv, static_cast<u32>(slot), part, head, threadIdx.x % 32, scales,
                        [&](int i) { return ToFloat(from[i]); });
    }
  } else {
    const i64 key = RowOfSlot<C, C::kHeadDim>(static_cast<u32>(slot));
    const i64 value = RowOfSlot<C, C::kValueDim>(static_cast<u32>(slot));
    for (int i = threadIdx.x; i < kKeys; i += C::kThreads) {
      kv[KeysOfHead<C>(i / C::kHeadDim) + key + i % C::kHeadDim] = k[token * kKeys + i];
    }
    for (int i = threadIdx.x; i < kValues; i += C::kThreads) {
      kv[ValuesOfHead<C, C::kValueDim>(i / C::kValueDim) + value + i % C::kValueDim] = v[token * kValues + i];
    }
  }
}

}  // namespace llmc
