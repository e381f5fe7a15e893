// Causal attention over a paged cache whose rows are keys and values at once: those of latent attention in its absorbed
// form (arXiv:2405.04434), where all query heads share one row of 576 elements and values are its first 512. For
// decoding and for chunks of prompts.
//
// The rows of a tile are tokens of one sequence, in each all query heads. A block takes one tile and a part of the
// sequence's positions, which come to shared memory once, kTile at a time, as keys and as values. Its warps share the
// work in two ways: for scores each has a tile of 16 rows and some keys, or some columns of them; scores meet in shared
// memory; then each has 16 rows and some columns of the values, since the sums of all are too many for one warp.
//
// Where a tile is split over several blocks, their sums go to `partials`, and LatentAttentionMerge puts them together:
// out = sum_i exp(top_i) out_i / sum_i exp(top_i) sum_i.
//
// C::T: element type, 16 bits.  C::kGroup: query heads, which share the only head of the cache (kKvHeads is 1).
// C::kHeadDim: of rows; C::kValueDim: of their first elements, the values; where they lie: paged_kv.cuh.
// C::kFirstDim: elements of a query in its first part; the rest are in its second. Both parts and the result are rows
// (tokens) in batches (heads).  C::kWindow, C::kChunk: see paged_kv.cuh.  C::kRows: of a tile, 16, 32 or 64.
// C::kTile: positions, 16 or 32.  C::kStages: of the ring.  C::kTokens: 0, as paged_attention_prefill.cuh has it.
// C::kBlocks: of the grid, or as many as there are tiles. A tile is split where there are fewer tiles than kBlocks,
// into at most kMostLatentSplits. C::kEarly: as in paged_attention_decode.cuh.
#pragma once
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/paged_attention_prefill.cuh"
#include "kernels/common/context.cuh"
#include "kernels/common/strided_rows.cuh"

namespace llmc {

template <class C>
struct LatentShape {
  using T = typename C::T;
  static constexpr LatentLayout kLayout = {C::kRows, C::kHeadDim, C::kValueDim, C::kTile, C::kStages};
  static constexpr int kDim = PaddedHeadDim(C::kHeadDim);
  static constexpr int kStride = kDim + kRowPaddingBytes / 2;
  static constexpr int kChunks = kDim / 8;  // of 16 bytes in a row
  static constexpr int kStage = C::kTile * kStride;
  static constexpr int kWarps = kLatentWarps;
  static constexpr int kShare = kLayout.Share();        // warps that have the same 16 rows
  static constexpr int kColumns = kLayout.Columns();    // of the values, of a warp
  static constexpr int kKeyParts = kLayout.KeyParts();  // of the columns of a key, each multiplied by another warp
  static constexpr int kSteps = (kDim / 16 + kKeyParts - 1) / kKeyParts;  // of 16 columns, of a part
  static constexpr int kScoreStride = kLayout.ScoreStride();
  static constexpr int kScores = C::kRows * kScoreStride;  // of one part

  static_assert(C::kThreads == 32 * kWarps, "kThreads: those of kLatentWarps");
  static_assert(C::kRows == 16 || C::kRows == 32 || C::kRows == 64, "kRows: 16, 32 or 64");
  static_assert(C::kTile == 16 || C::kTile == 32, "kTile: 16 or 32");
  static_assert(C::kHeadDim % 8 == 0 && C::kFirstDim % 8 == 0 && C::kValueDim % 8 == 0,
                "rows are copied in chunks of 16 bytes");
  static_assert(C::kValueDim <= C::kHeadDim && C::kFirstDim <= C::kHeadDim, "kValueDim, kFirstDim: of rows");
  static_assert(C::kStages >= 2, "one stage is read while another arrives");
  static_assert(C::kSharedBytes >= kLayout.SharedBytes(), "codegen reserves the memory that is used here");
};

// Parts that a tile is split into at the most, if a step has so many tiles.
template <class C>
__device__ __forceinline__ i32 LatentSplits(i32 tiles) {
  return max(min(C::kBlocks / max(tiles, 1), kMostLatentSplits), 1);
}

// A tile, and a part of its positions.
template <class C>
struct LatentWork {
  i32 sequence, token, tokens,
      length;      // of the tile: its sequence, the first token, their number, positions in the cache
  i32 first_row;   // of the sequence's rows
  i32 begin, end;  // tiles of kTile positions
  i32 splits;      // of the tile, that have positions

  // False if tile `index` has nothing in part `split` of at most `most`.
  __device__ __forceinline__ bool Find(const i32* __restrict__ lens, const i32* __restrict__ starts, i32 sequences,
                                       i32 index, i32 split, i32 most) {
    PrefillTile at;
    ChunkedSequences<C> all = {starts};
    if (!FindPrefillTile<C, C::kRows>(all, sequences, index, &at)) return false;
    sequence = at.sequence;
    token = starts[sequence];
    tokens = starts[sequence + 1] - token;
    length = lens[sequence];
    first_row = at.tile * C::kRows;
    const i32 first = FirstSeen<C>(Position(0)) / C::kTile,
              tiles = min(Position(C::kRows - 1), length - 1) / C::kTile + 1 - first;
    const i32 share = (tiles + most - 1) / most;
    splits = (tiles + share - 1) / share;
    begin = first + split * share;
    end = min(begin + share, first + tiles);
    return split < splits;
  }

  __device__ __forceinline__ bool HasRow(i32 row) const { return first_row + row < tokens * C::kGroup; }
  __device__ __forceinline__ i32 Token(i32 row) const { return token + (first_row + row) / C::kGroup; }
  __device__ __forceinline__ i32 Head(i32 row) const { return (first_row + row) % C::kGroup; }
  // Of the token of a row, in its sequence.
  __device__ __forceinline__ i32 Position(i32 row) const { return length - tokens + (first_row + row) / C::kGroup; }
};

// The copies of a block's tiles to shared memory. Each warp has some rows of every tile.
template <class C>
struct LatentCopies {
  using T = typename C::T;
  using S = LatentShape<C>;
  static constexpr int kRows = C::kTile / S::kWarps;

  const T* __restrict__ rows;     // of page 0
  const i32* __restrict__ table;  // of the sequence
  const LatentWork<C>& work;
  i32 tile;          // the next
  i32 slots[kRows];  // its positions; -1: not there

  __device__ __forceinline__ LatentCopies(const T* kv, const i32* pages, i64 pages_per_sequence,
                                          const LatentWork<C>& work)
      : rows(kv + C::kKeysAt), table(pages + work.sequence * pages_per_sequence), work(work), tile(work.begin) {
    FindSlots();
  }

  // Whether the next tile was in the cache before the step.
  __device__ __forceinline__ bool IsOld() const {
    return tile >= work.end || (tile + 1) * C::kTile <= work.length - work.tokens;
  }

  __device__ __forceinline__ void Issue(u32 stage) {
    if (tile < work.end) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int r = threadIdx.x / 32 * kRows + i;
        const T* from = rows + RowOfSlot<C, C::kHeadDim>(static_cast<u32>(slots[i] < 0 ? 0 : slots[i]));
        for (int chunk = threadIdx.x % 32; chunk < S::kChunks; chunk += 32) {
          const bool exists = slots[i] >= 0 && chunk * 8 < C::kHeadDim;
          CopyAsync(stage + (r * S::kStride + chunk * 8) * 2, exists ? from + chunk * 8 : rows, exists);
        }
      }
      ++tile;
      FindSlots();
    }
    CommitCopies();
  }

 private:
  // One tile ahead, so that no copy waits for the page table.
  __device__ __forceinline__ void FindSlots() {
    if (tile >= work.end) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const i32 position = tile * C::kTile + static_cast<i32>(threadIdx.x) / 32 * kRows + i;
      slots[i] = position < work.length ? SlotOf<C>(table, position) : -1;
    }
  }
};

// What a warp computes of a tile.
template <class C>
struct LatentTile {
  using T = typename C::T;
  using S = LatentShape<C>;
  using Sums = AttentionTile<T, S::kColumns, C::kTile, 1, false, S::kDim>;

  Sums sums;
  i32 row, share;  // the first of the warp's 16 rows, and its number among those that have them

  __device__ __forceinline__ LatentTile() {
    const i32 warp = threadIdx.x / 32;
    row = warp / S::kShare * 16;
    share = warp % S::kShare;
    sums.Reset();
  }

  // Some keys, or some columns of them, times the queries: to shared memory.
  __device__ __forceinline__ void Score(const T* queries, const T* keys, float* scores) const {
    const i32 lane = threadIdx.x % 32, part = share % S::kKeyParts;
    const u32 query = SharedAddress(queries) + ((row + lane % 16) * S::kStride + lane / 16 * 8) * 2;
    const u32 key = SharedAddress(keys) + (lane % 8 * S::kStride + lane / 8 * 8) * 2;
    constexpr int kAhead = S::kShare / S::kKeyParts * 8;
    for (i32 first = share / S::kKeyParts * 8; first < C::kTile; first += kAhead) {
      float sum[2][4] = {};  // of even and odd steps
#pragma unroll
      for (int i = 0; i < S::kSteps; i += 2) {
        const int step = part * S::kSteps + i;
        u32 b[4];  // of two steps; past the row there is memory too
        LoadMatrices(b, key + (first * S::kStride + step * 16) * 2);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (i + j >= S::kSteps || (step + j) * 16 >= S::kDim) continue;
          u32 a[4];
          LoadMatrices(a, query + (step + j) * 32);
          MultiplyAdd<T>(sum[j], a, b[2 * j], b[2 * j + 1]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Vec<float, 2> pair = {sum[0][2 * half] + sum[1][2 * half], sum[0][2 * half + 1] + sum[1][2 * half + 1]};
        Store(scores + part * S::kScores + (row + lane / 4 + 8 * half) * S::kScoreStride + first + lane % 4 * 2, pair);
      }
    }
  }

  // The scores of all keys of the tile, then the weighted values of some columns.
  __device__ __forceinline__ void Add(const LatentWork<C>& work, i32 first_position, const float* scores,
                                      const T* values, float scale) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i32 r = row + lane / 4 + 8 * half, own = work.Position(r), first = FirstSeen<C>(own);
#pragma unroll
      for (int n = 0; n < C::kTile / 8; ++n) {
        const int column = n * 8 + lane % 4 * 2;
        Vec<float, 2> sum = {};
#pragma unroll
        for (int part = 0; part < S::kKeyParts; ++part) {
          const auto more = Load<float, 2>(scores + part * S::kScores + r * S::kScoreStride + column);
          sum.v[0] += more.v[0];
          sum.v[1] += more.v[1];
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const i32 position = first_position + column + i;
          sums.scores[0][n][2 * half + i] = position <= own && position >= first ? sum.v[i] : -Infinity();
        }
      }
    }
    float rescale[1][2];
    sums.Weigh(scale, rescale);
    sums.Rescale(rescale);
    sums.Accumulate(SharedAddress(values) + share * S::kColumns * 2);
  }

  // `store(row, column, pair)` gets two columns of the weighted values each time.
  template <class F>
  __device__ __forceinline__ void ForEachPair(F store) const {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n) {
        const int column = share * S::kColumns + n * 8 + lane % 4 * 2;
        if (column < C::kValueDim) store(half, column, sums.out[0][n][2 * half], sums.out[0][n][2 * half + 1]);
      }
    }
  }
};

// The sums of a part of a tile, in `partials`: of each row the values, then top (for base 2) and sum of each.
template <class C>
__device__ __forceinline__ float* LatentPartial(float* partials, i64 part) {
  return partials + part * (C::kRows * (C::kValueDim + 2));
}

// What all tiles of a step have in common.
template <class C>
struct LatentStep {
  using T = typename C::T;
  const StridedRows<T> out;
  const StridedRows<const T> first_query, second_query;
  const T* __restrict__ kv;
  const i32* __restrict__ pages;
  const i32* __restrict__ lens;
  const i32* __restrict__ starts;
  float* partials;
  i32 sequences;
  i64 pages_per_sequence;
  float scale;

  // Rows past the tile's are zeros.
  __device__ __forceinline__ void LoadQueries(const LatentWork<C>& work, T* queries) const {
    using S = LatentShape<C>;
    for (int at = threadIdx.x; at < C::kRows * S::kChunks; at += C::kThreads) {
      const int r = at / S::kChunks, column = at % S::kChunks * 8;
      Vec<T, 8> chunk = {};
      if (work.HasRow(r) && column < C::kHeadDim) {
        const bool is_first = column < C::kFirstDim;
        const StridedRows<const T>& query = is_first ? first_query : second_query;
        chunk = Load<T, 8>(query.At(work.Token(r), work.Head(r)) + column - (is_first ? 0 : C::kFirstDim));
      }
      Store(queries + r * S::kStride + column, chunk);
    }
  }

  // To the result if the tile is whole, else to the part's place.
  __device__ __forceinline__ void StoreSums(const LatentWork<C>& work, const LatentTile<C>& tile, i64 part) const {
    const auto& sums = tile.sums;
    const i32 row = tile.row + static_cast<i32>(threadIdx.x) % 32 / 4;
    if (work.splits == 1) {
      const float inverse[2] = {1 / sums.sum[0][0], 1 / sums.sum[0][1]};
      tile.ForEachPair([&](int half, int column, float low, float high) {
        const i32 r = row + 8 * half;
        if (!work.HasRow(r)) return;
        T* const to = out.At(work.Token(r), work.Head(r)) + column;
        *reinterpret_cast<u32*>(to) = Pack<T>(low * inverse[half], high * inverse[half]);
      });
      return;
    }
    float* const partial = LatentPartial<C>(partials, part);
    tile.ForEachPair([&](int half, int column, float low, float high) {
      const Vec<float, 2> pair = {low, high};
      Store(partial + (row + 8 * half) * C::kValueDim + column, pair);
    });
    if (tile.share != 0 || threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Vec<float, 2> pair = {sums.top[0][half] * scale, sums.sum[0][half]};
      Store(partial + C::kRows * C::kValueDim + (row + 8 * half) * 2, pair);
    }
  }
};

// `scale` is for base 2: the attention's scale times log2(e). `tiles`: at least as many as the step has.
template <class C, class Context>
__device__ __forceinline__ void LatentAttention(const Context& context, const LatentStep<C>& step, i64 tiles) {
  using T = typename C::T;
  using S = LatentShape<C>;
  T* const queries = reinterpret_cast<T*>(context.template Arena<1024>());
  T* const ring = queries + C::kRows * S::kStride;
  float* const scores = reinterpret_cast<float*>(ring + C::kStages * S::kStage);
  bool waited = !C::kEarly;
  if (waited) context.Wait();
  const i32 most = LatentSplits<C>(static_cast<i32>(tiles));
  for (i32 part = context.TileX(); part < tiles * most; part += context.TilesX()) {
    LatentWork<C> work;
    if (!work.Find(step.lens, step.starts, step.sequences, part / most, part % most, most)) continue;
    LatentCopies<C> copies(step.kv, step.pages, step.pages_per_sequence, work);
#pragma unroll
    for (int i = 0; i < C::kStages - 1; ++i) {
      if (!waited && !copies.IsOld()) {
        context.Wait();
        waited = true;
      }
      copies.Issue(SharedAddress(ring + i * S::kStage));
    }
    if (!waited) context.Wait();
    waited = true;
    step.LoadQueries(work, queries);
    LatentTile<C> tile;
    i32 stage = 0;
    for (i32 at = work.begin; at < work.end; ++at) {
      WaitForCopies<C::kStages - 2>();
      context.Sync();  // all copies are here, and all have read the stage and the scores before
      copies.Issue(SharedAddress(ring + (stage == 0 ? C::kStages - 1 : stage - 1) * S::kStage));
      tile.Score(queries, ring + stage * S::kStage, scores);
      context.Sync();
      tile.Add(work, at * C::kTile, scores, ring + stage * S::kStage, step.scale);
      stage = stage + 1 == C::kStages ? 0 : stage + 1;
    }
    tile.sums.Finish();
    step.StoreSums(work, tile, part);
    context.Sync();  // the ring and the queries are read
  }
  if (!waited) context.Wait();  // a kernel ends after all before it
}

// What each part of a split row is multiplied with. Every warp finds all of them by itself: its lanes have that of part
// i in factors[i / 32] of lane i % 32.
struct LatentFactors {
  static constexpr int kCount = (kMostLatentSplits + 31) / 32;
  float factors[kCount], inverse;

  // scores_of(i): where the highest score of part i and the sum of its weights lie.
  template <class F>
  __device__ __forceinline__ LatentFactors(i32 splits, F scores_of) {
    Vec<float, 2> tops[kCount];
    float top = kLowestScore, sum = 0;
#pragma unroll
    for (int f = 0; f < kCount; ++f) {
      const i32 i = f * 32 + static_cast<i32>(threadIdx.x % 32);
      tops[f] = {kLowestScore, 0};
      if (i < splits) tops[f] = Load<float, 2>(scores_of(i));
      top = fmaxf(top, tops[f].v[0]);
    }
    top = WarpReduce(top, Max());
#pragma unroll
    for (int f = 0; f < kCount; ++f) {
      factors[f] = Exp2(tops[f].v[0] - top);
      sum += factors[f] * tops[f].v[1];
    }
    inverse = 1 / WarpReduce(sum, Sum());
  }
  // All lanes of a warp ask for the same part.
  __device__ __forceinline__ float Of(i32 i) const {
    const float of_lanes = kCount > 1 && i >= 32 ? factors[kCount - 1] : factors[0];
    return __shfl_sync(~0u, of_lanes, i % 32) * inverse;
  }
};

// Rows of split tiles, one after the other. Threads of a team have 4 columns each; each team has every kTeams-th part.
template <class C, class Context>
__device__ __forceinline__ void LatentAttentionMerge(const Context& context, const StridedRows<typename C::T>& out,
                                                     const i32* __restrict__ lens, const i32* __restrict__ starts,
                                                     float* partials, i64 sequences, i64 tiles) {
  using T = typename C::T;
  constexpr int kVec = 4, kVectors = C::kValueDim / kVec, kAhead = 4;
  constexpr int kTeam = (kVectors + 31) / 32 * 32, kTeams = C::kThreads / kTeam;  // of whole warps
  static_assert(kTeams > 0, "kThreads: one has each vector of the values");
  struct alignas(16) Merged {
    float sums[kTeams][C::kValueDim];
  };
  auto& shared = context.template Shared<Merged>();
  bool waited = !C::kEarly;
  if (waited) context.Wait();
  const i32 most = LatentSplits<C>(static_cast<i32>(tiles)), team = threadIdx.x / kTeam;
  for (i32 index = context.TileX(); most > 1 && index < tiles * C::kRows; index += context.TilesX()) {
    const i32 tile = index / C::kRows, row = index % C::kRows;
    LatentWork<C> work;
    if (!work.Find(lens, starts, static_cast<i32>(sequences), tile, 0, most) || work.splits < 2 || !work.HasRow(row)) {
      continue;
    }
    if (!waited) context.Wait();
    waited = true;
    const auto partial = [&](i32 i) { return LatentPartial<C>(partials, static_cast<i64>(tile) * most + i); };
    // The first parts are under way while factors are found.
    const i32 vector = threadIdx.x % kTeam;
    const bool has_vector = vector < kVectors && team < kTeams;
    const auto load = [&](i32 i) { return Load<float, kVec>(partial(i) + row * C::kValueDim + vector * kVec); };
    Vec<float, kVec> ahead[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const i32 i = team + u * kTeams;
      ahead[u] = {};
      if (i < work.splits && has_vector) ahead[u] = load(i);
    }
    const LatentFactors factors(work.splits, [&](i32 i) { return partial(i) + C::kRows * C::kValueDim + row * 2; });
    Vec<float, kVec> result = {};
    const auto add = [&](i32 i, const Vec<float, kVec>& part) {
      const float factor = factors.Of(i);
#pragma unroll
      for (int j = 0; j < kVec; ++j) result.v[j] += factor * part.v[j];
    };
#pragma unroll
    for (int u = 0; u < kAhead; ++u) add(min(team + u * kTeams, kMostLatentSplits - 1), ahead[u]);
#pragma unroll 4
    for (i32 i = team + kAhead * kTeams; i < work.splits; i += kTeams) {
      add(i, has_vector ? load(i) : Vec<float, kVec>{});
    }
    if (has_vector) Store(&shared.sums[team][vector * kVec], result);
    context.Sync();
    for (int column = threadIdx.x; column < C::kValueDim; column += C::kThreads) {
      float of_teams = 0;
#pragma unroll
      for (int i = 0; i < kTeams; ++i) of_teams += shared.sums[i][column];
      out.At(work.Token(row), work.Head(row))[column] = FromFloat<T>(of_teams);
    }
    context.Sync();  // the sums are read
  }
  if (!waited) context.Wait();  // a kernel ends after all before it
}

}  // namespace llmc
