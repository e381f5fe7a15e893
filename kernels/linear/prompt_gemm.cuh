// out[m, n] = sum over k of x[m, k] * weight[n, k] for some or many rows m, and what follows from it, with a weight
// that is encoded: left_gemm.cuh with tiles of all columns and rows of x. Numbers are rounded to the type of x with
// their scales of blocks; sums are in f32. Of some rows all are in one tile, and blocks share tiles.
#pragma once
#include "kernels/linear/left_gemm.cuh"

namespace llmc {

// What is added to rounded sums: nothing, a number of each, or one of each column.
enum class PromptAddend { kNone, kOfRows, kOfColumns };

#if LLMC_SM90
// All columns by all rows of x, some tiles of rows at a time, so that what blocks read at once stays in the L2 cache.
// C::Out: of the result.  And what left_gemm.cuh says.
template <class C, PromptAddend kAddend, int kTokens>
struct PromptTiles {
  using T = typename C::T;
  using Out = typename C::Out;
  static constexpr int kColumns = C::kGated ? 64 * C::kHalves : 128 * C::kHalves;
  static constexpr int kColumnTiles = (C::kOut + kColumns - 1) / kColumns, kGroup = 2048 / kTokens;
  static constexpr int kVec = ElementsOfVector(C::kOut, 16);
  static_assert(!C::kGated || kAddend == PromptAddend::kNone, "kGated: nothing is added to gates");
  struct Nothing {};
  using Prepared = typename Choose<kAddend == PromptAddend::kNone, Nothing, Vec<T, kVec>>::Type;
  Out* out;
  const T* addend;
  int tokens;
  float* partials;
  i32* counters;

  __device__ __forceinline__ int RowTiles() const { return (tokens + kTokens - 1) / kTokens; }
  __device__ __forceinline__ int Tiles() const { return RowTiles() * kColumnTiles; }
  __device__ __forceinline__ LeftGemmTile At(int t) const {
    const int group = t / (kGroup * kColumnTiles), of_group = t % (kGroup * kColumnTiles);
    const int left = RowTiles() - group * kGroup, rows = left < kGroup ? left : kGroup;
    const int row = (group * kGroup + of_group % rows) * kTokens;
    return {of_group / rows * kColumns, row, tokens - row < kTokens ? tokens - row : kTokens};
  }
  __device__ __forceinline__ T Result(float sum, float up) const {
    return FromFloat<T>(C::kGated ? SiluMul(Rounded<T>(sum), Rounded<T>(up)) : sum);
  }
  __device__ __forceinline__ Prepared Prepare(const LeftGemmTile& tile, int row, int column) const {
    if constexpr (kAddend == PromptAddend::kNone) {
      return {};
    } else {
      const i64 first = kAddend == PromptAddend::kOfRows ? static_cast<i64>(tile.row + row) * C::kOut : 0;
      return Load<T, kVec>(addend + first + column);
    }
  }
  __device__ __forceinline__ void Store(const LeftGemmTile& tile, int row, int column, Vec<T, kVec> results,
                                        const Prepared& prepared) const {
    Out* const to = out + static_cast<i64>(tile.row + row) * C::kOut + column;
    if constexpr (kAddend != PromptAddend::kNone) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) results.v[i] = FromFloat<T>(ToFloat(results.v[i]) + ToFloat(prepared.v[i]));
    }
    if constexpr (kSame<T, Out>) {
      llmc::Store(to, results);
    } else {
#pragma unroll
      for (int i = 0; i < kVec; ++i) to[i] = FromFloat<Out>(ToFloat(results.v[i]));
    }
  }
};

template <class C, PromptAddend kAddend, int kTokens, class Context>
__device__ __forceinline__ void PromptGemmOf(const Context& context, LeftGemmShared& shared, char* arena,
                                             const TileMap& x, const Weight<C>& weight,
                                             const PromptTiles<C, kAddend, kTokens>& work) {
  constexpr int kBox = kTokens < LeftGemmLayout::kBoxRows ? kTokens : LeftGemmLayout::kBoxRows;
  LeftGemmBody<C, Context, PromptTiles<C, kAddend, kTokens>, kTokens, kBox>{context, shared, arena, x, weight, work}
      .Run();
}

// How long tiles of so many rows take: those of the blocks that have most, or of all where these share them, each with
// what does not depend on its rows.
template <class C>
__device__ __forceinline__ int PromptTime(int tokens, int rows_of_tile, int blocks) {
  constexpr int kColumns = C::kGated ? 64 * C::kHalves : 128 * C::kHalves, kRowsMore = 48;
  const int tiles = (tokens + rows_of_tile - 1) / rows_of_tile * ((C::kOut + kColumns - 1) / kColumns);
  return (C::kGrid > 0 ? tiles : (tiles + blocks - 1) / blocks) * (rows_of_tile + kRowsMore);
}
#endif

// x: in the order of LeftOperand, tiles of kBoxRows rows, or kFewEncodedGemmRows.  C::kMostTokens: rows of x in a tile,
// at the most.
template <class C, PromptAddend kAddend, class Context>
__device__ __forceinline__ void PromptGemmKernel(const Context& context, typename C::Out* out, const TileMap& x,
                                                 const Weight<C>& weight, const typename C::T* addend, i64 rows,
                                                 float* partials, i32* counters) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kMost = C::kMostTokens, kLeast = kMost < 64 ? kMost : 64;
  char* const arena = context.template Arena<1024>();
  auto& shared = context.template Shared<LeftGemmShared>();
  const int tokens = static_cast<int>(rows), blocks = static_cast<int>(context.TilesX());
  if (tokens == 0) return context.Wait();
  int best = kLeast, least = PromptTime<C>(tokens, kLeast, blocks);
  for (int of_tile = 128; of_tile <= kMost; of_tile += 64) {
    const int time = PromptTime<C>(tokens, of_tile, blocks);
    if (time <= least) {
      best = of_tile;
      least = time;
    }
  }
  const auto run = [&](const auto& work) { PromptGemmOf(context, shared, arena, x, weight, work); };
  if (best == kLeast) return run(PromptTiles<C, kAddend, kLeast>{out, addend, tokens, partials, counters});
  if constexpr (kMost >= 128) {
    if (best == 128) return run(PromptTiles<C, kAddend, 128>{out, addend, tokens, partials, counters});
  }
  if constexpr (kMost >= 256) {
    if (best == 192) return run(PromptTiles<C, kAddend, 192>{out, addend, tokens, partials, counters});
    run(PromptTiles<C, kAddend, 256>{out, addend, tokens, partials, counters});
  }
#endif
}

// ---- entry points --------------------------------------------------------------------------------------------------
// partials, counters: those of left_gemm.cuh, where blocks share tiles.

template <class C, class Context>
__device__ __forceinline__ void PromptGemm(const Context& context, typename C::Out* out, const TileMap& x,
                                           const Weight<C>& weight, i64 tokens, float* partials = nullptr,
                                           i32* counters = nullptr) {
  PromptGemmKernel<C, PromptAddend::kNone>(context, out, x, weight, nullptr, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void PromptGemmAdd(const Context& context, typename C::T* out, const TileMap& x,
                                              const Weight<C>& weight, const typename C::T* addend, i64 tokens,
                                              float* partials = nullptr, i32* counters = nullptr) {
  PromptGemmKernel<C, PromptAddend::kOfRows>(context, out, x, weight, addend, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void PromptGemmBias(const Context& context, typename C::T* out, const TileMap& x,
                                               const Weight<C>& weight, const typename C::T* bias, i64 tokens,
                                               float* partials = nullptr, i32* counters = nullptr) {
  PromptGemmKernel<C, PromptAddend::kOfColumns>(context, out, x, weight, bias, tokens, partials, counters);
}
// With C::kGated.
template <class C, class Context>
__device__ __forceinline__ void PromptGemmSiluMul(const Context& context, typename C::T* out, const TileMap& x,
                                                  const Weight<C>& weight, i64 tokens, float* partials = nullptr,
                                                  i32* counters = nullptr) {
  PromptGemmKernel<C, PromptAddend::kNone>(context, out, x, weight, nullptr, tokens, partials, counters);
}

}  // namespace llmc
