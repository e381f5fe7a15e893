// Warp-wide products of 16-bit matrices, and asynchronous copies to shared memory: sm_80 and later.
//
// mma.sync m16n8k16: c[16, 8] += a[16, 16] * b[16, 8]. Lane l holds of c the columns 2 * (l % 4) + {0, 1} of the rows
// l / 4 (c[0], c[1]) and l / 4 + 8 (c[2], c[3]); of a the same rows and columns, then those 8 columns on; of b the rows
// 2 * (l % 4) + {0, 1}, then those 8 rows on, of column l / 4.
#pragma once
#include "kernels/common/common.cuh"

namespace llmc {

// Shared memory that a block can have on every GPU that runs what is compiled here.
#ifdef __CUDA_ARCH__
constexpr int kMaxSharedBytes = MaxSharedBytes(__CUDA_ARCH__);
#else
constexpr int kMaxSharedBytes = kMostSharedBytes;
#endif

__device__ __forceinline__ u32 SharedAddress(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// Starts to copy 16 bytes to shared memory, or to fill them with zeros.
__device__ __forceinline__ void CopyAsync(u32 to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0)
               : "memory");
}
// The same of 16, 8 or 4 bytes that exist.
template <int kBytes>
__device__ __forceinline__ void CopyAsyncBytes(u32 to, const void* from) {
  static_assert(kBytes == 16 || kBytes == 8 || kBytes == 4, "what the instruction takes");
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
}
// The same of bytes that exist, or zeros.
template <int kBytes>
__device__ __forceinline__ void CopyAsyncIf(u32 to, const void* from, bool exists) {
  static_assert(kBytes == 16 || kBytes == 8 || kBytes == 4, "what the instruction takes");
  if constexpr (kBytes == 16) {
    CopyAsync(to, from, exists);
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes),
                 "r"(exists ? kBytes : 0)
                 : "memory");
  }
}
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `kPending` groups of this thread's copies are under way.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits until none is, in no group either.
__device__ __forceinline__ void WaitForAllCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8, and gets of each the
// columns 2 * (l % 4) + {0, 1} of row l / 4; transposed: the rows 2 * (l % 4) + {0, 1} of column l / 4.
__device__ __forceinline__ void LoadMatrices(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void LoadMatricesTransposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
#if LLMC_SM90
// The opposite of LoadMatricesTransposed: the address is that of what then is row l % 8 of matrix l / 8.
__device__ __forceinline__ void StoreMatricesTransposed(u32 address, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
#endif

template <class T>
__device__ __forceinline__ void MultiplyAdd(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <>
__device__ __forceinline__ void MultiplyAdd<bf16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void MultiplyAdd<f16>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats as 16-bit elements, `low` at the lower address.
template <class T>
__device__ __forceinline__ u32 Pack(float low, float high);
template <>
__device__ __forceinline__ u32 Pack<bf16>(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <>
__device__ __forceinline__ u32 Pack<f16>(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// 2^x to 2 units in the last place; 0 below 2^-126.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace llmc
