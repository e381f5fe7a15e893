// out[m, n] = sum over k of x[m, k] * weight[n, k] for few rows m, with an encoded weight: as encoded_gemm.cuh, for
// steps where nothing counts but the bytes of the weight.
//
// Each thread copies what it needs itself, some steps ahead: the codes that it decodes, and terms of x, which it puts
// in the order of products when they are there. So there is one barrier a step, and none for weights. Two blocks fill a
// multiprocessor; where one ends, one of the next launch begins, and copies weights while the other still runs.
//
// A tile is 128 rows of the weight. Blocks share the steps of all tiles, of 128 terms each, equally (stream_k.cuh).
//
// A lane t of four has 32 codes of its rows g and g + 8 of a warp's 16: four times eight neighbours, of which eight are
// its operands of two products of 16 terms. Pair p of the eight is pair 4 (p % 2) + t of product p / 2.
#pragma once
#include "kernels/linear/encoded_tile.cuh"
#include "kernels/linear/stream_k.cuh"

namespace llmc {

#if LLMC_SM90
struct EncodedSkinnyShared {
  int is_last[2];  // of each warpgroup
};

// Over 250 lines: what copies and what multiplies share one walk along the line.
// C::T: of x, f16 or bf16.  C::kIn: k.  C::kOut: columns of the result.  C::kTokens: rows of x, 16 or 32 at the most.
// C::kStages.  And what EncodedWeight and the epilogue say.
template <class C, class Context, class Epilogue>
struct EncodedSkinnyBody {
  using T = typename C::T;
  using W = EncodedWeight<C>;
  using Q = typename C::Q;
  using X = typename TileX<C>::Stored;
  using L = EncodedSkinnyLayout;
  using Tile = EncodedTile<C, Epilogue, L::kRows>;
  using Decoder = RowDecoder<C>;
  static constexpr int kXBits = 8 * static_cast<int>(sizeof(X)), kStages = C::kStages;
  static constexpr L kLayout = {W::kBits, W::kScaleBits, W::kZeroBits, C::kBlock, C::kIn, C::kTokens, kXBits, kStages};
  static constexpr int kTokenBlocks = C::kTokens / 8, kSteps = C::kIn / L::kDepth, kStageBytes = kLayout.StageBytes();
  static constexpr int kCodeVectors = kLayout.CodeBytes() / 16;
  static constexpr int kXHalf = C::kTokens * 128;    // bytes of 64 terms, of four products
  static constexpr int kXPieces = kTokenBlocks / 2;  // of 8 terms, that a thread copies
  static_assert(sizeof(T) == 2, "T: f16 or bf16");
  static_assert(C::kTokens == 16 || C::kTokens == 32, "kTokens: 16 or 32");
  static_assert(C::kThreads == L::kThreads, "kThreads: two warpgroups");
  static_assert(C::kIn % L::kDepth == 0, "kIn: whole steps");
  static_assert(kStages >= 2, "kStages: 2 or more");
  static_assert(kLayout.CanCopy(W::kScaleBits) && kLayout.CanCopy(W::kZeroBits), "kBlock: parts are words");

  const Context& context;
  EncodedSkinnyShared& shared;
  char* const arena;
  const Epilogue& epilogue;
  const X* const x;
  const W& weight;
  float* const partials;
  i32* const counters;
  const int tokens;

  __device__ __forceinline__ int Block() const { return static_cast<int>(context.TileX()); }
  __device__ __forceinline__ StreamLine Line() const {
    return {Tile::kTiles * kSteps, kSteps, static_cast<int>(context.TilesX())};
  }

  // ---- x --------------------------------------------------------------------------------------------------------
  // Sixteen threads copy the 128 terms of a token, eight each.
  static __device__ __forceinline__ int XToken(int piece) {
    return piece * (L::kThreads / 16) + static_cast<int>(threadIdx.x) / 16;
  }
  static __device__ __forceinline__ int XTerm() { return static_cast<int>(threadIdx.x) % 16 * 8; }
  __device__ __forceinline__ char* StagedX(int slot, int piece) const {
    constexpr int kBytes = 8 * sizeof(X);
    return Stage(slot) + kLayout.XAt() + (piece * L::kThreads + static_cast<int>(threadIdx.x)) * kBytes;
  }
  __device__ __forceinline__ void CopyX(int slot, int step) const {
#pragma unroll
    for (int i = 0; i < kXPieces; ++i) {
      const int token = XToken(i);
      const X* const from = x + (token < tokens ? token * C::kIn : 0) + step * L::kDepth + XTerm();
      CopyAsyncIf<8 * sizeof(X)>(SharedAddress(StagedX(slot, i)), from, token < tokens);
    }
  }
  __device__ __forceinline__ void OrderX(int slot, int step, char* tile) const {
    // The lane that multiplies the eight terms, and which of its eights they are.
    constexpr int kRun = kLayout.Run();
    const int lane = XTerm() / kRun % 4, eight = XTerm() / (4 * kRun) * (kRun / 8) + XTerm() % kRun / 8;
#pragma unroll
    for (int i = 0; i < kXPieces; ++i) {
      const int token = XToken(i);
      const Vec<u32, 4> v = TileX<C>::Numbers(reinterpret_cast<const X*>(StagedX(slot, i)), weight,
                                              token < tokens ? token : 0, step * L::kDepth + XTerm());
      const Vec<u32, 4> pairs = Decoder::Pairs::kOfNeighbours ? v : PairFourApart(v);
      char* const row = tile + eight / 2 * kXHalf + token * 128 + lane * 4;
#pragma unroll
      for (int p = 0; p < 4; ++p) *reinterpret_cast<u32*>(row + ((eight % 2 * 4 + p) ^ token % 8) * 16) = pairs.v[p];
    }
  }

  // ---- the weight -----------------------------------------------------------------------------------------------
  __device__ __forceinline__ char* Stage(int slot) const {
    return arena + L::kXTiles * kLayout.XTileBytes() + slot * kStageBytes;
  }
  __device__ __forceinline__ char* CodesAt(int slot, int j, int vector) const {
    return Stage(slot) + ((j * kCodeVectors + vector) * L::kThreads + static_cast<int>(threadIdx.x)) * 16;
  }
  __device__ __forceinline__ char* PartsAt(int slot, int j, int plane) const {
    return Stage(slot) + plane + (j * L::kThreads + static_cast<int>(threadIdx.x)) * 4;
  }
  // The word of a row's parts for the lane's codes from `term` on.
  template <int kBits>
  static __device__ __forceinline__ void CopyParts(char* to, const char* row, int term) {
    CopyAsyncBytes<4>(SharedAddress(to), row + term / C::kBlock * kBits / 32 * 4);
  }

  static __device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % 4; }
  // The first term of a step whose parts are in the lane's word.
  static __device__ __forceinline__ int SpanTerm() { return kLayout.Span() < L::kDepth ? Lane() * kLayout.Span() : 0; }

  // Copies steps one after the other.
  struct Copier {
    int at, end, step, slot;
    const char *codes[2], *scales[2], *zeros[2];  // of both rows: from the lane's first code on; of all of the row
  };
  __device__ __forceinline__ void EnterTile(Copier& c) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = Tile::WeightRow(c.at / kSteps, Tile::OwnRow() + 8 * j);
      c.codes[j] = static_cast<const char*>(weight.Row(row, Lane() * kLayout.Run(), C::kIn));
      if constexpr (W::kScaleBits > 0) c.scales[j] = weight.Part(row, 0, C::kIn, false);
      if constexpr (W::kZeroBits > 0) c.zeros[j] = weight.Part(row, 0, C::kIn, true);
    }
  }
  __device__ __forceinline__ Copier Begin(int at, int end) const {
    Copier c = {at, end, at % kSteps, 0, {}, {}, {}};
    if (at < end) EnterTile(c);
    return c;
  }
  template <bool kWithX>
  __device__ __forceinline__ void CopyStep(Copier& c) const {
    if (c.at < c.end) {
      const int term = c.step * L::kDepth + SpanTerm();
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const char* const from = c.codes[j] + c.step * (4 * kLayout.CodeBytes());
#pragma unroll
        for (int v = 0; v < kCodeVectors; ++v) CopyAsync(SharedAddress(CodesAt(c.slot, j, v)), from + 64 * v, true);
        if constexpr (W::kScaleBits > 0) {
          CopyParts<W::kScaleBits>(PartsAt(c.slot, j, kLayout.ScaleAt()), c.scales[j], term);
        }
        if constexpr (W::kZeroBits > 0) {
          CopyParts<W::kZeroBits>(PartsAt(c.slot, j, kLayout.ZeroAt()), c.zeros[j], term);
        }
      }
      if constexpr (kWithX) CopyX(c.slot, c.step);
      ++c.at;
      if (++c.slot == kStages) c.slot = 0;
      if (++c.step == kSteps) {
        c.step = 0;
        if (c.at < c.end) EnterTile(c);
      }
    }
    CommitCopies();
  }

  // ---- products -------------------------------------------------------------------------------------------------
  // The number for the lane's codes from 8 i on, of step `step`.
  template <class Part, int kBits>
  static __device__ __forceinline__ Part PartOf(const char* word, int step, int i) {
    constexpr L layout = kLayout;
    const int first = kBits < 32 ? (step * L::kDepth + SpanTerm()) / C::kBlock % (32 / kBits) : 0;
    const int own = C::kBlock < kLayout.Span() ? (layout.TermOf(Lane(), i) - SpanTerm()) / C::kBlock : 0;
    return ReadElement(reinterpret_cast<const Part*>(word), first + own);
  }
  // Whether the number for eight `i` is another one than that before.
  static constexpr bool kIsOneOfSpan = C::kBlock >= kLayout.Span();
  static __device__ __forceinline__ bool Changes(int i) {
    return i == 0 || (!kIsOneOfSpan && (i * 8 % C::kBlock == 0 || i * 8 % kLayout.Run() == 0));
  }

  __device__ __forceinline__ void MultiplyStep(int slot, int step, const char* tile, Decoder (&rows)[2],
                                               float (&c)[kTokenBlocks][4]) const {
    const u32 x_at = SharedAddress(tile);
    Vec<u32, 4> words[2][kCodeVectors];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int v = 0; v < kCodeVectors; ++v) {
        words[j][v] = Load<u32, 4>(reinterpret_cast<const u32*>(CodesAt(slot, j, v)));
      }
    }
    u32 a[2][4][4];
#pragma unroll
    for (int both = 0; both < 2; ++both) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int eight = 2 * both + half;
        u32 pairs[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if constexpr (W::kScaleInBlocks) {
            const char* const word = PartsAt(slot, j, kLayout.ScaleAt());
            if (Changes(eight)) rows[j].SetScale(PartOf<typename C::Scale, W::kScaleBits>(word, step, eight));
          }
          if constexpr (W::kZeroInBlocks) {
            const char* const word = PartsAt(slot, j, kLayout.ZeroAt());
            if (Changes(eight)) rows[j].SetZero(PartOf<typename C::Zero, W::kZeroBits>(word, step, eight));
          }
          Codes<Q, 8> codes;
#pragma unroll
          for (int w = 0; w < Codes<Q, 8>::kWords; ++w) {
            const int word = eight * Codes<Q, 8>::kWords + w;
            codes.word[w] = words[j][word / 4].v[word % 4];
          }
          rows[j].Decode(codes, pairs[j]);
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          u32(&to)[4] = a[both][2 * half + s];
          to[0] = pairs[0][2 * s];
          to[1] = pairs[1][2 * s];
          to[2] = pairs[0][2 * s + 1];
          to[3] = pairs[1][2 * s + 1];
        }
      }
      BeginProducts();
#pragma unroll
      for (int s = 0; s < 4; ++s) MultiplyWarpgroup<T, 0>(c, a[both][s], Operand(x_at + both * kXHalf + s * 32), 1);
      CommitProducts();
      WaitForProducts<1>();
    }
  }

  __device__ __forceinline__ void Multiply(Copier& copies, int begin, int end) const {
    float c[kTokenBlocks][4] = {};
    Decoder rows[2];
    float scale[2];
    if (begin < end) Tile::Begin(weight, begin / kSteps, rows, scale);
    int slot = 0, step = begin % kSteps, x_tile = 0;
#pragma unroll 1
    for (int at = begin; at < end; ++at) {
      WaitForCopies<kStages - 2>();
      CopyStep<true>(copies);  // to where the step before was
      // The products that read this place three steps ago have ended: each warpgroup has waited for its own, and then
      // for the other one.
      char* const tile = arena + x_tile * kLayout.XTileBytes();
      OrderX(slot, step, tile);
      FenceSharedForTensorCores();
      context.Sync();
      MultiplyStep(slot, step, tile, rows, c);
      if (++slot == kStages) slot = 0;
      if (++x_tile == L::kXTiles) x_tile = 0;
      if (++step < kSteps && at + 1 < end) continue;
      const bool is_whole = step == kSteps && at + 1 - kSteps >= begin;
      step = 0;
      WaitForProducts<0>();
      Pin(c);
      const int row_tile = at / kSteps;
      if (is_whole || AddUp(row_tile, c)) Tile::Store(epilogue, weight, row_tile, 0, tokens, scale, c);
#pragma unroll
      for (int i = 0; i < kTokenBlocks; ++i) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
      if (at + 1 < end) Tile::Begin(weight, row_tile + 1, rows, scale);
    }
    WaitForProducts<0>();
    Pin(c);
  }

  // The parts of a tile: warpgroups do not wait for each other.
  __device__ __forceinline__ bool AddUp(int tile, float (&c)[kTokenBlocks][4]) const {
    const int warpgroup = threadIdx.x / 128;
    return AddUpTile<128, L::kThreads, 4>(Line(), Block(), tile, partials, counters + 2 * tile + warpgroup,
                                          1 + warpgroup, shared.is_last[warpgroup], c);
  }

  __device__ __forceinline__ void Run() const {
    const int at = Line().BeginOf(Block()), end = Line().BeginOf(Block() + 1);
    Copier copies = Begin(at, end);
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) CopyStep<false>(copies);
    context.Wait();
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) {
      if (at + i < end) CopyX(i, (at + i) % kSteps);
      CommitCopies();
    }
    Multiply(copies, at, end);
    WaitForAllCopies();
  }
};
#endif

// partials: for each block of the launch twice 128 * kTokens floats.  counters: two for each tile of 128 rows of the
// weight, zero, and left so.
template <class C, class Context, class Epilogue, class X>
__device__ __forceinline__ void EncodedSkinnyKernel(const Context& context, const Epilogue& epilogue, const X* x,
                                                    const EncodedWeight<C>& weight, i64 tokens, float* partials,
                                                    i32* counters) {
#if LLMC_SM90
  EncodedSkinnyBody<C, Context, Epilogue>{context,
                                          context.template Shared<EncodedSkinnyShared>(),
                                          context.template Arena<1024>(),
                                          epilogue,
                                          x,
                                          weight,
                                          partials,
                                          counters,
                                          static_cast<int>(tokens)}
      .Run();
#endif
}

// ---- entry points: those of gemv.cuh, of up to kMaxSkinnyRows tokens. From sm_90 on. --------------------------------

template <class C, class Context>
__device__ __forceinline__ void EncodedSkinny(const Context& context, typename C::Out* out,
                                              const typename TileX<C>::Stored* x, const EncodedWeight<C>& weight,
                                              i64 tokens, float* partials, i32* counters) {
  EncodedSkinnyKernel<C>(context, StoreSum<C>{out}, x, weight, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void EncodedSkinnyAdd(const Context& context, typename C::T* out,
                                                 const typename TileX<C>::Stored* x, const EncodedWeight<C>& weight,
                                                 const typename C::T* addend, i64 tokens, float* partials,
                                                 i32* counters) {
  EncodedSkinnyKernel<C>(context, StoreAdded<C, false>{out, addend}, x, weight, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void EncodedSkinnyBias(const Context& context, typename C::T* out,
                                                  const typename TileX<C>::Stored* x, const EncodedWeight<C>& weight,
                                                  const typename C::T* bias, i64 tokens, float* partials,
                                                  i32* counters) {
  EncodedSkinnyKernel<C>(context, StoreAdded<C, true>{out, bias}, x, weight, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void EncodedSkinnySiluMul(const Context& context, typename C::T* out,
                                                     const typename TileX<C>::Stored* x, const EncodedWeight<C>& weight,
                                                     i64 tokens, float* partials, i32* counters) {
  EncodedSkinnyKernel<C>(context, StoreSiluMul<C>{out}, x, weight, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void EncodedSkinnyQkvRope(const Context& context, typename C::T* out,
                                                     const typename TileX<C>::Stored* x, const EncodedWeight<C>& weight,
                                                     const typename C::T* bias, typename C::T* kv, const i32* pos,
                                                     const float* inv_freq, const i32* slots, float scale, i64 tokens,
                                                     float* partials, i32* counters) {
  EncodedSkinnyKernel<C>(context, StoreQkvRope<C>{out, kv, bias, pos, inv_freq, slots, scale}, x, weight, tokens,
                         partials, counters);
}

}  // namespace llmc
