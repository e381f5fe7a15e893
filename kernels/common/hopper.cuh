// What sm_90a adds: products of warpgroups (4 warps, the first of a number divisible by 4) whose right operand, and
// here only that, lies in shared memory; barriers in shared memory; registers that pass between warpgroups.
//
// wgmma m64nNk16: each warp has 16 of the 64 rows, in the layout of mma.sync (mma.cuh). Operands in shared memory are
// made of rows of 128 bytes whose 16-byte chunks are permuted (chunk ^= row % 8); 8 rows are 1024 bytes, aligned so.
#pragma once
#include "kernels/common/mma.cuh"

namespace llmc {

// ---- barriers ------------------------------------------------------------------------------------------------------
__device__ __forceinline__ void InitBarrier(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void ArriveAt(u64* barrier) {
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
// Arrives when all copies that this thread has started are there.
__device__ __forceinline__ void ArriveWithCopies(u64* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
// Waits for the end of the phase of this parity; the phase before the first has parity 1.
__device__ __forceinline__ void WaitAt(u64* barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\n"
      "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" ::"r"(
          SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
// Whether that phase has ended; waits some time itself.
__device__ __forceinline__ bool IsOver(u64* barrier, u32 parity) {
  u32 is_over;
  asm volatile(
      "{\n.reg .pred done;\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}"
      : "=r"(is_over)
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
  return is_over != 0;
}
// Makes visible to wgmma what was written to shared memory and is visible to this thread.
__device__ __forceinline__ void FenceSharedForTensorCores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Named barriers of whole warps: `threads` arrive or wait at number `id`.
__device__ __forceinline__ void SyncNamed(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void ArriveNamed(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Registers of each thread of this warpgroup.
template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- products ------------------------------------------------------------------------------------------------------
// Describes an operand: `leading`: bytes between parts of 64 columns, only for transposed operands of more columns.
__device__ __forceinline__ u64 Operand(u32 address, u32 leading = 16) {
  return (static_cast<u64>(address & 0x3ffff) >> 4) | static_cast<u64>(leading >> 4) << 16 |
         static_cast<u64>(1024 >> 4) << 32 | 1ull << 62;
}

// The operand `bytes` behind another one, a multiple of 16, of which it differs in the first word alone.
__device__ __forceinline__ u64 OperandBehind(u64 operand, u32 bytes) {
  u64 behind;
  asm("{\n.reg .b32 low, high;\nmov.b64 {low, high}, %1;\nadd.u32 low, low, %2;\nmov.b64 %0, {low, high};\n}"
      : "=l"(behind)
      : "l"(operand), "r"(bytes >> 4));
  return behind;
}

// Registers that products use are the compiler's again only after WaitForProducts.
__device__ __forceinline__ void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void CommitProducts() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving what it does with these registers past this place.
template <int kCount>
__device__ __forceinline__ void Pin(float (&c)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])::"memory");
  }
}

#define LLMC_C4(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define LLMC_C16(i) LLMC_C4(i), LLMC_C4(i + 1), LLMC_C4(i + 2), LLMC_C4(i + 3)
#define LLMC_C8(i) LLMC_C4(i), LLMC_C4(i + 1)
#define LLMC_WGMMA16(type)                                                           \
  asm volatile(                                                                      \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"                                   \
      "wgmma.mma_async.sync.aligned.m64n16k16.f32." type "." type                    \
      " {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1, %14;\n}" \
      : LLMC_C8(0)                                                                   \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposed))
#define LLMC_WGMMA32(type)                                                                                         \
  asm volatile(                                                                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"                                                                 \
      "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                                                  \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19}, %20, p, 1, " \
      "1, %22;\n}"                                                                                                 \
      : LLMC_C16(0)                                                                                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposed))
#define LLMC_WGMMA64(type)                                                                                          \
  asm volatile(                                                                                                     \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                                  \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                                   \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"                   \
      : LLMC_C16(0), LLMC_C16(4)                                                                                    \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposed))
#define LLMC_WGMMA96(type)                                                                                        \
  asm volatile(                                                                                                   \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\n"                                                                \
      "wgmma.mma_async.sync.aligned.m64n96k16.f32." type "." type                                                 \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "    \
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, " \
      "%43, %44, %45, %46, %47}, {%48, %49, %50, %51}, %52, p, 1, 1, %54;\n}"                                     \
      : LLMC_C16(0), LLMC_C16(4), LLMC_C16(8)                                                                     \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposed))
#define LLMC_WGMMA128(type)                                                                                         \
  asm volatile(                                                                                                     \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                                                  \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                                  \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "   \
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "       \
      "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"                                                                 \
      : LLMC_C16(0), LLMC_C16(4), LLMC_C16(8), LLMC_C16(12)                                                         \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposed))
#define LLMC_WGMMA160(type)                                                                                       \
  asm volatile(                                                                                                   \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %85, 0;\n"                                                                \
      "wgmma.mma_async.sync.aligned.m64n160k16.f32." type "." type                                                \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "    \
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, " \
      "%43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79}, "                         \
      "{%80, %81, %82, %83}, %84, p, 1, 1, %86;\n}"                                                               \
      : LLMC_C16(0), LLMC_C16(4), LLMC_C16(8), LLMC_C16(12), LLMC_C16(16)                                         \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposed))

#define LLMC_WGMMA192(type)                                                                                            \
  asm volatile(                                                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %101, 0;\n"                                                                    \
      "wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type                                                     \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "    \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, " \
      "%45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, " \
      "%67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, " \
      "%89, %90, %91, %92, %93, %94, %95}, {%96, %97, %98, %99}, %100, p, 1, 1, %102;\n}"                              \
      : LLMC_C16(0), LLMC_C16(4), LLMC_C16(8), LLMC_C16(12), LLMC_C16(16), LLMC_C16(20)                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposed))
#define LLMC_WGMMA256(type)                                                                                            \
  asm volatile(                                                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"                                                                    \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                                                     \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "    \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, " \
      "%45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, " \
      "%67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, " \
      "%89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, "  \
      "%109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
      "%127}, {%128, %129, %130, %131}, %132, p, 1, 1, %134;\n}"                                                       \
      : LLMC_C16(0), LLMC_C16(4), LLMC_C16(8), LLMC_C16(12), LLMC_C16(16), LLMC_C16(20), LLMC_C16(24), LLMC_C16(28)    \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposed))

template <class T>
struct IsBf16 {
  static constexpr bool kValue = false;
};
template <>
struct IsBf16<bf16> {
  static constexpr bool kValue = true;
};

// c[64, 8 kBlocks] = a[64, 16] * b, plus c if `add`. b is [8 kBlocks, 16] as rows of 16, or, transposed, [16, 8
// kBlocks].
template <class T, int kTransposed, int kBlocks>
__device__ __forceinline__ void MultiplyWarpgroup(float (&c)[kBlocks][4], const u32 (&a)[4], u64 b, int add) {
  static_assert(kBlocks == 2 || kBlocks == 4 || kBlocks == 8 || kBlocks == 12 || kBlocks == 16 || kBlocks == 20 ||
                    kBlocks == 24 || kBlocks == 32,
                "16, 32, 64, 96, 128, 160, 192 or 256 columns");
  if constexpr (kBlocks == 2 && IsBf16<T>::kValue) LLMC_WGMMA16("bf16");
  if constexpr (kBlocks == 2 && !IsBf16<T>::kValue) LLMC_WGMMA16("f16");
  if constexpr (kBlocks == 4 && IsBf16<T>::kValue) LLMC_WGMMA32("bf16");
  if constexpr (kBlocks == 4 && !IsBf16<T>::kValue) LLMC_WGMMA32("f16");
  if constexpr (kBlocks == 8 && IsBf16<T>::kValue) LLMC_WGMMA64("bf16");
  if constexpr (kBlocks == 8 && !IsBf16<T>::kValue) LLMC_WGMMA64("f16");
  if constexpr (kBlocks == 12 && IsBf16<T>::kValue) LLMC_WGMMA96("bf16");
  if constexpr (kBlocks == 12 && !IsBf16<T>::kValue) LLMC_WGMMA96("f16");
  if constexpr (kBlocks == 16 && IsBf16<T>::kValue) LLMC_WGMMA128("bf16");
  if constexpr (kBlocks == 16 && !IsBf16<T>::kValue) LLMC_WGMMA128("f16");
  if constexpr (kBlocks == 20 && IsBf16<T>::kValue) LLMC_WGMMA160("bf16");
  if constexpr (kBlocks == 20 && !IsBf16<T>::kValue) LLMC_WGMMA160("f16");
  if constexpr (kBlocks == 24 && IsBf16<T>::kValue) LLMC_WGMMA192("bf16");
  if constexpr (kBlocks == 24 && !IsBf16<T>::kValue) LLMC_WGMMA192("f16");
  if constexpr (kBlocks == 32 && IsBf16<T>::kValue) LLMC_WGMMA256("bf16");
  if constexpr (kBlocks == 32 && !IsBf16<T>::kValue) LLMC_WGMMA256("f16");
}
#undef LLMC_C4
#undef LLMC_C8
#undef LLMC_WGMMA16
#undef LLMC_WGMMA32
#undef LLMC_C16
#undef LLMC_WGMMA64
#undef LLMC_WGMMA96
#undef LLMC_WGMMA128
#undef LLMC_WGMMA160
#undef LLMC_WGMMA192
#undef LLMC_WGMMA256

}  // namespace llmc
