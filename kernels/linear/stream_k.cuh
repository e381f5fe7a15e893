// Work that the blocks of a launch share equally, whatever the number of tiles is (stream-K, arXiv 2301.03598): the
// chunks of all tiles, one after the other, are a line, of which each block takes an equal part. A tile that lies in
// several blocks' parts is added up by the one of them that ends last, always in the same order.
#pragma once
#include "kernels/common/hopper.cuh"

namespace llmc {

struct StreamLine {
  int chunks;       // of all tiles; times the blocks less than 2^32
  int tile_chunks;  // of a tile
  int blocks;       // of the launch

  // Blocks that have a part of it: one chunk at the least.
  __device__ __forceinline__ int Workers() const { return blocks < chunks ? blocks : chunks; }
  __device__ __forceinline__ int BeginOf(int block) const {
    return block < Workers() ? static_cast<int>(static_cast<u32>(chunks) * block / Workers()) : chunks;
  }
  // The block in whose part a chunk lies.
  __device__ __forceinline__ int BlockOf(int at) const {
    int block = static_cast<int>(static_cast<u32>(at) * Workers() / chunks);
    while (BeginOf(block + 1) <= at) ++block;
    while (BeginOf(block) > at) --block;
    return block;
  }
};

// A part of a tile, by warps that wait for each other at a barrier (`kWaiting` threads, number `barrier`) and have a
// counter of their own, zero and left so: true for the last of those that have one, whose sums then are all of it.
// partials: for each block of the launch two parts of a tile, each as many floats or integers as kPartThreads threads
// have sums. takes(i): whether anybody asks for c[i] of this thread; the same for all blocks.
template <int kWaiting, int kPartThreads, int kAtOnce, class Sum, int kArrays, int kBlocks, class Takes>
__device__ __forceinline__ bool AddUpTile(const StreamLine& line, int block, int tile, Sum* partials, i32* counter,
                                          int barrier, int& is_last, Sum (&c)[kArrays][kBlocks][4],
                                          const Takes& takes) {
  constexpr int kSums = kPartThreads * 4;
  const int begin = tile * line.tile_chunks;
  const int first = line.BlockOf(begin), last = line.BlockOf(begin + line.tile_chunks - 1);
  // Of a block, a tile that begins before it, and one that ends after it.
  const auto at = [&](int of, int array) {
    const i64 slot = 2 * of + (line.BeginOf(of) <= begin ? 1 : 0);
    return partials + (slot * kArrays + array) * (kBlocks * kSums) + threadIdx.x * 4;
  };
#pragma unroll
  for (int a = 0; a < kArrays; ++a) {
    if (!takes(a)) continue;
    Sum* const mine = at(block, a);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      Store(mine + i * kSums, Vec<Sum, 4>{c[a][i][0], c[a][i][1], c[a][i][2], c[a][i][3]});
  }
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
  for (int a = 0; a < kArrays; ++a) {
    if (!takes(a)) continue;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) c[a][i][0] = c[a][i][1] = c[a][i][2] = c[a][i][3] = 0;
#pragma unroll kAtOnce
    for (int of = first; of <= last; ++of) {
      const Sum* const from = at(of, a);
      Vec<Sum, 4> v[kBlocks];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) v[i] = Load<Sum, 4>(from + i * kSums);
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) c[a][i][e] += v[i].v[e];
      }
    }
  }
  return true;
}
// Of one array of sums, all of which are asked for.
template <int kWaiting, int kPartThreads, int kAtOnce, int kBlocks>
__device__ __forceinline__ bool AddUpTile(const StreamLine& line, int block, int tile, float* partials, i32* counter,
                                          int barrier, int& is_last, float (&c)[kBlocks][4]) {
  return AddUpTile<kWaiting, kPartThreads, kAtOnce>(line, block, tile, partials, counter, barrier, is_last,
                                                    reinterpret_cast<float(&)[1][kBlocks][4]>(c),
                                                    [](int) { return true; });
}

}  // namespace llmc
