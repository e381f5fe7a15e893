// Choice of the next token from a row of logits.
//
// A token's weight is exp((logit - largest logit) / temperature) as a 41-bit integer, so that sums do not depend on the
// order of their terms: kernels/sampling/sample.cuh chooses the same tokens on a device, and this is its reference.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace llmc {

struct SamplingParams {
  double temperature = 0;  // logits are divided by it; 0: the likeliest token, the lowest id among equals
  int64_t top_k = 0;       // only the k likeliest tokens; 0: all
  double top_p = 1;        // only the fewest likeliest tokens whose probabilities sum to at least p; 0 < p <= 1
  double min_p = 0;        // only tokens at least min_p times as probable as the likeliest; 0 <= p <= 1
  // Of tokens that were in the prompt or generated: positive logits are divided by it, negative ones multiplied. 1:
  // off.
  double repetition_penalty = 1;
  double presence_penalty = 0;   // subtracted from the logits of tokens that were generated
  double frequency_penalty = 0;  // likewise, once for each time
  uint64_t seed = 0;

  bool has_penalties() const { return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0; }
};

// InvalidArgument if a parameter is not finite or out of its range.
absl::Status CheckSamplingParams(const SamplingParams& params);

// How often a sequence has each token: what penalties need.
class TokenCounts {
 public:
  struct Count {
    bool in_prompt = false;
    int32_t generated = 0;
  };
  void AddPrompt(absl::Span<const int32_t> ids);
  void AddGenerated(int32_t token) { ++counts_[token].generated; }
  const absl::flat_hash_map<int32_t, Count>& counts() const { return counts_; }

 private:
  absl::flat_hash_map<int32_t, Count> counts_;
};

// Changes the logits as the penalties ask, in this order: repetition, frequency, presence.
void ApplyPenalties(const SamplingParams& params, const TokenCounts& counts, absl::Span<float> logits);

// Temperature, then top_k, top_p and min_p; penalties are ApplyPenalties' work. The draw depends on the seed and
// `index`, the token's number in its request, and on nothing else, so a request gives the same tokens in any batch.
// -inf stands for a token that cannot be; InvalidArgument if a logit is NaN or +inf, or all are -inf.
absl::StatusOr<int32_t> SampleToken(absl::Span<const float> logits, const SamplingParams& params, uint64_t index);

// The parameters as the arithmetic of weights takes them.
struct SamplingScale {
  float log2_scale = 0;     // weights are 2^(log2_scale * (logit - largest)), in units of 2^-40
  uint64_t top_p = 0;       // in units of 2^-64; 0: all
  uint64_t min_weight = 1;  // of a token that may be drawn
  uint32_t top_k = 0;       // 0: all
};
SamplingScale ScaleOf(const SamplingParams& params);  // temperature > 0

// 64 random bits from Philox4x32-10 (Salmon et al., 2011).
uint64_t SamplerBits(uint64_t seed, uint64_t index);

struct TokenLogProb {
  int32_t token = 0;
  double log_prob = 0;  // natural logarithm
};

// A token with what was asked for beside it.
struct SampledToken {
  int32_t token = 0;
  std::optional<double> log_prob;
  std::vector<TokenLogProb> top_log_probs;
};

// log of the softmax's denominator; logits must have passed SampleToken.
double LogSumExp(absl::Span<const float> logits);
// The `count` likeliest tokens, likeliest first; equal ones by id.
std::vector<TokenLogProb> TopLogProbs(absl::Span<const float> logits, int64_t count);

}  // namespace llmc
