// The logits of a router and the experts that follow from them in one kernel: a GEMV, whose last block routes.
#pragma once
#include "kernels/experts/route.cuh"
#include "kernels/linear/gemv.cuh"

namespace llmc {

// The experts of all tokens, by the block that has stored its logits last. `counter` is 0 when the kernel begins, and
// when it ends.
template <class C, class Context>
__device__ __forceinline__ void RouteInLastBlock(const Context& context, i32* chosen, float* weights, i32* counter,
                                                 const typename C::T* logits, i64 tokens, const float* bias,
                                                 float scale) {
  static_assert(C::kOut == C::kExperts, "kOut: a logit for each expert");
  struct OfBlock {
    RouteOfToken<C> tokens[C::kTokens];
    bool is_last;
  };
  context.Sync();
  OfBlock& shared = context.template Shared<OfBlock>();
  if (threadIdx.x == 0) {
    i32 before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    shared.is_last = before == static_cast<i32>(context.TilesX()) - 1;
    if (shared.is_last) *counter = 0;
  }
  context.Sync();
  const i64 token = threadIdx.x / 32;
  if (!shared.is_last || token >= tokens) return;
  RouteToken<C>(shared.tokens[token], chosen + token * C::kTopK, weights + token * C::kTopK, logits + token * C::kOut,
                bias, scale);
}

// chosen[tokens, kTopK] and weights[tokens, kTopK] from the logits[tokens, kOut] that this kernel makes: those of Gemv.
// C: as Gemv and RouteToken have it, where kOut is kExperts.
template <class C, class Context>
__device__ __forceinline__ void Router(const Context& context, i32* chosen, float* weights, i32* counter,
                                       typename C::T* logits, const StoredX<C>* x, const Weight<C>& weight, i64 tokens,
                                       const float* bias, float scale) {
  Gemv<C>(context, logits, x, weight, tokens);
  RouteInLastBlock<C>(context, chosen, weights, counter, logits, tokens, bias, scale);
}
// Those of GemvBias.
template <class C, class Context>
__device__ __forceinline__ void RouterBias(const Context& context, i32* chosen, float* weights, i32* counter,
                                           typename C::T* logits, const StoredX<C>* x, const Weight<C>& weight,
                                           const typename C::T* product_bias, i64 tokens, const float* bias,
                                           float scale) {
  GemvBias<C>(context, logits, x, weight, product_bias, tokens);
  RouteInLastBlock<C>(context, chosen, weights, counter, logits, tokens, bias, scale);
}

}  // namespace llmc
