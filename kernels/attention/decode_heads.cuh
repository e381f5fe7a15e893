// Where paged_attention_decode.cuh has queries from, and the key and value of the newest position.
#pragma once
#include "kernels/attention/decode_items.cuh"
#include "kernels/attention/rope.cuh"
#include "kernels/common/tagged_row.cuh"

namespace llmc {

// From memory: all is there after the wait.
template <class C>
struct HeadsInMemory {
  static constexpr bool kTakes = false;
  struct Shared {};
  const typename C::T* q;

  __device__ __forceinline__ const typename C::T* Row(const DecodeItem<C>& item, int r) const {
    return r < item.tokens * C::kGroup ? q + item.Row(r) : nullptr;
  }
};

// A row of heads in memory, of which all is there after the wait.
template <class T>
struct RowInMemory {
  const T* row;
  template <int kCount>
  __device__ __forceinline__ void ReadTo(void* to, int first) const {
    const u32* const pairs = reinterpret_cast<const u32*>(row + first);
    for (int i = threadIdx.x % 32; i < kCount / 2; i += 32) static_cast<u32*>(to)[i] = pairs[i];
  }
};

// From a row of the heads of queries, keys and values of one token, to shared memory.
template <class C, class TakenRow, class Before>
struct HeadsOfRow {
  static constexpr bool kTakes = true;
  using T = typename C::T;
  using S = DecodeShape<C>;
  static constexpr int kKey = C::kGroup, kValue = C::kGroup + 1;
  struct Shared {
    alignas(16) T heads[C::kGroup + 2][S::kDim];  // queries of an item, key and value
  };
  TakenRow row;
  Before before;
  Shared& shared;
  typename Before::Prepared prepared;  // for the first head of the warp, the same of each item

  // Reads what it needs besides the row.
  __device__ __forceinline__ HeadsOfRow(const TakenRow& row, const Before& before, Shared& shared)
      : row(row), before(before), shared(shared), prepared(before.Prepare(NumberOf(threadIdx.x / 32, 0))) {}

  __device__ __forceinline__ const T* Row(const DecodeItem<C>&, int r) const {
    return r < C::kGroup ? shared.heads[r] : nullptr;
  }
  // Of head i in shared memory, among all of the row.
  static __device__ __forceinline__ int NumberOf(int i, int kv_head) {
    return i < C::kGroup ? kv_head * C::kGroup + i : (C::kGroup + (i == kKey ? 0 : 1)) * C::kKvHeads + kv_head;
  }
  static __device__ __forceinline__ bool HasNewest(const DecodeItem<C>& item) { return item.end == item.tiles; }

  // All warps, between two barriers: a head each.
  __device__ __forceinline__ void Take(const DecodeItem<C>& item) const {
    for (int i = threadIdx.x / 32; i < C::kGroup + (HasNewest(item) ? 2 : 0); i += S::kWarps) {
      const int h = NumberOf(i, item.head);
      const bool is_first = i < S::kWarps;
      const typename Before::Prepared own = is_first ? prepared : before.Prepare(h);
      row.template ReadTo<C::kHeadDim>(shared.heads[i], h * C::kHeadDim);
      before.Change(shared.heads[i], h, own);
    }
  }
  // The newest key and value to their row of a tile in shared memory. A whole warp.
  __device__ __forceinline__ void PutNewest(T* key, T* value) const {
    for (int at = threadIdx.x % 32; at < C::kHeadDim / 2; at += 32) {
      reinterpret_cast<u32*>(key)[at] = reinterpret_cast<const u32*>(shared.heads[kKey])[at];
      reinterpret_cast<u32*>(value)[at] = reinterpret_cast<const u32*>(shared.heads[kValue])[at];
    }
  }
};

// ---- what is done to a head of the row first -----------------------------------------------------------------------
struct NothingBefore {
  struct Prepared {};
  template <class Each>
  __device__ __forceinline__ void EachRead(const Each&) const {}
  __device__ __forceinline__ Prepared Prepare(int) const { return {}; }
  __device__ __forceinline__ void Change(void*, int, const Prepared&) const {}
};

// What RopeKvWrite and NormRopeKvWrite (rope.cuh, which says what C has) do to the heads of one token, by a warp each,
// all of whose teams do the same.
template <class C, bool kNormalizes>
struct RopeBefore {
  using T = typename C::T;
  static_assert(!kIsEncoded<C>, "keys and values are written as they are");
  struct Prepared {
    Angles<C> angles;
    HeadPart<C> weight;
    i64 slot;
  };
  T* kv;
  const i32* pos;
  const float* inv_freq;
  const i32* slots;
  const T* q_norm;
  const T* k_norm;
  float scale, eps;

  static __device__ __forceinline__ bool Turns(int h) { return h < C::kHeads + C::kKvHeads; }
  // each(from, bytes) of what Prepare reads.
  template <class Each>
  __device__ __forceinline__ void EachRead(const Each& each) const {
    each(pos, 4);
    each(slots, 4);
    each(inv_freq, C::kRotary / 2 * 4);
    if constexpr (kNormalizes) {
      each(q_norm, C::kHeadDim * 2);
      each(k_norm, C::kHeadDim * 2);
    }
  }
  // Before the head is there.
  __device__ __forceinline__ Prepared Prepare(int h) const {
    const int thread = threadIdx.x % C::kHeadThreads;
    Prepared prepared;
    if (Turns(h)) {
      if constexpr (kNormalizes) prepared.weight.Load(h < C::kHeads ? q_norm : k_norm, thread);
      prepared.angles.Load(inv_freq, pos, scale, thread);
    }
    prepared.slot = h < C::kHeads ? -1 : slots[0];
    return prepared;
  }
  // head[kHeadDim] in shared memory. Keys and values are written to the cache.
  __device__ __forceinline__ void Change(T* head, int h, Prepared prepared) const {
    const int lane = threadIdx.x % 32, thread = lane % C::kHeadThreads;
    if (Turns(h)) {
      HeadPart<C> part;
      part.Load(head, thread);
      __syncwarp();
      if constexpr (kNormalizes) part.Normalize(prepared.weight, eps, thread);
      prepared.angles.Turn(&part);
      part.Store(head, thread);
      __syncwarp();
    }
    if (prepared.slot < 0) return;
    const int kv_head = (h - C::kHeads) % C::kKvHeads;
    T* const to = kv + KvOffset<C>(prepared.slot, Turns(h) ? 0 : 1, kv_head);
    for (int at = lane; at < C::kHeadDim / 2; at += 32) {
      reinterpret_cast<u32*>(to)[at] = reinterpret_cast<const u32*>(head)[at];
    }
  }
};

// From the arguments of those kernels.
template <class C>
__device__ __forceinline__ RopeBefore<C, false> BeforeOfRopeKvWrite(typename C::T*, typename C::T* kv,
                                                                    const typename C::T*, const i32* pos,
                                                                    const float* inv_freq, const i32* slots,
                                                                    float scale) {
  return {kv, pos, inv_freq, slots, nullptr, nullptr, scale, 0};
}
template <class C>
__device__ __forceinline__ RopeBefore<C, true> BeforeOfNormRopeKvWrite(
    typename C::T*, typename C::T* kv, const typename C::T*, const i32* pos, const float* inv_freq, const i32* slots,
    const typename C::T* q_norm, const typename C::T* k_norm, float scale, float eps) {
  return {kv, pos, inv_freq, slots, q_norm, k_norm, scale, eps};
}

}  // namespace llmc
