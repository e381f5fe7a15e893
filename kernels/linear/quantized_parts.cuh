// Where scales and zero points of a quantized matrix lie.
#pragma once
#include "kernels/elementwise/elementwise.cuh"
#include "kernels/layout/linear.h"

namespace llmc {

// The index of the part for term i of column c, of k terms and n columns: those of blocks of kBlock terms have the
// columns in rows or one after the other.
template <int kKind, int kBlock, int kTransposed>
__device__ __forceinline__ i64 PartAt(i64 i, i64 c, i64 k, i64 n) {
  if constexpr (kKind == kOfBlocks) {
    return kTransposed ? c * ((k + kBlock - 1) / kBlock) + i / kBlock : i / kBlock * n + c;
  } else {
    return kKind == kOfColumns ? c : 0;
  }
}

}  // namespace llmc
