// Blocks of a cluster (`__cluster_dims__`), which read each other's shared memory. From sm_90 on.
#pragma once
#include "kernels/common/mma.cuh"

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

}  // namespace llmc
#endif
