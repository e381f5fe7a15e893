// expert_linear for few pairs of each expert: its weight is read once, from memory into registers, as the large operand
// of tensor cores, with up to 32 of its pairs beside it. A block finds the pairs of its expert by itself.
#pragma once
#include "kernels/common/device_error.cuh"
#include "kernels/experts/expert_rows.cuh"
#include "kernels/experts/expert_sums.cuh"
#include "kernels/layout/experts.h"

namespace llmc {

// The pairs of `expert` in order, by the whole block, and how many they are.
template <class C, class Context>
__device__ __forceinline__ int PairsOfExpert(const Context& context, i32* own, i32 (&warps)[C::kThreads / 32],
                                             const i32* experts, i64 pairs, i32 expert) {
  constexpr int kRounds = kMaxExpertSmallPairs / C::kThreads;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  i32 of[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const i64 p = r * C::kThreads + threadIdx.x;
    of[r] = p < pairs ? experts[p] : -1;
  }
  int all = 0;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (r * C::kThreads >= pairs) break;
    const bool mine = of[r] == expert;
    const u32 of_warp = __ballot_sync(~0u, mine);
    context.Sync();  // of the last round, `warps` may still be read
    if (lane == 0) warps[warp] = __popc(of_warp);
    context.Sync();
    int before = all;
    for (int w = 0; w < C::kThreads / 32; ++w) {
      if (w < warp) before += warps[w];
      all += warps[w];
    }
    if (mine) own[before + __popc(of_warp & ((1u << lane) - 1))] = r * C::kThreads + threadIdx.x;
  }
  context.Sync();
  return all;
}

// What a warp multiplies: 16 rows of the weight over a part of k, and where they go. Rows past the last are read as the
// last, and their sums dropped. kSplit warps share rows: the first of them adds up the sums of all.
template <class C>
struct ExpertWarp {
  using T = typename C::T;
  using Rows = ExpertRowPair<C>;
  static constexpr int kColumns = C::kGated ? 8 : 16;  // of the result
  static constexpr int kSums = C::kPairsAtOnce / 2;    // of a lane
  Rows rows;
  const T* x;
  const T* bias;
  T* out;
  const i32* own;
  float* partials;  // of the warps that share the rows, where there are several: kSums for each lane of each
  i64 first, columns, n, k, begin_k, end_k;
  int split;

  __device__ __forceinline__ void Store(int pair, const float (&sums)[4], int j) const {
    const i64 low = first + threadIdx.x % 32 / 4, high = low + 8;
    T* const to = out + own[pair] * columns;
    if (low < columns) StoreExpertSum<C>(to, bias, n, low, sums[j], sums[2 + j]);
    if (!C::kGated && high < columns) StoreExpertSum<C>(to, bias, n, high, sums[2 + j], 0);
  }

  template <int kTiles, class Context>
  __device__ __forceinline__ void AddUp(const Context& context, float (&sums)[kTiles][4]) const {
    const int lane = threadIdx.x % 32;
    context.Sync();  // the partials of pairs before have been read
    if (split > 0) {
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) partials[(split * kSums + i) * 32 + lane] = sums[i / 4][i % 4];
    }
    context.Sync();
    if (split > 0) return;
#pragma unroll
    for (int other = 1; other < C::kSplit; ++other) {
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) sums[i / 4][i % 4] += partials[(other * kSums + i) * 32 + lane];
    }
  }

  // Of the pairs own[begin, end), which are at most 8 * kTiles.
  template <int kTiles, class Context>
  __device__ __forceinline__ void Multiply(const Context& context, int begin, int end) {
    const int group = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
    const T* from[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int i = begin + t * 8 + group;
      from[t] = x + own[i < end ? i : begin] / C::kShare * k;
    }
    float sums[kTiles][4] = {};
    rows.Multiply(sums, from, begin_k, end_k);
    if constexpr (C::kSplit > 1) AddUp(context, sums);
    if (split > 0) return;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[t][e] *= rows.Scale(e / 2);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int pair = begin + t * 8 + part * 2 + j;
        if (pair < end) Store(pair, sums[t], j);
      }
    }
  }
};

// out[p, :] of all pairs p of an expert, as ExpertGemv has them; TileX is one of the tiles of columns. The pairs of
// experts that are device errors have no result.
// C::T: f16 or bf16.  C::kShare, C::kBias, C::kGated: as there.  C::kThreads: threads per block.  weight is
// [experts, n, k], of elements, where 8 divides k, or of codes; `pairs` is at most kMaxExpertSmallPairs.
// C::kByPair: TileY is the first pair of the expert; blocks of other pairs have nothing to do. Else it is the expert.
// C::kPairsAtOnce: 8, 16 or 32 pairs of an expert with which a warp reads its rows once.
// C::kSplit: warps that share the rows of a tile, each with a part of k; divides the warps of a block.
// Over 60 lines: checks of the Config, and what a warp is made of.
template <class C, class Context>
__device__ __forceinline__ void ExpertSmallGemm(const Context& context, typename C::T* out, const typename C::T* x,
                                                const Weight<C>& weight, const typename C::T* bias, const i32* experts,
                                                i64 pairs, i64 count, i64 n, i64 k,
                                                const DeviceErrorSite& device_error) {
  using Warp = ExpertWarp<C>;
  static_assert(sizeof(typename C::T) == 2, "T: f16 or bf16");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  constexpr int kWarps = C::kThreads / 32, kTilesOfBlock = kWarps / C::kSplit;
  static_assert(C::kPairsAtOnce == 8 || C::kPairsAtOnce == 16 || C::kPairsAtOnce == 32, "kPairsAtOnce: 8, 16 or 32");
  static_assert(kWarps % C::kSplit == 0, "kSplit: divides the warps of a block");
  struct Pairs {
    i32 own[kMaxExpertSmallPairs], warps[kWarps];
    float partials[C::kSplit > 1 ? kWarps* Warp::kSums * 32 : 1];
  };
  auto& [own, warps, partials] = context.template Shared<Pairs>();
  context.Wait();
  const i64 tile_y = context.TileY();
  if (context.TileX() == 0 && tile_y == 0) {
    for (i64 p = threadIdx.x; p < pairs; p += C::kThreads) {
      if (experts[p] < 0 || experts[p] >= count) device_error.Raise(experts[p], count);
    }
  }
  const i32 expert = C::kByPair ? experts[tile_y] : static_cast<i32>(tile_y);
  if (C::kByPair && (expert < 0 || expert >= count)) return;
  const int found = PairsOfExpert<C>(context, own, warps, experts, pairs, expert);
  if (C::kByPair && own[0] != tile_y) return;
  const i64 columns = ExpertColumnsOf<C>(n);
  const int group = threadIdx.x % 32 / 4, warp_in_block = threadIdx.x / 32, split = warp_in_block % C::kSplit;
  const i64 tile = static_cast<i64>(context.TileX()) * kTilesOfBlock + warp_in_block / C::kSplit;
  // Warps that share rows wait for each other, so that all of them stay.
  if (C::kSplit == 1 && tile * Warp::kColumns >= columns) return;
  const i64 first = tile * Warp::kColumns, last = columns - 1;
  if constexpr (C::kBias) bias += expert * n;
  const i64 low = min(first + group, last);
  const i64 high = C::kGated ? ExpertRowOf<C>(n, low, 1) : min(first + group + 8, last);
  const Weight<C> of_expert = weight.OfMatrix(expert, n, k);
  constexpr int kSlab = Warp::Rows::kSlab;
  const i64 slabs = (k + kSlab - 1) / kSlab, begin_k = slabs * split / C::kSplit * kSlab;
  const i64 end_k = min(k, slabs * (split + 1) / C::kSplit * kSlab);
  Warp warp = {{of_expert, low, high, k},
               x,
               bias,
               out,
               own,
               partials + warp_in_block / C::kSplit * C::kSplit * Warp::kSums * 32,
               first,
               columns,
               n,
               k,
               begin_k,
               end_k,
               split};
  for (int begin = 0; begin < found; begin += C::kPairsAtOnce) {
    const int end = min(found, begin + C::kPairsAtOnce);
    if (C::kPairsAtOnce == 8 || end - begin <= 8) {
      warp.template Multiply<1>(context, begin, end);
    } else if constexpr (C::kPairsAtOnce > 8) {
      if (C::kPairsAtOnce == 16 || end - begin <= 16) {
        warp.template Multiply<2>(context, begin, end);
      } else if constexpr (C::kPairsAtOnce > 16) {
        warp.template Multiply<4>(context, begin, end);
      }
    }
  }
}

}  // namespace llmc
