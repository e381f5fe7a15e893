// Reads a buffer once, as fast as the memory gives it: what kernels that are bound by reading weights are measured by.
#pragma once
#include "kernels/common/context.cuh"

namespace llmc {

// A block reads one tile of C::kLoads vectors of 16 bytes a thread, all of which are under way at once; `x` holds
// whole tiles. The sum is written only if it is one that no contents have in practice, so that the loads are not left
// out. C::kLoads, C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void ReadStream(const Context& context, u32* __restrict__ out, const u32* __restrict__ x) {
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kLoads > 0 && C::kLoads <= 32, "kLoads: what registers have room for");
  const u32* tile = x + (static_cast<i64>(context.TileX()) * C::kLoads * C::kThreads + threadIdx.x) * 4;
  u32 words[C::kLoads][4];
#pragma unroll
  for (int i = 0; i < C::kLoads; ++i) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[i][0]), "=r"(words[i][1]), "=r"(words[i][2]), "=r"(words[i][3])
                 : "l"(tile + static_cast<i64>(i) * C::kThreads * 4));
  }
  u32 sum = 0;
#pragma unroll
  for (int i = 0; i < C::kLoads; ++i) sum ^= words[i][0] ^ words[i][1] ^ words[i][2] ^ words[i][3];
  if (sum == 0x9e3779b9u && words[0][0] == 0x85ebca6bu) *out = sum;
}

}  // namespace llmc
