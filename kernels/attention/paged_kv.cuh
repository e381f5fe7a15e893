// Where the keys and values of a sequence lie in a paged cache. A page is kPageElements elements: keys [kKvHeads,
// kPageSize, kHeadDim] from kKeysAt on, values [kKvHeads, kPageSize, head dim of values] from kValuesAt on, so that
// what is read of a page for one head is one piece.
// A cache that is encoded is bytes, and cached_codes.cuh says where what lies.
#pragma once
#include "kernels/attention/cached_codes.cuh"
#include "kernels/common/common.cuh"

namespace llmc {

// The slot of a position: the number of its page times kPageSize, and its place there. `table` is the sequence's.
template <class C>
__device__ __forceinline__ i32 SlotOf(const i32* __restrict__ table, i32 position) {
  static_assert(C::kPageSize > 0, "kPageSize: positions of a page");
  const u32 at = static_cast<u32>(position);
  return table[at / C::kPageSize] * C::kPageSize + static_cast<i32>(at % C::kPageSize);
}

// From the first row of a head in page 0 to that of a slot; rows are of kDim elements.
template <class C, int kDim>
__device__ __forceinline__ i64 RowOfSlot(u32 slot) {
  return static_cast<i64>(slot / C::kPageSize) * C::kPageElements + slot % C::kPageSize * kDim;
}

// Where a head's keys, and its values, begin in page 0.
template <class C>
__device__ __forceinline__ i64 KeysOfHead(int head) {
  return C::kKeysAt + static_cast<i64>(head) * (C::kPageSize * C::kHeadDim);
}
template <class C, int kValueDim = C::kHeadDim>
__device__ __forceinline__ i64 ValuesOfHead(int head) {
  return C::kValuesAt + static_cast<i64>(head) * (C::kPageSize * kValueDim);
}

// Where a slot's key (part 0) or value (part 1) of a head begins, if both are kHeadDim wide.
template <class C>
__device__ __forceinline__ i64 KvOffset(i64 slot, int part, int head) {
  static_assert(C::kPageSize > 0 && C::kKvHeads > 0 && C::kHeadDim > 0, "kPageSize, kKvHeads, kHeadDim: of the state");
  const i64 begin = part == 0 ? KeysOfHead<C>(head) : ValuesOfHead<C>(head);
  return begin + RowOfSlot<C, C::kHeadDim>(static_cast<u32>(slot));
}

// The first position that a token at `position` sees.
template <class C>
__device__ __forceinline__ i32 FirstSeen(i32 position) {
  static_assert(C::kWindow >= 0, "kWindow: positions that a token sees, 0 for all");
  static_assert(C::kChunk >= 0 && (C::kWindow == 0 || C::kChunk == 0),
                "kChunk: positions of a chunk, whose tokens see no other, 0 for all; no window then");
  if constexpr (C::kChunk > 0) return position - position % C::kChunk;
  return C::kWindow > 0 && position >= C::kWindow ? position - C::kWindow + 1 : 0;
}

}  // namespace llmc
