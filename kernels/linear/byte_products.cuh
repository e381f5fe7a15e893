// Products of warpgroups with both factors in shared memory, from sm_90a on: of codes of 8 bits, integers with exact
// sums and floats. Of floats of 16 bits: float_products.cuh.
#pragma once
#include "kernels/common/hopper.cuh"
#include "kernels/linear/quantized_parts.cuh"

namespace llmc {

// What sums of products of floats, or of integers, are.
template <bool kFloats>
struct WarpgroupSum {
  using Type = float;
};
template <>
struct WarpgroupSum<false> {
  using Type = i32;
};

// sum: a constraint for the sums.  tail: what follows the predicate.
#define LLMC_C4(sum, i) sum(c[i][0]), sum(c[i][1]), sum(c[i][2]), sum(c[i][3])
#define LLMC_C8(sum, i) LLMC_C4(sum, i), LLMC_C4(sum, i + 1)
#define LLMC_C16(sum, i) LLMC_C8(sum, i), LLMC_C8(sum, i + 2)
#define LLMC_C32(sum, i) LLMC_C16(sum, i), LLMC_C16(sum, i + 4)
#define LLMC_C64(sum, i) LLMC_C32(sum, i), LLMC_C32(sum, i + 8)
#define LLMC_NAMES4 "%0, %1, %2, %3"
#define LLMC_NAMES8 LLMC_NAMES4 ", %4, %5, %6, %7"
#define LLMC_NAMES16 LLMC_NAMES8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define LLMC_NAMES32 LLMC_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LLMC_NAMES64                                                                                            \
  LLMC_NAMES32                                                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// columns: of the product.  names: of the sums; `a`, `b` and `add` come behind them.
#define LLMC_WGMMA(columns, types, tail, names, a_name, b_name, add_name, ...)                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_name ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
               "k32." types " {" names "}, " a_name ", " b_name ", p" tail ";\n}"                             \
               : __VA_ARGS__                                                                                  \
               : "l"(a), "l"(b), "r"(add))
#define LLMC_WGMMA_OF(types, tail, sum)                                                                           \
  if constexpr (kBlocks == 1) LLMC_WGMMA("8", types, tail, LLMC_NAMES4, "%4", "%5", "%6", LLMC_C4(sum, 0));       \
  if constexpr (kBlocks == 4) LLMC_WGMMA("32", types, tail, LLMC_NAMES16, "%16", "%17", "%18", LLMC_C16(sum, 0)); \
  if constexpr (kBlocks == 8) LLMC_WGMMA("64", types, tail, LLMC_NAMES32, "%32", "%33", "%34", LLMC_C32(sum, 0)); \
  if constexpr (kBlocks == 16) LLMC_WGMMA("128", types, tail, LLMC_NAMES64, "%64", "%65", "%66", LLMC_C64(sum, 0))
#define LLMC_WGMMA_INTEGERS(types) LLMC_WGMMA_OF("s32." types, "", "+r")
#define LLMC_WGMMA_FLOATS(types) LLMC_WGMMA_OF("f32." types, ", 1, 1", "+f")

// c[64, 8 kBlocks] = a * b^T, plus c if `add`, where a is 64 rows and b 8 kBlocks rows of 32 bytes; both in shared
// memory.
template <class A, class B, int kBlocks>
__device__ __forceinline__ void MultiplyWarpgroupBytes(i32 (&c)[kBlocks][4], u64 a, u64 b, int add) {
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
template <class A, class B, int kBlocks>
__device__ __forceinline__ void MultiplyWarpgroupBytes(float (&c)[kBlocks][4], u64 a, u64 b, int add) {
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
#undef LLMC_C8
#undef LLMC_C16
#undef LLMC_C32
#undef LLMC_C64
#undef LLMC_NAMES4
#undef LLMC_NAMES8
#undef LLMC_NAMES16
#undef LLMC_NAMES32
#undef LLMC_NAMES64
#undef LLMC_WGMMA
#undef LLMC_WGMMA_OF
#undef LLMC_WGMMA_INTEGERS
#undef LLMC_WGMMA_FLOATS

// Keeps the compiler from moving what it does with sums of integers past this place, as Pin.
template <int kBlocks>
__device__ __forceinline__ void Pin(i32 (&c)[kBlocks][4]) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    asm volatile("" : "+r"(c[i][0]), "+r"(c[i][1]), "+r"(c[i][2]), "+r"(c[i][3])::"memory");
  }
}

}  // namespace llmc
