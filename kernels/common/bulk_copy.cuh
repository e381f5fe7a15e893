// Bulk copies into shared memory, which complete on barriers (hopper.cuh). From sm_90 on.
#pragma once
#include "kernels/common/hopper.cuh"
#include "kernels/layout/tile_map.h"

#if LLMC_SM90
namespace llmc {

// Makes initialized barriers known to the copies; a barrier makes them known to the threads.
__device__ __forceinline__ void FenceBarriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Arrives; the phase ends only when `bytes` have been copied, too.
__device__ __forceinline__ void ArriveExpecting(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes)
               : "memory");
}

// True for one thread of a warp that is whole. Of no other condition the compiler knows that a single thread copies: it
// makes a loop over threads of each copy.
__device__ __forceinline__ bool ElectThread() {
  u32 is_elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(is_elected));
  return is_elected != 0;
}

// By one thread, which takes less long than as many threads, one after the other.
template <int kCount>
__device__ __forceinline__ void InitBarriers(u64* barriers, u32 arrivals) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) InitBarrier(&barriers[i], arrivals);
}

// One thread's copy of neighbouring bytes; addresses and size are multiples of 16. Copies of 1 KiB and more keep up
// with memory, if the thread was elected.
__device__ __forceinline__ void BulkCopy(void* to, const void* from, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   SharedAddress(to)),
               "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
               : "memory");
}

// Of bulk copies of what is read once a step: it leaves the cache of the GPU before what is read again. cp.async takes
// none: ptxas 13.0 encodes that wrongly where a part of its address in shared memory is the same for a warp.
__device__ __forceinline__ u64 EvictFirst() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void BulkCopy(void* to, const void* from, u32 bytes, u64* barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(SharedAddress(barrier)), "l"(policy)
      : "memory");
}

// By one thread: the tile whose first byte is `byte` of row `row`, of which the barrier is told.
__device__ __forceinline__ void CopyTile(u32 to, const TileMap& map, i32 byte, i32 row, u64* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(to),
      "l"(&map), "r"(SharedAddress(barrier)), "r"(byte), "r"(row)
      : "memory");
}
__device__ __forceinline__ void CopyTile(u32 to, const TileMap& map, i32 byte, i32 row, u64* barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&map), "r"(SharedAddress(barrier)), "r"(byte), "r"(row), "l"(policy)
      : "memory");
}

}  // namespace llmc
#endif
