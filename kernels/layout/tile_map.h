// A matrix of bytes in global memory, of which kernels for sm_90 and later copy tiles to shared memory by one
// instruction (CopyTile of kernels/common/bulk_copy.cuh). The driver writes it (a CUtensorMap); a kernel takes it as a
// parameter.
//
// A tile is kTileBytes of some rows, with zeros for what is outside the matrix. In shared memory its 16-byte chunks are
// permuted as products of warpgroups take them. Rows begin at multiples of 16 bytes.
#pragma once
#include "kernels/layout/base.h"

namespace llmc {

constexpr int kTileBytes = 128;  // of a row

struct alignas(64) TileMap {
  unsigned long long words[16];
};

}  // namespace llmc
