// expert_linear for many pairs of a token and an expert, which expert_order.cuh has sorted: tiles of pairs of one
// expert with its weight, on tensor cores, or without for f32 and for rows that no vector of 16 bytes divides.
#pragma once
#include "kernels/common/mma.cuh"
#include "kernels/experts/expert_sums.cuh"
#include "kernels/experts/expert_tile.cuh"
#include "kernels/linear/matmul.cuh"

namespace llmc {

// A stage: rows of x, then of the weight, [out, in] or [in, out]; each row is followed by 16 bytes, so that 8 rows lie
// in different banks.
template <class T, bool kTransposed>
struct ExpertStage {
  static constexpr int kPad = 8, kStride = kExpertTileDepth + kPad;
  static constexpr int kWeightRows = kTransposed ? kExpertTileColumns : kExpertTileDepth;
  static constexpr int kWeightColumns = kTransposed ? kExpertTileDepth : kExpertTileColumns;
  static constexpr int kWeightStride = kWeightColumns + kPad;
  alignas(16) T x[kExpertTileRows][kStride];
  alignas(16) T weight[kWeightRows][kWeightStride];
};

// One tile on tensor cores: 2 x 4 warps with 32 x 32 elements each.
// Over 60 lines: the ring of stages and what the warps keep in registers.
template <class C, class Context>
__device__ __forceinline__ void ExpertProduct(const Context& context,
                                              const ExpertTile<C::kExperts, kExpertTileRows>& tile, typename C::T* out,
                                              const typename C::T* x, const typename C::T* weight,
                                              const typename C::T* bias, i64 n, i64 k) {
  using T = typename C::T;
  using Stage = ExpertStage<T, C::kTransposed>;
  constexpr int kVec = 8, kDepth = kExpertTileDepth;
  struct Ring {
    Stage stages[kExpertStages];
    i32 pairs[kExpertTileRows];
  };
  static_assert(sizeof(Ring) <= 48 * 1024, "static shared memory");
  Ring& ring = context.template Shared<Ring>();
  Stage* const stages = ring.stages;
  i32* const pairs = ring.pairs;
  const int rows = min(tile.end - tile.first, kExpertTileRows);
  const i64 first_column = static_cast<i64>(context.TileY()) * kExpertTileColumns;
  for (int r = threadIdx.x; r < kExpertTileRows; r += C::kThreads) {
    pairs[r] = r < rows ? tile.sorted[tile.first + r] : 0;
  }
  context.Sync();

  const auto copy = [&](int stage, i64 begin) {
    Stage& to = stages[stage];
    for (int i = threadIdx.x; i < kExpertTileRows * (kDepth / kVec); i += C::kThreads) {
      const int r = i / (kDepth / kVec), column = i % (kDepth / kVec) * kVec;
      const bool exists = r < rows && begin + column < k;
      CopyAsync(SharedAddress(&to.x[r][column]), exists ? x + pairs[r] / C::kShare * k + begin + column : x, exists);
    }
    constexpr int kVectors = Stage::kWeightColumns / kVec;
    for (int i = threadIdx.x; i < Stage::kWeightRows * kVectors; i += C::kThreads) {
      const int r = i / kVectors, column = i % kVectors * kVec;
      const i64 row = (C::kTransposed ? first_column : begin) + r,
                at = (C::kTransposed ? begin : first_column) + column;
      const i64 width = C::kTransposed ? k : n;
      const bool exists = row < (C::kTransposed ? n : k) && at < width;
      CopyAsync(SharedAddress(&to.weight[r][column]), exists ? weight + row * width + at : weight, exists);
    }
  };

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp / 4 * 32, column = warp % 4 * 32;
  float sums[2][4][4] = {};
  const i64 steps = CeilDiv(k, kDepth);
  for (int s = 0; s < kExpertStages - 1; ++s) {
    if (s < steps) copy(s, static_cast<i64>(s) * kDepth);
    CommitCopies();
  }
  for (i64 step = 0; step < steps; ++step) {
    WaitForCopies<kExpertStages - 2>();
    context.Sync();
    const i64 next = step + kExpertStages - 1;
    if (next < steps) copy(static_cast<int>(next % kExpertStages), next * kDepth);
    CommitCopies();
    const Stage& stage = stages[step % kExpertStages];
#pragma unroll
    for (int d = 0; d < kDepth; d += 16) {
      u32 a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m)
        LoadMatrices(a[m], SharedAddress(&stage.x[row + m * 16 + lane % 16][d + lane / 16 * 8]));
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        u32 b[4];  // of columns 0-7, both halves of the depth; then of columns 8-15
        const int from = column + c * 16;
        if constexpr (C::kTransposed) {
          LoadMatrices(b, SharedAddress(&stage.weight[from + lane / 16 * 8 + lane % 8][d + lane / 8 % 2 * 8]));
        } else {
          LoadMatricesTransposed(b, SharedAddress(&stage.weight[d + lane % 16][from + lane / 16 * 8]));
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          MultiplyAdd<T>(sums[m][2 * c], a[m], b[0], b[1]);
          MultiplyAdd<T>(sums[m][2 * c + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
  WaitForAllCopies();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int r = row + m * 16 + h * 8 + lane / 4;
      if (r >= rows) continue;
      T* to = out + pairs[r] * n;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const i64 at = first_column + column + c * 8 + lane % 4 * 2;
        float low = sums[m][c][2 * h], high = sums[m][c][2 * h + 1];
        if constexpr (C::kBias) {
          if (at < n) low += ToFloat(bias[at]);
          if (at + 1 < n) high += ToFloat(bias[at + 1]);
        }
        if (n % 2 == 0 && at < n) {
          *reinterpret_cast<u32*>(to + at) = Pack<T>(low, high);
        } else {
          if (at < n) to[at] = FromFloat<T>(low);
          if (at + 1 < n) to[at + 1] = FromFloat<T>(high);
        }
      }
    }
  }
}

// out[p, n] = x[p / kShare, k] * the matrix of the expert of pair p, plus its row of bias[experts, n]. TileX is one of
// the tiles of pairs, TileY of columns. Nothing where the expert is a device error.
// C::T: element type.  C::kTransposed: weight is [experts, out, in], else [experts, in, out].  C::kExperts.
// C::kShare: pairs that share a row of x.  C::kBias: whether there is one.  C::kTensorCores: T has 16 bits, and 8
// divides rows of x and of the weight. C::kThreads: kExpertMatMulThreads.
template <class C, class Context>
__device__ __forceinline__ void ExpertMatMul(const Context& context, typename C::T* out, const typename C::T* x,
                                             const typename C::T* weight, const typename C::T* bias, const i32* table,
                                             i64 n, i64 k) {
  using T = typename C::T;
  static_assert(kIsModelType<T>, "T: float, f16 or bf16");
  static_assert(C::kThreads == kExpertMatMulThreads && kExpertMatMulThreads == kProductThreads, "kThreads: 256");
  static_assert(kExpertTileRows == kProductTile, "a tile without tensor cores is of as many rows");
  context.Wait();
  const ExpertTile<C::kExperts, kExpertTileRows> tile(table, context.TileX());
  if (tile.expert < 0) return;
  weight += tile.expert * n * k;
  if constexpr (C::kBias) bias += tile.expert * n;
  if constexpr (C::kTensorCores) {
    ExpertProduct<C>(context, tile, out, x, weight, bias, n, k);
  } else {
    const i32* sorted = tile.sorted;
    TiledProduct<kProductTile, float>(
        context, tile.first, static_cast<i64>(context.TileY()) * kProductTile, tile.end, n, k,
        [=](i64 r, i64 d) { return ToFloat(x[sorted[r] / C::kShare * k + d]); },
        [=](i64 c, i64 d) { return ToFloat(weight[C::kTransposed ? c * k + d : d * n + c]); },
        [=](i64 r, i64 c, float sum) {
          if constexpr (C::kBias) sum += ToFloat(bias[c]);
          out[sorted[r] * n + c] = FromFloat<T>(sum);
        });
  }
}

}  // namespace llmc
