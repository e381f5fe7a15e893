// Blocks of a cluster (`__cluster_dims__`), which read each other's shared memory. From sm_90 on.
#pragma once
#include "kernels/common/mma.cuh"
#include "kernels/layout/tile_map.h"

#if LLMC_SM90
namespace llmc {

__device__ __forceinline__ u32 ClusterRank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Threads that have ended count as having arrived. What a thread wrote before it arrives, all can read when they have
// waited.
__device__ __forceinline__ void ArriveInCluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void WaitForCluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Two floats of block `rank`, at the address that they have in its shared memory.
__device__ __forceinline__ Vec<float, 2> LoadOfBlock(u32 address, u32 rank) {
  Vec<float, 2> v;
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %2, %3;\nld.shared::cluster.v2.f32 {%0, %1}, [there];\n}"
      : "=f"(v.v[0]), "=f"(v.v[1])
      : "r"(address), "r"(rank)
      : "memory");
  return v;
}

// At the barrier that has this address in block `rank`; of what it read, not of what it wrote: to say so to other
// blocks would take a fence in every warp, and products that wait for it half as long again.
__device__ __forceinline__ void ArriveAtOfBlock(u64* barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(SharedAddress(barrier)),
      "r"(rank)
      : "memory");
}
// CopyTile to the same address of all kBlocks blocks of a cluster, each of whose barriers is told.
template <int kBlocks>
__device__ __forceinline__ void CopyTileToCluster(u32 to, const TileMap& map, i32 byte, i32 row, u64* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&map), "r"(SharedAddress(barrier)), "r"(byte), "r"(row), "h"(static_cast<u16>((1 << kBlocks) - 1))
      : "memory");
}

}  // namespace llmc
#endif
