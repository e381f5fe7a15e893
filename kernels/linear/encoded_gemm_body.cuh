// out[m, n] = sum over k of x[m, k] * weight[n, k] for some rows m, with an encoded weight whose codes become numbers
// of 16 bits in registers: the left operand of products of warpgroups, whose right one is x. Sums are in f32. Of few
// rows of x, scales of blocks are applied to the sums of a slab of a stage, if it lies in one block; else numbers are
// rounded to the type of x with them.
//
// A tile is 128 or 256 rows of the weight and up to kTokens of x. Codes, with their scales, and x go through two rings
// of stages in shared memory. Of few rows of x two blocks fill a multiprocessor: where one ends, one of the next launch
// begins, and copies weights while the other still runs. Few tiles have the blocks of a cluster each, which read each
// other's sums. Else blocks share the stages of all tiles equally (stream_k.cuh); the last one that has a part of a
// tile adds up, and none waits for another.
#pragma once
#include "kernels/common/cluster.cuh"
#include "kernels/common/stage_ring.cuh"
#include "kernels/linear/encoded_tile.cuh"
#include "kernels/linear/encoded_x.cuh"
#include "kernels/linear/stream_k.cuh"

namespace llmc {

#if LLMC_SM90
// What a body keeps in shared memory beside the stages.
struct EncodedGemmShared {
  u64 weight_full[EncodedGemmLayout::kMostStages], weight_empty[EncodedGemmLayout::kMostStages];
  u64 x_full[EncodedGemmLayout::kMostStages], x_empty[EncodedGemmLayout::kMostStages];
  int is_last[2];  // of each warpgroup
};

// How a kernel takes kTokens rows of x.
template <class C, int kTokens>
using EncodedGemmX = typename Choose<C::kOrdered, OrderedX<C, kTokens>, EncodedX<C, kTokens>>::Type;

// Over 250 lines: what copies and what multiplies share one walk along the line of stages.
// C::T: of x, f16 or bf16.  C::kIn: k.  C::kOut: columns of the result.  C::kHalves: times 64 rows of the weight that a
// warpgroup has of a tile.  C::kSlabs: of a stage.  C::kFew: rows of x are few, so that two blocks fit on a
// multiprocessor.  C::kOrdered: x is in order (encoded_x.cuh).  C::kSharedBytes.  C::kGrid: blocks of the launch.
// C::kCluster: blocks of a tile, which are a cluster; 1: blocks are none.
// And what EncodedWeight and the epilogue say.  kTokens: rows of x in a tile.
template <class C, class Context, class Epilogue, int kTokens>
struct EncodedGemmBody {
  using T = typename C::T;
  using W = EncodedWeight<C>;
  using Q = typename C::Q;
  using L = EncodedGemmLayout;
  using Pairs = CodePairs<T, Q>;
  static constexpr L kLayout = {W::kBits, W::kScaleBits, W::kZeroBits, C::kBlock, C::kHalves, C::kSlabs};
  using Tile = EncodedTile<C, Epilogue, kLayout.Rows()>;
  using Rows = EncodedGemmX<C, kTokens>;
  static constexpr int kHalves = C::kHalves, kSlabDepth = kLayout.SlabDepth(), kDepth = kLayout.Depth(),
                       kRun = kLayout.Run(), kEights = kRun / 8;
  static constexpr int kBlocks = kTokens / 8, kChunks = Rows::kChunks;
  static constexpr int kXStages = kLayout.XStages(kTokens), kXBytes = kLayout.XStageBytes(kTokens);
  static constexpr int kStages = kLayout.WeightStages(kTokens, C::kSharedBytes);
  static constexpr int kStageBytes = kLayout.WeightStageBytes();
  static constexpr int kXPanel = Rows::kPanelBytes;
  // Of few rows, where a slab lies in one block of scales, these are applied to its sums, so that numbers are exact.
  static constexpr bool kScalesSums =
      C::kFew && W::kScaleInBlocks && C::kBlock % kSlabDepth == 0 && W::kExactZero && Pairs::kParts == 1;
  using Decoder = RowDecoder<typename Choose<kScalesSums, WithoutScale<C>, C>::Type>;
  static_assert(sizeof(T) == 2, "T: f16 or bf16");
  static_assert(kHalves == 1 || (kHalves == 2 && !C::kFew), "kHalves: 1 or 2");
  static_assert(C::kFew || C::kOrdered, "kOrdered: more than few rows are");
  static_assert(C::kGrid * 8 <= kCounterBytes, "kGrid: blocks have counters");
  static_assert(C::kThreads == L::kThreads, "kThreads: two warpgroups multiply, others copy");
  static_assert(C::kIn % kDepth == 0, "kIn: whole stages");
  static_assert(kStages >= 2, "kSharedBytes: two stages of weights");
  static_assert(kLayout.CanCopy(C::kIn, W::kScaleBits) && kLayout.CanCopy(C::kIn, W::kZeroBits),
                "kBlock: parts of a stage are whole words");

  const Context& context;
  EncodedGemmShared& shared;
  char* const arena;
  const Epilogue& epilogue;
  EncodedGemmSource<C> x;
  const W& weight;
  float* const partials;
  i32* const counters;
  const int tokens;

  // Rows of x for which such tiles take less long than larger ones. Where the weight has few tiles of not many terms,
  // twice as many have half the parts, whose sums are added up.
  static constexpr int MostRows() { return 5 * Tile::kTiles <= 2 * C::kGrid && C::kIn <= 8192 ? 2 * kTokens : kTokens; }

  // A part of a tile: stages [first, end) of its kChunks.
  struct Segment {
    int tile, first, end;
  };
  struct Walk {
    int at, end;
    __device__ __forceinline__ bool Next(Segment* s) {
      if (at >= end) return false;
      s->tile = at / kChunks;
      s->first = at % kChunks;
      const int left = end - at, whole = kChunks - s->first;
      s->end = s->first + (left < whole ? left : whole);
      at += s->end - s->first;
      return true;
    }
  };
  __device__ __forceinline__ int TokenTiles() const { return C::kFew ? 1 : (tokens + kTokens - 1) / kTokens; }
  __device__ __forceinline__ int Block() const { return static_cast<int>(context.TileX()); }
  // Few tiles are cut into equal parts, whose blocks have no parts of others, if that leaves few blocks without any.
  __device__ __forceinline__ StreamLine Line() const {
    const int tiles = Tile::kTiles * TokenTiles(), whole = tiles < C::kGrid ? C::kGrid / tiles * tiles : 0;
    return {tiles * kChunks, kChunks, 10 * whole >= 7 * C::kGrid ? whole : C::kGrid};
  }
  __device__ __forceinline__ Walk Begin() const { return {Line().BeginOf(Block()), Line().BeginOf(Block() + 1)}; }
  __device__ __forceinline__ int RowTile(const Segment& s) const { return s.tile / TokenTiles(); }
  __device__ __forceinline__ int FirstToken(const Segment& s) const { return s.tile % TokenTiles() * kTokens; }
  __device__ __forceinline__ char* WeightStage(int slot) const {
    return arena + kXStages * kXBytes + slot * kStageBytes;
  }

  __device__ __forceinline__ float* Staged() const {
    char* const behind = WeightStage(kStages);
    return reinterpret_cast<float*>(behind) + threadIdx.x / 128 * (L::kStagedTokens * L::kStagedStride);
  }

  // ---- threads that copy weights -----------------------------------------------------------------------------------
  template <int kBits>
  static __device__ __forceinline__ void CopyParts(u32 to, const char* of_row, int at) {
    if constexpr (kBits > 0) {
      constexpr int kBytes = kLayout.PartCopy(kBits), kAtOnce = kBytes < 16 ? kBytes : 16;
      const u32 behind = static_cast<u32>(at) * kDepth / C::kBlock * kBits / 8 & ~3u;
#pragma unroll
      for (int i = 0; i < kBytes; i += kAtOnce) CopyAsyncBytes<kAtOnce>(to + i, of_row + behind + i);
    }
  }
  // Addresses are computed once for a tile: threads that multiply need the instructions.
  __device__ __forceinline__ void CopyWeights() const {
    constexpr int kRowsAtOnce = L::kWeightThreads / 4, kRounds = kLayout.Rows() / kRowsAtOnce;
    constexpr int kOwnRows = kLayout.Rows() / L::kWeightThreads;  // whose parts a thread copies
    const int thread = static_cast<int>(threadIdx.x) - (L::kMathThreads + L::kXThreads), chunk = thread % 4;
    const u32 stages = SharedAddress(WeightStage(0)) + thread * 16;
    const u32 scales = SharedAddress(WeightStage(0)) + kLayout.ScaleAt() + thread * kLayout.PartCopy(W::kScaleBits);
    const u32 zeros = SharedAddress(WeightStage(0)) + kLayout.ZeroAt() + thread * kLayout.PartCopy(W::kZeroBits);
    RingPlace<kStages> place;
    RingStart<kStageBytes, C::kFew ? kMostAheadBytes / 2 : kMostAheadBytes> start;
    Walk walk = Begin();
    Segment s;
    while (walk.Next(&s)) {
      const char* rows[kRounds];
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        const int row = Tile::WeightRow(RowTile(s), i * kRowsAtOnce + thread / 4);
        rows[i] = static_cast<const char*>(weight.Row(row, s.first * kDepth, C::kIn)) + chunk * 16;
      }
      const char *own_scales[kOwnRows], *own_zeros[kOwnRows];
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const int row = Tile::WeightRow(RowTile(s), i * L::kWeightThreads + thread);
        own_scales[i] = W::kScaleInBlocks ? weight.Part(row, 0, C::kIn, false) : nullptr;
        own_zeros[i] = W::kZeroInBlocks ? weight.Part(row, 0, C::kIn, true) : nullptr;
      }
#pragma unroll 1
      for (int at = s.first; at < s.end; ++at) {
        WaitAt(&shared.weight_empty[place.slot], place.parity ^ 1);
        start.WaitForOthers(shared.weight_full, place.slot, kStages);
        const u32 stage = static_cast<u32>(place.slot) * kStageBytes;
#pragma unroll
        for (int i = 0; i < kRounds; ++i) {
#pragma unroll
          for (int slab = 0; slab < C::kSlabs; ++slab) {
            CopyAsync(stages + stage + (slab * kRounds + i) * (L::kWeightThreads * 16), rows[i] + slab * L::kRowBytes,
                      true);
          }
          rows[i] += C::kSlabs * L::kRowBytes;
        }
#pragma unroll
        for (int i = 0; i < kOwnRows; ++i) {
          constexpr int kScaleStep = L::kWeightThreads * kLayout.PartCopy(W::kScaleBits);
          constexpr int kZeroStep = L::kWeightThreads * kLayout.PartCopy(W::kZeroBits);
          CopyParts<W::kScaleBits>(scales + stage + i * kScaleStep, own_scales[i], at);
          CopyParts<W::kZeroBits>(zeros + stage + i * kZeroStep, own_zeros[i], at);
        }
        ArriveWithCopies(&shared.weight_full[place.slot]);
        place.Advance();
      }
    }
    WaitForAllCopies();
  }

  // ---- threads that copy x -----------------------------------------------------------------------------------------
  // Tiles of what is in order.
  __device__ __forceinline__ void CopyTiles() const {
    if (threadIdx.x / 32 != L::kMathThreads / 32 || !ElectThread()) return;
    context.Wait();
    RingPlace<kXStages> place;
    Walk walk = Begin();
    Segment s;
    while (walk.Next(&s)) {
#pragma unroll 1
      for (int at = s.first; at < s.end; ++at) {
        WaitAt(&shared.x_empty[place.slot], place.parity ^ 1);
        Rows::Copy(x, FirstToken(s), at, arena + place.slot * kXBytes, &shared.x_full[place.slot]);
        place.Advance();
      }
    }
  }
  // As they are, kAhead stages ahead; then they are put in order in place.
  __device__ __forceinline__ void CopyAllX() const {
    context.Wait();
    const int begin = Line().BeginOf(Block()), end = Line().BeginOf(Block() + 1);
    constexpr int kAhead = kXStages / 2;
    RingPlace<kXStages> place, ahead_place;
    Rows walk = {x, weight, tokens, begin % kChunks};
    walk.Enter();
    Rows ahead = walk;
    const auto copy = [&](int at) {
      if (at < end) {
        WaitAt(&shared.x_empty[ahead_place.slot], ahead_place.parity ^ 1);
        ahead.Copy(arena + ahead_place.slot * kXBytes);
        ahead_place.Advance();
        ahead.Advance();
      }
      CommitCopies();
    };
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) copy(begin + i);
#pragma unroll 1
    for (int at = begin; at < end; ++at) {
      copy(at + kAhead);
      WaitForCopies<kAhead>();
      __syncwarp();
      walk.Order(arena + place.slot * kXBytes);
      FenceSharedForTensorCores();
      ArriveAt(&shared.x_full[place.slot]);
      place.Advance();
      walk.Advance();
    }
  }

  // ---- warpgroups that multiply ------------------------------------------------------------------------------------
  // Kept in registers: to read and compute these for each stage takes long. What a shuffle gives is not computed again.
  struct Thread {
    int of_warp = __shfl_xor_sync(~0u, static_cast<int>(threadIdx.x) % 32, 0);
    int row = Tile::OwnRow(0);                             // its first one of the tile
    int codes_at = row * L::kRowBytes + of_warp % 4 * 16;  // in a stage
  };
  // The number for a lane's codes from 8 `eight` on, of those of a row.
  template <class Part, int kBits>
  static __device__ __forceinline__ Part PartOf(const Thread& thread, const char* of_row, int at, int slab, int eight) {
    constexpr L layout = kLayout;
    // Where the stage's first number lies in the word that was copied.
    int first = 0;
    if constexpr (layout.PartBytes(kBits) < 4) first = at * kDepth / C::kBlock % (32 / kBits);
    if constexpr (C::kBlock < kSlabDepth) first += (thread.of_warp % 4 * kRun + eight * 8) / C::kBlock;
    if constexpr (C::kBlock < kDepth) first += slab * (kSlabDepth / C::kBlock);
    return ReadElement(reinterpret_cast<const Part*>(of_row), first);
  }
  // Whether the number for eight `e` is another one than that before.
  static __device__ __forceinline__ bool Changes(int e) {
    return e == 0 || (C::kBlock < kRun && e * 8 % C::kBlock == 0);
  }

  struct Places {
    RingPlace<kStages> weight;
    RingPlace<kXStages> x;
    int x_before = -1;  // of the stage before, whose products may run still
  };
  static __device__ __forceinline__ void Free(const Thread& thread, u64* empty) {
    if (thread.of_warp == 0) ArriveAt(empty);
  }

  // Of a slab of stage `at` and a row of the tile, the scale of a lane's codes from 8 `eight` on.
  static __device__ __forceinline__ typename C::Scale ScaleOf(const Thread& thread, const char* stage, int at, int slab,
                                                              int row, int eight) {
    const char* const scales = stage + kLayout.ScaleAt() + row * kLayout.PartCopy(W::kScaleBits);
    return PartOf<typename C::Scale, W::kScaleBits>(thread, scales, at, slab, eight);
  }

  // Eight codes of two rows, to the operands of two products.
  __device__ __forceinline__ void Decode(const Thread& thread, const char* stage, int at, int slab, int half, int e,
                                         const Vec<u32, 4> (&words)[2], Decoder (&rows)[2], u32 (&a)[2][4]) const {
    u32 pairs[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int own = thread.row + half * 64 + 8 * j;
      if constexpr (Decoder::kScaled) {
        if (Changes(e)) rows[j].SetScale(ScaleOf(thread, stage, at, slab, own, e));
      }
      if constexpr (W::kZeroInBlocks) {
        const char* const zeros = stage + kLayout.ZeroAt() + own * kLayout.PartCopy(W::kZeroBits);
        if (Changes(e)) rows[j].SetZero(PartOf<typename C::Zero, W::kZeroBits>(thread, zeros, at, slab, e));
      }
      Codes<Q, 8> codes;
#pragma unroll
      for (int w = 0; w < Codes<Q, 8>::kWords; ++w) codes.word[w] = words[j].v[e * Codes<Q, 8>::kWords + w];
      // The first halves of two eights, or the others.
      if constexpr (Rows::kEightApart) {
        codes.word[0] = __byte_perm(words[j].v[e / 2 * 2], words[j].v[e / 2 * 2 + 1], e % 2 == 0 ? 0x5410 : 0x7632);
      }
      rows[j].Decode(codes, pairs[j]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[i][0] = pairs[0][2 * i];
      a[i][1] = pairs[1][2 * i];
      a[i][2] = pairs[0][2 * i + 1];
      a[i][3] = pairs[1][2 * i + 1];
    }
  }

  // The sums of a slab, by themselves where they are scaled then.
  struct SlabSums {
    float c[kScalesSums ? kBlocks : 1][4] = {};
    float scale[2] = {};  // of the lane's two rows
  };
  // When the products of a slab have ended.
  static __device__ __forceinline__ void AddScaled(SlabSums& slab, float (&c)[kBlocks][4]) {
    Pin(slab.c);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[i][e] = __fmaf_rn(slab.c[i][e], slab.scale[e / 2], c[i][e]);
    }
  }

  // A slab of a stage, of the times 64 rows `half`.
  __device__ __forceinline__ void MultiplySlab(const Thread& thread, const Places& places, const char* stage, int at,
                                               int slab, int half, Decoder (&rows)[2], SlabSums& sums,
                                               float (&c)[kHalves][kBlocks][4]) const {
    const u64 x_at = static_cast<u32>(places.x.slot) * static_cast<u64>(kXBytes / 16) + Operand(SharedAddress(arena));
    const bool is_first = slab == 0 && half == 0, is_last = slab == C::kSlabs - 1 && half == kHalves - 1;
    u32 a[2][2][4];
    Vec<u32, 4> words[2];
    float scale[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int more = half * 64 + 8 * j;
      words[j] = Load<u32, 4>(
          reinterpret_cast<const u32*>(stage + thread.codes_at + (slab * kLayout.Rows() + more) * L::kRowBytes));
      if constexpr (kScalesSums) scale[j] = W::ScaleNumber(ScaleOf(thread, stage, at, slab, thread.row + more, 0));
    }
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      u32(&operands)[2][4] = a[e % 2];
      Decode(thread, stage, at, slab, half, e, words, rows, operands);
      if (kScalesSums && e == 0) {
        WaitForProducts<0>();
        AddScaled(sums, c[0]);
        sums.scale[0] = scale[0];
        sums.scale[1] = scale[1];
      }
      if (is_first && e == 0) WaitAt(&shared.x_full[places.x.slot], places.x.parity);
      if (is_last && e == kEights - 1) {
        __syncwarp();
        Free(thread, &shared.weight_empty[places.weight.slot]);
      }
      BeginProducts();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const u64 b = OperandBehind(x_at, (slab * (kSlabDepth / 64) + e / 2) * kXPanel + (e % 2 * 2 + i) * 32);
        if constexpr (kScalesSums) {
          MultiplyWarpgroup<T, 0>(sums.c, operands[i], b, e + i > 0);
        } else {
          MultiplyWarpgroup<T, 0>(c[half], operands[i], b, 1);
        }
      }
      CommitProducts();
      WaitForProducts<1>();
      // Now the products before these have ended.
      if (is_first && e == 0 && places.x_before >= 0) Free(thread, &shared.x_empty[places.x_before]);
    }
  }
  __device__ __forceinline__ void MultiplyStage(const Thread& thread, Places& places, int at,
                                                Decoder (&rows)[kHalves][2], SlabSums& sums,
                                                float (&c)[kHalves][kBlocks][4]) const {
    WaitAt(&shared.weight_full[places.weight.slot], places.weight.parity);
    const char* const stage = WeightStage(places.weight.slot);
#pragma unroll
    for (int slab = 0; slab < C::kSlabs; ++slab) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        MultiplySlab(thread, places, stage, at, slab, half, rows[half], sums, c);
      }
    }
    places.x_before = places.x.slot;
    places.weight.Advance();
    places.x.Advance();
  }

  __device__ __forceinline__ void Multiply() const {
    Places places;
    Walk walk = Begin();
    Segment s;
    const Thread thread = {};
    bool has_waited = false;
    while (walk.Next(&s)) {
      float c[kHalves][kBlocks][4] = {};
      Decoder rows[kHalves][2];
      float scale[kHalves][2];
      SlabSums sums;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) Tile::Begin(weight, RowTile(s), half, rows[half], scale[half]);
#pragma unroll 1
      for (int at = s.first; at < s.end; ++at) MultiplyStage(thread, places, at, rows, sums, c);
      WaitForProducts<0>();
      if constexpr (kScalesSums) AddScaled(sums, c[0]);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) Pin(c[half]);
      Free(thread, &shared.x_empty[places.x_before]);
      places.x_before = -1;
      if (!has_waited) context.Wait();
      has_waited = true;
      if constexpr (C::kCluster > 1) {
        StoreOfCluster(s, scale[0], c[0]);
        continue;
      }
      if (s.end - s.first < kChunks && !AddUp(s.tile, c)) continue;
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if constexpr (C::kFew) {
          Tile::Store(epilogue, weight, RowTile(s), half, FirstToken(s), tokens, scale[half], c[half]);
        } else {
          Tile::StoreInTurn(epilogue, weight, RowTile(s), half, FirstToken(s), tokens, scale[half], c[half], Staged());
        }
      }
    }
  }
  // The parts of a tile are the blocks of a cluster. Each adds up the sums of some tokens, of all of them in their
  // order.
  __device__ __forceinline__ void StoreOfCluster(const Segment& s, const float (&scale)[2],
                                                 const float (&c)[kBlocks][4]) const {
    constexpr int kTokensOfLane = 2 * kBlocks, kOwn = (kTokensOfLane + C::kCluster - 1) / C::kCluster;
    constexpr int kPlace = L::kMathThreads * 8;  // of a token of each lane
    static_assert(kHalves == 1 && kTokensOfLane * kPlace <= C::kSharedBytes, "kCluster: of few rows of x");
    const u32 sums = SharedAddress(arena) + threadIdx.x * 8, rank = ClusterRank();
    SyncNamed(3, L::kMathThreads);  // nobody reads the stages any more
#pragma unroll
    for (int i = 0; i < kTokensOfLane; ++i) {
      Store(reinterpret_cast<float*>(arena + i * kPlace) + threadIdx.x * 2,
            Vec<float, 2>{c[i / 2][i % 2], c[i / 2][2 + i % 2]});
    }
    ArriveInCluster();
    const typename Tile::LaneStore store(epilogue, weight, RowTile(s), tokens);
    typename Tile::LaneStore::Prepared prepared[kOwn];
#pragma unroll
    for (int n = 0; n < kOwn; ++n) prepared[n] = store.Prepare(static_cast<int>(rank) + n * C::kCluster);
    WaitForCluster();
    float low[kOwn] = {}, high[kOwn] = {};
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const u32 own = rank + n * C::kCluster;
      if (kTokensOfLane % C::kCluster != 0 && own >= kTokensOfLane) break;
#pragma unroll
      for (int part = 0; part < C::kCluster; ++part) {
        const Vec<float, 2> v = LoadOfBlock(sums + own * kPlace, part);
        low[n] += v.v[0];
        high[n] += v.v[1];
      }
    }
    ArriveInCluster();  // what a block has is there until all have read it
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const int own = static_cast<int>(rank) + n * C::kCluster;
      if (own < kTokensOfLane) store.Store(own, low[n] * scale[0], high[n] * scale[1], prepared[n]);
    }
    WaitForCluster();
  }
  // The parts of a tile: warpgroups do not wait for each other.
  __device__ __forceinline__ bool AddUp(int tile, float (&c)[kHalves][kBlocks][4]) const {
    const int warpgroup = static_cast<int>(threadIdx.x) / 128;
    // A tile that lies in several blocks' parts is the last one of the first of them.
    const int counter = 2 * Line().BlockOf(tile * kChunks) + warpgroup;
    return AddUpTile<128, L::kMathThreads, 128 / kTokens>(Line(), Block(), tile, partials, counters + counter,
                                                          1 + warpgroup, shared.is_last[warpgroup], c,
                                                          [](int) { return true; });
  }

  __device__ __forceinline__ void Run() const {
    // Each warp one kind: lanes of a warp do it one after the other.
    const int warp = static_cast<int>(threadIdx.x) / 32, slot = static_cast<int>(threadIdx.x) % 32;
    if (warp == 0 && slot < kStages) InitBarrier(&shared.weight_full[slot], L::kWeightThreads);
    if (warp == 1 && slot < kStages) InitBarrier(&shared.weight_empty[slot], L::kMathThreads / 32);
    if (warp == 2 && slot < kXStages) InitBarrier(&shared.x_full[slot], Rows::kArrivals);
    if (warp == 3 && slot < kXStages) InitBarrier(&shared.x_empty[slot], L::kMathThreads / 32);
    if (C::kOrdered && warp < 4) FenceBarriers();
    context.Sync();
    // A launch gives each thread 64 registers, or 128: its bounds say so, and threads share no more than that.
    if (threadIdx.x < L::kMathThreads) {
      TakeRegisters<C::kFew ? 88 : 192>();
      Multiply();
    } else if (threadIdx.x < L::kMathThreads + L::kXThreads) {
      GiveRegisters<C::kFew ? 40 : 72>();
      if constexpr (C::kOrdered) {
        CopyTiles();
      } else {
        CopyAllX();
      }
    } else {
      GiveRegisters<C::kFew ? 40 : 56>();
      CopyWeights();
    }
  }
};
#endif

}  // namespace llmc
