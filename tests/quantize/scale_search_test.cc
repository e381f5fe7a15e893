#include "quantize/scale_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace llmc {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::FloatNear;

const Encoding* SearchEncoding(const std::string& text) { return ParseEncoding(text).value(); }

Tensor RandomTensor(int64_t rows, int64_t k, float width, int seed) {
  std::mt19937 generator(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal(0, width);
  Tensor t(DType::kF32, {rows, k});
  for (int64_t i = 0; i < t.size(); ++i) t.mutable_data<float>()[i] = normal(generator);
  return t;
}

// Channels 3 and 70 are 30 times as large as the others.
InputStats StatsWithOutliers() {
  Tensor x = RandomTensor(256, 128, 1, 1);
  for (int64_t r = 0; r < 256; ++r) {
    for (const int64_t c : {3, 70}) x.mutable_data<float>()[r * 128 + c] *= 30;
  }
  InputStats stats;
  stats.Add(x);
  return stats;
}

ChannelSharing Own(int64_t k) {
  ChannelSharing sharing{.index = std::vector<int64_t>(static_cast<size_t>(k)), .count = k};
  std::iota(sharing.index.begin(), sharing.index.end(), 0);
  return sharing;
}

TEST(ScaleSearch, StatsAreOfAllInputs) {
  InputStats stats;
  stats.Add(Tensor::FromValues(DType::kF32, {2, 2}, std::vector<float>{1, -2, 3, 4}));
  stats.Add(Tensor::FromValues(DType::kBF16, {1, 2}, std::vector<float>{0, 1}));
  EXPECT_EQ(stats.tokens, 3);
  EXPECT_THAT(stats.sum_abs, ElementsAre(4, 7));
  EXPECT_THAT(stats.amax, ElementsAre(3, 4));
  EXPECT_THAT(stats.gram, ElementsAre(10, 10, 10, 21));
  stats.DivideBy({2, 1});
  EXPECT_THAT(stats.gram, ElementsAre(2.5f, 5, 5, 21));
  EXPECT_THAT(stats.amax, ElementsAre(1.5f, 4));
}

TEST(ScaleSearch, AwqScalesUpWhatInputsMakeMatter) {
  InputStats stats = StatsWithOutliers();
  const Tensor w = RandomTensor(64, 128, 0.02f, 2);
  const ScaledReader reader{w, SearchEncoding("int4 group=64 scale=f32"), {}};
  const std::vector<float> factors = AwqFactors(stats, {reader}, Own(128)).value();
  EXPECT_GT(factors[3], 1.5 * factors[4]);
  EXPECT_GT(factors[70], 1.5 * factors[71]);
  const double nearest =
      OutputError(Decoded(Quantized(w, reader.encoding, DType::kF32).value(), DType::kF32), w, stats).value();
  const Tensor scaled = ScaledColumns(w, factors);
  stats.DivideBy(factors);
  const Tensor rounded = Decoded(Quantized(scaled, reader.encoding, DType::kF32).value(), DType::kF32);
  EXPECT_LT(OutputError(rounded, scaled, stats).value(), 0.7 * nearest);
}

TEST(ScaleSearch, WithoutOutliersFactorsStayNear1) {
  InputStats stats;
  stats.Add(RandomTensor(512, 64, 1, 1));
  const ScaledReader reader{RandomTensor(16, 64, 1, 2), SearchEncoding("int8 per=channel scale=f32"), {}};
  EXPECT_THAT(AwqFactors(stats, {reader}, Own(64)).value(), Each(FloatNear(1, 0.2f)));
}

// sqrt(max |x|) / sqrt(max |w|).
TEST(ScaleSearch, SmoothQuantHalvesTheRangeBetweenBoth) {
  InputStats stats;
  stats.Add(Tensor::FromValues(DType::kF32, {1, 2}, std::vector<float>{64, 1}));
  const ScaledReader a{Tensor::FromValues(DType::kF32, {1, 2}, std::vector<float>{1, 1}), nullptr, {}};
  const ScaledReader b{Tensor::FromValues(DType::kF32, {1, 2}, std::vector<float>{-4, 0.25f}), nullptr, {}};
  EXPECT_THAT(SmoothFactors(stats, {a, b}, Own(2)), ElementsAre(4, 1));
  EXPECT_THAT(SmoothFactors(stats, {a, b}, {.index = {0, 0}, .count = 1}), ElementsAre(4, 4));
}

TEST(ScaleSearch, ClippingChangesOutputsLess) {
  InputStats stats;
  stats.Add(RandomTensor(512, 128, 1, 1));
  const Tensor w = RandomTensor(64, 128, 0.02f, 2);
  const ScaledReader reader{w, SearchEncoding("int4 group=128 scale=f32"), {}};
  const QuantizedParts parts = ClippedParts(reader, stats).value();
  const Tensor clipped = QuantizedWith(w, reader.encoding, DType::kF32, parts);
  const double nearest =
      OutputError(Decoded(Quantized(w, reader.encoding, DType::kF32).value(), DType::kF32), w, stats).value();
  EXPECT_LT(OutputError(Decoded(clipped, DType::kF32), w, stats).value(), 0.97 * nearest);
}

}  // namespace
}  // namespace llmc
