// Where the body of a kernel runs. A body is a function of its Config, a context and its arguments. It does not know
// whether it is a launch of its own, with a block for each tile, or one of many tasks of a launch whose blocks go from
// tile to tile; that is the context's business:
//
//   TileX(), TileY(), TileZ()  the tile that the body computes
//   TilesX(), TilesY()         how many there are
//   Wait()      returns when what all tasks before have written can be read, and what they read can be written. Before
//               it a body sets itself up and may read weights, constants, prepared values and inputs. A body that
//               never calls it is begun when all before have ended.
//   LaunchNext()  says that the next launch may start, if it has to wait for that: as soon as one thread of each block
//               has called it or the block has ended. Not of the parts of a persistent launch
//   Sync()      is a barrier of all threads of the body
//   Shared<T>() what the body keeps in shared memory: one struct, of which it hands parts on. Undefined at first.
//   Arena<n>()  the rest of its shared memory, as much as the KernelCall says, aligned to n = 128 or 1024 bytes
//
// The threads of a body are the first C::kThreads of a block: threadIdx.x is the number of one. A launch of several
// bodies side by side has as many threads as the largest needs; the others of a block have ended, and no barrier waits
// for them.
#pragma once
#include "kernels/common/common.cuh"

namespace llmc {

// Dependent launches (kernels/README.md has the rule); before sm_90 there are none.
// Once every block has said so, blocks of the next kernel may take what room is left beside them.
__device__ __forceinline__ void LaunchDependents() {
#if LLMC_SM90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Returns when all kernels before this one have ended, and what they wrote can be read.
__device__ __forceinline__ void GridDependencyWait() {
#if LLMC_SM90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// What the threads that have a context do of a body that streams a weight (linear/gemv.cuh): all of it; or, in a
// persistent launch, one of its parts, which is then the context's kRole.
enum class Role { kAll, kCompute, kStream, kStreamParts };
template <class Context, class = void>
inline constexpr Role kRoleOf = Role::kAll;
template <class Context>
inline constexpr Role kRoleOf<Context, decltype(static_cast<void>(Context::kRole))> = Context::kRole;

// A launch of its own.
struct LaunchContext {
  __device__ __forceinline__ u32 TileX() const { return blockIdx.x; }
  __device__ __forceinline__ u32 TileY() const { return blockIdx.y; }
  __device__ __forceinline__ u32 TileZ() const { return blockIdx.z; }
  __device__ __forceinline__ u32 TilesX() const { return gridDim.x; }
  __device__ __forceinline__ u32 TilesY() const { return gridDim.y; }
  __device__ __forceinline__ void Wait() const { GridDependencyWait(); }
  __device__ __forceinline__ void Sync() const { __syncthreads(); }
  __device__ __forceinline__ void LaunchNext() const { LaunchDependents(); }

  template <class T>
  __device__ __forceinline__ T& Shared() const {
    __shared__ T memory;
    return memory;
  }
  template <int kAlignment>
  __device__ __forceinline__ char* Arena() const {
    static_assert(kAlignment == 128 || kAlignment == 1024, "128 or 1024 bytes");
    if constexpr (kAlignment == 128) {
      extern __shared__ __align__(128) char arena_128[];
      return arena_128;
    } else {
      extern __shared__ __align__(1024) char arena_1024[];
      return arena_1024;
    }
  }
};

// One of several bodies of a launch whose blocks are numbered one after the other: those of this one from `block` 0 on.
struct PartContext : LaunchContext {
  u32 block, x, y, z;  // this block, among those of the body and of what comes behind it; tiles of the body

  __device__ __forceinline__ PartContext(u32 block, u32 x, u32 y, u32 z) : block(block), x(x), y(y), z(z) {}
  __device__ __forceinline__ u32 Tiles() const { return x * y * z; }
  __device__ __forceinline__ u32 TileX() const { return block % x; }
  __device__ __forceinline__ u32 TileY() const { return block / x % y; }
  __device__ __forceinline__ u32 TileZ() const { return block / (x * y); }
  __device__ __forceinline__ u32 TilesX() const { return x; }
  __device__ __forceinline__ u32 TilesY() const { return y; }
};

}  // namespace llmc
