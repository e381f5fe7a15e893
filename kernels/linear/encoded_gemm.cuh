// out[m, n] = sum over k of x[m, k] * weight[n, k] for some rows m, with an encoded weight whose codes become numbers
// of 16 bits in registers: the left operand of products of warpgroups, whose right one is x. Numbers are rounded to the
// type of x, where the block of a scale ends before k does; sums are in f32.
//
// A tile is 128 rows of the weight and up to kTokens of x. A stage has 128 bytes of codes of each row, and as many
// terms of x. Blocks share the stages of all tiles equally (stream_k.cuh).
//
// Which term is which does not matter as long as both operands agree: a lane reads eight neighbouring codes, which are
// its operands of two products of 16 terms. x is put into shared memory in that order: of 32 terms, pair p of lane t of
// 4 is pair 4 p + t there.
#pragma once
#include "kernels/linear/encoded_tile.cuh"
#include "kernels/linear/stream_k.cuh"

namespace llmc {

#if LLMC_SM90
// What a body keeps in shared memory beside the stages.
struct EncodedGemmShared {
  u64 full[EncodedGemmLayout::kMostStages], empty[EncodedGemmLayout::kMostStages];
  int is_last;
};

// Over 250 lines: what copies and what multiplies share one walk along the line of stages.
// C::T: of x, f16 or bf16.  C::kIn: k.  C::kOut: columns of the result.  C::kThreads, C::kSharedBytes.  And what
// EncodedWeight and the epilogue say.  kTokens: rows of x in a tile.
template <class C, class Context, class Epilogue, int kTokens>
struct EncodedGemmBody {
  using T = typename C::T;
  using W = EncodedWeight<C>;
  using Q = typename C::Q;
  using L = EncodedGemmLayout;
  using Decoder = RowDecoder<C>;
  using Tile = EncodedTile<C, Epilogue, L::kRows>;
  static constexpr L kLayout = {W::kBits, W::kScaleBits, W::kZeroBits, C::kBlock};
  static constexpr int kDepth = kLayout.Depth(), kSlabs = kDepth / 32, kBlocks = kTokens / 8;
  static constexpr int kStages = kLayout.Stages(kTokens, C::kSharedBytes), kStageBytes = kLayout.StageBytes(kTokens);
  static constexpr int kXTile = kTokens * 128;  // bytes of 64 terms
  static constexpr int kChunks = C::kIn / kDepth;
  static constexpr int kCopying = 128;  // threads that copy weights; as many copy x
  static_assert(sizeof(T) == 2, "T: f16 or bf16");
  static_assert(C::kThreads == L::kThreads, "kThreads: two warpgroups multiply, and two copy");
  static_assert(C::kIn % kDepth == 0, "kIn: whole stages");
  static_assert(kStages >= 2, "kSharedBytes: two stages");
  static_assert(kLayout.CanCopy(C::kIn, W::kScaleBits) && kLayout.CanCopy(C::kIn, W::kZeroBits),
                "kBlock: parts of a stage are whole words");

  const Context& context;
  EncodedGemmShared& shared;
  char* const stages;
  const Epilogue& epilogue;
  const T* const x;
  const W& weight;
  float* const partials;
  i32* const counters;
  const int tokens;

  // A part of a tile: stages [first, end) of its kChunks.
  struct Segment {
    int tile, first, end;
  };
  struct Walk {
    int at, end;
    int slot = 0, round = 0;
    __device__ __forceinline__ bool Next(Segment* s) {
      if (at >= end) return false;
      s->tile = at / kChunks;
      s->first = at % kChunks;
      const int left = end - at, whole = kChunks - s->first;
      s->end = s->first + (left < whole ? left : whole);
      at += s->end - s->first;
      return true;
    }
    __device__ __forceinline__ void Advance() {
      if (++slot == kStages) {
        slot = 0;
        ++round;
      }
    }
  };
  __device__ __forceinline__ int TokenTiles() const { return (tokens + kTokens - 1) / kTokens; }
  __device__ __forceinline__ int Block() const { return static_cast<int>(context.TileX()); }
  __device__ __forceinline__ StreamLine Line() const {
    return {Tile::kTiles * TokenTiles() * kChunks, kChunks, static_cast<int>(context.TilesX())};
  }
  __device__ __forceinline__ Walk Begin() const { return {Line().BeginOf(Block()), Line().BeginOf(Block() + 1)}; }
  __device__ __forceinline__ int RowTile(const Segment& s) const { return s.tile / TokenTiles(); }
  __device__ __forceinline__ int FirstToken(const Segment& s) const { return s.tile % TokenTiles() * kTokens; }

  // ---- threads that copy weights -----------------------------------------------------------------------------------
  template <int kBits>
  __device__ __forceinline__ void CopyParts(char* to, int row, i64 at, bool is_zero) const {
    if constexpr (kBits > 0) {
      constexpr int kBytes = kLayout.PartCopy(kBits), kAtOnce = kBytes < 16 ? kBytes : 16;
      const u64 from = reinterpret_cast<u64>(weight.Part(row, at, C::kIn, is_zero)) & ~static_cast<u64>(3);
#pragma unroll
      for (int i = 0; i < kBytes; i += kAtOnce) {
        CopyAsyncBytes<kAtOnce>(SharedAddress(to + i), reinterpret_cast<const char*>(from) + i);
      }
    }
  }
  __device__ __forceinline__ void CopyWeights() const {
    constexpr int kRounds = L::kRows * 8 / kCopying;  // of 16 bytes
    const int thread = threadIdx.x % kCopying, chunk = thread % 8;
    Walk walk = Begin();
    Segment s;
    while (walk.Next(&s)) {
      int rows[kRounds];
#pragma unroll
      for (int i = 0; i < kRounds; ++i) rows[i] = Tile::WeightRow(RowTile(s), i * (kCopying / 8) + thread / 8);
      const int own = Tile::WeightRow(RowTile(s), thread);
#pragma unroll 1
      for (int at = s.first; at < s.end; ++at) {
        if (walk.round > 0) WaitAt(&shared.empty[walk.slot], (walk.round - 1) & 1);
        char* const stage = stages + walk.slot * kStageBytes;
#pragma unroll
        for (int i = 0; i < kRounds; ++i) {
          const int row = i * (kCopying / 8) + thread / 8;
          const char* from = static_cast<const char*>(weight.Row(rows[i], at * kDepth, C::kIn)) + chunk * 16;
          CopyAsync(SharedAddress(stage + row * L::kRowBytes + (chunk ^ row % 8) * 16), from, true);
        }
        CopyParts<W::kScaleBits>(stage + kLayout.ScaleAt(kTokens) + thread * kLayout.PartCopy(W::kScaleBits), own,
                                 at * kDepth, false);
        CopyParts<W::kZeroBits>(stage + kLayout.ZeroAt(kTokens) + thread * kLayout.PartCopy(W::kZeroBits), own,
                                at * kDepth, true);
        ArriveWithCopies(&shared.full[walk.slot]);
        walk.Advance();
      }
    }
    WaitForAllCopies();
  }

  // ---- threads that copy x -----------------------------------------------------------------------------------------
  static constexpr int kItems = kBlocks * kSlabs;  // of 8 tokens and 32 terms, for a warp each
  static constexpr int kEach = kItems / (kCopying / 32), kBatch = kEach < 8 ? kEach : 8, kBatches = kEach / kBatch;
  static_assert(kEach * (kCopying / 32) == kItems && kBatches * kBatch == kEach, "kTokens: 32, 64 or 128");

  // A lane takes 8 terms of a token, and puts its pairs where the products take them.
  using Batch = Vec<u32, 4>[kBatch];
  __device__ __forceinline__ void LoadX(const Segment& s, int at, int batch, Batch& v) const {
    const int warp = threadIdx.x % kCopying / 32, token = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int item = (batch * kBatch + j) * (kCopying / 32) + warp, slab = item % kSlabs;
      const int own = FirstToken(s) + item / kSlabs * 8 + token;
      v[j] = {};
      if (own < tokens) {
        const T* from = x + static_cast<i64>(own) * C::kIn + at * kDepth + slab * 32 + part * 8;
        v[j] = Load<u32, 4>(reinterpret_cast<const u32*>(from));
      }
    }
  }
  __device__ __forceinline__ void StoreX(char* stage, int batch, const Batch& v) const {
    const int warp = threadIdx.x % kCopying / 32, token = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int item = (batch * kBatch + j) * (kCopying / 32) + warp, slab = item % kSlabs;
      char* const row = stage + kLayout.XAt() + slab / 2 * kXTile + (item / kSlabs * 8 + token) * 128 + part * 4;
      const Vec<u32, 4> pairs = Decoder::Pairs::kOfNeighbours ? v[j] : PairFourApart(v[j]);
#pragma unroll
      for (int p = 0; p < 4; ++p) *reinterpret_cast<u32*>(row + ((slab % 2 * 4 + p) ^ token) * 16) = pairs.v[p];
    }
  }
  // The next batch is under way while one is put down.
  __device__ __forceinline__ void CopyX() const {
    context.Wait();
    Walk walk = Begin(), ahead = Begin();
    Segment s, next;
    if (!ahead.Next(&next)) return;
    int next_at = next.first;
    Batch v[2];
    LoadX(next, next_at, 0, v[0]);
    while (walk.Next(&s)) {
#pragma unroll 1
      for (int at = s.first; at < s.end; at += kBatches == 1 ? 2 : 1) {
        // Batches take turns between two places: in a stage, or in two if these have one.
#pragma unroll
        for (int turn = 0; turn < (kBatches == 1 ? 2 : kBatches); ++turn) {
          const int batch = kBatches == 1 ? 0 : turn;
          if (kBatches == 1 && turn == 1 && at + 1 >= s.end) {
            // The segment has an odd number of stages: what is under way moves to the first place.
#pragma unroll
            for (int j = 0; j < kBatch; ++j) v[0][j] = v[1][j];
            break;
          }
          const bool begins_stage = batch == kBatches - 1;
          bool more = true;
          if (begins_stage && ++next_at == next.end) {
            more = ahead.Next(&next);
            next_at = next.first;
          }
          if (more) LoadX(next, next_at, begins_stage ? 0 : batch + 1, v[(turn + 1) % 2]);
          if (batch == 0 && walk.round > 0) WaitAt(&shared.empty[walk.slot], (walk.round - 1) & 1);
          StoreX(stages + walk.slot * kStageBytes, batch, v[turn % 2]);
          if (begins_stage) {
            ArriveAt(&shared.full[walk.slot]);
            walk.Advance();
          }
        }
      }
    }
  }

  // ---- warpgroups that multiply ------------------------------------------------------------------------------------
  // The number for the terms from `slab` on of a row of the stage.
  template <class Part, int kBits>
  static __device__ __forceinline__ Part PartOf(const char* of_row, int at, int slab) {
    constexpr bool kIsPartOfWord = kLayout.PartBytes(kBits) < 4;
    const int column = slab * 32 + (C::kBlock < 32 ? static_cast<int>(threadIdx.x % 4) * 8 : 0);
    // Where the stage's first number lies in the word that was copied.
    int first = 0;
    if constexpr (kIsPartOfWord && kBits > 0) first = at * (kDepth / C::kBlock) % (32 / kBits);
    return ReadElement(reinterpret_cast<const Part*>(of_row), first + column / C::kBlock);
  }

  __device__ __forceinline__ void MultiplyStage(const char* stage, int at, Decoder (&rows)[2], float (&c)[kBlocks][4],
                                                u64* free_after_first) const {
    const int row = Tile::OwnRow(), part = threadIdx.x % 4;
    const u32 x_at = SharedAddress(stage + kLayout.XAt());
    u32 a[2][4][4];
#pragma unroll
    for (int both = 0; both < kSlabs / 2; ++both) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int slab = 2 * both + half;
        u32 pairs[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int own = row + 8 * j;
          if (W::kScaleInBlocks && (C::kBlock < 32 || slab * 32 % C::kBlock == 0)) {
            rows[j].SetScale(PartOf<typename C::Scale, W::kScaleBits>(
                stage + kLayout.ScaleAt(kTokens) + own * kLayout.PartCopy(W::kScaleBits), at, slab));
          }
          if (W::kZeroInBlocks && (C::kBlock < 32 || slab * 32 % C::kBlock == 0)) {
            rows[j].SetZero(PartOf<typename C::Zero, W::kZeroBits>(
                stage + kLayout.ZeroAt(kTokens) + own * kLayout.PartCopy(W::kZeroBits), at, slab));
          }
          constexpr int kBytes = W::kBits;  // of a lane's eight codes
          const int byte = slab * 4 * kBytes + part * kBytes;
          Codes<Q, 8> codes;
          codes.Load(stage + own * L::kRowBytes + (byte / 16 ^ own % 8) * 16 + byte % 16);
          rows[j].Decode(codes, pairs[j]);
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          u32(&to)[4] = a[both % 2][2 * half + s];
          to[0] = pairs[0][2 * s];
          to[1] = pairs[1][2 * s];
          to[2] = pairs[0][2 * s + 1];
          to[3] = pairs[1][2 * s + 1];
        }
      }
      BeginProducts();
#pragma unroll
      for (int s = 0; s < 4; ++s) MultiplyWarpgroup<T, 0>(c, a[both % 2][s], Operand(x_at + both * kXTile + s * 32), 1);
      CommitProducts();
      WaitForProducts<1>();
      // Now the products of the stage before have ended.
      if (both == 0 && free_after_first != nullptr && threadIdx.x % 32 == 0) ArriveAt(free_after_first);
    }
  }

  __device__ __forceinline__ void Multiply() const {
    Walk walk = Begin();
    Segment s;
    bool has_waited = false;
    while (walk.Next(&s)) {
      float c[kBlocks][4] = {};
      Decoder rows[2];
      float scale[2];
      Tile::Begin(weight, RowTile(s), rows, scale);
      u64* before = nullptr;
#pragma unroll 1
      for (int at = s.first; at < s.end; ++at) {
        WaitAt(&shared.full[walk.slot], walk.round & 1);
        FenceSharedForTensorCores();
        MultiplyStage(stages + walk.slot * kStageBytes, at, rows, c, before);
        before = &shared.empty[walk.slot];
        walk.Advance();
      }
      WaitForProducts<0>();
      Pin(c);
      if (threadIdx.x % 32 == 0) ArriveAt(before);
      if (!has_waited) context.Wait();
      has_waited = true;
      const bool is_part = s.end - s.first < kChunks;
      if (is_part && !AddUpTile<L::kMathThreads, L::kMathThreads, 1>(Line(), Block(), s.tile, partials,
                                                                     counters + s.tile, 1, shared.is_last, c)) {
        continue;
      }
      Tile::Store(epilogue, weight, RowTile(s), FirstToken(s), tokens, scale, c);
    }
  }

  __device__ __forceinline__ void Run() const {
    if (threadIdx.x < kStages) {
      InitBarrier(&shared.full[threadIdx.x], 2 * kCopying);
      InitBarrier(&shared.empty[threadIdx.x], L::kMathThreads / 32);
    }
    context.Sync();
    if (threadIdx.x < L::kMathThreads) {
      Multiply();
    } else if (threadIdx.x < L::kMathThreads + kCopying) {
      CopyWeights();
    } else {
      CopyX();
    }
  }
};
#endif

// partials: 2 * 128 * kEncodedGemmMost floats for each block of the launch.  counters: one for each tile, zero, and
// left so.
template <class C, class Context, class Epilogue>
__device__ __forceinline__ void EncodedGemmKernel(const Context& context, const Epilogue& epilogue,
                                                  const typename C::T* x, const EncodedWeight<C>& weight, i64 tokens,
                                                  float* partials, i32* counters) {
#if LLMC_SM90
  char* const arena = context.template Arena<1024>();
  auto& shared = context.template Shared<EncodedGemmShared>();
  const int rows = static_cast<int>(tokens);
  if (rows <= 32) {
    EncodedGemmBody<C, Context, Epilogue, 32>{context, shared, arena, epilogue, x, weight, partials, counters, rows}
        .Run();
  } else if (rows <= 64) {
    EncodedGemmBody<C, Context, Epilogue, 64>{context, shared, arena, epilogue, x, weight, partials, counters, rows}
        .Run();
  } else {
    EncodedGemmBody<C, Context, Epilogue, kEncodedGemmMost>{context, shared,   arena,    epilogue, x,
                                                            weight,  partials, counters, rows}
        .Run();
  }
#endif
}

// ---- entry points: those of gemv.cuh, of up to kMaxEncodedGemmRows tokens. From sm_90 on. ---------------------------

template <class C, class Context>
__device__ __forceinline__ void EncodedGemm(const Context& context, typename C::Out* out, const typename C::T* x,
                                            const EncodedWeight<C>& weight, i64 tokens, float* partials,
                                            i32* counters) {
  EncodedGemmKernel<C>(context, StoreSum<C>{out}, x, weight, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void EncodedGemmAdd(const Context& context, typename C::T* out, const typename C::T* x,
                                               const EncodedWeight<C>& weight, const typename C::T* addend, i64 tokens,
                                               float* partials, i32* counters) {
  EncodedGemmKernel<C>(context, StoreAdded<C, false>{out, addend}, x, weight, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void EncodedGemmBias(const Context& context, typename C::T* out, const typename C::T* x,
                                                const EncodedWeight<C>& weight, const typename C::T* bias, i64 tokens,
                                                float* partials, i32* counters) {
  EncodedGemmKernel<C>(context, StoreAdded<C, true>{out, bias}, x, weight, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void EncodedGemmSiluMul(const Context& context, typename C::T* out, const typename C::T* x,
                                                   const EncodedWeight<C>& weight, i64 tokens, float* partials,
                                                   i32* counters) {
  EncodedGemmKernel<C>(context, StoreSiluMul<C>{out}, x, weight, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void EncodedGemmQkvRope(const Context& context, typename C::T* out, const typename C::T* x,
                                                   const EncodedWeight<C>& weight, const typename C::T* bias,
                                                   typename C::T* kv, const i32* pos, const float* inv_freq,
                                                   const i32* slots, float scale, i64 tokens, float* partials,
                                                   i32* counters) {
  EncodedGemmKernel<C>(context, StoreQkvRope<C>{out, kv, bias, pos, inv_freq, slots, scale}, x, weight, tokens,
                       partials, counters);
}

}  // namespace llmc
