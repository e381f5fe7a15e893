// The experts of each token by its logits, and their weights: a warp a token.
#pragma once
#include "kernels/common/context.cuh"
#include "kernels/layout/experts.h"

namespace llmc {

// A score and its index as one number: the greater one is chosen first. NaN counts as -infinity, and of equal scores
// the first is the greater. Of different indices no two are equal.
__device__ __forceinline__ u64 RankOf(float score, u32 index) {
  const u32 bits = __float_as_uint(score != score ? __uint_as_float(0xff800000u) : score + 0.0f);  // -0 is 0
  const u32 ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<u64>(ordered) << 32 | (0xffffffffu - index);
}
__device__ __forceinline__ u32 IndexOfRank(u64 rank) { return 0xffffffffu - static_cast<u32>(rank); }

// The greatest rank of `count` scores that is less than `below`; every lane of the warp gets it.
__device__ __forceinline__ u64 NextBest(const float* scores, int count, u64 below) {
  u64 best = 0;
  for (int i = threadIdx.x % 32; i < count; i += 32) {
    const u64 rank = RankOf(scores[i], i);
    if (rank < below && rank > best) best = rank;
  }
  return WarpReduce(best, [](u64 a, u64 b) { return a > b ? a : b; });
}

__device__ __forceinline__ float SigmoidOf(float x) { return 1.0f / (1.0f + expf(-x)); }

// x becomes softmax(x); by one warp.
__device__ __forceinline__ void WarpSoftmax(float* x, int count) {
  const int lane = threadIdx.x % 32;
  float top = __uint_as_float(0xff800000u), sum = 0;
  for (int i = lane; i < count; i += 32) top = fmaxf(top, x[i]);
  top = WarpReduce(top, Max());
  for (int i = lane; i < count; i += 32) sum += x[i] = expf(x[i] - top);
  sum = WarpReduce(sum, Sum());
  for (int i = lane; i < count; i += 32) x[i] /= sum;
  __syncwarp();
}

// chosen[T, kTopK] and weights[T, kTopK] from logits[T, kExperts]; a block for each token.
// C::T: of logits.  C::kExperts.  C::kTopK: chosen ones.  C::kScore: a RouteScore.  C::kBias: whether there is one.
// C::kGroups, C::kTopGroups, C::kGroupBest: as the op has them.  C::kNormalize.  C::kThreads: 32.
// Over 60 lines: the op, step by step.
template <class C, class Context>
__device__ __forceinline__ void Route(const Context& context, i32* chosen, float* weights, const typename C::T* logits,
                                      const float* bias, float scale) {
  static_assert(kIsModelType<typename C::T>, "T: float, f16 or bf16");
  static_assert(C::kThreads == 32, "kThreads: a warp");
  static_assert(C::kExperts > 0 && C::kExperts % C::kGroups == 0, "kGroups: of equally many experts");
  static_assert(C::kTopK > 0 && C::kTopK <= C::kExperts, "kTopK: 1 to kExperts");
  constexpr RouteScore kScore = static_cast<RouteScore>(C::kScore);
  constexpr int kGroupSize = C::kExperts / C::kGroups;
  struct OfToken {
    float scores[C::kExperts], choice[C::kExperts], groups[C::kGroups];
  };
  auto& [scores, choice, groups] = context.template Shared<OfToken>();
  context.Wait();
  const int lane = threadIdx.x;
  const i64 token = context.TileX();
  for (int e = lane; e < C::kExperts; e += 32) {
    const float logit = ToFloat(logits[token * C::kExperts + e]);
    scores[e] = kScore == RouteScore::kSigmoid ? SigmoidOf(logit) : logit;
  }
  __syncwarp();
  if constexpr (kScore == RouteScore::kSoftmax) WarpSoftmax(scores, C::kExperts);
  for (int e = lane; e < C::kExperts; e += 32) choice[e] = C::kBias ? scores[e] + bias[e] : scores[e];
  __syncwarp();

  if constexpr (C::kGroups > 1) {
    for (int g = 0; g < C::kGroups; ++g) {
      u64 rank = ~0ull;
      float sum = 0;
      for (int i = 0; i < C::kGroupBest; ++i) {
        rank = NextBest(choice + g * kGroupSize, kGroupSize, rank);
        sum += choice[g * kGroupSize + IndexOfRank(rank)];
      }
      if (lane == 0) groups[g] = sum;
    }
    __syncwarp();
    u64 last = ~0ull;  // of the chosen groups
    for (int i = 0; i < C::kTopGroups; ++i) last = NextBest(groups, C::kGroups, last);
    for (int e = lane; e < C::kExperts; e += 32) {
      if (RankOf(groups[e / kGroupSize], e / kGroupSize) < last) choice[e] = __uint_as_float(0xff800000u);
    }
    __syncwarp();
  }

  chosen += token * C::kTopK;
  weights += token * C::kTopK;
  u64 rank = ~0ull;
  for (int j = 0; j < C::kTopK; ++j) {
    rank = NextBest(choice, C::kExperts, rank);
    if (lane != 0) continue;
    const u32 expert = IndexOfRank(rank);
    chosen[j] = static_cast<i32>(expert);
    weights[j] = scores[expert];
  }
  __syncwarp();
  if constexpr (kScore == RouteScore::kChosen) WarpSoftmax(weights, C::kTopK);
  if constexpr (kScore == RouteScore::kChosenSigmoid) {
    for (int j = lane; j < C::kTopK; j += 32) weights[j] = SigmoidOf(weights[j]);
  }
  float sum = 0;
  for (int j = lane; j < C::kTopK; j += 32) sum += weights[j];
  sum = WarpReduce(sum, Sum());
  for (int j = lane; j < C::kTopK; j += 32) weights[j] = (C::kNormalize ? weights[j] / sum : weights[j]) * scale;
}

}  // namespace llmc
