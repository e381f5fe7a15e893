// What joins the scores of a query head in attention over the paged cache, beside what is computed of keys.
#pragma once
#include "kernels/common/mma.cuh"

namespace llmc {

template <bool kHasSinks>
struct HeadSinks {
  const float* sinks;  // [heads]
};
template <>
struct HeadSinks<false> {};

template <bool kHasSlopes>
struct HeadSlopes {
  const float* slopes;  // [heads]
};
template <>
struct HeadSlopes<false> {};

// `sinks[h]` is one more score of query head h, whose value is zero (arXiv:2309.17453); `slopes[h]` times the distance
// to a key is taken from its score (arXiv:2108.12409). Both are meant for base e. The members are plain pointers, read
// only after Context::Wait.
template <bool kHasSinks, bool kHasSlopes>
struct HeadTerms : HeadSinks<kHasSinks>, HeadSlopes<kHasSlopes> {
  static constexpr bool kSinks = kHasSinks, kSlopes = kHasSlopes;

  // What a sum of weighted values is multiplied with, for the greatest score `top` (for base 2) and the sum of weights
  // relative to it; the sink joins that sum.
  __device__ __forceinline__ float Inverse(i32 head, float top, float sum) const {
    if constexpr (kSinks) {
      const float sink = this->sinks[head] * 1.4426950408889634f, new_top = fmaxf(top, sink),
                  factor = Exp2(top - new_top);
      return factor / (sum * factor + Exp2(sink - new_top));
    } else {
      return sum > 0 ? 1 / sum : 0.0f;
    }
  }

  // The score, as the attention defines it, of a key that is so many positions after the token (0 or fewer).
  __device__ __forceinline__ float Join(i32 head, i32 distance, float score) const {
    if constexpr (kSlopes) score += this->slopes[head] * static_cast<float>(distance);
    return score;
  }
};

}  // namespace llmc
