// Products of warpgroups of f16 or bf16 with both factors in shared memory, for sm_90a.
#pragma once
#include "kernels/common/hopper.cuh"

#if LLMC_SM90
namespace llmc {

#define LLMC_C4(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define LLMC_C8(i) LLMC_C4(i), LLMC_C4(i + 1)
#define LLMC_C16(i) LLMC_C8(i), LLMC_C8(i + 2)
#define LLMC_C32(i) LLMC_C16(i), LLMC_C16(i + 4)
#define LLMC_NAMES4 "%0, %1, %2, %3"
#define LLMC_NAMES16 LLMC_NAMES4 ", %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define LLMC_NAMES32 LLMC_NAMES16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LLMC_NAMES64                                                                                            \
  LLMC_NAMES32                                                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LLMC_NAMES96                                                                                            \
  LLMC_NAMES64                                                                                                  \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, " \
  "%85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LLMC_WGMMA(columns, type, names, a_name, b_name, add_name, ...)                                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add_name ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns \
               "k16.f32." type "." type " {" names "}, " a_name ", " b_name ", p, 1, 1, 0, 0;\n}"             \
               : __VA_ARGS__                                                                                  \
               : "l"(a), "l"(b), "r"(add))
#define LLMC_WGMMA_OF(type)                                                                                          \
  if constexpr (kBlocks == 1) LLMC_WGMMA("8", type, LLMC_NAMES4, "%4", "%5", "%6", LLMC_C4(0));                      \
  if constexpr (kBlocks == 4) LLMC_WGMMA("32", type, LLMC_NAMES16, "%16", "%17", "%18", LLMC_C16(0));                \
  if constexpr (kBlocks == 8) LLMC_WGMMA("64", type, LLMC_NAMES32, "%32", "%33", "%34", LLMC_C32(0));                \
  if constexpr (kBlocks == 16) LLMC_WGMMA("128", type, LLMC_NAMES64, "%64", "%65", "%66", LLMC_C32(0), LLMC_C32(8)); \
  if constexpr (kBlocks == 24)                                                                                       \
  LLMC_WGMMA("192", type, LLMC_NAMES96, "%96", "%97", "%98", LLMC_C32(0), LLMC_C32(8), LLMC_C32(16))

// c[64, 8 kBlocks] = a * b^T, plus c if `add`, where a is 64 rows and b 8 kBlocks rows of 16 elements.
template <class T, int kBlocks>
__device__ __forceinline__ void MultiplyWarpgroupFloats(float (&c)[kBlocks][4], u64 a, u64 b, int add) {
  static_assert(kBlocks == 1 || kBlocks == 4 || kBlocks == 8 || kBlocks == 16 || kBlocks == 24,
                "8, 32, 64, 128 or 192 columns");
  if constexpr (IsBf16<T>::kValue) {
    LLMC_WGMMA_OF("bf16");
  } else {
    LLMC_WGMMA_OF("f16");
  }
}
#undef LLMC_C4
#undef LLMC_C8
#undef LLMC_C16
#undef LLMC_C32
#undef LLMC_NAMES4
#undef LLMC_NAMES16
#undef LLMC_NAMES32
#undef LLMC_NAMES64
#undef LLMC_NAMES96
#undef LLMC_WGMMA
#undef LLMC_WGMMA_OF

}  // namespace llmc
#endif
