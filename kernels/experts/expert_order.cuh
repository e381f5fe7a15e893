// Sorts the pairs of a token and an expert by expert, and says which tiles of rows each expert has, for
// expert_matmul.cuh and expert_gemm.cuh: what the host need not know. The order within an expert is any; no result
// depends on it.
#pragma once
#include "kernels/common/device_error.cuh"
#include "kernels/layout/experts.h"

namespace llmc {

// The sum of `x` over the threads before this one; `total` becomes that of all.
template <int kThreads, class Context>
__device__ __forceinline__ i32 SumBefore(const Context& context, i32 (&warps)[kThreads / 32], i32 x, i32* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i32 sum = WarpSumThrough(x);
  context.Sync();  // what the last call left may still be read
  if (lane == 31) warps[warp] = sum;
  context.Sync();
  i32 before = 0, all = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) before += warps[w];
    all += warps[w];
  }
  *total = all;
  return before + sum - x;
}

// One block. `table`: see layout/experts.h. Pairs whose expert is a device error are in no tile.
// C::kExperts: at most kMaxExperts.  C::kTileRows: pairs of a tile.  C::kThreads: threads of the block.
template <class C, class Context>
__device__ __forceinline__ void ExpertOrder(const Context& context, i32* table, const i32* experts, i64 pairs,
                                            const DeviceErrorSite& device_error) {
  static_assert(C::kExperts > 0 && C::kExperts <= kMaxExperts, "kExperts: those that shared memory has room for");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  struct Counts {
    i32 at[C::kExperts];  // how many pairs an expert has, then where its next one goes
    i32 pair_warps[C::kThreads / 32], tile_warps[C::kThreads / 32];  // of each sum
  };
  auto& [at, pair_warps, tile_warps] = context.template Shared<Counts>();
  i32* tiles = table + ExpertTilesAt(C::kExperts);
  i32* sorted = table + ExpertPairsAt(C::kExperts);
  for (int e = threadIdx.x; e < C::kExperts; e += C::kThreads) at[e] = 0;
  context.Wait();
  context.Sync();
  for (i64 p = threadIdx.x; p < pairs; p += C::kThreads) {
    const i32 e = experts[p];
    if (e >= 0 && e < C::kExperts) {
      atomicAdd(&at[e], 1);
    } else {
      device_error.Raise(e, C::kExperts);
    }
  }
  context.Sync();
  i32 first_pair = 0, first_tile = 0;
  for (int begin = 0; begin < C::kExperts; begin += C::kThreads) {
    const int e = begin + threadIdx.x;
    const i32 count = e < C::kExperts ? at[e] : 0;
    i32 all_pairs, all_tiles;
    const i32 pair = first_pair + SumBefore<C::kThreads>(context, pair_warps, count, &all_pairs);
    const i32 tile =
        first_tile + SumBefore<C::kThreads>(context, tile_warps, (count + C::kTileRows - 1) / C::kTileRows, &all_tiles);
    if (e < C::kExperts) {
      table[e] = at[e] = pair;
      tiles[e] = tile;
    }
    first_pair += all_pairs;
    first_tile += all_tiles;
  }
  if (threadIdx.x == 0) {
    table[C::kExperts] = first_pair;
    tiles[C::kExperts] = first_tile;
  }
  context.Sync();
  for (i64 p = threadIdx.x; p < pairs; p += C::kThreads) {
    const i32 e = experts[p];
    if (e >= 0 && e < C::kExperts) sorted[atomicAdd(&at[e], 1)] = static_cast<i32>(p);
  }
}

}  // namespace llmc
