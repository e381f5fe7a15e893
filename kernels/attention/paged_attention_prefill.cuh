// Causal attention of chunks of prompts over their sequences' paged KV cache, on tensor cores (flash_attention.cuh).
//
// A block has kRows rows of one sequence and KV head: tokens, in each the query heads that share the KV head, so that
// keys and values are read once for them and short chunks fill a tile. Tiles are found by counting through `starts`,
// from the end of the step: in a prompt the last tokens have most to do.
//
// C::T: element type, 16 bits.  C::kKvHeads, C::kGroup: KV heads, and query heads of each.  C::kHeadDim; where they
// lie: paged_kv.cuh. C::kTokens: sequences of so few tokens in the step are left alone (for
// paged_attention_decode.cuh). C::kWindow, C::kChunk: FirstSeen.  C::kSoftcap: whether scores are capped. The rest of
// C: see flash_attention_blocks.cuh.  `terms`: HeadTerms. `scale_of_op`: see ScoreScale; slopes are added to scores, as
// its kAdds says.
//
// C::kDecodedRows, of a cache that is encoded: there is room for so many decoded rows (decoded_rows.cuh). One launch
// has the sequences whose rows are decoded, and `kv` is these; it is of a C without codes. Another one has the others.
#pragma once
#include "kernels/attention/decoded_rows.cuh"
#include "kernels/attention/flash_attention_blocks.cuh"
#include "kernels/attention/head_terms.cuh"
#include "kernels/attention/paged_kv.cuh"

namespace llmc {

// Which sequences have tiles: `Enter` is told the lane's sequence, of 32 after the other from the last to the first,
// negative if there is none; all lanes of a warp together. Those of more than C::kTokens tokens.
template <class C>
struct ChunkedSequences {
  const i32* __restrict__ starts;
  __device__ __forceinline__ void Enter(i32) {}
  __device__ __forceinline__ bool Takes() const { return true; }
};
// Of these, those whose rows are decoded, or the others.
template <class C>
struct EncodedSequences : DecodedSequences<C> {
  __device__ __forceinline__ bool Takes() const { return this->AreDecoded() != kIsEncoded<C>; }
};

// The tile of a block.
struct PrefillTile {
  i32 sequence, tile;
  i32 lane;  // that was told the sequence
};

// Tile number `index` from the end of the step; false if there are not so many. All lanes of a warp together.
template <class C, int kRows, class Sequences>
__device__ __forceinline__ bool FindPrefillTile(Sequences& all, i32 sequences, i32 index, PrefillTile* found) {
  const i32 lane = threadIdx.x % 32;
  i32 before = 0;
  for (i32 base = 0; base < sequences; base += 32) {
    const i32 sequence = sequences - 1 - (base + lane);
    all.Enter(sequence);
    i32 tiles = 0;
    if (sequence >= 0) {
      const i32 tokens = all.starts[sequence + 1] - all.starts[sequence];
      if (tokens > C::kTokens && all.Takes()) tiles = (tokens * C::kGroup + kRows - 1) / kRows;
    }
    const i32 through = WarpSumThrough(tiles);
    const u32 past = __ballot_sync(~0u, before + through > index);
    if (past != 0) {
      const i32 first = __ffs(static_cast<i32>(past)) - 1;
      found->lane = first;
      found->sequence = __shfl_sync(~0u, sequence, first);
      found->tile = __shfl_sync(~0u, before + through, first) - 1 - index;
      return true;
    }
    before += __shfl_sync(~0u, through, 31);
  }
  return false;
}

// Where the keys and values of a sequence and a head lie, as a Source of FlashAttention says it: in pages,
template <class C>
struct PagedKeys {
  using T = typename C::T;
  using Sequences = ChunkedSequences<C>;
  static __device__ __forceinline__ Sequences SequencesOf(const i32* starts, const i32*) { return {starts}; }
  const T* __restrict__ keys;  // of the head, from page 0 on
  const i32* __restrict__ table;
  const TileMap* map;  // of the cache, where there is one
  i32 first_map_row;   // of the head's keys in page 0

  __device__ __forceinline__ PagedKeys() = default;
  __device__ __forceinline__ PagedKeys(const T* kv, const i32* table, const TileMap* map, const StaticScales&,
                                       const Sequences&, i32, i32 head)
      : keys(kv + KeysOfHead<C>(head)),
        table(table),
        map(map),
        first_map_row(static_cast<i32>(KeysOfHead<C>(head) / C::kHeadDim)) {}
  static constexpr int kMapRows = C::kPageSize < kFlashMapRows ? C::kPageSize : kFlashMapRows;
  __device__ __forceinline__ i32 MapRowOf(i32 key) const {
    static_assert(!C::kByMaps || (C::kPageElements % C::kHeadDim == 0 && C::kKeysAt % C::kHeadDim == 0 &&
                                  C::kValuesAt % C::kHeadDim == 0 && C::kPageSize % kMapRows == 0),
                  "pages are whole rows, and whole copies");
    const u32 at = static_cast<u32>(key);
    const i32 page = table[at / C::kPageSize];
    return page * static_cast<i32>(C::kPageElements / C::kHeadDim) + static_cast<i32>(at % C::kPageSize);
  }
#if LLMC_SM90
  template <bool kOfKeys>
  __device__ __forceinline__ void CopyRows(u32 to, i32 map_row, int part, u64* barrier) const {
    constexpr i32 kOther = kOfKeys ? 0 : static_cast<i32>((C::kValuesAt - C::kKeysAt) / C::kHeadDim);
    CopyTile(to, *map, part * kTileBytes, first_map_row + kOther + map_row, barrier);
  }
#endif
  __device__ __forceinline__ i32 OffsetOf(i32 key) const { return SlotOf<C>(table, key); }
  __device__ __forceinline__ const T* Key(i32 slot) const {
    return keys + RowOfSlot<C, C::kHeadDim>(static_cast<u32>(slot));
  }
  __device__ __forceinline__ const T* Value(i32 slot) const { return Key(slot) + (C::kValuesAt - C::kKeysAt); }
};
// as codes in pages,
template <class C>
struct EncodedKeys {
  using Chunk = CachedChunk<C>;
  using Sequences = EncodedSequences<C>;
  static __device__ __forceinline__ Sequences SequencesOf(const i32* starts, const i32* lens) { return {starts, lens}; }
  const u8* __restrict__ kv;
  const i32* __restrict__ table;
  StaticScales static_scales;
  i32 of_head;

  __device__ __forceinline__ EncodedKeys() = default;
  __device__ __forceinline__ EncodedKeys(const u8* kv, const i32* table, const TileMap*,
                                         const StaticScales& static_scales, const Sequences&, i32, i32 head)
      : kv(kv), table(table), static_scales(static_scales), of_head(head) {}
  __device__ __forceinline__ i32 OffsetOf(i32 key) const { return SlotOf<C>(table, key); }
  __device__ __forceinline__ void LoadChunk(i32 slot, int part, int column, Chunk* chunk) const {
    chunk->Load(kv, static_cast<u32>(slot), part, of_head, column, static_scales);
  }
};
// or decoded, one after the other. `lane`: of the sequence in `sequences`.
template <class C>
struct DecodedKeys {
  using T = typename C::T;
  using Sequences = EncodedSequences<C>;
  static __device__ __forceinline__ Sequences SequencesOf(const i32* starts, const i32* lens) { return {starts, lens}; }
  const T* __restrict__ rows;  // from that of position 0 on, if there were one

  __device__ __forceinline__ DecodedKeys() = default;
  __device__ __forceinline__ DecodedKeys(const T* kv, const i32*, const TileMap*, const StaticScales&,
                                         const Sequences& sequences, i32 lane, i32 head)
      : rows(kv + DecodedRow<C>(head, __shfl_sync(~0u, sequences.begin - sequences.position, lane))) {}
  __device__ __forceinline__ i32 OffsetOf(i32 key) const { return key; }
  __device__ __forceinline__ const T* Key(i32 key) const { return rows + static_cast<i64>(key) * (2 * C::kHeadDim); }
  __device__ __forceinline__ const T* Value(i32 key) const { return Key(key) + C::kHeadDim; }
};
template <class C, bool kEncoded = kIsEncoded<C>, bool kDecoded = (kDecodedRows<C> > 0)>
struct KeysOf {
  using Type = PagedKeys<C>;
};
template <class C>
struct KeysOf<C, false, true> {
  using Type = DecodedKeys<C>;
};
template <class C, bool kDecoded>
struct KeysOf<C, true, kDecoded> {
  using Type = EncodedKeys<C>;
};

// The rows of a tile, for FlashAttention.
template <class C, int kRows, class Terms, class Keys>
struct PrefillSource : Terms, Keys {
  using T = typename C::T;
  static constexpr int kHeads = C::kKvHeads * C::kGroup;
  static constexpr int kKeyDim = C::kHeadDim, kValueDim = C::kHeadDim;
  static constexpr bool kAdds = Terms::kSlopes;
  struct Row {
    i32 first, last;  // positions that it sees
    i32 query_head;
  };
  // Of a row and two keys: how far the first lies behind the row's token.
  struct Pair {
    i32 distance, query_head;
  };

  T* __restrict__ out;
  const T* __restrict__ q;
  i32 head;                    // of the KV heads
  i32 first_token, first_row;  // of the sequence in the step; of the tile in the sequence
  i32 rows, position;          // of the sequence; of its first token
  i32 first_key, end_key;

  // Where row `row` of the tile begins in [T, heads * kHeadDim]; negative if there is no such row.
  __device__ __forceinline__ i64 Offset(int row) const {
    const i32 at = first_row + row;
    if (at >= rows) return -1;
    const i64 first_head = (first_token + at / C::kGroup) * static_cast<i64>(kHeads) + head * C::kGroup;
    return (first_head + at % C::kGroup) * C::kHeadDim;
  }
  __device__ __forceinline__ const T* Query(int row) const {
    const i64 offset = Offset(row);
    return offset < 0 ? nullptr : q + offset;
  }
  __device__ __forceinline__ T* Out(int row) const {
    const i64 offset = Offset(row);
    return offset < 0 ? nullptr : out + offset;
  }
  __device__ __forceinline__ Row RowOf(int row) const {
    const i32 own = position + (first_row + row) / C::kGroup;
    return {FirstSeen<C>(own), own, head * C::kGroup + (first_row + row) % C::kGroup};
  }
  template <int kPairs>
  __device__ __forceinline__ void Load(const Row& row, i32 begin, MaskPairs<Pair, kPairs>* pairs) const {
    if constexpr (Terms::kSlopes) {
      const i32 distance = begin + static_cast<i32>(threadIdx.x) % 4 * 2 - row.last;
#pragma unroll
      for (int n = 0; n < kPairs; ++n) pairs->at[n] = {distance + 8 * n, row.query_head};
    }
  }
  __device__ __forceinline__ float Join(const Pair& pair, int i, float score) const {
    return Terms::Join(pair.query_head, pair.distance + i, score);
  }
  __device__ __forceinline__ float Inverse(int row, float top, float sum) const {
    return Terms::Inverse(RowOf(row).query_head, top, sum);
  }
  __device__ __forceinline__ bool Hides(i32 begin, i32 end) const {
    const bool before_first = (C::kWindow > 0 || C::kChunk > 0) && begin < RowOf(kRows - 1).first;
    return before_first || end - 1 > RowOf(0).last;
  }
  __device__ __forceinline__ bool Sees(const Row& row, i32 key) const { return key <= row.last && key >= row.first; }
};

// The tiles of a block.
template <class C, class Terms>
struct PrefillWork {
  using T = typename C::T;
  static constexpr int kRows = FlashShape<C, C::kHeadDim>::kRows;
  using Keys = typename KeysOf<C>::Type;
  using Source = PrefillSource<C, kRows, Terms, Keys>;

  T* __restrict__ out;
  const T* __restrict__ q;
  const CacheElement<C>* __restrict__ kv;
  const i32* __restrict__ pages;
  const i32* __restrict__ lens;
  const i32* __restrict__ starts;
  i32 sequences;
  i64 pages_per_sequence;
  const TileMap* map;
  Terms terms;
  StaticScales static_scales;

  // Every other time blocks take tiles in opposite order, so that each gets about as much to do.
  template <class Context>
  __device__ __forceinline__ bool Get(const Context& context, i32 turn, Source* source) const {
    const i32 block = context.TileX(), blocks = context.TilesX();
    if (C::kBlocks == 0 && turn > 0) return false;
    const i32 index = turn * blocks + (turn % 2 == 0 ? block : blocks - 1 - block);
    PrefillTile at;
    typename Keys::Sequences all = Keys::SequencesOf(starts, lens);
    if (!FindPrefillTile<C, kRows>(all, sequences, index / C::kKvHeads, &at)) return false;
    source->out = out;
    static_cast<Terms&>(*source) = terms;
    source->q = q;
    source->head = index % C::kKvHeads;
    static_cast<Keys&>(*source) =
        Keys(kv, pages + at.sequence * pages_per_sequence, map, static_scales, all, at.lane, source->head);
    source->first_token = starts[at.sequence];
    source->first_row = at.tile * kRows;
    const i32 tokens = starts[at.sequence + 1] - source->first_token, length = lens[at.sequence];
    source->rows = tokens * C::kGroup;
    source->position = length - tokens;
    source->first_key = source->RowOf(0).first;
    source->end_key = min(source->RowOf(kRows - 1).last + 1, length);
    return true;
  }
};

// `map`: with kByMaps, of the cache as rows of kHeadDim elements.
template <class C, class Context, class Terms>
__device__ __forceinline__ void AttendChunks(const Context& context, typename C::T* __restrict__ out,
                                             const typename C::T* __restrict__ q,
                                             const CacheElement<C>* __restrict__ kv, const i32* __restrict__ pages,
                                             const i32* __restrict__ lens, const i32* __restrict__ starts,
                                             const TileMap* map, i64 sequences, i64 pages_per_sequence,
                                             float scale_of_op, float softcap, const Terms& terms,
                                             const StaticScales& static_scales) {
  using Work = PrefillWork<C, Terms>;
  static_assert(C::kKvHeads > 0 && C::kGroup > 0 && C::kPageSize > 0, "kKvHeads, kGroup, kPageSize: of the state");
  static_assert(C::kTokens >= 0, "kTokens: left alone");
  context.Wait();
  const Work work = {out, q,     kv,           pages, lens, starts, static_cast<i32>(sequences), pages_per_sequence,
                     map, terms, static_scales};
  FlashAttentionBlocks<C>(context, work, ScoreScale<C::kSoftcap, Terms::kSlopes>(scale_of_op, softcap));
}

template <class C, class Context, class Terms = HeadTerms<false, false>>
__device__ __forceinline__ void PagedAttentionPrefill(const Context& context, typename C::T* __restrict__ out,
                                                      const typename C::T* __restrict__ q,
                                                      const CacheElement<C>* __restrict__ kv,
                                                      const i32* __restrict__ pages, const i32* __restrict__ lens,
                                                      const i32* __restrict__ starts, i64 sequences,
                                                      i64 pages_per_sequence, float scale_of_op, float softcap,
                                                      const Terms& terms = {}, const StaticScales& static_scales = {}) {
  AttendChunks<C>(context, out, q, kv, pages, lens, starts, nullptr, sequences, pages_per_sequence, scale_of_op,
                  softcap, terms, static_scales);
}

template <class C, class Context, class Terms = HeadTerms<false, false>>
__device__ __forceinline__ void PagedAttentionPrefillByMap(const Context& context, typename C::T* __restrict__ out,
                                                           const typename C::T* __restrict__ q,
                                                           const typename C::T* __restrict__ kv,
                                                           const i32* __restrict__ pages, const i32* __restrict__ lens,
                                                           const i32* __restrict__ starts, const TileMap& map,
                                                           i64 sequences, i64 pages_per_sequence, float scale_of_op,
                                                           float softcap, const Terms& terms = {}) {
  AttendChunks<C>(context, out, q, kv, pages, lens, starts, &map, sequences, pages_per_sequence, scale_of_op, softcap,
                  terms, StaticScales{});
}

}  // namespace llmc
