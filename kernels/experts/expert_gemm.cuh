// expert_linear for many pairs of a token and an expert, which expert_order.cuh has sorted, for sm_90a: left_gemm.cuh
// with tiles of up to 160 pairs of one expert, whose rows of x lie one after the other (sorted_rows.cuh). What of the
// next expert's rows comes with them becomes sums that nobody stores.
#pragma once
#include "kernels/experts/expert_sums.cuh"
#include "kernels/experts/expert_tile.cuh"
#include "kernels/linear/left_gemm.cuh"

namespace llmc {

#if LLMC_SM90
// Tiles of the same pairs, which share x, run at the same time.
template <class C>
struct ExpertTiles {
  using T = typename C::T;
  using L = ExpertGemmLayout;
  static constexpr int kColumns = C::kGated ? L::kRows / 2 : L::kRows, kOwn = C::kGated ? L::kHalves : 2 * L::kHalves;
  static constexpr int kColumnTiles = (C::kOut + kColumns - 1) / kColumns;
  static constexpr int kN = C::kGated ? 2 * C::kOut : C::kOut;
  static constexpr bool kOneMatrix = false;
  using Prepared = i32;  // the pair
  struct Columns {
    float bias[kOwn] = {}, up_bias[kOwn] = {};
  };
  T* out;
  const T* bias;
  const i32* table;

  __device__ __forceinline__ int Tiles() const {
    return table[ExpertTilesAt(C::kExperts) + C::kExperts] * kColumnTiles;
  }
  __device__ __forceinline__ LeftGemmTile At(int t) const {
    const ExpertTile<C::kExperts, L::kPairs> tile(table, t / kColumnTiles);
    return {tile.expert, t % kColumnTiles * kColumns, tile.first, min(tile.end - tile.first, L::kPairs)};
  }
  __device__ __forceinline__ Columns OfColumns(const LeftGemmTile& tile, int column) const {
    Columns columns;
    const T* const of_expert = bias + static_cast<i64>(tile.matrix) * kN;
#pragma unroll
    for (int i = 0; i < kOwn && C::kBias; ++i) {
      const int known = column + i < C::kOut ? column + i : C::kOut - 1;
      columns.bias[i] = ToFloat(of_expert[known]);
      if constexpr (C::kGated) columns.up_bias[i] = ToFloat(of_expert[ExpertRowOf<C>(kN, known, 1)]);
    }
    return columns;
  }
  __device__ __forceinline__ T Result(const Columns& columns, int i, float sum, float up) const {
    return ExpertElement<C>(sum, up, columns.bias[i], columns.up_bias[i]);
  }
  __device__ __forceinline__ Prepared Prepare(const LeftGemmTile& tile, int row, int) const {
    return table[ExpertPairsAt(C::kExperts) + tile.row + row];
  }
  template <int kVec>
  __device__ __forceinline__ void Store(const LeftGemmTile&, int, int column, const Vec<T, kVec>& results,
                                        Prepared pair) const {
    llmc::Store(out + static_cast<i64>(pair) * C::kOut + column, results);
  }
};
#endif

// out[p, n] = x[of p, k] * the matrix of the expert of pair p, plus its row of bias[experts, n]; or the gate of an MLP
// of that, silu(y[p, i]) * y[p, n / 2 + i]. x: rows of sorted pairs, in tiles of kBoxRows. `table`: see
// layout/experts.h. Nothing where the expert is a device error.
// C::T: f16 or bf16.  C::kIn, C::kOut: k, and columns of the result.  C::kExperts.  C::kBias, C::kGated: whether there
// is one.  C::kHalves, C::kSharedBytes: as in left_gemm.cuh.  And what the reader says.
template <class C, class Context>
__device__ __forceinline__ void ExpertGemm(const Context& context, typename C::T* out, const TileMap& x,
                                           const Weight<C>& weight, const typename C::T* bias, const i32* table) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using L = ExpertGemmLayout;
  static_assert(C::kHalves == L::kHalves, "kHalves: as tiles have");
  char* const arena = context.template Arena<1024>();
  auto& shared = context.template Shared<LeftGemmShared>();
  const ExpertTiles<C> work = {out, bias, table};
  LeftGemmBody<C, Context, ExpertTiles<C>, L::kPairs, L::kBoxRows>{context, shared, arena, x, weight, work}.Run(
      [](const auto& body, auto& places, const LeftGemmTile& tile) {
        if (tile.rows <= 64) {
          body.template Multiply<8>(places, tile);
        } else if (tile.rows <= 96) {
          body.template Multiply<12>(places, tile);
        } else if (tile.rows <= 128) {
          body.template Multiply<16>(places, tile);
        } else {
          body.template Multiply<20>(places, tile);
        }
      });
#endif
}

}  // namespace llmc
