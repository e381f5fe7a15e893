// out[m, n] = Activation(sum over k of x[m, k] * weight[n, k] + bias[n] + addend[m, n]) of f16 or bf16, rounded once;
// for sm_90a.
//
// A block goes from tile to tile of the result. One thread copies slabs of both factors to a ring of stages in shared
// memory, as far ahead as there are stages. Two warpgroups take tiles in turn, so that one multiplies while the other
// makes results of its sums: what follows from a product takes as long as the product, if it is an activation and k is
// small. A warpgroup begins to wait for its stages when the other one has those of the tile before, so that it takes no
// phase of a barrier for a later one of the same parity. Where tiles would be fewer than blocks, they are smaller.
#pragma once
#include "kernels/common/arithmetic.cuh"
#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/context.cuh"
#include "kernels/layout/linear.h"
#include "kernels/linear/float_products.cuh"

namespace llmc {

// x / 2 * (1 + erf(x / sqrt(2))), where 16 bits are kept of it: within 3.4e-7 (Abramowitz and Stegun 7.1.26).
__device__ __forceinline__ float GeluFor16Bits(float x) {
  float t, power;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(fabsf(x), 0.23164189f, 1.0f)));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * x * -0.72134752f));
  float sum = fmaf(t, 0.5307027145f, -0.7265760135f);
  sum = fmaf(t, sum, 0.7107068705f);
  sum = fmaf(t, sum, -0.1422483680f);
  sum = fmaf(t, sum, 0.1274147960f);
  const float rest = sum * t * power * fminf(x, 64.0f);  // x / 2 * erfc(|x| / sqrt(2)), and 0 of infinity
  return x > 0 ? x - rest : rest;
}

#if LLMC_SM90
struct DenseGemmShared {
  u64 full[DenseGemmLayout::kMostStages], empty[DenseGemmLayout::kMostStages];
};

// C::T: f16 or bf16.  C::kIn, C::kOut: k and n.  C::kBias, C::kAddend: whether there are some.  C::kActivation:
// DenseActivation.  C::kColumns: of large tiles.  C::kWeightFirst: the weight is there before the step.  kHalves: times
// 64 rows of a tile, which has kColumns columns.
template <class C, class Context, int kHalves, int kColumns>
struct DenseGemmBody {
  using T = typename C::T;
  using L = DenseGemmLayout;
  static constexpr int kRows = 64 * kHalves, kBlocks = kColumns / 8;
  static constexpr int kStageBytes = (kRows + kColumns) * L::kSlabBytes, kStages = L::StagesOf(kRows, kColumns);
  static constexpr int kSlabs = (C::kIn * 2 + L::kSlabBytes - 1) / L::kSlabBytes;
  static constexpr int kColumnTiles = (C::kOut + kColumns - 1) / kColumns;
  static_assert(kStages <= L::kMostStages && kStages >= 3, "stages that there are barriers for");
  static_assert(kColumns % 64 == 0 && C::kOut % 8 == 0, "results are stored by 64 columns, and by 16 bytes");

  const Context& context;
  DenseGemmShared& shared;
  char* const stages;  // from a multiple of 1024 on
  T* const out;
  const TileMap &x_map, &weight_map;
  const T *const bias, *const addend;
  const i32 m;

  // A stage, and the parity of the phase in which it is used.
  struct Walk {
    i32 slot = 0;
    u32 parity = 0;
    __device__ __forceinline__ void Advance(i32 count = 1) {
      slot += count;
      while (slot >= kStages) {
        slot -= kStages;
        parity ^= 1;
      }
    }
  };
  __device__ __forceinline__ i32 RowTiles() const { return (m + kRows - 1) / kRows; }
  __device__ __forceinline__ i32 Tiles() const { return RowTiles() * kColumnTiles; }
  // Rows first: blocks that run at the same time read the same columns of the weight.
  __device__ __forceinline__ i32 RowOf(i32 tile) const { return tile % RowTiles() * kRows; }
  __device__ __forceinline__ i32 ColumnOf(i32 tile) const { return tile / RowTiles() * kColumns; }

  // ---- the thread that copies --------------------------------------------------------------------------------------
  __device__ __forceinline__ void CopyWeight(i32 column, i32 slab, i32 slot) const {
    ArriveExpecting(&shared.full[slot], kStageBytes);
    const u32 to = SharedAddress(stages) + slot * kStageBytes + kRows * L::kSlabBytes;
#pragma unroll
    for (int i = 0; i < kColumns; i += L::kBoxRows) {
      CopyTile(to + i * L::kSlabBytes, weight_map, slab * L::kSlabBytes, column + i, &shared.full[slot]);
    }
  }
  __device__ __forceinline__ void CopyX(i32 row, i32 slab, i32 slot) const {
    const u32 to = SharedAddress(stages) + slot * kStageBytes;
#pragma unroll
    for (int i = 0; i < kRows; i += L::kBoxRows) {
      CopyTile(to + i * L::kSlabBytes, x_map, slab * L::kSlabBytes, row + i, &shared.full[slot]);
    }
  }
  __device__ __forceinline__ void Copy() const {
    if (!ElectThread()) return;
    const i32 first = static_cast<i32>(context.TileX()), step = static_cast<i32>(context.TilesX());
    i32 early = 0;  // stages whose weight is copied while the kernel before still runs
    if constexpr (C::kWeightFirst) {
      for (; first < Tiles() && early < kSlabs && early < kStages; ++early) CopyWeight(ColumnOf(first), early, early);
    }
    context.Wait();
    Walk walk;
    for (i32 tile = first; tile < Tiles(); tile += step) {
#pragma unroll 1
      for (i32 slab = 0; slab < kSlabs; ++slab, walk.Advance()) {
        if (early > 0) {
          --early;
        } else {
          WaitAt(&shared.empty[walk.slot], walk.parity ^ 1);
          CopyWeight(ColumnOf(tile), slab, walk.slot);
        }
        CopyX(RowOf(tile), slab, walk.slot);
      }
    }
  }

  // ---- warpgroups that multiply ------------------------------------------------------------------------------------
  static __device__ __forceinline__ i32 Group() { return static_cast<i32>(threadIdx.x) / 128; }
  static __device__ __forceinline__ i32 TurnOf(i32 group) { return 1 + group; }  // a named barrier

  __device__ __forceinline__ void Free(i32 slot) const {
    if (threadIdx.x % 32 == 0) ArriveAt(&shared.empty[slot]);
  }
  // `hands_on`: the other warpgroup has the next tile.
  __device__ __forceinline__ void Sum(Walk& walk, bool hands_on, float (&c)[kHalves][kBlocks][4]) const {
    i32 before = -1;
#pragma unroll 1
    for (i32 slab = 0; slab < kSlabs; ++slab) {
      WaitAt(&shared.full[walk.slot], walk.parity);
      const u32 a = SharedAddress(stages) + walk.slot * kStageBytes, b = a + kRows * L::kSlabBytes;
      BeginProducts();
#pragma unroll
      for (int step = 0; step < L::kSlabBytes / 32; ++step) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          MultiplyWarpgroupFloats<T>(c[half], Operand(a + half * 64 * L::kSlabBytes + 32 * step),
                                     Operand(b + 32 * step), slab > 0 || step > 0);
        }
      }
      CommitProducts();
      WaitForProducts<1>();
      if (before >= 0) Free(before);
      before = walk.slot;
      walk.Advance();
    }
    if (hands_on) ArriveNamed(TurnOf(1 - Group()), L::kMathThreads);
    WaitForProducts<0>();
    Free(before);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) Pin(c[half]);
  }

  __device__ __forceinline__ float Activated(float sum) const {
    if constexpr (C::kActivation == kDenseGelu) return GeluFor16Bits(sum);
    if constexpr (C::kActivation == kDenseGeluTanh) return op::GeluTanh(sum);
    return sum;
  }
  // Through shared memory, where a warp has its own: rows of 64 results, which are stored by 128 bytes.
  __device__ __forceinline__ void Store(i32 tile, const float (&c)[kHalves][kBlocks][4]) const {
    const int lane = threadIdx.x % 32;
    char* const mine = stages + L::kRingBytes + threadIdx.x / 32 * L::kStoreBytes;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const i32 first = RowOf(tile) + half * 64 + static_cast<i32>(threadIdx.x) % 128 / 32 * 16;
#pragma unroll
      for (int part = 0; part < kColumns / 64; ++part) {
        const i32 first_column = ColumnOf(tile) + 64 * part;
        if (first_column >= C::kOut) break;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const i32 column = first_column + 8 * i + lane % 4 * 2;
          Vec<T, 2> of_columns{};
          if (C::kBias && column < C::kOut) of_columns = Load<T, 2>(bias + column);
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            const i32 at = first + lane / 4 + 8 * row;
            Vec<T, 2> of_row{}, pair;
            if (C::kAddend && column < C::kOut && at < m) {
              of_row = Load<T, 2>(addend + static_cast<i64>(at) * C::kOut + column);
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              float y = c[half][8 * part + i][2 * row + j];
              if constexpr (C::kBias) y += ToFloat(of_columns.v[j]);
              if constexpr (C::kAddend) y += ToFloat(of_row.v[j]);
              pair.v[j] = FromFloat<T>(Activated(y));
            }
            llmc::Store(reinterpret_cast<T*>(mine + (lane / 4 + 8 * row) * L::kStoreStride) + 8 * i + lane % 4 * 2,
                        pair);
          }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = 4 * i + lane / 8, column = lane % 8 * 8;
          const auto v = Load<T, 8>(reinterpret_cast<const T*>(mine + row * L::kStoreStride) + column);
          if (first + row < m && first_column + column < C::kOut) {
            llmc::Store(out + static_cast<i64>(first + row) * C::kOut + first_column + column, v);
          }
        }
      }
    }
  }
  __device__ __forceinline__ void Multiply() const {
    context.Wait();
    const i32 first = static_cast<i32>(context.TileX()), step = static_cast<i32>(context.TilesX());
    Walk walk;
    walk.Advance(Group() * kSlabs);
    for (i32 tile = first + Group() * step; tile < Tiles(); tile += 2 * step) {
      float c[kHalves][kBlocks][4];
      if (tile != first) SyncNamed(TurnOf(Group()), L::kMathThreads);
      Sum(walk, tile + step < Tiles(), c);
      walk.Advance(kSlabs);  // those of the other warpgroup
      Store(tile, c);
    }
  }

  __device__ __forceinline__ void Run() const {
    if (threadIdx.x < kStages) {
      InitBarrier(&shared.full[threadIdx.x], 1);
      InitBarrier(&shared.empty[threadIdx.x], 4);  // warps of a warpgroup
      FenceBarriers();
    }
    context.Sync();
    if (threadIdx.x >= L::kMathThreads) {
      GiveRegisters<24>();
      if (threadIdx.x / 32 == L::kMathThreads / 32) Copy();
    } else {
      TakeRegisters<240>();
      Multiply();
    }
  }
};
#endif

// addend, bias: read if C has them.
template <class C, class Context>
__device__ __forceinline__ void DenseGemm(const Context& context, typename C::T* out, const TileMap& x_map,
                                          const TileMap& weight_map, const typename C::T* bias,
                                          const typename C::T* addend, i64 rows) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(C::kThreads == DenseGemmLayout::kThreads, "kThreads: two warpgroups multiply, one copies");
  constexpr int kColumns = C::kColumns;
  auto& shared = context.template Shared<DenseGemmShared>();
  char* const stages = context.template Arena<1024>();
  const i32 m = static_cast<i32>(rows);
  if ((m + 127) / 128 * ((C::kOut + kColumns - 1) / kColumns) >= static_cast<i32>(context.TilesX())) {
    DenseGemmBody<C, Context, 2, kColumns>{context, shared, stages, out, x_map, weight_map, bias, addend, m}.Run();
  } else {
    DenseGemmBody<C, Context, 1, 64>{context, shared, stages, out, x_map, weight_map, bias, addend, m}.Run();
  }
#endif
}

}  // namespace llmc
