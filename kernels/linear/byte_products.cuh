// Products of warpgroups of codes of 8 bits, from sm_90a on: integers with exact sums, and floats.
#pragma once
#include "kernels/common/hopper.cuh"
#include "kernels/linear/quantized_parts.cuh"

namespace llmc {

// sum: a constraint for the sums.  tail: what follows the predicate.
#define LLMC_C4(sum, i) sum(c[i][0]), sum(c[i][1]), sum(c[i][2]), sum(c[i][3])
#define LLMC_C16(sum, i) LLMC_C4(sum, i), LLMC_C4(sum, i + 1), LLMC_C4(sum, i + 2), LLMC_C4(sum, i + 3)
#define LLMC_WGMMA(sum, types, tail)                                                                                \
  asm volatile(                                                                                                     \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                                                  \
      "wgmma.mma_async.sync.aligned.m64n128k32." types                                                              \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "   \
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "       \
      "%64, %65, p" tail ";\n}"                                                                                     \
      : LLMC_C16(sum, 0), LLMC_C16(sum, 4), LLMC_C16(sum, 8), LLMC_C16(sum, 12)                                     \
      : "l"(a), "l"(b), "r"(add))
#define LLMC_WGMMA_INTEGERS(types) LLMC_WGMMA("+r", "s32." types, "")
#define LLMC_WGMMA_FLOATS(types) LLMC_WGMMA("+f", "f32." types, ", 1, 1")

// c[64, 128] = a[64, 32] * b[128, 32], plus c if `add`; both in shared memory.
template <class A, class B>
__device__ __forceinline__ void MultiplyWarpgroupBytes(i32 (&c)[16][4], u64 a, u64 b, int add) {
  if constexpr (kIsSigned<A> && kIsSigned<B>) {
    LLMC_WGMMA_INTEGERS("s8.s8");
  } else if constexpr (kIsSigned<A>) {
    LLMC_WGMMA_INTEGERS("s8.u8");
  } else if constexpr (kIsSigned<B>) {
    LLMC_WGMMA_INTEGERS("u8.s8");
  } else {
    LLMC_WGMMA_INTEGERS("u8.u8");
  }
}
template <class A, class B>
__device__ __forceinline__ void MultiplyWarpgroupBytes(float (&c)[16][4], u64 a, u64 b, int add) {
  if constexpr (kSame<A, f8e4m3> && kSame<B, f8e4m3>) {
    LLMC_WGMMA_FLOATS("e4m3.e4m3");
  } else if constexpr (kSame<A, f8e4m3>) {
    LLMC_WGMMA_FLOATS("e4m3.e5m2");
  } else if constexpr (kSame<B, f8e4m3>) {
    LLMC_WGMMA_FLOATS("e5m2.e4m3");
  } else {
    LLMC_WGMMA_FLOATS("e5m2.e5m2");
  }
}
#undef LLMC_C4
#undef LLMC_C16
#undef LLMC_WGMMA
#undef LLMC_WGMMA_INTEGERS
#undef LLMC_WGMMA_FLOATS

// Keeps the compiler from moving what it does with sums of integers past this place, as Pin.
__device__ __forceinline__ void Pin(i32 (&c)[16][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) asm volatile("" : "+r"(c[i][0]), "+r"(c[i][1]), "+r"(c[i][2]), "+r"(c[i][3])::"memory");
}

}  // namespace llmc
