// out[m, n] = sum over k of x[m, k] * weight[n, k] for some rows m, with an encoded weight: what a launch runs
// (encoded_gemm_body.cuh).
#pragma once
#include "kernels/linear/encoded_gemm_body.cuh"

namespace llmc {

// Blocks of a launch: as many as fit, one for each multiprocessor, or two if C::kFew; or clusters of C::kCluster, one
// for each tile, if that is more than 1.
// partials: for each block of the launch twice the sums of a tile.  counters: two for each block, zero, and left so.
template <class C, class Context, class Epilogue>
__device__ __forceinline__ void EncodedGemmKernel(const Context& context, const Epilogue& epilogue,
                                                  EncodedGemmSource<C> x, const EncodedWeight<C>& weight, i64 tokens,
                                                  float* partials, i32* counters) {
  static_assert(C::kCluster == 1 || (C::kFew && C::kGrid % C::kCluster == 0), "kCluster: of few rows, whole ones");
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  char* const arena = context.template Arena<1024>();
  auto& shared = context.template Shared<EncodedGemmShared>();
  const int rows = static_cast<int>(tokens);
  if (rows == 0) return context.Wait();
  if constexpr (C::kFew) {
    EncodedGemmBody<C, Context, Epilogue, kFewEncodedGemmRows>{context, shared,   arena,    epilogue, x,
                                                               weight,  partials, counters, rows}
        .Run();
  } else if (rows <= EncodedGemmBody<C, Context, Epilogue, 64>::MostRows()) {
    EncodedGemmBody<C, Context, Epilogue, 64>{context, shared, arena, epilogue, x, weight, partials, counters, rows}
        .Run();
  } else {
    EncodedGemmBody<C, Context, Epilogue, kEncodedGemmMost>{context, shared,   arena,    epilogue, x,
                                                            weight,  partials, counters, rows}
        .Run();
  }
#endif
}

// ---- entry points: those of gemv.cuh, of up to kMaxEncodedGemmRows tokens. From sm_90 on. ---------------------------

template <class C, class Context>
__device__ __forceinline__ void EncodedGemm(const Context& context, typename C::Out* out, EncodedGemmSource<C> x,
                                            const EncodedWeight<C>& weight, i64 tokens, float* partials,
                                            i32* counters) {
  EncodedGemmKernel<C>(context, StoreSum<C>{out}, x, weight, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void EncodedGemmAdd(const Context& context, typename C::T* out, EncodedGemmSource<C> x,
                                               const EncodedWeight<C>& weight, const typename C::T* addend, i64 tokens,
                                               float* partials, i32* counters) {
  EncodedGemmKernel<C>(context, StoreAdded<C, false>{out, addend}, x, weight, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void EncodedGemmBias(const Context& context, typename C::T* out, EncodedGemmSource<C> x,
                                                const EncodedWeight<C>& weight, const typename C::T* bias, i64 tokens,
                                                float* partials, i32* counters) {
  EncodedGemmKernel<C>(context, StoreAdded<C, true>{out, bias}, x, weight, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void EncodedGemmSiluMul(const Context& context, typename C::T* out, EncodedGemmSource<C> x,
                                                   const EncodedWeight<C>& weight, i64 tokens, float* partials,
                                                   i32* counters) {
  EncodedGemmKernel<C>(context, StoreSiluMul<C>{out}, x, weight, tokens, partials, counters);
}
template <class C, class Context>
__device__ __forceinline__ void EncodedGemmQkvRope(const Context& context, typename C::T* out, EncodedGemmSource<C> x,
                                                   const EncodedWeight<C>& weight, const typename C::T* bias,
                                                   typename C::T* kv, const i32* pos, const float* inv_freq,
                                                   const i32* slots, float scale, i64 tokens, float* partials,
                                                   i32* counters) {
  EncodedGemmKernel<C>(context, StoreQkvRope<C>{out, kv, bias, pos, inv_freq, slots, scale}, x, weight, tokens,
                       partials, counters);
}

}  // namespace llmc
