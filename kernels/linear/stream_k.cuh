// Work that the blocks of a launch share equally, whatever the number of tiles is (stream-K, arXiv 2301.03598): the
// chunks of all tiles, one after the other, are a line, of which each block takes an equal part. A tile that lies in
// several blocks' parts is added up by the one of them that ends last, always in the same order.
#pragma once
#include "kernels/common/hopper.cuh"

namespace llmc {

struct StreamLine {
  int chunks;       // of all tiles
  int tile_chunks;  // of a tile
  int blocks;       // of the launch

  // Blocks that have a part of it: one chunk at the least.
  __device__ __forceinline__ int Workers() const { return blocks < chunks ? blocks : chunks; }
  __device__ __forceinline__ int BeginOf(int block) const {
    return block < Workers() ? static_cast<int>(static_cast<i64>(chunks) * block / Workers()) : chunks;
  }
  // The block in whose part a chunk lies.
  __device__ __forceinline__ int BlockOf(int at) const {
    int block = static_cast<int>(static_cast<i64>(at) * Workers() / chunks);
    while (BeginOf(block + 1) <= at) ++block;
    while (BeginOf(block) > at) --block;
    return block;
  }
};

// A part of a tile, by warps that wait for each other at a barrier (`kWaiting` threads, number `barrier`) and have a
// counter of their own, zero and left so: true for the last of those that have one, whose sums then are all of it.
// partials: for each block of the launch two parts of a tile, each as many floats as kPartThreads threads have sums.
template <int kWaiting, int kPartThreads, int kAtOnce, int kBlocks>
__device__ __forceinline__ bool AddUpTile(const StreamLine& line, int block, int tile, float* partials, i32* counter,
                                          int barrier, int& is_last, float (&c)[kBlocks][4]) {
  constexpr int kFloats = kPartThreads * 4;
  const int begin = tile * line.tile_chunks;
  const int first = line.BlockOf(begin), last = line.BlockOf(begin + line.tile_chunks - 1);
  // Of a block, a tile that begins before it, and one that ends after it.
  const auto at = [&](int of) {
    const i64 slot = 2 * of + (line.BeginOf(of) <= begin ? 1 : 0);
    return partials + slot * (kBlocks * kFloats) + threadIdx.x * 4;
  };
  float* const mine = at(block);
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) Store(mine + i * kFloats, Vec<float, 4>{c[i][0], c[i][1], c[i][2], c[i][3]});
  SyncNamed(barrier, kWaiting);
  if (threadIdx.x % kWaiting == 0) {
    i32 before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    is_last = before == last - first;
    if (before == last - first) *counter = 0;
  }
  SyncNamed(barrier, kWaiting);
  if (is_last == 0) return false;
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
#pragma unroll kAtOnce
  for (int of = first; of <= last; ++of) {
    const float* const from = at(of);
    Vec<float, 4> v[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) v[i] = Load<float, 4>(from + i * kFloats);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[i][e] += v[i].v[e];
    }
  }
  return true;
}

}  // namespace llmc
