// expert_linear for few pairs of each expert: its weight is read once, from memory into registers, as the large operand
// of tensor cores, with up to 32 of its pairs beside it. A block finds the pairs of its expert by itself.
//
// mma.m16n8k16 (mma.cuh) with 16 rows of the weight as `a` and 8 pairs as `b`. Which depth is which does not matter as
// long as both operands agree, so lane l reads 8 neighbouring elements, from 8 * (l % 4) of a slab of 32, of rows l / 4
// and l / 4 + 8 and of pair l / 4: they are the operands of two products.
#pragma once
#include "kernels/common/device_error.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/experts/expert_sums.cuh"
#include "kernels/layout/experts.h"

namespace llmc {

struct Words {
  u32 w[4];
};

// 16 bytes that are read once by this block: they need no place in L1.
__device__ __forceinline__ Words LoadOnce(const void* from) {
  Words r;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3])
      : "l"(from));
  return r;
}
__device__ __forceinline__ Words LoadShared(const void* from) {
  const uint4 v = *static_cast<const uint4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}

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

// sums += two rows of the weight times one row of x for each of kTiles columns of pairs, kSlabs slabs from depth
// `begin`. kWhole: all of them lie before k.
template <class T, int kTiles, int kSlabs, bool kWhole>
__device__ __forceinline__ void MultiplySlabs(float (&sums)[kTiles][4], const T* const (&rows)[2],
                                              const T* const (&x)[kTiles], i64 begin, i64 k) {
  Words a[kSlabs][2], b[kSlabs][kTiles];
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) {
    const i64 at = begin + s * 32;
    const bool exists = kWhole || at + threadIdx.x % 4 * 8 < k;
#pragma unroll
    for (int r = 0; r < 2; ++r) a[s][r] = exists ? LoadOnce(rows[r] + at) : Words{};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) b[s][t] = exists ? LoadShared(x[t] + at) : Words{};
  }
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const u32 both[4] = {a[s][0].w[2 * h], a[s][1].w[2 * h], a[s][0].w[2 * h + 1], a[s][1].w[2 * h + 1]};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) MultiplyAdd<T>(sums[t], both, b[s][t].w[2 * h], b[s][t].w[2 * h + 1]);
    }
  }
}

// What a warp multiplies: 16 rows of the weight, of which lane l reads two, and where they go. Rows past the last are
// read as the first of the warp, and their sums dropped.
template <class C>
struct ExpertWarp {
  using T = typename C::T;
  static constexpr int kColumns = C::kGated ? 8 : 16;  // of the result
  const T* rows[2];
  const T* x;
  const T* bias;
  T* out;
  const i32* own;
  i64 first, columns, n, k;

  __device__ __forceinline__ void Store(int pair, const float (&sums)[4], int j) const {
    const i64 low = first + threadIdx.x % 32 / 4, high = low + 8;
    T* const to = out + own[pair] * columns;
    if (low < columns) StoreExpertSum<C>(to, bias, n, low, sums[j], sums[2 + j]);
    if (!C::kGated && high < columns) StoreExpertSum<C>(to, bias, n, high, sums[2 + j], 0);
  }

  // Of the pairs own[begin, end), which are at most 8 * kTiles.
  template <int kTiles>
  __device__ __forceinline__ void Multiply(int begin, int end) const {
    constexpr int kSlabs = kTiles < 4 ? 4 : 2;
    const int group = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
    const T* from[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int i = begin + t * 8 + group;
      from[t] = x + own[i < end ? i : begin] / C::kShare * k + part * 8;
    }
    float sums[kTiles][4] = {};
    i64 at = 0;
    for (; at + kSlabs * 32 <= k; at += kSlabs * 32) {
      MultiplySlabs<T, kTiles, kSlabs, true>(sums, rows, from, at, k);
    }
    for (; at < k; at += 32) MultiplySlabs<T, kTiles, 1, false>(sums, rows, from, at, k);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int pair = begin + t * 8 + part * 2 + j;
        if (pair < end) Store(pair, sums[t], j);
      }
    }
  }
};

// out[p, :] of all pairs p of expert TileY, as ExpertGemv has them; TileX is one of the tiles of columns. The pairs of
// experts that are device errors have no result.
// C::T: f16 or bf16.  C::kShare, C::kBias, C::kGated: as there.  C::kThreads: threads per block.  weight is
// [experts, n, k], where 8 divides k; `pairs` is at most kMaxExpertSmallPairs.
template <class C, class Context>
__device__ __forceinline__ void ExpertSmallGemm(const Context& context, typename C::T* out, const typename C::T* x,
                                                const typename C::T* weight, const typename C::T* bias,
                                                const i32* experts, i64 pairs, i64 count, i64 n, i64 k,
                                                const DeviceErrorSite& device_error) {
  using Warp = ExpertWarp<C>;
  static_assert(sizeof(typename C::T) == 2, "T: f16 or bf16");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  struct Pairs {
    i32 own[kMaxExpertSmallPairs], warps[C::kThreads / 32];
  };
  auto& [own, warps] = context.template Shared<Pairs>();
  context.Wait();
  const i32 expert = context.TileY();
  if (context.TileX() == 0 && expert == 0) {
    for (i64 p = threadIdx.x; p < pairs; p += C::kThreads) {
      if (experts[p] < 0 || experts[p] >= count) device_error.Raise(experts[p], count);
    }
  }
  const int found = PairsOfExpert<C>(context, own, warps, experts, pairs, expert);
  const i64 columns = ExpertColumnsOf<C>(n);
  const int group = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
  const i64 first = (static_cast<i64>(context.TileX()) * (C::kThreads / 32) + threadIdx.x / 32) * Warp::kColumns;
  if (first >= columns) return;
  weight += expert * n * k + part * 8;
  if constexpr (C::kBias) bias += expert * n;
  const i64 low = first + group < columns ? first + group : first;
  const i64 next = first + group + 8 < columns ? first + group + 8 : first;
  const i64 high = C::kGated ? ExpertRowOf<C>(n, low, 1) : next;
  const Warp warp = {{weight + low * k, weight + high * k}, x, bias, out, own, first, columns, n, k};
  for (int begin = 0; begin < found; begin += kMaxPairsAtOnce) {
    const int end = min(found, begin + kMaxPairsAtOnce);
    if (end - begin <= 8) {
      warp.template Multiply<1>(begin, end);
    } else if (end - begin <= 16) {
      warp.template Multiply<2>(begin, end);
    } else {
      warp.template Multiply<kMaxPairsAtOnce / 8>(begin, end);
    }
  }
}

}  // namespace llmc
