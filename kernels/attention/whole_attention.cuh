// Attention over whole tensors on tensor cores (flash_attention_blocks.cuh): with any mask or none, bidirectional or
// causal, every position of the keys as an operand has it.
//
// q[B, kKvHeads * kGroup, queries, kKeyDim], k[B, kKvHeads, keys, kKeyDim], v[B, kKvHeads, keys, kValueDim], out as q
// with kValueDim: the elements of a head lie next to each other, and the other axes anywhere, by strides that are
// multiples of 8. A block has kRows rows of one sequence and KV head: queries, in each the heads that share the KV
// head. A row that sees nothing is 0. queries * kGroup and keys are under 2^31.
//
// C::T: element type, 16 bits.  C::Mask: of the mask: bool says what may be seen, floats are added to the scores.
// C::kMasked, C::kCausal: whether there is a mask; whether query i sees only keys up to i + shift.
// C::kKvHeads, C::kGroup: KV heads, and query heads of each.  C::kKeyDim, C::kValueDim: elements of a key, of a value.
// C::kByMaps: whether keys and values are copied by maps of tiles: of the matrices whose rows are those of keys, and of
// values, a stride of keys apart, so that an element of a head is in one column of all rows.
// C::kBlocks: blocks of the grid, which share the blocks of rows; 0: one for each.
// The rest of C: see flash_attention_blocks.cuh.
#pragma once
#include "kernels/attention/flash_attention_blocks.cuh"
#include "kernels/elementwise/elementwise.cuh"

namespace llmc {

// What a mask says of keys 2 n and 2 n + 1: one register where elements are small.
template <class Mask, int kBytes = sizeof(Mask)>
struct MaskPair {
  Mask at[2];
  __device__ __forceinline__ Mask At(int i) const { return at[i]; }
  __device__ __forceinline__ void Set(Mask first, Mask second) {
    at[0] = first;
    at[1] = second;
  }
  __device__ __forceinline__ void Load(const Mask* aligned) { Set(aligned[0], aligned[1]); }
};

template <class Mask, class Word, class Half>
struct PackedMaskPair {
  Word bits;
  __device__ __forceinline__ Mask At(int i) const {
    const Half half = static_cast<Half>(bits >> 8 * sizeof(Half) * i);
    Mask mask;
    memcpy(&mask, &half, sizeof(mask));
    return mask;
  }
  __device__ __forceinline__ void Set(Mask first, Mask second) {
    Half halves[2];
    memcpy(&halves[0], &first, sizeof(first));
    memcpy(&halves[1], &second, sizeof(second));
    bits = static_cast<Word>(halves[0] | static_cast<u32>(halves[1]) << 8 * sizeof(Half));
  }
  __device__ __forceinline__ void Load(const Mask* aligned) { bits = *reinterpret_cast<const Word*>(aligned); }
};
template <class Mask>
struct MaskPair<Mask, 1> : PackedMaskPair<Mask, u16, u8> {};
template <class Mask>
struct MaskPair<Mask, 2> : PackedMaskPair<Mask, u32, u16> {};

// The rows of a block, for FlashAttention.
template <class C, int kRows>
struct WholeSource {
  using T = typename C::T;
  using Mask = typename C::Mask;
  static constexpr int kKeyDim = C::kKeyDim, kValueDim = C::kValueDim;
  static constexpr bool kAdds = C::kMasked && !kSame<Mask, bool>;
  struct Row {
    const Mask* mask;
    i32 last;     // key that it may see
    bool paired;  // whether the mask's elements can be loaded as Pairs
  };
  using Pair = MaskPair<Mask>;

  T* out;  // of the sequence and the first head; q, k, v and mask, too
  const T* q;
  const T* k;
  const T* v;
  const Mask* mask;
  i64 out_of_head, out_of_query, q_of_head, q_of_query, k_of_key, v_of_key;  // strides
  i64 mask_of_head, mask_of_query, mask_of_key;
  i32 queries, keys, shift;
  i32 first_row;
  i32 first_key, end_key;
  // Where the head begins in the maps of keys and values: bytes of a row, and rows.
  const TileMap* maps[2];
  i32 map_bytes[2], map_rows[2];

  __device__ __forceinline__ bool Has(i32 at) const { return at < queries * C::kGroup; }
  __device__ __forceinline__ const T* Query(int row) const {
    const i32 at = first_row + row;
    return Has(at) ? q + at % C::kGroup * q_of_head + at / C::kGroup * q_of_query : nullptr;
  }
  __device__ __forceinline__ T* Out(int row) const {
    const i32 at = first_row + row;
    return Has(at) ? out + at % C::kGroup * out_of_head + at / C::kGroup * out_of_query : nullptr;
  }
  __device__ __forceinline__ i32 OffsetOf(i32 key) const { return key; }
  __device__ __forceinline__ const T* Key(i32 offset) const { return k + offset * k_of_key; }
  __device__ __forceinline__ const T* Value(i32 offset) const { return v + offset * v_of_key; }
  static constexpr int kMapRows = kFlashMapRows;
  __device__ __forceinline__ i32 MapRowOf(i32 key) const { return key; }
#if LLMC_SM90
  template <bool kOfKeys>
  __device__ __forceinline__ void CopyRows(u32 to, i32 map_row, int part, u64* barrier) const {
    constexpr int kMap = kOfKeys ? 0 : 1;
    CopyTile(to, *maps[kMap], map_bytes[kMap] + part * kTileBytes, map_rows[kMap] + map_row, barrier);
  }
#endif
  // Rows that do not exist are as the last.
  __device__ __forceinline__ i32 LastSeen(int row) const {
    return C::kCausal ? min(keys, min(first_row + row, queries * C::kGroup - 1) / C::kGroup + shift + 1) - 1 : keys - 1;
  }
  __device__ __forceinline__ Row RowOf(int row) const {
    const i32 at = min(first_row + row, queries * C::kGroup - 1);
    const Mask* of_row = C::kMasked ? mask + at % C::kGroup * mask_of_head + at / C::kGroup * mask_of_query : nullptr;
    return {of_row, LastSeen(row), mask_of_key == 1 && reinterpret_cast<u64>(of_row) % (2 * sizeof(Mask)) == 0};
  }
  __device__ __forceinline__ bool Hides(i32, i32 end) const {
    return end > keys || (C::kCausal && end - 1 > LastSeen(0));
  }
  __device__ __forceinline__ bool Sees(const Row& row, i32 key) const { return key <= row.last; }

  // Two at once where they lie together and all exist.
  template <int kPairs>
  __device__ __forceinline__ void Load(const Row& row, i32 begin, MaskPairs<Pair, kPairs>* pairs) const {
    if (!C::kMasked || keys == 0) return;  // then no key is seen
    const i32 first = begin + static_cast<i32>(threadIdx.x) % 4 * 2;
    if (row.paired && begin + 8 * kPairs <= keys) {
#pragma unroll
      for (int n = 0; n < kPairs; ++n) pairs->at[n].Load(row.mask + first + 8 * n);
    } else {
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        const i32 key = first + 8 * n;
        pairs->at[n].Set(row.mask[min(key, keys - 1) * mask_of_key], row.mask[min(key + 1, keys - 1) * mask_of_key]);
      }
    }
  }
  __device__ __forceinline__ float Inverse(int, float, float sum) const { return sum > 0 ? 1 / sum : 0.0f; }
  __device__ __forceinline__ float Join(Pair pair, int i, float score) const {
    if constexpr (kAdds) {
      return score + static_cast<float>(Widen(pair.At(i)));
    } else if constexpr (C::kMasked) {
      return pair.At(i) ? score : -Infinity();
    } else {
      return score;
    }
  }
};

// Maps of keys and values, and the elements where the matrices begin that they map.
template <class T>
struct WholeMaps {
  const TileMap* maps[2];
  const T* begin[2];
};

// The blocks of rows of a block of the grid: neighbours have the same keys.
template <class C>
struct WholeWork {
  static constexpr int kRows = FlashShape<C, (C::kKeyDim > C::kValueDim ? C::kKeyDim : C::kValueDim)>::kRows;
  using T = typename C::T;
  using Source = WholeSource<C, kRows>;

  const Strided<T, 4>& out;
  const Strided<const T, 4>& q;
  const Strided<const T, 4>& k;
  const Strided<const T, 4>& v;
  const Strided<const typename C::Mask, 4>& mask;
  i64 batch;
  i32 queries, keys, shift;
  WholeMaps<T> maps;

  // In causal attention the last rows have most to do, so these are first; and every other time blocks take turns in
  // opposite order, so that each gets about as much.
  template <class Context>
  __device__ __forceinline__ bool Get(const Context& context, i32 turn, Source* source) const {
    const i32 block = context.TileX(), blocks = context.TilesX();
    if (C::kBlocks == 0 && turn > 0) return false;
    const i64 index = static_cast<i64>(turn) * blocks + (turn % 2 == 0 ? block : blocks - 1 - block);
    const i32 tiles = (queries * C::kGroup + kRows - 1) / kRows;
    if (index >= batch * C::kKvHeads * tiles) return false;
    const i64 pair = index / tiles;  // of sequence and KV head
    const i64 sequence = pair / C::kKvHeads, kv_head = pair % C::kKvHeads, head = kv_head * C::kGroup;
    source->out = out.at + sequence * out.stride[0] + head * out.stride[1];
    source->q = q.at + sequence * q.stride[0] + head * q.stride[1];
    source->k = k.at + sequence * k.stride[0] + kv_head * k.stride[1];
    source->v = v.at + sequence * v.stride[0] + kv_head * v.stride[1];
    source->out_of_head = out.stride[1];
    source->out_of_query = out.stride[2];
    source->q_of_head = q.stride[1];
    source->q_of_query = q.stride[2];
    source->k_of_key = k.stride[2];
    source->v_of_key = v.stride[2];
    if constexpr (C::kByMaps) {
      const i64 at[2] = {source->k - maps.begin[0], source->v - maps.begin[1]}, of_row[2] = {k.stride[2], v.stride[2]};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        source->maps[i] = maps.maps[i];
        source->map_rows[i] = static_cast<i32>(at[i] / of_row[i]);
        source->map_bytes[i] = static_cast<i32>(at[i] % of_row[i]) * static_cast<i32>(sizeof(T));
      }
    }
    source->mask = C::kMasked ? mask.at + sequence * mask.stride[0] + head * mask.stride[1] : nullptr;
    source->mask_of_head = mask.stride[1];
    source->mask_of_query = mask.stride[2];
    source->mask_of_key = mask.stride[3];
    source->queries = queries;
    source->keys = keys;
    source->shift = shift;
    source->first_row = (tiles - 1 - static_cast<i32>(index % tiles)) * kRows;
    source->first_key = 0;
    source->end_key = max(0, source->LastSeen(kRows - 1) + 1);
    return true;
  }
};

// `scale_of_op`: the attention's scale, times log2(e) if scores are neither capped nor added to.
template <class C, class Context>
__device__ __forceinline__ void WholeAttention(const Context& context, const Strided<typename C::T, 4>& out,
                                               const Strided<const typename C::T, 4>& q,
                                               const Strided<const typename C::T, 4>& k,
                                               const Strided<const typename C::T, 4>& v,
                                               const Strided<const typename C::Mask, 4>& mask, i64 batch, i64 queries,
                                               i64 keys, i64 shift, float scale_of_op, float softcap,
                                               const WholeMaps<typename C::T>& maps = {}) {
  using Work = WholeWork<C>;
  static_assert(C::kKvHeads > 0 && C::kGroup > 0, "kKvHeads, kGroup: heads");
  context.Wait();
  const Work work = {
      out, q, k, v, mask, batch, static_cast<i32>(queries), static_cast<i32>(keys), static_cast<i32>(shift), maps};
  FlashAttentionBlocks<C>(context, work, ScoreScale<C::kSoftcap, Work::Source::kAdds>(scale_of_op, softcap));
}

// `k_map`, `v_map`: from `k_begin` and `v_begin` on.
template <class C, class Context>
__device__ __forceinline__ void WholeAttentionByMaps(const Context& context, const Strided<typename C::T, 4>& out,
                                                     const Strided<const typename C::T, 4>& q,
                                                     const Strided<const typename C::T, 4>& k,
                                                     const Strided<const typename C::T, 4>& v,
                                                     const Strided<const typename C::Mask, 4>& mask, i64 batch,
                                                     i64 queries, i64 keys, i64 shift, float scale_of_op, float softcap,
                                                     const TileMap& k_map, const TileMap& v_map,
                                                     const typename C::T* k_begin, const typename C::T* v_begin) {
  WholeAttention<C>(context, out, q, k, v, mask, batch, queries, keys, shift, scale_of_op, softcap,
                    WholeMaps<typename C::T>{{&k_map, &v_map}, {k_begin, v_begin}});
}

}  // namespace llmc
