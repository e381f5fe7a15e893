// out[m, n] = sum over k of x[m, k] * weight[n, k] for many rows m, and what follows from it, with a weight that is
// encoded: left_gemm.cuh with tiles of all columns and rows of x. Numbers are rounded to the type of x with their
// scales of blocks; sums are in f32.
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
                                             typename C::Out* out, const TileMap& x, const Weight<C>& weight,
                                             const typename C::T* addend, int tokens) {
  using Work = PromptTiles<C, kAddend, kTokens>;
  const Work work = {out, addend, tokens};
  LeftGemmBody<C, Context, Work, kTokens, LeftGemmLayout::kBoxRows>{context, shared, arena, x, weight, work}.Run();
}

// How long tiles of so many rows take: those of the blocks that have most, each with what does not depend on its rows.
template <class C>
__device__ __forceinline__ int PromptTime(int tokens, int rows_of_tile, int blocks) {
  constexpr int kColumns = C::kGated ? 64 * C::kHalves : 128 * C::kHalves, kRowsMore = 48;
  const int tiles = (tokens + rows_of_tile - 1) / rows_of_tile * ((C::kOut + kColumns - 1) / kColumns);
  return (tiles + blocks - 1) / blocks * (rows_of_tile + kRowsMore);
}
#endif

// x: in the order of LeftOperand, tiles of kBoxRows rows.
template <class C, PromptAddend kAddend, class Context>
__device__ __forceinline__ void PromptGemmKernel(const Context& context, typename C::Out* out, const TileMap& x,
                                                 const Weight<C>& weight, const typename C::T* addend, i64 rows) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  char* const arena = context.template Arena<1024>();
  auto& shared = context.template Shared<LeftGemmShared>();
  const int tokens = static_cast<int>(rows), blocks = static_cast<int>(context.TilesX());
  int best = 64, least = PromptTime<C>(tokens, 64, blocks);
  for (int of_tile = 128; of_tile <= 256; of_tile += 64) {
    const int time = PromptTime<C>(tokens, of_tile, blocks);
    if (time <= least) {
      best = of_tile;
      least = time;
    }
  }
  if (best == 256) {
    PromptGemmOf<C, kAddend, 256>(context, shared, arena, out, x, weight, addend, tokens);
  } else if (best == 192) {
    PromptGemmOf<C, kAddend, 192>(context, shared, arena, out, x, weight, addend, tokens);
  } else if (best == 128) {
    PromptGemmOf<C, kAddend, 128>(context, shared, arena, out, x, weight, addend, tokens);
  } else {
    PromptGemmOf<C, kAddend, 64>(context, shared, arena, out, x, weight, addend, tokens);
  }
#endif
}

// ---- entry points --------------------------------------------------------------------------------------------------

template <class C, class Context>
__device__ __forceinline__ void PromptGemm(const Context& context, typename C::Out* out, const TileMap& x,
                                           const Weight<C>& weight, i64 tokens) {
  PromptGemmKernel<C, PromptAddend::kNone>(context, out, x, weight, nullptr, tokens);
}
template <class C, class Context>
__device__ __forceinline__ void PromptGemmAdd(const Context& context, typename C::T* out, const TileMap& x,
                                              const Weight<C>& weight, const typename C::T* addend, i64 tokens) {
  PromptGemmKernel<C, PromptAddend::kOfRows>(context, out, x, weight, addend, tokens);
}
template <class C, class Context>
__device__ __forceinline__ void PromptGemmBias(const Context& context, typename C::T* out, const TileMap& x,
                                               const Weight<C>& weight, const typename C::T* bias, i64 tokens) {
  PromptGemmKernel<C, PromptAddend::kOfColumns>(context, out, x, weight, bias, tokens);
}
// With C::kGated.
template <class C, class Context>
__device__ __forceinline__ void PromptGemmSiluMul(const Context& context, typename C::T* out, const TileMap& x,
                                                  const Weight<C>& weight, i64 tokens) {
  PromptGemmKernel<C, PromptAddend::kNone>(context, out, x, weight, nullptr, tokens);
}

}  // namespace llmc
