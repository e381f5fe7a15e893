// How attention is cut into tiles, and the shared memory and scratch that its kernels take.
#pragma once
#include "kernels/layout/base.h"

namespace llmc {

// Elements of a head in shared memory: the rest is zeros.
LLMC_HOST_DEVICE constexpr int PaddedHeadDim(int head_dim) { return (head_dim + 15) / 16 * 16; }
constexpr int kRowPaddingBytes = 16;  // behind each row there, so that 8 rows lie in different banks

constexpr int kMaxHeadDim = 256;  // of all kernels but those without tensor cores

// ---- attention of one token a block over the paged cache (paged_attention.cuh) ------------------------------------
constexpr int kMaxTokenHeadDim = 1024;
constexpr int kTokenThreads = 128;
// The most query heads of a block: their queries and sums lie in registers, the sums of each warp in shared memory,
// which is less than 48 KiB.
LLMC_HOST_DEVICE constexpr int MostTokenHeads(int head_dim, int value_dim) {
  const int by_registers = 4096 / (head_dim + value_dim), by_shared = 3000 / value_dim;
  const int heads = by_registers < by_shared ? by_registers : by_shared;
  return heads < 1 ? 1 : heads > 8 ? 8 : heads;
}

// ---- attention of a few tokens over the paged cache (paged_attention_decode.cuh) ----------------------------------
constexpr int kMaxDecodeRows = 16;  // of queries that share a KV head

struct DecodeLayout {
  int rows;  // of queries: token after token, in it head after head
  int head_dim, element_bytes;
  int tile;    // positions
  int stages;  // of the ring of a warp
  // Of a cache that is encoded: bits of a code, scales of a row. Elements of 0 bits: it is not.
  int code_bits = 0, groups = 0;

  LLMC_HOST_DEVICE constexpr int Dim() const {
    return code_bits > 0 ? (head_dim + 31) / 32 * 32 : PaddedHeadDim(head_dim);
  }
  LLMC_HOST_DEVICE constexpr int RowBytes() const {
    return code_bits > 0 ? Dim() * code_bits / 8 : Dim() * element_bytes;
  }
  // Of keys or of values, one after the other in a stage.
  LLMC_HOST_DEVICE constexpr int TileBytes() const { return tile * (RowBytes() + kRowPaddingBytes); }
  // Of the tile that is computed, of keys, then values: scales in f32, then zero points in 16 bits.
  LLMC_HOST_DEVICE constexpr int ScaleBytes() const { return 2 * tile * groups * 6; }
  LLMC_HOST_DEVICE constexpr int RingBytes() const { return stages * 2 * TileBytes() + ScaleBytes(); }  // of a warp
  // The floats of a partial result: its rows, then two of each row; whole vectors of four.
  LLMC_HOST_DEVICE constexpr int SumFloats() const { return (rows * (Dim() + 2) + 3) / 4 * 4; }
  LLMC_HOST_DEVICE constexpr int Vectors() const { return rows * Dim() / 4; }
  // Teams of Vectors() threads that merge.
  LLMC_HOST_DEVICE constexpr int Teams(int warps) const { return 32 * warps >= Vectors() ? 32 * warps / Vectors() : 1; }
  LLMC_HOST_DEVICE constexpr int SharedBytes(int warps) const {
    return warps * RingBytes() + (warps > Teams(warps) ? warps : Teams(warps)) * SumFloats() * 4;
  }
  // As many warps as have room.
  LLMC_HOST_DEVICE constexpr int Warps(int most, int max_shared_bytes) const {
    int warps = most;
    while (warps > 1 && SharedBytes(warps) > max_shared_bytes) warps /= 2;
    return warps;
  }
  // Two partial results a block.
  LLMC_HOST_DEVICE constexpr int PartialBytes(int blocks) const { return blocks * 2 * SumFloats() * 4; }
};

// ---- attention over rows that are keys and values at once (latent_attention.cuh) ----------------------------------
constexpr int kLatentWarps = 8;
constexpr int kMostLatentSplits = 64;     // of a tile
constexpr int kLatentMergeThreads = 512;  // of a block that merges
constexpr int kMaxLatentDim = 640;

struct LatentLayout {
  int rows;  // of queries: 16, 32 or 64
  int head_dim, value_dim;
  int tile;    // positions
  int stages;  // of the ring of a block

  // Warps that have the same 16 rows.
  LLMC_HOST_DEVICE constexpr int Share() const { return kLatentWarps * 16 / rows; }
  // Of the values, of a warp.
  LLMC_HOST_DEVICE constexpr int Columns() const { return PaddedHeadDim((value_dim + Share() - 1) / Share()); }
  // Parts of the columns of keys: more warps than there are groups of 8 keys divide these.
  LLMC_HOST_DEVICE constexpr int KeyParts() const { return Share() * 8 > tile ? Share() * 8 / tile : 1; }
  LLMC_HOST_DEVICE constexpr int ScoreStride() const { return tile + 8; }
  // Queries, the ring, scores. What reads columns past a row of the ring reads what follows.
  LLMC_HOST_DEVICE constexpr int SharedBytes() const {
    return (rows + stages * tile) * (PaddedHeadDim(head_dim) * 2 + kRowPaddingBytes) +
           KeyParts() * rows * ScoreStride() * 4;
  }
  LLMC_HOST_DEVICE constexpr int PartialBytes() const { return rows * (value_dim + 2) * 4; }
};

// ---- attention of many rows on tensor cores (flash_attention.cuh, flash_attention_hopper.cuh) ---------------------
constexpr int kFlashRows = 128;           // of queries in a block
constexpr int kFlashHopperThreads = 384;  // a warpgroup that copies and two that compute

// Queries, then two stages of keys and values.
LLMC_HOST_DEVICE constexpr int FlashSharedBytes(int dim, int rows, int keys) {
  return (rows + 4 * keys) * (PaddedHeadDim(dim) * 2 + kRowPaddingBytes);
}
constexpr int kFlashMapRows = 64;  // of a map of tiles of keys or values of whole tensors

// Stages of keys, and as many of values.
LLMC_HOST_DEVICE constexpr int FlashHopperStages(bool by_maps) { return by_maps ? 3 : 2; }
// Stages of keys and values in rows of 128 bytes, which are aligned; then queries.
LLMC_HOST_DEVICE constexpr int FlashHopperSharedBytes(int dim, int keys, bool by_maps) {
  return (2 * FlashHopperStages(by_maps) * keys + kFlashRows) * dim * 2 + 1024;
}
// As many keys in a tile as there is room for.
LLMC_HOST_DEVICE constexpr int FlashKeys(int most, int dim, int rows, int max_shared_bytes) {
  int keys = most;
  while (keys > 16 && FlashSharedBytes(dim, rows, keys) > max_shared_bytes) keys /= 2;
  return keys;
}

// ---- attention without tensor cores (attention.cuh) ---------------------------------------------------------------
constexpr int kAttentionRows = 4;   // of queries of a warp
constexpr int kAttentionKeys = 32;  // of a tile
LLMC_HOST_DEVICE constexpr int AttentionQueries(int threads) { return threads / 32 * kAttentionRows; }  // of a block

// Elements, as they are computed with: queries, keys a bank apart, values.
LLMC_HOST_DEVICE constexpr i64 AttentionSharedElements(int threads, i64 dim, i64 value_dim) {
  return AttentionQueries(threads) * dim + kAttentionKeys * (dim + 1) + kAttentionKeys * value_dim;
}

}  // namespace llmc
