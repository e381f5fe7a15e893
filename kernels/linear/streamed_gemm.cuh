// out[m, n] = sum over k of x[m, k] * weight[n, k] for few rows m, of elements of 16 bits, or of codes of 8 bits, whose
// scales are those of all, of rows and columns, or of blocks of 128. With the epilogues of GEMV; for sm_90a.
//
// Such a product takes the time in which the weight comes from memory. The weight is the left operand of products of
// warpgroups, which has 64 rows, and x the right one, which has as few as there are: a tile is 128 rows of the weight
// and all of x. One thread copies kRowBytes of each row of the weight to stages in shared memory, as far ahead as there
// are stages, while the kernel before still runs; another one those of x. Blocks share the stages of all tiles
// (stream_k.cuh), and each number is summed in the same order whatever m is.
//
// Tensor cores keep some 14 bits of sums of floats of 8 bits: those of kRowBytes terms are made by themselves and added
// up in f32, which is also where scales of blocks are multiplied. Meanwhile the products of the next stage run.
#pragma once
#include "kernels/common/stage_ring.cuh"
#include "kernels/linear/byte_products.cuh"
#include "kernels/linear/float_products.cuh"
#include "kernels/linear/streamed_tile.cuh"
#include "kernels/linear/streamed_walk.cuh"

namespace llmc {

#if LLMC_SM90
// What a body keeps in shared memory beside the stages.
struct StreamedGemmShared {
  u64 weight_full[StreamedGemmLayout::kMostStages], x_full[StreamedGemmLayout::kMostStages];
  u64 empty[StreamedGemmLayout::kMostStages];
  int is_last[2];  // of each warpgroup
};

// kByOne: by one thread, which is sooner; but with codes steps of more than 8 rows take longer so.
template <int kStages, bool kByOne>
__device__ __forceinline__ void InitStreamedBarriers(StreamedGemmShared& shared) {
  constexpr int kWarps = StreamedGemmLayout::kMathThreads / 32;
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (kByOne) {
    if (thread < 32 && ElectThread()) {
      InitBarriers<kStages>(shared.weight_full, 1);
      InitBarriers<kStages>(shared.x_full, 1);
      InitBarriers<kStages>(shared.empty, kWarps);
      FenceBarriers();
    }
  } else if (thread < kStages) {
    InitBarrier(&shared.weight_full[thread], 1);
    InitBarrier(&shared.x_full[thread], 1);
    InitBarrier(&shared.empty[thread], kWarps);
    FenceBarriers();
  }
}

// C::T: what sums are rounded to, f16 or bf16.  C::A, C::B: of the codes of x and of the weight, or T.  C::kIn: k.
// C::kOut: columns of the result.  C::kScaleA, C::kScale: PartKinds, both or neither kOfBlocks; kNoPart: elements.
// C::kBoxRows: of the weight that are copied at once.  C::kGrid: blocks of the launch.  C::kSharedBytes.
// And what the epilogue says.  kTokens: rows of x, at the most.
template <class C, class Context, class Epilogue, int kTokens>
struct StreamedGemmBody {
  using L = StreamedGemmLayout;
  using Tile = StreamedTile<C, Epilogue>;
  using Factors = StreamedFactors<C>;
  static constexpr L kLayout = {kTokens};
  static constexpr int kBlocks = kTokens / 8, kStages = kLayout.Stages(C::kSharedBytes);
  static constexpr int kBytes = sizeof(typename C::B);
  static constexpr bool kSumsOfStages = kIsFloatType<typename C::B> && kBytes == 1;
  static constexpr bool kScalesStages = C::kScale == kOfBlocks;
  static constexpr int kChunks = (C::kIn * kBytes + L::kRowBytes - 1) / L::kRowBytes;
  using Sum = typename WarpgroupSum<kIsFloatType<typename C::B>>::Type;
  using Sums = Sum[kBlocks][4];
  using Segment = StreamedSegment;
  using Walk = StreamedWalk<kChunks>;
  static_assert(kIsFloatType<typename C::A> == kIsFloatType<typename C::B>, "A, B: both are floats or integers");
  static_assert(sizeof(typename C::A) == kBytes && (kBytes == 1 || kSame<typename C::A, typename C::B>),
                "A, B: bytes, or elements of one type");
  static_assert(kScalesStages == (C::kScaleA == kOfBlocks) && (kSumsOfStages || !kScalesStages),
                "kScale, kScaleA: both of blocks of floats of 8 bits, or neither");
  static_assert(C::kGrid * 8 <= kCounterBytes, "kGrid: blocks have counters");
  static_assert(C::kThreads == L::kThreads, "kThreads: two warpgroups multiply, two warps copy");
  static_assert(kStages >= 2, "kSharedBytes: two stages");

  const Context& context;
  StreamedGemmShared& shared;
  char* const arena;
  const Epilogue& epilogue;
  const TileMap &x_map, &weight_map;
  const Factors& factors;
  Sum* const partials;
  i32* const counters;
  const int tokens;

  __device__ __forceinline__ int Block() const { return static_cast<int>(context.TileX()); }
  // Few tiles are cut into equal parts, whose blocks have no parts of others, if that leaves few blocks without any.
  static __device__ __forceinline__ StreamLine Line() {
    constexpr int kWhole = Tile::kTiles < C::kGrid ? C::kGrid / Tile::kTiles * Tile::kTiles : 0;
    return {Tile::kTiles * kChunks, kChunks, 10 * kWhole >= 7 * C::kGrid ? kWhole : C::kGrid};
  }
  __device__ __forceinline__ Walk Begin() const { return {Line().BeginOf(Block()), Line().BeginOf(Block() + 1)}; }
  __device__ __forceinline__ u32 Stage(int slot) const { return SharedAddress(arena) + slot * kLayout.StageBytes(); }

  // ---- threads that copy -------------------------------------------------------------------------------------------
  // Visits the chunks of the block's part in their order, when there is room for them.
  template <class Visit>
  __device__ __forceinline__ void ForEachChunk(Visit visit) const {
    RingPlace<kStages> place;
    Walk walk = Begin();
    Segment s;
    while (walk.Next(&s)) {
#pragma unroll 1
      for (int chunk = s.first; chunk < s.end; ++chunk, place.Advance()) {
        WaitAt(&shared.empty[place.slot], place.parity ^ 1);
        visit(s.tile, chunk, place);
      }
    }
  }
  __device__ __forceinline__ void CopyWeight() const {
    // Elements take longer than x waits behind them.
    constexpr int kAhead = kBytes == 2 ? 48 * 1024 : kMostAheadBytes;
    RingStart<L::kRows * L::kRowBytes, kAhead> start;
    const u64 policy = EvictFirst();
    ForEachChunk([&](int tile, int chunk, const RingPlace<kStages>& place) {
      start.WaitForOthers(shared.weight_full, place.slot, kStages);
      u64* const full = &shared.weight_full[place.slot];
      ArriveExpecting(full, L::kRows * L::kRowBytes);
#pragma unroll
      for (int row = 0; row < L::kRows; row += C::kBoxRows) {
        CopyTile(Stage(place.slot) + row * L::kRowBytes, weight_map, chunk * L::kRowBytes, Tile::WeightRow(tile, row),
                 full, policy);
      }
    });
  }
  __device__ __forceinline__ void CopyX() const {
    constexpr int kRows = kLayout.XBoxRows();
    context.Wait();
    ForEachChunk([&](int, int chunk, const RingPlace<kStages>& place) {
      u64* const full = &shared.x_full[place.slot];
      ArriveExpecting(full, kTokens * L::kRowBytes);
#pragma unroll
      for (int row = 0; row < kTokens; row += kRows) {
        CopyTile(Stage(place.slot) + (L::kRows + row) * L::kRowBytes, x_map, chunk * L::kRowBytes, row, full);
      }
    });
  }

  // ---- warpgroups that multiply ------------------------------------------------------------------------------------
  // c = the products of a stage, or c += these.
  __device__ __forceinline__ void MultiplyStage(Sums& c, int slot, bool add) const {
    const u64 weight = Operand(Stage(slot) + Tile::FirstRow() * L::kRowBytes);
    const u64 x = Operand(Stage(slot) + L::kRows * L::kRowBytes);
#pragma unroll
    for (int step = 0; step < L::kRowBytes / 32; ++step) {
      const u64 rows = OperandBehind(weight, 32 * step), tokens_of_x = OperandBehind(x, 32 * step);
      if constexpr (kBytes == 2) {
        MultiplyWarpgroupFloats<typename C::B>(c, rows, tokens_of_x, add || step > 0);
      } else {
        MultiplyWarpgroupBytes<typename C::B, typename C::A>(c, rows, tokens_of_x, add || step > 0);
      }
    }
  }
  __device__ __forceinline__ void Await(const RingPlace<kStages>& place) const {
    WaitAt(&shared.x_full[place.slot], place.parity);
    WaitAt(&shared.weight_full[place.slot], place.parity);
  }
  __device__ __forceinline__ void Free(int slot) const {
    if (threadIdx.x % 32 == 0) ArriveAt(&shared.empty[slot]);
  }

  // The products of a stage run while the next one is awaited.
  __device__ __forceinline__ void SumWhole(const Segment& s, RingPlace<kStages>& place, Sums& sums) const {
    int before = -1;
#pragma unroll 1
    for (int chunk = s.first; chunk < s.end; ++chunk, place.Advance()) {
      Await(place);
      BeginProducts();
      MultiplyStage(sums, place.slot, chunk > s.first);
      CommitProducts();
      WaitForProducts<1>();
      if (before >= 0) Free(before);
      before = place.slot;
    }
    WaitForProducts<0>();
    Free(before);
    Pin(sums);
  }

  // The sums of a stage are added to those of all, times the scales of its blocks.
  __device__ __forceinline__ void Add(const Segment& s, int chunk, const Sums& c, Sums& sums) const {
    if constexpr (kScalesStages) {
      const float of_rows = factors.OfBlock(Tile::WeightRow(s.tile, Tile::FirstRow()), chunk);
      float of_x[kBlocks][2];
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) {
        const int token = i / 2 * 8 + Tile::OwnToken() + i % 2;
        of_x[i / 2][i % 2] = factors.OfRun(Tile::KnownToken(token, tokens), chunk);
      }
#pragma unroll
      for (int i = 0; i < 4 * kBlocks; ++i) {
        sums[i / 4][i % 4] = fmaf(c[i / 4][i % 4], of_x[i / 4][i % 2] * of_rows, sums[i / 4][i % 4]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4 * kBlocks; ++i) sums[i / 4][i % 4] += c[i / 4][i % 4];
    }
  }
  __device__ __forceinline__ void SumStages(const Segment& s, RingPlace<kStages>& place, Sums& sums) const {
#pragma unroll
    for (int i = 0; i < 4 * kBlocks; ++i) sums[i / 4][i % 4] = 0;
    int issued = s.first, taken = s.first, free = place.slot;
    const auto issue = [&](Sums& c) {
      Await(place);
      BeginProducts();
      MultiplyStage(c, place.slot, false);
      CommitProducts();
      place.Advance();
      ++issued;
    };
    const auto take = [&](Sums& c) {
      Free(free);
      free = free + 1 == kStages ? 0 : free + 1;
      Pin(c);
      Add(s, taken++, c, sums);
    };
    if constexpr (kTokens > 64) {  // registers hold the sums of one stage beside those of all
#pragma unroll 1
      while (issued < s.end) {
        Sums c;
        issue(c);
        WaitForProducts<0>();
        take(c);
      }
    } else {
      Sums even, odd;
      issue(even);
#pragma unroll 1
      while (issued + 1 < s.end) {
        issue(odd);
        WaitForProducts<1>();
        take(even);
        issue(even);
        WaitForProducts<1>();
        take(odd);
      }
      if (issued < s.end) {
        issue(odd);
        WaitForProducts<1>();
        take(even);
        WaitForProducts<0>();
        take(odd);
      } else {
        WaitForProducts<0>();
        take(even);
      }
    }
  }

  // The parts of a tile. Warpgroups do not wait for each other, but where each has one half of pairs.
  __device__ __forceinline__ bool AddUp(int tile, Sums& c) const {
    constexpr int kWaiting = Epilogue::kPaired ? L::kMathThreads : 128, kAtOnce = kTokens <= 32 ? 4 : 1;
    const int group = Epilogue::kPaired ? 0 : static_cast<int>(threadIdx.x) / 128;
    // A tile that lies in several blocks' parts is the last one of the first of them.
    const int counter = 2 * Line().BlockOf(tile * kChunks) + group;
    return AddUpTile<kWaiting, L::kMathThreads, kAtOnce>(
        Line(), Block(), tile, partials, counters + counter, 1 + group, shared.is_last[group],
        reinterpret_cast<Sum(&)[1][kBlocks][4]>(c), [](int) { return true; });
  }
  __device__ __forceinline__ void Multiply() const {
    context.Wait();
    RingPlace<kStages> place;
    Walk walk = Begin();
    Segment s;
    while (walk.Next(&s)) {
      Sums sums;
      typename Tile::template Scales<kBlocks> scales;  // read while sums are made, where registers hold them
      typename Tile::template Prepared<kBlocks> prepared;
      if constexpr (kTokens <= 64) scales.Read(factors, s.tile, tokens);
      if constexpr (kTokens <= 32) prepared.Read(epilogue, s.tile, tokens);
      if constexpr (kSumsOfStages) {
        SumStages(s, place, sums);
      } else {
        SumWhole(s, place, sums);
      }
      if (s.end - s.first < kChunks && !AddUp(s.tile, sums)) continue;
      if constexpr (kTokens > 64) scales.Read(factors, s.tile, tokens);
      if constexpr (kTokens > 32) prepared.Read(epilogue, s.tile, tokens);
      float numbers[kBlocks][4];
#pragma unroll
      for (int i = 0; i < 4 * kBlocks; ++i) numbers[i / 4][i % 4] = static_cast<float>(sums[i / 4][i % 4]);
      if constexpr (Epilogue::kPaired) Tile::PairUp(arena + kStages * kLayout.StageBytes(), numbers);
      Tile::Store(epilogue, scales, prepared, s.tile, tokens, numbers);
    }
  }

  __device__ __forceinline__ void Run() const {
    const int thread = static_cast<int>(threadIdx.x);
    InitStreamedBarriers<kStages, kTokens == 8 || kBytes == 2>(shared);
    context.Sync();
    if (thread < L::kMathThreads) {
      Multiply();
    } else if (ElectThread()) {
      if (thread < L::kMathThreads + 32) {
        CopyWeight();
      } else {
        CopyX();
      }
    }
  }
};
#endif

// partials: for each block of the launch twice the sums of a tile.  counters: two for each block, zero, and left so.
template <class C, class Context, class Epilogue>
__device__ __forceinline__ void StreamedGemmKernel(const Context& context, const Epilogue& epilogue,
                                                   const TileMap& x_map, const TileMap& weight_map,
                                                   const StreamedFactors<C>& factors, i64 tokens, void* partials,
                                                   i32* counters) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  char* const arena = context.template Arena<1024>();
  auto& shared = context.template Shared<StreamedGemmShared>();
  const int rows = static_cast<int>(tokens);
  if (rows == 0) return context.Wait();
  const auto run = [&](auto body) { body.Run(); };
  using Sum = typename WarpgroupSum<kIsFloatType<typename C::B>>::Type;
  auto* const sums = static_cast<Sum*>(partials);
#define LLMC_RUN(most)                                                                                                 \
  run(StreamedGemmBody<C, Context, Epilogue, most>{context, shared, arena, epilogue, x_map, weight_map, factors, sums, \
                                                   counters, rows})
  if constexpr (C::kTokens > 64) {
    if (rows <= 64) return LLMC_RUN(64);
  }
  LLMC_RUN(C::kTokens);
#undef LLMC_RUN
#endif
}

// ---- entry points: those of gemv.cuh, of up to C::kTokens rows of x, 8, 32, 64 or 128 ------------------------------

template <class C, class Context>
__device__ __forceinline__ void StreamedGemm(const Context& context, typename C::Out* out, const TileMap& x,
                                             const TileMap& weight, const StreamedFactors<C>& factors, i64 tokens,
                                             void* partials, i32* counters) {
  StreamedGemmKernel<C>(context, StoreSum<C>{out}, x, weight, factors, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void StreamedGemmAdd(const Context& context, typename C::T* out, const TileMap& x,
                                                const TileMap& weight, const StreamedFactors<C>& factors,
                                                const typename C::T* addend, i64 tokens, void* partials,
                                                i32* counters) {
  StreamedGemmKernel<C>(context, StoreAdded<C, false>{out, addend}, x, weight, factors, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void StreamedGemmBias(const Context& context, typename C::T* out, const TileMap& x,
                                                 const TileMap& weight, const StreamedFactors<C>& factors,
                                                 const typename C::T* bias, i64 tokens, void* partials, i32* counters) {
  StreamedGemmKernel<C>(context, StoreAdded<C, true>{out, bias}, x, weight, factors, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void StreamedGemmSiluMul(const Context& context, typename C::T* out, const TileMap& x,
                                                    const TileMap& weight, const StreamedFactors<C>& factors,
                                                    i64 tokens, void* partials, i32* counters) {
  StreamedGemmKernel<C>(context, StoreSiluMul<C>{out}, x, weight, factors, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void StreamedGemmQkvRope(const Context& context, typename C::T* out, const TileMap& x,
                                                    const TileMap& weight, const StreamedFactors<C>& factors,
                                                    const typename C::T* bias, typename C::T* kv, const i32* pos,
                                                    const float* inv_freq, const i32* slots, float scale, i64 tokens,
                                                    void* partials, i32* counters) {
  StreamedGemmKernel<C>(context, StoreQkvRope<C>{out, kv, bias, pos, inv_freq, slots, scale}, x, weight, factors,
                        tokens, partials, counters);
}

}  // namespace llmc
