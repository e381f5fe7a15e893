// expert_linear for few pairs of a token and an expert: each pair is a product of one row with its expert's weight, at
// the speed of memory, with no order among pairs. Pairs of one expert read its weight through the L2 cache.
#pragma once
#include "kernels/common/device_error.cuh"
#include "kernels/experts/expert_sums.cuh"
#include "kernels/layout/experts.h"
#include "kernels/linear/encoded_weight.cuh"
#include "kernels/linear/superblock_weight.cuh"

namespace llmc {

// Of a weight [n, k] that a reader reads: a warp has kExpertGemvRows of its rows, and each lane reads runs of them.
template <class C, class Context>
__device__ __forceinline__ void ExpertRows(const Context& context, typename C::T* out, const typename C::T* x,
                                           const Weight<C>& weight, const typename C::T* bias, i64 n) {
  using Run = typename Weight<C>::template Run<C::kIn>;
  constexpr int kRows = kExpertGemvRows, kHalves = C::kGated ? 2 : 1, kColumns = kRows / kHalves;
  const int lane = threadIdx.x % 32;
  const i64 first = (static_cast<i64>(context.TileX()) * (C::kThreads / 32) + threadIdx.x / 32) * kColumns;
  const i64 columns = ExpertColumnsOf<C>(n);
  if (first >= columns) return;
  const typename Weight<C>::Made made = weight.AfterWait(0);
  i64 rows[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const i64 column = first + r / kHalves < columns ? first + r / kHalves : first;
    rows[r] = ExpertRowOf<C>(n, column, r % kHalves);
  }
  float sums[kRows] = {};
#pragma unroll 2
  for (int column = lane * Run::kCount; column < C::kIn; column += 32 * Run::kCount) {
    Run w[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) w[r].Load(weight, rows[r], column);
    const typename Run::Terms terms = Run::Fetch(x + column);
#pragma unroll
    for (int r = 0; r < kRows; ++r) w[r].Add(terms, made, &sums[r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sums[r] = weight.Result(WarpReduce(sums[r], Sum()), weight.Of(static_cast<int>(rows[r])), made);
  }
  if (lane != 0) return;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (first + c < columns) {
      StoreExpertSum<C>(out, bias, n, first + c, sums[c * kHalves], sums[c * kHalves + kHalves - 1]);
    }
  }
}

// What tiles of SuperblockWeight know of a pair's row of x.
struct ExpertTileShape {
  static constexpr int kTokens = 1, kXStride = 0;
};

// Of superblocks, on tensor cores as SuperblockWeight multiplies them: a warp has 16 rows of the weight, and C::kSplit
// warps share them, each with other blocks.
template <class C, class Context>
__device__ __forceinline__ void ExpertBlockRows(const Context& context, typename C::T* out, const typename C::T* x,
                                                const Weight<C>& weight, const typename C::T* bias, i64 n) {
  using W = Weight<C>;
  constexpr int kWarps = C::kThreads / 32, kTiles = kWarps / C::kSplit, kHalves = C::kGated ? 2 : 1;
  constexpr int kColumns = 16 / kHalves, kBlock = W::kBlockColumns;
  static_assert(kWarps % C::kSplit == 0, "kSplit: divides the warps of a block");
  struct OfWarps {
    float sums[kWarps][16];
  };
  auto& [shared] = context.template Shared<OfWarps>();
  const int warp = threadIdx.x / 32;
  const i64 columns = ExpertColumnsOf<C>(n), first = static_cast<i64>(context.TileX()) * kTiles * kColumns;
  typename W::template TileOf<ExpertTileShape, typename C::T> sums;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int r = threadIdx.x % 32 / 4 + 8 * j;
    const i64 column = min(first + warp / C::kSplit * kColumns + r / kHalves, columns - 1);
    sums.lane.rows[j] = reinterpret_cast<const u8*>(weight.Row(ExpertRowOf<C>(n, column, r % kHalves), 0, C::kIn));
  }
#pragma unroll kBlock < 256 ? 4 : 1
  for (int at = warp % C::kSplit * kBlock; at < C::kIn; at += C::kSplit * kBlock) {
    sums.Add({at}, x + at + threadIdx.x % 4 * W::kLane);
  }
  sums.Store(shared[warp], {});
  context.Sync();
  for (int i = threadIdx.x; i < kTiles * kColumns && first + i < columns; i += C::kThreads) {
    float halves[2] = {};
#pragma unroll
    for (int split = 0; split < C::kSplit; ++split) {
      const float* const of = shared[i / kColumns * C::kSplit + split] + i % kColumns * kHalves;
      halves[0] += of[0];
      halves[1] += of[kHalves - 1];
    }
    StoreExpertSum<C>(out, bias, n, first + i, halves[0], halves[1]);
  }
}

// Of a weight [k, n]: a lane has kVec columns, and the warps of a block share the rows.
template <class C, class Context>
__device__ __forceinline__ void ExpertColumns(const Context& context, typename C::T* out, const typename C::T* x,
                                              const typename C::T* weight, const typename C::T* bias, i64 n) {
  static_assert(!C::kGated, "gate and up would be far apart");
  using T = typename C::T;
  constexpr int kVec = C::kVec, kWarps = C::kThreads / 32, kColumns = 32 * kVec;
  struct OfWarps {
    float sums[kWarps][kColumns];
  };
  auto& [sums] = context.template Shared<OfWarps>();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 first = static_cast<i64>(context.TileX()) * kColumns, column = first + lane * kVec;
  float own[kVec] = {};
  if (column < n) {
#pragma unroll 4
    for (i64 d = warp; d < C::kIn; d += kWarps) {
      const Vec<T, kVec> w = Load<T, kVec>(weight + d * n + column);
      const float a = ToFloat(x[d]);
#pragma unroll
      for (int j = 0; j < kVec; ++j) own[j] += a * ToFloat(w.v[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kVec; ++j) sums[warp][lane * kVec + j] = own[j];
  context.Sync();
  for (int i = threadIdx.x; i < kColumns && first + i < n; i += C::kThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][i];
    StoreExpertSum<C>(out, bias, n, first + i, sum, 0);
  }
}

// out[p, :] = x[p / kShare, k] * the matrix of expert experts[p], as StoreExpertSum has it; TileY is p. None where the
// expert is a device error.
// C::T: element type.  C::kIn: k.  C::kTransposed: weight is [experts, n, k], as its reader has it, which may be that
// of codes (linear/weight_reader.cuh); else [experts, k, n], of elements.  C::kShare: pairs that share a row of x.
// C::kVec: elements of a load of a weight [k, n]; divides n.  C::kBias, C::kGated: as in expert_sums.cuh; bias is
// [experts, n].  C::kThreads: threads per block.
// C::kSplit: of superblocks on tensor cores, warps that share rows; else 0.
// C::kChosen: false where there is one matrix, which all pairs take; `experts` is not read then.
template <class C, class Context>
__device__ __forceinline__ void ExpertGemv(const Context& context, typename C::T* out, const typename C::T* x,
                                           const Weight<C>& weight, const typename C::T* bias, const i32* experts,
                                           i64 count, i64 n, const DeviceErrorSite& device_error) {
  static_assert(kIsModelType<typename C::T>, "T: float, f16 or bf16");
  static_assert(IsVector<typename C::T>(C::kVec), "kVec: a power of two, at most 16 bytes");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  context.Wait();
  const i64 pair = context.TileY();
  const i32 expert = C::kChosen ? experts[pair] : 0;
  if (expert < 0 || expert >= count) {
    if (context.TileX() == 0 && threadIdx.x == 0) device_error.Raise(expert, count);
    return;
  }
  out += pair * ExpertColumnsOf<C>(n);
  x += pair / C::kShare * C::kIn;
  const Weight<C> own = weight.OfMatrix(expert, n, C::kIn);
  if constexpr (C::kBias) bias += expert * n;
  if constexpr (C::kSplit > 0) {
    ExpertBlockRows<C>(context, out, x, own, bias, n);
  } else if constexpr (C::kTransposed) {
    ExpertRows<C>(context, out, x, own, bias, n);
  } else {
    ExpertColumns<C>(context, out, x, own.at, bias, n);
  }
}

}  // namespace llmc
