// The work items of paged_attention_decode.cuh, and the copies of their keys and values to shared memory.
#pragma once
#include "kernels/attention/decode_codes.cuh"
#include "kernels/attention/decode_shape.cuh"
#include "kernels/attention/paged_kv.cuh"

namespace llmc {

// Of a step of one sequence with one token, or none, whose length is read once.
template <class C>
struct OneSequence : C {
  static constexpr bool kIsOneSequence = true;
  static_assert(C::kTokens == 1, "one token");
};
template <class C, class = void>
inline constexpr bool kIsOneSequence = false;
template <class C>
inline constexpr bool kIsOneSequence<C, typename VoidOf<decltype(C::kIsOneSequence)>::Type> = true;

// The step as the blocks share it.
template <class C>
struct DecodeStep {
  const i32* __restrict__ pages;
  const i32* __restrict__ lens;
  const i32* __restrict__ starts;
  i32 sequences;
  i64 pages_per_sequence;
  i32 least;       // numbers that a (sequence, head) takes at the least, though it has fewer tiles
  i32 length = 0;  // of one sequence

  // The first position that any token of this step sees.
  __device__ __forceinline__ i32 FirstKey(i32 length, i32 tokens) const { return FirstSeen<C>(length - tokens); }

  // For each KV head.
  __device__ __forceinline__ i32 Tiles(i32 sequence) const {
    if (sequence >= sequences) return 0;
    const i32 tokens = starts[sequence + 1] - starts[sequence], length = lens[sequence];
    if (tokens < 1 || tokens > C::kTokens) return 0;
    return TilesOf(length, tokens);
  }
  __device__ __forceinline__ i32 TilesOf(i32 length, i32 tokens) const {
    return (length + C::kTile - 1) / C::kTile - FirstKey(length, tokens) / C::kTile;
  }
  __device__ __forceinline__ i32 Numbers(i32 tiles) const { return tiles == 0 ? 0 : max(tiles, least); }
};

// A run of tiles of one (sequence, KV head): what a block does at a time.
template <class C>
struct DecodeItem {
  i32 sequence, head;
  i32 token, tokens, length;  // the sequence's first token, their number, and the positions in its cache
  i32 tiles, origin;          // of the (sequence, head): all its tiles, and the number of the first in the step
  i32 begin, end;             // of these, those of the item

  // The item of tile `from` of the step, if `to` is the end of the block's run. All lanes of a warp together.
  __device__ __forceinline__ void Find(const DecodeStep<C>& step, i32 from, i32 to) {
    if constexpr (kIsOneSequence<C>) {
      sequence = 0;
      tiles = step.TilesOf(step.length, 1);
      head = from / step.Numbers(tiles);
      origin = head * step.Numbers(tiles);
      return Enter(step, from, to);
    }
    i32 before = 0;
    for (i32 base = 0;; base += 32) {
      const i32 lane = threadIdx.x % 32, own = step.Numbers(step.Tiles(base + lane)) * C::kKvHeads;
      const i32 through = WarpSumThrough(own);  // numbers of sequences up to this lane's
      const u32 past = __ballot_sync(~0u, before + through > from);
      if (past != 0) {
        const i32 found = __ffs(static_cast<i32>(past)) - 1;
        before += __shfl_sync(~0u, through - own, found);
        sequence = base + found;
        break;
      }
      before += __shfl_sync(~0u, through, 31);
    }
    tiles = step.Tiles(sequence);
    head = (from - before) / step.Numbers(tiles);
    origin = before + head * step.Numbers(tiles);
    Enter(step, from, to);
  }

  // The next item of the run; false if there is none.
  __device__ __forceinline__ bool Next(const DecodeStep<C>& step, i32 to) {
    origin += step.Numbers(tiles);
    if (origin >= to) return false;
    ++head;
    if (!kIsOneSequence<C> && head == C::kKvHeads) {
      head = 0;
      do tiles = step.Tiles(++sequence);
      while (tiles == 0);
    }
    Enter(step, origin, to);
    return true;
  }

  __device__ __forceinline__ bool IsWhole() const { return begin == 0 && end == tiles; }

  // The query head of row r.
  __device__ __forceinline__ i32 QueryHead(int r) const { return head * C::kGroup + r % C::kGroup; }

  // Where row r of the queries, and of the result, begins in [T, heads * kHeadDim].
  __device__ __forceinline__ i64 Row(int r) const {
    const i64 first_head = (token + r / C::kGroup) * static_cast<i64>(C::kKvHeads * C::kGroup) + head * C::kGroup;
    return (first_head + r % C::kGroup) * C::kHeadDim;
  }

 private:
  __device__ __forceinline__ void Enter(const DecodeStep<C>& step, i32 from, i32 to) {
    if constexpr (kIsOneSequence<C>) {
      token = 0;
      tokens = 1;
      length = step.length;
    } else {
      token = step.starts[sequence];
      tokens = step.starts[sequence + 1] - token;
      length = step.lens[sequence];
    }
    begin = from - origin;
    end = min(to - origin, tiles);
  }
};

struct NoKeyScales {};
template <class C, bool kEncoded>
struct StepScalesOf {
  using Type = NoKeyScales;
};
template <class C>
struct StepScalesOf<C, true> {
  using Type = KeyScales<C>;
};

// The tiles of one warp in the block's run, as they are copied.
template <class C>
struct DecodeCopies {
  using T = typename C::T;
  using S = DecodeShape<C>;
  using Element = CacheElement<C>;
  // Each tile lies in one page, and a warp copies whole rows at once: less code, which counts in a persistent launch.
  static constexpr bool kInPages =
      kIsOneSequence<C> && !kIsEncoded<C> && C::kPageSize % C::kTile == 0 && 32 % S::kChunks == 0;

  const DecodeStep<C>& step;
  const Element* __restrict__ kv;
  StaticScales static_scales;
  DecodeItem<C> item;
  i32 tile, to;
  bool copies_newest;  // or the newest position comes from elsewhere
  i32 slot = -1;       // of the position lane % kTile of the tile; -1: not there; or, if kInPages:
  i32 page = 0, tile_at = 0, first_row = 0, end_row = 0;  // of the tile, its first position, and rows that are there
  bool done = false;
  typename StepScalesOf<C, kIsEncoded<C>>::Type scales[S::kAhead];  // of the tiles that are on their way

  __device__ __forceinline__ DecodeCopies(const DecodeStep<C>& step, const Element* kv,
                                          const StaticScales& static_scales, const DecodeItem<C>& item, i32 to,
                                          bool copies_newest)
      : step(step),
        kv(kv),
        static_scales(static_scales),
        item(item),
        tile(item.begin + threadIdx.x / 32),
        to(to),
        copies_newest(copies_newest) {
    FindSlot();
  }

  // Whether the next tile was in the cache before the step, so that no kernel of the step writes it.
  __device__ __forceinline__ bool IsOld() const {
    const i32 first = step.FirstKey(item.length, item.tokens) / C::kTile;
    return done || (first + tile + 1) * C::kTile <= item.length - item.tokens;
  }

  // Starts the copy of the next tile, if there is one; of `ahead` that are on their way.
  __device__ __forceinline__ void Issue(u32 stage, int ahead) {
    if constexpr (kIsEncoded<C>) {
      if (!done) IssueCodes(stage, ahead);
    } else if constexpr (kInPages) {
      if (!done) IssueRows(stage);
    } else if (!done) {
      const T* base = kv + KeysOfHead<C>(item.head);
#pragma unroll
      for (int i = 0; i < C::kTile * S::kChunks / 32; ++i) {
        const int at = i * 32 + threadIdx.x % 32, r = at / S::kChunks, column = at % S::kChunks * S::kVec;
        const i32 from_slot = __shfl_sync(~0u, slot, r);
        const bool exists = from_slot >= 0 && column < C::kHeadDim;
        const T* from = base + (exists ? RowOfSlot<C, C::kHeadDim>(static_cast<u32>(from_slot)) + column : 0);
        const u32 at_stage = stage + (r * S::kStride + column) * static_cast<u32>(sizeof(T));
        CopyAsync(at_stage, from, exists);
        CopyAsync(at_stage + S::kPart * sizeof(T), from + (C::kValuesAt - C::kKeysAt), exists);
      }
      tile += S::kWarps;
      FindSlot();
    }
    CommitCopies();
  }

  // Of the tile that is computed next, to shared memory.
  template <class Tile>
  __device__ __forceinline__ void TakeScales(const TileScales<C>& to, Tile* tile) {
    scales[0].Store(to, tile->RaiseGain(scales[0].GreatestOfValues()));
#pragma unroll
    for (int i = 0; i + 1 < S::kAhead; ++i) scales[i] = scales[i + 1];
  }

 private:
  __device__ __forceinline__ void IssueRows(u32 stage) {
    constexpr int kRows = 32 / S::kChunks;  // that a warp copies at once
    const int lane = threadIdx.x % 32, row = lane / S::kChunks, column = lane % S::kChunks * S::kVec;
    const i32 place = tile_at % C::kPageSize;
    const T* const from = kv + KeysOfHead<C>(item.head) + static_cast<i64>(page) * C::kPageElements +
                          (place + row) * C::kHeadDim + (column < C::kHeadDim ? column : 0);
    const u32 to = stage + (row * S::kStride + column) * static_cast<u32>(sizeof(T));
#pragma unroll
    for (int r = 0; r < C::kTile; r += kRows) {
      const bool exists = r + row >= first_row && r + row < end_row && column < C::kHeadDim;
      CopyAsync(to + r * S::kStride * static_cast<u32>(sizeof(T)), from + r * C::kHeadDim, exists);
      CopyAsync(to + (r * S::kStride + S::kPart) * static_cast<u32>(sizeof(T)),
                from + r * C::kHeadDim + (C::kValuesAt - C::kKeysAt), exists);
    }
    tile += S::kWarps;
    FindSlot();
  }

  __device__ __forceinline__ void IssueCodes(u32 stage, int ahead) {
    using P = CodePlaces<C>;
    constexpr int kBytes = ElementsOfVector(P::kRowBytes, 8), kRowChunks = S::kLayout.RowBytes() / kBytes;
    const u8* const base = kv + P::Codes(0, 0, item.head);
    constexpr int kChunks = C::kTile * kRowChunks;
#pragma unroll
    for (int i = 0; i < (kChunks + 31) / 32; ++i) {
      const int at = i * 32 + threadIdx.x % 32, r = at / kRowChunks, column = at % kRowChunks * kBytes;
      const i32 from_slot = __shfl_sync(~0u, slot, r % C::kTile);
      if (kChunks % 32 != 0 && at >= kChunks) continue;
      const bool exists = from_slot >= 0 && column < P::kRowBytes;
      const u32 at_slot = static_cast<u32>(exists ? from_slot : 0);
      const u8* from = base + static_cast<i64>(at_slot / C::kPageSize) * C::kPageBytes +
                       at_slot % C::kPageSize * P::kRowBytes + (exists ? column : 0);
      const u32 at_stage = stage + r * S::kStrideBytes + column;
      CopyAsyncIf<kBytes>(at_stage, from, exists);
      CopyAsyncIf<kBytes>(at_stage + S::kPartBytes, from + (C::kValuesAt - C::kKeysAt), exists);
    }
    scales[ahead].Load(kv, slot, item.head, static_scales);
    tile += S::kWarps;
    FindSlot();
  }

  // Looked up one tile ahead, so that no copy waits for the page table.
  __device__ __forceinline__ void FindSlot() {
    while (tile >= item.end) {
      if (!item.Next(step, to)) {
        done = true;
        return;
      }
      tile = item.begin + threadIdx.x / 32;
    }
    const i32 first = step.FirstKey(item.length, item.tokens);
    const i32* table = step.pages + item.sequence * step.pages_per_sequence;
    const i32 end = item.length - (copies_newest ? 0 : 1);
    if constexpr (kInPages) {
      tile_at = (first / C::kTile + tile) * C::kTile;
      page = table[tile_at / C::kPageSize];
      first_row = first - tile_at;
      end_row = end - tile_at;
      return;
    }
    const i32 position = (first / C::kTile + tile) * C::kTile + threadIdx.x % C::kTile;
    slot = position >= first && position < end ? SlotOf<C>(table, position) : -1;
  }
};

}  // namespace llmc
