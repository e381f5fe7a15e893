#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

// A token and its weight, exp((logit - max) / temperature).
struct Candidate {
  int32_t token;
  float logit;
  double weight;
};

bool Likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
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

// The first candidates, in order of likelihood, whose weights sum to at least `p` of the whole. Sorts only as far as
// it must: most of a vocabulary weighs nothing.
void KeepTopP(double p, std::vector<Candidate>* candidates) {
  double total = 0;
  for (const Candidate& c : *candidates) total += c.weight;
  double sum = 0;
  size_t kept = 0, sorted = 0;
  while (kept < candidates->size() && sum < p * total) {
    if (kept == sorted) {
      sorted = std::min(candidates->size(), std::max<size_t>(64, 4 * sorted));
      std::partial_sort(candidates->begin() + kept, candidates->begin() + sorted, candidates->end(), Likelier);
    }
    sum += (*candidates)[kept++].weight;
  }
  candidates->resize(std::max<size_t>(kept, 1));
}

void KeepTopK(int64_t k, std::vector<Candidate>* candidates) {
  if (k >= static_cast<int64_t>(candidates->size())) return;
  std::nth_element(candidates->begin(), candidates->begin() + k, candidates->end(), Likelier);
  candidates->resize(k);
}

int32_t Draw(const std::vector<Candidate>& candidates, double uniform) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  double target = uniform * total;
  int32_t last = candidates.front().token;
  for (const Candidate& c : candidates) {
    if (c.weight == 0) continue;
    last = c.token;
    if (target < c.weight) return last;
    target -= c.weight;
  }
  return last;  // rounding
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
  return absl::OkStatus();
}

absl::StatusOr<int32_t> SampleToken(absl::Span<const float> logits, const SamplingParams& params, uint64_t index) {
  const absl::StatusOr<int32_t> best = ArgMax(logits);
  if (!best.ok() || params.temperature == 0 || params.top_k == 1) return best;
  const double max = logits[*best];
  std::vector<Candidate> candidates(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const double difference = logits[i] - max;  // 0 / tiny must not become NaN
    candidates[i] = {static_cast<int32_t>(i), logits[i],
                     difference == 0 ? 1.0 : std::exp(difference / params.temperature)};
  }
  if (params.top_k > 0) KeepTopK(params.top_k, &candidates);
  if (params.top_p < 1) KeepTopP(params.top_p, &candidates);
  if (params.top_k > 0 || params.top_p < 1) {  // the selection left them in no order that a reader could foretell
    std::sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
  }
  return Draw(candidates, UniformAt(params.seed, index));
}

double UniformAt(uint64_t seed, uint64_t index) {
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
  const uint64_t bits = (uint64_t{counter[0]} << 32) | counter[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
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
