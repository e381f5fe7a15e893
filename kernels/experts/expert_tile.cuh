// Which pairs of a token and an expert a tile has, of those that expert_order.cuh has sorted.
#pragma once
#include "kernels/common/common.cuh"
#include "kernels/layout/experts.h"

namespace llmc {

// A tile of pairs of one expert: sorted[first, end) from `table`. The grid has as many as there may be at the most;
// `expert` is -1 in those that are not needed.
// kRows: pairs of a tile.
template <int kExperts, int kRows>
struct ExpertTile {
  i32 expert = -1, first = 0, end = 0;
  const i32* sorted;

  __device__ __forceinline__ ExpertTile(const i32* table, i32 tile) : sorted(table + ExpertPairsAt(kExperts)) {
    const i32* tiles = table + ExpertTilesAt(kExperts);
    if (tile >= tiles[kExperts]) return;
    i32 low = 0, high = kExperts;  // the last expert whose first tile is not behind this one
    while (high - low > 1) {
      const i32 middle = (low + high) / 2;
      (tiles[middle] <= tile ? low : high) = middle;
    }
    expert = low;
    first = table[low] + (tile - tiles[low]) * kRows;
    end = table[low + 1];
  }
};

}  // namespace llmc
