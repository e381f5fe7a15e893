#include "runtime/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/layout/sampling.h"

namespace llmc {
namespace {

// A token that can be drawn.
struct Candidate {
  int32_t token;
  float logit;
  uint64_t weight;
};

bool Likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

uint64_t Weight(float x) {
  return TokenWeight(x, [](float a, float b, float c) { return std::fma(a, b, c); });
}

// a * b / 2^64, rounded down.
uint64_t MultiplyHigh(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xFFFFFFFF, a1 = a >> 32, b0 = b & 0xFFFFFFFF, b1 = b >> 32;
  const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  return a1 * b1 + (middle >> 32) + ((a0 * b1 + (middle & 0xFFFFFFFF)) >> 32);
}

// The index of the first maximum.
absl::StatusOr<int32_t> ArgMax(absl::Span<const float> logits) {
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      return absl::InvalidArgumentError(absl::StrCat("the model gave the logit ", logits[i], " for token ", i));
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (logits.empty() || std::isinf(logits[best])) return absl::InvalidArgumentError("the model allows no token");
  return static_cast<int32_t>(best);
}

uint64_t TotalWeight(const std::vector<Candidate>& candidates) {
  uint64_t total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

// The first candidates, in order of likelihood, whose weights sum to at least `top_p` of the whole. Sorts only as far
// as it must: most of a vocabulary weighs little.
void KeepTopP(uint64_t top_p, std::vector<Candidate>* candidates) {
  const uint64_t total = TotalWeight(*candidates);
  const uint64_t least = MultiplyHigh(total, top_p) + (total * top_p != 0 ? 1 : 0);  // rounded up
  uint64_t sum = 0;
  size_t kept = 0, sorted = 0;
  while (kept < candidates->size() && sum < least) {
    if (kept == sorted) {
      sorted = std::min(candidates->size(), std::max<size_t>(64, 4 * sorted));
      std::partial_sort(candidates->begin() + kept, candidates->begin() + sorted, candidates->end(), Likelier);
    }
    sum += (*candidates)[kept++].weight;
  }
  candidates->resize(kept);
}

void KeepTopK(uint32_t k, std::vector<Candidate>* candidates) {
  if (k >= candidates->size()) return;
  std::nth_element(candidates->begin(), candidates->begin() + k, candidates->end(), Likelier);
  candidates->resize(k);
}

// In order of tokens.
int32_t Draw(const std::vector<Candidate>& candidates, uint64_t random) {
  uint64_t target = MultiplyHigh(random, TotalWeight(candidates));
  for (const Candidate& c : candidates) {
    if (target < c.weight) return c.token;
    target -= c.weight;
  }
  return candidates.back().token;  // never reached: the target is below the sum
}

absl::Status CheckRange(absl::string_view name, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", must be in [", low, ", ", high, "]"));
}

}  // namespace

absl::Status CheckSamplingParams(const SamplingParams& params) {
  if (!std::isfinite(params.temperature) || params.temperature < 0) {
    return absl::InvalidArgumentError(absl::StrCat("temperature is ", params.temperature, ", must be at least 0"));
  }
  if (params.top_k < 0) {
    return absl::InvalidArgumentError(absl::StrCat("top_k is ", params.top_k, ", must be at least 0 (0: all tokens)"));
  }
  if (!std::isfinite(params.top_p) || params.top_p <= 0 || params.top_p > 1) {
    return absl::InvalidArgumentError(absl::StrCat("top_p is ", params.top_p, ", must be above 0 and at most 1"));
  }
  absl::Status status = CheckRange("min_p", params.min_p, 0, 1);
  status.Update(CheckRange("repetition_penalty", params.repetition_penalty, 0.01, 100));
  status.Update(CheckRange("presence_penalty", params.presence_penalty, -100, 100));
  status.Update(CheckRange("frequency_penalty", params.frequency_penalty, -100, 100));
  return status;
}

void TokenCounts::AddPrompt(absl::Span<const int32_t> ids) {
  for (int32_t id : ids) counts_[id].in_prompt = true;
}

void ApplyPenalties(const SamplingParams& params, const TokenCounts& counts, absl::Span<float> logits) {
  const float repetition = static_cast<float>(params.repetition_penalty);
  const float frequency = static_cast<float>(params.frequency_penalty);
  const float presence = static_cast<float>(params.presence_penalty);
  for (const auto& [token, count] : counts.counts()) {
    float& logit = logits[token];
    if (!(std::abs(logit) < std::numeric_limits<float>::infinity())) continue;  // stays what it is
    logit = logit > 0 ? logit / repetition : logit * repetition;
    if (count.generated > 0) logit = std::fma(-frequency, static_cast<float>(count.generated), logit) - presence;
  }
}

SamplingScale ScaleOf(const SamplingParams& params) {
  SamplingScale scale;
  // Finite and above 0, so that its product with a difference of 0 is 0, and with an infinite one infinite.
  scale.log2_scale = static_cast<float>(std::clamp(1.4426950408889634 / params.temperature, 1e-37, 1e38));
  if (params.top_p < 1) scale.top_p = std::max<uint64_t>(1, static_cast<uint64_t>(params.top_p * 0x1p64));
  scale.min_weight = std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(std::ldexp(params.min_p, kWeightBits))));
  scale.top_k = static_cast<uint32_t>(std::min<int64_t>(params.top_k, std::numeric_limits<int32_t>::max()));
  return scale;
}

absl::StatusOr<int32_t> SampleToken(absl::Span<const float> logits, const SamplingParams& params, uint64_t index) {
  const absl::StatusOr<int32_t> best = ArgMax(logits);
  if (!best.ok() || params.temperature == 0 || params.top_k == 1) return best;
  const SamplingScale scale = ScaleOf(params);
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < logits.size(); ++i) {
    const uint64_t weight = Weight((logits[*best] - logits[i]) * scale.log2_scale);
    if (weight > 0) candidates.push_back({static_cast<int32_t>(i), logits[i], weight});
  }
  if (scale.top_k > 0) KeepTopK(scale.top_k, &candidates);
  if (scale.top_p > 0) KeepTopP(scale.top_p, &candidates);
  const auto is_out = [&](const Candidate& c) { return c.weight < scale.min_weight; };
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(), is_out), candidates.end());
  if (scale.top_k > 0 || scale.top_p > 0) {
    std::sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
  }
  return Draw(candidates, SamplerBits(params.seed, index));
}

uint64_t SamplerBits(uint64_t seed, uint64_t index) {
  uint32_t counter[4] = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
                              static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    std::copy(next, next + 4, counter);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return (uint64_t{counter[0]} << 32) | counter[1];
}

double LogSumExp(absl::Span<const float> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum);
}

std::vector<TokenLogProb> TopLogProbs(absl::Span<const float> logits, int64_t count) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t n = std::min(logits.size(), static_cast<size_t>(std::max<int64_t>(count, 0)));
  std::partial_sort(order.begin(), order.begin() + n, order.end(),
                    [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  const double log_sum = n == 0 ? 0 : LogSumExp(logits);
  std::vector<TokenLogProb> top;
  for (size_t i = 0; i < n; ++i) top.push_back({order[i], logits[order[i]] - log_sum});
  return top;
}

}  // namespace llmc
