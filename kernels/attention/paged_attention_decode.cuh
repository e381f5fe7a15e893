// Causal attention of a few tokens of each sequence over its paged KV cache: decoding. Bound by the reading of the
// cache, so it is split over all blocks (flash-decoding, https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
//
// The cache is cut into tiles of kTile positions of one sequence and KV head, counted through the whole step: sequence
// after sequence, in it head after head. Each of the kBlocks blocks takes an equal run of tiles, whatever the lengths
// of the sequences (stream-K). A run consists of work items, each of one (sequence, head). Inside an item the tiles go
// to the warps in turn; each warp copies its own, kStages - 1 ahead and across items, into a ring in shared memory (or
// the next one when it has read the only stage), so that nothing but the end of an item makes warps wait for each
// other. The query heads that share a KV head are the rows of one matrix, so each key and value is read once.
//
// In a persistent launch queries, and the newest key and value, may come as a row of one token (decode_heads.cuh), and
// the result may go to the next task as one.
//
// An item that is all of its (sequence, head) gives the result. Else its sums go to `scratch`, and the block that comes
// last, by a counter, merges the items: out = sum_i exp(top_i) out_i / sum_i exp(top_i) sum_i.
//
// C::kEarly: copies begin while the kernels before still run, of positions that were in the cache before the step, and
// so the reading of pages, lens and starts: no kernel that lets its successors start early may write them, as is so in
// the decode steps of language models.
//
// C::T: element type.  C::kKvHeads, C::kGroup: KV heads, and query heads of each.  C::kHeadDim; where they lie:
// paged_kv.cuh. C::kTokens: a sequence that has more tokens in the step, or none, is left alone. C::kWindow,
// C::kChunk: FirstSeen.  C::kSoftcap: whether scores are capped. C::kBlocks: blocks of the grid.  C::kThreads: of
// a block, fewer of which work where there is less memory.  C::kTile: 16 or 32.  C::kStages: of a ring.
// C::kSharedBytes: the dynamic shared memory.  `terms`: HeadTerms. `scale_of_op`: see ScoreScale; slopes are added to
// scores, as its kAdds says. Where the cache is encoded, T is of 16 bits; see decode_codes.cuh.
#pragma once
#include "kernels/attention/decode_heads.cuh"
#include "kernels/attention/decode_items.cuh"
#include "kernels/attention/decode_sums.cuh"
#include "kernels/attention/decode_tile.cuh"

namespace llmc {

// The tiles of a block.
template <class C>
struct DecodeShare {
  using S = DecodeShape<C>;
  DecodeStep<C> step;
  i32 tiles = 0;  // of the step
  i32 share, from, to;

  __device__ __forceinline__ DecodeShare(u32 block, const i32* pages, const i32* lens, const i32* starts, i64 sequences,
                                         i64 pages_per_sequence)
      : step{pages, lens, starts, static_cast<i32>(sequences), pages_per_sequence, 0} {
    i32 most = 0, used = 0;
    if constexpr (kIsOneSequence<C>) {
      step.length = lens[0];
      most = starts[1] > starts[0] ? step.TilesOf(step.length, 1) : 0;
      tiles = most * C::kKvHeads;
      used = most > 0 ? C::kKvHeads : 0;
    } else {
      for (i32 base = 0; base < step.sequences; base += 32) {
        const i32 own = step.Tiles(base + static_cast<i32>(threadIdx.x % 32));
        tiles += own;
        most = max(most, own);
        used += own > 0 ? 1 : 0;
      }
      tiles = WarpSum(tiles) * C::kKvHeads;
      most = WarpMax(most);
      used = WarpSum(used) * C::kKvHeads;
    }
    // To split short sequences and merge them again takes longer than to read them.
    share = max((tiles + C::kBlocks - 1) / C::kBlocks, S::kWarps);
    if (most <= 2 * S::kWarps && used <= C::kBlocks) {
      share = step.least = most;
      tiles = used * most;
    }
    from = static_cast<i32>(block) * share;
    to = min(from + share, tiles);
  }
};

// A step without a token has a row all the same, which the next task waits for.
template <class C, class Context>
__device__ __forceinline__ void GiveNothing(const Context& context) {
  if (context.TileX() >= C::kKvHeads) return;
  constexpr int kCount = C::kGroup * C::kHeadDim;
  for (int at = threadIdx.x; at < kCount; at += DecodeShape<C>::kThreads) {
    context.Given().Give(static_cast<int>(context.TileX()) * kCount + at, typename C::T{});
  }
}

// Over 60 lines: what a block takes, then one loop over its items and tiles.
template <class C, class Context, class Heads, class Terms>
__device__ __forceinline__ void AttendDecoding(const Context& context, typename C::T* __restrict__ out,
                                               const Heads& heads, bool& last, const CacheElement<C>* __restrict__ kv,
                                               const i32* __restrict__ pages, const i32* __restrict__ lens,
                                               const i32* __restrict__ starts, float* partials, i32* counters,
                                               i64 sequences, i64 pages_per_sequence, float scale_of_op, float softcap,
                                               const Terms& terms, const StaticScales& static_scales) {
  using T = typename C::T;
  using S = DecodeShape<C>;
  char* const dynamic_shared = context.template Arena<128>();
  if (threadIdx.x >= S::kThreads) return;
  if constexpr (!C::kEarly) context.Wait();
  float* merge_floats = reinterpret_cast<float*>(dynamic_shared + S::kRingBytes);
  const i32 warp = threadIdx.x / 32;
  char* const ring = dynamic_shared + warp * S::kLayout.RingBytes();

  const DecodeShare<C> own(context.TileX(), pages, lens, starts, sequences, pages_per_sequence);
  const DecodeStep<C>& step = own.step;
  const i32 from = own.from, to = own.to;
  if (from >= to) {
    context.Wait();  // a kernel ends after all before it
    if constexpr (kGivesRow<Context>) {
      if (own.tiles == 0) GiveNothing<C>(context);
    }
    if constexpr (kRoleOf<Context> == Role::kCompute) context.HasReadBack();
    return;
  }

  DecodeItem<C> item;
  item.Find(step, from, to);
  DecodeCopies<C> copies(step, kv, static_scales, item, to, !Heads::kTakes);
  bool waited = !C::kEarly;
#pragma unroll
  for (int i = 0; i < S::kAhead; ++i) {
    if (!waited && !Heads::kTakes && !copies.IsOld()) {
      context.Wait();
      waited = true;
    }
    copies.Issue(SharedAddress(ring + i * 2 * S::kPartBytes), i);
  }
  if (!waited) context.Wait();

  const ScoreScale<C::kSoftcap, Terms::kSlopes> scale(scale_of_op, softcap);
  const DecodeMerge<C, Context, Terms> merge = {context, last, out, partials, counters, merge_floats, own.share, terms};
  i32 stage = 0;  // to be computed
  typename DecodeTileOf<C, kIsEncoded<C> ? 0 : sizeof(T)>::Tile warp_tile;
  const auto load_queries = [&](const DecodeItem<C>& of) { warp_tile.Load([&](int r) { return heads.Row(of, r); }); };
  if constexpr (Heads::kTakes) {
    heads.Take(item);
    context.Sync();
    if constexpr (kRoleOf<Context> == Role::kCompute) context.TellInput();
  }
  load_queries(item);
  bool is_there = true;
  for (bool more = true; more;) {
    warp_tile.Begin();
    const i32 first_tile = step.FirstKey(item.length, item.tokens) / C::kTile;
    for (i32 tile = item.begin + warp; tile < item.end; tile += S::kWarps) {
      WaitForCopies<S::kAhead - 1>();
      __syncwarp();  // all lanes' copies are here, and all have read the stage before
      const i32 filled = stage == 0 ? C::kStages - 1 : stage - 1;
      const auto issue = [&] {
        if constexpr (C::kStages == 1) __syncwarp();  // all lanes have read the only one
        copies.Issue(SharedAddress(ring + filled * 2 * S::kPartBytes), S::kAhead - 1);
      };
      const char* const at = ring + stage * 2 * S::kPartBytes;
      const i32 first_key = (first_tile + tile) * C::kTile;
      if constexpr (Heads::kTakes) {
        if (tile == item.tiles - 1) {
          T* const newest =
              reinterpret_cast<T*>(ring + stage * 2 * S::kPartBytes) + (item.length - 1 - first_key) * S::kStride;
          heads.PutNewest(newest, newest + S::kPart);
          __syncwarp();
        }
      }
      const bool all_see =
          first_key + C::kTile <= item.length - item.tokens + 1 && first_key >= FirstSeen<C>(item.length - 1);
      // Products of floats wait for memory whether that is skipped or not.
      const bool joins = !kIsEncoded<C> || Terms::kSlopes || !all_see;
      const auto join = [&](int r, int key, float score) {
        const i32 position = first_key + key, own = item.length - item.tokens + r / C::kGroup;
        const bool sees = position <= own && position >= FirstSeen<C>(own);
        return sees ? terms.Join(item.QueryHead(r), position - own, score) : -Infinity();
      };
      if constexpr (kIsEncoded<C>) {
        const TileScales<C> scales = {reinterpret_cast<float*>(ring + C::kStages * 2 * S::kPartBytes)};
        copies.TakeScales(scales, &warp_tile);
        __syncwarp();
        if constexpr (C::kStages > 1) issue();
        warp_tile.Add(at, scales, scale, joins, join);
      } else {
        if constexpr (C::kStages > 1) issue();
        warp_tile.Add(reinterpret_cast<const T*>(at), scale, joins, join);
      }
      if constexpr (C::kStages == 1) issue();
      stage = stage + 1 == C::kStages ? 0 : stage + 1;
    }
    warp_tile.Store(merge_floats + warp * S::kSums, scale);
    DecodeItem<C> next = item;
    more = next.Next(step, to);
    if (!Heads::kTakes && more) load_queries(next);  // which arrive while this item ends
    context.Sync();
    if constexpr (Heads::kTakes) {
      if (more) heads.Take(next);
    }
    is_there = merge.Finish(item) && is_there;
    context.Sync();  // the floats are read
    if (Heads::kTakes && more) load_queries(next);
    item = next;
  }
  if constexpr (kRoleOf<Context> == Role::kCompute) {
    if (is_there) context.HasReadBack();
  }
}

template <class C, class Context, class Terms = HeadTerms<false, false>>
__device__ __forceinline__ void PagedAttentionDecode(const Context& context, typename C::T* __restrict__ out,
                                                     const typename C::T* q, const CacheElement<C>* __restrict__ kv,
                                                     const i32* __restrict__ pages, const i32* __restrict__ lens,
                                                     const i32* __restrict__ starts, float* partials, i32* counters,
                                                     i64 sequences, i64 pages_per_sequence, float scale_of_op,
                                                     float softcap, const Terms& terms = {},
                                                     const StaticScales& static_scales = {}) {
  const auto attend = [&](auto config, const auto& heads, bool& last) {
    AttendDecoding<decltype(config)>(context, out, heads, last, kv, pages, lens, starts, partials, counters, sequences,
                                     pages_per_sequence, scale_of_op, softcap, terms, static_scales);
  };
  if constexpr (kTakesRow<Context>) {
    using One = OneSequence<C>;
    using Heads = HeadsOfRow<One, decltype(context.Taken()), decltype(context.Before())>;
    auto& shared = context.template Shared<DecodeShared<Heads>>();
    attend(One(), Heads(context.Taken(), context.Before(), shared.heads), shared.last);
  } else {
    attend(C(), HeadsInMemory<C>{q}, context.template Shared<DecodeShared<HeadsInMemory<C>>>().last);
  }
}

// In a launch of its own, of one token: `qkv` are its heads of queries, keys and values, one behind the other, and
// `before` is what is done to each first, as RopeBefore (decode_heads.cuh).
template <class C, class Context, class Before, class Terms = HeadTerms<false, false>>
__device__ __forceinline__ void PagedAttentionDecodeOfHeads(
    const Context& context, typename C::T* __restrict__ out, const typename C::T* qkv, const Before& before,
    const CacheElement<C>* kv, const i32* __restrict__ pages, const i32* __restrict__ lens,
    const i32* __restrict__ starts, float* partials, i32* counters, i64 sequences, i64 pages_per_sequence,
    float scale_of_op, float softcap, const Terms& terms = {}, const StaticScales& static_scales = {}) {
  using One = OneSequence<C>;
  using Heads = HeadsOfRow<One, RowInMemory<typename C::T>, Before>;
  auto& shared = context.template Shared<DecodeShared<Heads>>();
  const Heads heads(RowInMemory<typename C::T>{qkv}, before, shared.heads);
  AttendDecoding<One>(context, out, heads, shared.last, kv, pages, lens, starts, partials, counters, sequences,
                      pages_per_sequence, scale_of_op, softcap, terms, static_scales);
}

// Of a task that takes a row: a warp brings what the task reads besides it nearer while the row is not there. The
// arguments of PagedAttentionDecode.
template <class C, class Context, class... Others>
__device__ __forceinline__ void PagedAttentionDecodeAhead(const Context& context, typename C::T*, const typename C::T*,
                                                          const CacheElement<C>* kv, const i32* pages, const i32* lens,
                                                          const i32* starts, float*, i32*, i64 sequences,
                                                          i64 pages_per_sequence, const Others&...) {
  using One = OneSequence<C>;
  constexpr int kSector = 32;  // bytes
  const int lane = threadIdx.x % 32;
  const auto touch = [&](const void* from, i64 bytes) {
    if (lane * kSector < bytes) context.Touch(static_cast<const char*>(from) + lane * kSector);
  };
  touch(lens, sequences * 4);
  touch(starts, (sequences + 1) * 4);
  touch(pages, sequences * pages_per_sequence * 4);
  context.Before().EachRead(touch);
  if constexpr (DecodeCopies<One>::kInPages) {
    // The tiles of the block.
    const DecodeShare<One> own(context.TileX(), pages, lens, starts, sequences, pages_per_sequence);
    // Of longer ones the copies of weights would wait for too many bytes.
    if (own.from >= own.to || own.to - own.from > 2 * DecodeShape<One>::kWarps) return;
    const i32 tiles = own.step.TilesOf(own.step.length, 1), numbers = own.step.Numbers(tiles);
    const i32 first = own.step.FirstKey(own.step.length, 1) / C::kTile, first_head = own.from / numbers;
#pragma unroll 1
    for (i32 at = 2 * own.from + lane; at < 2 * own.to; at += 32) {
      i32 head = first_head, tile = at / 2 - head * numbers;
#pragma unroll 1
      for (; tile >= numbers; tile -= numbers) ++head;
      if (tile >= tiles) continue;
      const i32 position = (first + tile) * C::kTile;
      const i64 row =
          static_cast<i64>(pages[position / C::kPageSize]) * C::kPageElements + position % C::kPageSize * C::kHeadDim;
      context.AskFor(kv + row + (at % 2 == 0 ? KeysOfHead<C>(head) : ValuesOfHead<C>(head)),
                     C::kTile * C::kHeadDim * static_cast<u32>(sizeof(typename C::T)));
    }
  }
}

}  // namespace llmc
