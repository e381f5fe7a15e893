#include "runtime/engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace llmc {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

int32_t Sample(const std::vector<float>& logits, const SamplingParams& params, uint64_t index = 0) {
  const auto token = SampleToken(logits, params, index);
  EXPECT_TRUE(token.ok()) << token.status();
  return token.value_or(-1);
}

std::map<int32_t, int> Histogram(const std::vector<float>& logits, SamplingParams params, int draws) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[Sample(logits, params, i)];
  return counts;
}

TEST(Sampler, GreedyTakesTheLowestOfEqualMaxima) {
  EXPECT_EQ(Sample({1, 3, 2, 3}, {}), 1);
  EXPECT_EQ(Sample({-kInf, -kInf, -5}, {}), 2);
  EXPECT_EQ(Sample({1, 3, 2, 3}, {.temperature = 1, .top_k = 1}), 1);
  EXPECT_EQ(Sample({0, 0, 0}, {.temperature = 1, .top_p = 1e-12}), 0);
}

// The published test vector of Philox4x32-10 for counter 0 and key 0 begins 6627e8d5 e169c58d.
TEST(Sampler, RandomNumbersArePhilox) {
  EXPECT_EQ(SamplerBits(0, 0), 0x6627e8d5e169c58dULL);
  EXPECT_NE(SamplerBits(1, 0), SamplerBits(0, 0));
  EXPECT_NE(SamplerBits(uint64_t{1} << 40, 0), SamplerBits(0, 0));
  EXPECT_NE(SamplerBits(0, uint64_t{1} << 40), SamplerBits(0, 0));
}

TEST(Sampler, DrawsFollowTheDistribution) {
  const std::vector<float> logits = {0, std::log(2.0f), -kInf, std::log(5.0f)};
  const auto counts = Histogram(logits, {.temperature = 1, .seed = 7}, 16000);
  EXPECT_EQ(counts.count(2), 0u);
  EXPECT_NEAR(counts.at(0), 2000, 170);  // four standard deviations
  EXPECT_NEAR(counts.at(1), 4000, 220);
  EXPECT_NEAR(counts.at(3), 10000, 245);
}

TEST(Sampler, TemperatureDividesLogits) {
  const auto counts = Histogram({0, std::log(3.0f)}, {.temperature = 0.5}, 10000);
  EXPECT_NEAR(counts.at(1), 9000, 120);
  EXPECT_EQ(Sample({1, 1.001f, 0}, {.temperature = 1e-300}), 1);
  const auto flat = Histogram({0, 5}, {.temperature = 1e300}, 10000);
  EXPECT_NEAR(flat.at(0), 5000, 200);
}

TEST(Sampler, TopKAndTopPKeepTheLikeliest) {
  const std::vector<float> logits = {std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(3.0f)};
  auto tokens = [&](SamplingParams params) {
    params.temperature = 1;
    std::vector<int32_t> kept;
    for (const auto& [token, count] : Histogram(logits, params, 3000)) kept.push_back(token);
    return kept;
  };
  EXPECT_EQ(tokens({.top_k = 2}), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(tokens({.top_k = 100}), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(tokens({.top_p = 0.39}), (std::vector<int32_t>{1}));
  EXPECT_EQ(tokens({.top_p = 0.41}), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(tokens({.top_p = 0.71}), (std::vector<int32_t>{1, 2, 3}));
  // Of the two that top_k leaves, the first has 4 / 7 of the weight.
  EXPECT_EQ(tokens({.top_k = 2, .top_p = 0.5}), (std::vector<int32_t>{1}));
}

TEST(Sampler, MinPIsRelativeToTheLikeliest) {
  const std::vector<float> logits = {std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(3.0f)};
  auto tokens = [&](double min_p) {
    std::vector<int32_t> kept;
    for (const auto& [token, count] : Histogram(logits, {.temperature = 1, .min_p = min_p}, 3000))
      kept.push_back(token);
    return kept;
  };
  EXPECT_EQ(tokens(0), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(tokens(0.3), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(tokens(0.7), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(tokens(1), (std::vector<int32_t>{1}));
}

TEST(Sampler, Penalties) {
  TokenCounts counts;
  counts.AddPrompt(std::vector<int32_t>{0, 0, 1});
  counts.AddGenerated(1);
  counts.AddGenerated(2);
  counts.AddGenerated(2);
  const std::vector<float> before = {4, -4, 2, 3, -kInf};
  auto after = [&](const SamplingParams& params) {
    std::vector<float> logits = before;
    ApplyPenalties(params, counts, absl::MakeSpan(logits));
    return logits;
  };
  EXPECT_EQ(after({}), before);
  EXPECT_EQ(after({.repetition_penalty = 2}), (std::vector<float>{2, -8, 1, 3, -kInf}));
  EXPECT_EQ(after({.presence_penalty = 0.5}), (std::vector<float>{4, -4.5, 1.5, 3, -kInf}));
  EXPECT_EQ(after({.frequency_penalty = 0.5}), (std::vector<float>{4, -4.5, 1, 3, -kInf}));
}

TEST(Sampler, TopPOverALargeVocabularyMatchesAFullSort) {
  std::vector<float> logits;
  for (int i = 0; i < 5000; ++i) logits.push_back(static_cast<float>(SamplerBits(3, i)) * 0x1p-64f);
  std::vector<float> sorted = logits;
  std::sort(sorted.rbegin(), sorted.rend());
  double total = 0, sum = 0;
  for (float l : sorted) total += std::exp(l);
  size_t kept = 0;
  while (sum < 0.3 * total) sum += std::exp(sorted[kept++]);
  for (int i = 0; i < 300; ++i) {
    EXPECT_GE(logits[Sample(logits, {.temperature = 1, .top_p = 0.3}, i)], sorted[kept - 1]);
  }
}

TEST(Sampler, RefusesLogitsThatAreNoDistribution) {
  for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.temperature = 1}}) {
    EXPECT_FALSE(SampleToken({1.0f, std::nanf(""), 2.0f}, params, 0).ok());
    EXPECT_FALSE(SampleToken({std::nanf(""), 2.0f}, params, 0).ok());
    EXPECT_FALSE(SampleToken({1.0f, kInf}, params, 0).ok());
    EXPECT_FALSE(SampleToken({-kInf, -kInf}, params, 0).ok());
    EXPECT_FALSE(SampleToken({}, params, 0).ok());
  }
}

TEST(Sampler, ChecksEveryParameter) {
  const double nan = std::nan("");
  for (const SamplingParams& wrong :
       {SamplingParams{.temperature = -1}, SamplingParams{.temperature = nan}, SamplingParams{.temperature = kInf},
        SamplingParams{.top_k = -1}, SamplingParams{.top_p = 0}, SamplingParams{.top_p = 1.5},
        SamplingParams{.top_p = nan}, SamplingParams{.min_p = -0.1}, SamplingParams{.min_p = 1.1},
        SamplingParams{.min_p = nan}, SamplingParams{.repetition_penalty = 0}, SamplingParams{.presence_penalty = nan},
        SamplingParams{.frequency_penalty = kInf}}) {
    EXPECT_EQ(CheckSamplingParams(wrong).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(CheckSamplingParams({.temperature = 2, .top_k = 5, .top_p = 1}).ok());
  EXPECT_THAT(std::string(CheckSamplingParams({.top_p = 2}).message()), HasSubstr("top_p is 2"));
}

TEST(Sampler, LogProbabilities) {
  const std::vector<float> logits = {1000, 1000 + std::log(2.0f), -kInf};
  const auto top = TopLogProbs(logits, 2);
  ASSERT_EQ(top.size(), 2u);
  EXPECT_EQ(top[0].token, 1);
  EXPECT_THAT(top[0].log_prob, DoubleNear(std::log(2.0 / 3), 1e-4));
  EXPECT_THAT(top[1].log_prob, DoubleNear(std::log(1.0 / 3), 1e-4));
  EXPECT_EQ(TopLogProbs(logits, 9).size(), 3u);
}

}  // namespace
}  // namespace llmc
