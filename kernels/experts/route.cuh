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

__device__ __forceinline__ u64 WarpGreatest(u64 rank) {
  const u32 high = __reduce_max_sync(~0u, static_cast<u32>(rank >> 32));
  const u32 low = __reduce_max_sync(~0u, rank >> 32 == high ? static_cast<u32>(rank) : 0);
  return static_cast<u64>(high) << 32 | low;
}

// The ranks of kCount scores, the greatest first; by one warp. Each lane keeps those of every 32nd score in registers,
// and only the one that had the last greatest looks for its next.
template <int kCount>
class Ranking {
 public:
  static constexpr int kOwn = (kCount + 31) / 32;

  __device__ __forceinline__ explicit Ranking(const float* scores) : scores_(scores) {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int at = i * 32 + static_cast<int>(threadIdx.x % 32);
        own_[i] = at < kCount ? RankOf(scores[at], at) : 0;
      }
    }
    mine_ = OwnBelow(~0ull);
  }
  __device__ __forceinline__ u64 Next() {
    const u64 rank = WarpGreatest(mine_);
    if (mine_ == rank) mine_ = OwnBelow(rank);
    return rank;
  }

 private:
  static constexpr bool kInRegisters = kOwn <= 16;

  __device__ __forceinline__ u64 OwnBelow(u64 below) const {
    u64 best = 0;
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) best = own_[i] < below && own_[i] > best ? own_[i] : best;
    } else {
      for (int at = threadIdx.x % 32; at < kCount; at += 32) {
        const u64 rank = RankOf(scores_[at], at);
        if (rank < below && rank > best) best = rank;
      }
    }
    return best;
  }

  const float* scores_;
  u64 own_[kInRegisters ? kOwn : 1], mine_;
};

__device__ __forceinline__ float SigmoidOf(float x) { return 1.0f / (1.0f + expf(-x)); }

// x becomes softmax(x); by one warp.
__device__ __forceinline__ void WarpSoftmax(float* x, int count) {
  const int lane = threadIdx.x % 32;
  float top = __uint_as_float(0xff800000u), sum = 0;
  for (int i = lane; i < count; i += 32) top = fmaxf(top, x[i]);
  top = WarpReduce(top, Max());
  for (int i = lane; i < count; i += 32) sum += x[i] = expf(x[i] - top);
  const float scale = 1 / WarpReduce(sum, Sum());
  for (int i = lane; i < count; i += 32) x[i] *= scale;
  __syncwarp();
}

// What a warp keeps of a token.
template <class C>
struct RouteOfToken {
  float scores[C::kExperts], choice[C::kExperts], groups[C::kGroups], own[C::kTopK];
};

// chosen[kTopK] and weights[kTopK] of a token from its logits[kExperts], by one warp.
// C::T: of logits.  C::kExperts.  C::kTopK: chosen ones.  C::kScore: a RouteScore.  C::kBias: whether there is one.
// C::kGroups, C::kTopGroups, C::kGroupBest: as the op has them.  C::kNormalize.
// Over 60 lines: the op, step by step.
template <class C>
__device__ __forceinline__ void RouteToken(RouteOfToken<C>& shared, i32* chosen, float* weights,
                                           const typename C::T* logits, const float* bias, float scale) {
  static_assert(kIsModelType<typename C::T>, "T: float, f16 or bf16");
  static_assert(C::kExperts > 0 && C::kExperts % C::kGroups == 0, "kGroups: of equally many experts");
  static_assert(C::kTopK > 0 && C::kTopK <= C::kExperts, "kTopK: 1 to kExperts");
  constexpr RouteScore kScore = static_cast<RouteScore>(C::kScore);
  constexpr int kGroupSize = C::kExperts / C::kGroups;
  auto& [scores, choice, groups, own] = shared;
  const int lane = threadIdx.x % 32;
  for (int e = lane; e < C::kExperts; e += 32) {
    const float logit = ToFloat(logits[e]);
    scores[e] = kScore == RouteScore::kSigmoid ? SigmoidOf(logit) : logit;
  }
  __syncwarp();
  if constexpr (kScore == RouteScore::kSoftmax) WarpSoftmax(scores, C::kExperts);
  for (int e = lane; e < C::kExperts; e += 32) choice[e] = C::kBias ? scores[e] + bias[e] : scores[e];
  __syncwarp();

  if constexpr (C::kGroups > 1) {
    for (int g = 0; g < C::kGroups; ++g) {
      Ranking<kGroupSize> best(choice + g * kGroupSize);
      float sum = 0;
      for (int i = 0; i < C::kGroupBest; ++i) sum += choice[g * kGroupSize + IndexOfRank(best.Next())];
      if (lane == 0) groups[g] = sum;
    }
    __syncwarp();
    Ranking<C::kGroups> good(groups);
    u64 last = 0;  // of the chosen groups
    for (int i = 0; i < C::kTopGroups; ++i) last = good.Next();
    for (int e = lane; e < C::kExperts; e += 32) {
      if (RankOf(groups[e / kGroupSize], e / kGroupSize) < last) choice[e] = __uint_as_float(0xff800000u);
    }
    __syncwarp();
  }

  Ranking<C::kExperts> best(choice);
  for (int j = 0; j < C::kTopK; ++j) {
    const u64 rank = best.Next();
    if (lane != 0) continue;
    const u32 expert = IndexOfRank(rank);
    chosen[j] = static_cast<i32>(expert);
    own[j] = scores[expert];
  }
  __syncwarp();
  if constexpr (kScore == RouteScore::kChosen) WarpSoftmax(own, C::kTopK);
  float sum = 0;
  for (int j = lane; j < C::kTopK; j += 32) {
    if constexpr (kScore == RouteScore::kChosenSigmoid) own[j] = SigmoidOf(own[j]);
    sum += own[j];
  }
  sum = WarpReduce(sum, Sum());
  for (int j = lane; j < C::kTopK; j += 32) weights[j] = (C::kNormalize ? own[j] / sum : own[j]) * scale;
}

// A block for each token.  C: as RouteToken has it.  C::kThreads: 32.
template <class C, class Context>
__device__ __forceinline__ void Route(const Context& context, i32* chosen, float* weights, const typename C::T* logits,
                                      const float* bias, float scale) {
  static_assert(C::kThreads == 32, "kThreads: a warp");
  context.Wait();
  const i64 token = context.TileX();
  RouteToken<C>(context.template Shared<RouteOfToken<C>>(), chosen + token * C::kTopK, weights + token * C::kTopK,
                logits + token * C::kExperts, bias, scale);
}

}  // namespace llmc
