// Choice of the next token from a row of logits.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace llmc {

struct SamplingParams {
  double temperature = 0;  // logits are divided by it; 0: the likeliest token, the lowest id among equals
  int64_t top_k = 0;       // only the k likeliest tokens; 0: all
  double top_p = 1;        // only the fewest likeliest tokens whose probabilities sum to at least p; 0 < p <= 1
  uint64_t seed = 0;
};

// InvalidArgument if a parameter is not finite or out of its range.
absl::Status CheckSamplingParams(const SamplingParams& params);

// Temperature, then top_k, then top_p. The draw depends on the seed and `index`, the token's number in its request, and
// on nothing else, so a request gives the same tokens in any batch. -inf stands for a token that cannot be;
// InvalidArgument if a logit is NaN or +inf, or all are -inf.
absl::StatusOr<int32_t> SampleToken(absl::Span<const float> logits, const SamplingParams& params, uint64_t index);

// A number in [0, 1) from Philox4x32-10 (Salmon et al., 2011).
double UniformAt(uint64_t seed, uint64_t index);

struct TokenLogProb {
  int32_t token = 0;
  double log_prob = 0;  // natural logarithm
};

// log of the softmax's denominator; logits must have passed SampleToken.
double LogSumExp(absl::Span<const float> logits);
// The `count` likeliest tokens, likeliest first; equal ones by id.
std::vector<TokenLogProb> TopLogProbs(absl::Span<const float> logits, int64_t count);

}  // namespace llmc
