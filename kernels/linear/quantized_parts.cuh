// Where scales and zero points of a quantized matrix lie.
#pragma once
#include "kernels/elementwise/elementwise.cuh"

namespace llmc {

// How a scale or zero point of the right factor lies: one number; one for each column; one for each kBlock terms of
// each column, the columns in rows or one after the other.
enum PartKind { kNoPart = 0, kOneNumber = 1, kOfColumns = 2, kOfBlocks = 3 };

// The place of the part for term i of column c, of k terms and n columns.
template <int kKind, int kBlock, int kTransposed>
__device__ __forceinline__ i64 PartAt(i64 i, i64 c, i64 k, i64 n) {
  if constexpr (kKind == kOfBlocks) {
    return kTransposed ? c * ((k + kBlock - 1) / kBlock) + i / kBlock : i / kBlock * n + c;
  } else {
    return kKind == kOfColumns ? c : 0;
  }
}

}  // namespace llmc
