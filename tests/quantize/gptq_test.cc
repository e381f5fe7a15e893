#include "quantize/gptq.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "quantize/products.h"
#include "quantize/scale_search.h"

namespace llmc {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const Encoding* GptqEncoding(const std::string& text) { return ParseEncoding(text).value(); }

// Inputs whose channels go with each other, as those of layers do, some of them much larger.
Tensor CorrelatedInputs(int64_t rows, int64_t k) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal(0, 1);
  Tensor x(DType::kF32, {rows, k});
  for (int64_t r = 0; r < rows; ++r) {
    const float common = normal(generator);
    for (int64_t c = 0; c < k; ++c) {
      x.mutable_data<float>()[r * k + c] = (common + 0.5f * normal(generator)) * (c % 16 == 5 ? 8 : 1);
    }
  }
  return x;
}

Tensor NormalWeights(int64_t rows, int64_t k) {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal(0, 0.02f);
  Tensor w(DType::kF32, {rows, k});
  for (int64_t i = 0; i < w.size(); ++i) w.mutable_data<float>()[i] = normal(generator);
  return w;
}

InputStats StatsOf(const Tensor& x) {
  InputStats stats;
  stats.Add(x);
  return stats;
}

// |x (decoded - w)^T| / |x w^T|, product by product.
double ErrorByHand(const Tensor& x, const Tensor& decoded, const Tensor& w) {
  double error = 0, all = 0;
  const int64_t k = w.shape()[1];
  for (int64_t r = 0; r < x.shape()[0]; ++r) {
    for (int64_t n = 0; n < w.shape()[0]; ++n) {
      double difference = 0, exact = 0;
      for (int64_t c = 0; c < k; ++c) {
        exact += x.GetFloat(r * k + c) * w.GetFloat(n * k + c);
        difference += x.GetFloat(r * k + c) * (decoded.GetFloat(n * k + c) - w.GetFloat(n * k + c));
      }
      error += difference * difference;
      all += exact * exact;
    }
  }
  return std::sqrt(error / all);
}

// Two columns with the Hessian [[2, 1], [1, 1]]: what the first loses, 0.3, is made up for by the second: its best is
// w1 - (-0.3) * H01 / H11 = w1 + 0.3, so 0.4 becomes 0.7 and rounds to 1 (scale 1).
TEST(Gptq, TheNextColumnMakesUpForAnError) {
  const Tensor w = Tensor::FromValues(DType::kF32, {1, 3}, std::vector<float>{7.5f, 1.3f, 0.4f});
  const std::vector<float> gram = {1, 0, 0, 0, 2, 1, 0, 1, 1};
  const Encoding* encoding = GptqEncoding("int4 per=channel scale=f32");
  const Tensor nearest = Decoded(Quantized(w, encoding, DType::kF32).value(), DType::kF32);
  EXPECT_THAT(nearest.ToFloats(), ElementsAre(7, 1, 0));
  const Tensor rounded = Decoded(GptqQuantized(w, encoding, DType::kF32, gram, {.damping = 0}).value(), DType::kF32);
  EXPECT_THAT(rounded.ToFloats(), ElementsAre(7, 1, 1));
}

TEST(Gptq, WithoutCorrelationItIsRoundToNearest) {
  const Tensor w = NormalWeights(8, 64);
  std::vector<float> gram(64 * 64, 0);
  for (int64_t i = 0; i < 64; ++i) gram[static_cast<size_t>(i * 65)] = static_cast<float>(i + 1);
  for (const char* text : {"int4 group=16 scale=f16 zero=i4", "int8 per=channel scale=f32", "nvfp4", "mxfp4",
                           "f8e4m3 block=4x32 scale=f32", "nf4 group=32 scale=f32"}) {
    const Encoding* encoding = GptqEncoding(text);
    for (const bool act_order : {false, true}) {
      EXPECT_EQ(GptqQuantized(w, encoding, DType::kF32, gram, {.act_order = act_order}).value(),
                Quantized(w, encoding, DType::kF32).value())
          << text;
    }
  }
}

TEST(Gptq, ChangesOutputsLess) {
  const Tensor x = CorrelatedInputs(512, 192), w = NormalWeights(40, 192);
  const InputStats stats = StatsOf(x);
  for (const char* text : {"int4 group=32 scale=f32", "int4 group=96 scale=f32 zero=i4", "int4 per=channel scale=f32",
                           "int4 group=192 scale=f32", "mxfp4", "nvfp4", "f8e4m3 per=tensor scale=f32"}) {
    const Encoding* encoding = GptqEncoding(text);
    const Tensor nearest = Decoded(Quantized(w, encoding, DType::kF32).value(), DType::kF32);
    const double by_nearest = OutputError(nearest, w, stats).value();
    EXPECT_NEAR(by_nearest, ErrorByHand(x, nearest, w), 1e-4 * by_nearest) << text;
    for (const bool act_order : {false, true}) {
      const Tensor rounded =
          Decoded(GptqQuantized(w, encoding, DType::kF32, stats.gram, {.act_order = act_order}).value(), DType::kF32);
      EXPECT_LT(OutputError(rounded, w, stats).value(), 0.75 * by_nearest) << text << " " << act_order;
    }
  }
}

TEST(Gptq, ChannelsThatAreAlwaysZeroDoNoHarm) {
  Tensor x = CorrelatedInputs(64, 32);
  for (int64_t r = 0; r < 64; ++r) x.mutable_data<float>()[r * 32 + 7] = 0;
  const Tensor w = NormalWeights(4, 32);
  const Encoding* encoding = GptqEncoding("int8 per=channel scale=f32");
  const Tensor rounded = Decoded(GptqQuantized(w, encoding, DType::kF32, StatsOf(x).gram, {}).value(), DType::kF32);
  for (int64_t r = 0; r < 4; ++r) EXPECT_NEAR(rounded.GetFloat(r * 32 + 7), w.GetFloat(r * 32 + 7), 5e-4);
}

TEST(Gptq, AGramMatrixWithoutInverseIsAnError) {
  std::vector<float> gram = {1, 2, 2, 1};  // eigenvalues 3 and -1
  const absl::Status status = InverseFactor(gram, 2, 0.01).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("longer calibration text"));
}

TEST(Gptq, InverseFactorIsTheCholeskyFactorOfTheInverse) {
  // The inverse of [[4, 2], [2, 3]] is [[3, -2], [-2, 4]] / 8 = U^T U.
  const std::vector<float> u = InverseFactor({4, 2, 2, 3}, 2, 0).value();
  EXPECT_NEAR(u[0], std::sqrt(3.0 / 8), 1e-6);
  EXPECT_NEAR(u[1], -2.0 / 8 / std::sqrt(3.0 / 8), 1e-6);
  EXPECT_EQ(u[2], 0);
  EXPECT_NEAR(u[0] * u[0], 3.0 / 8, 1e-6);
  EXPECT_NEAR(u[1] * u[1] + u[3] * u[3], 4.0 / 8, 1e-6);
}

// Of more than one panel and chunk of columns.
TEST(Gptq, InverseFactorOfALargeMatrix) {
  const int64_t k = 600;
  std::vector<float> gram(static_cast<size_t>(k * k));
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      gram[i * k + j] = static_cast<float>((i == j ? 2 : 0) + 1.0 / static_cast<double>(1 + std::abs(i - j)));
    }
  }
  const std::vector<float> u = InverseFactor(gram, k, 0).value();
  double largest = 0;
  for (int64_t i = 0; i < k; i += 7) {
    // Row i of U H, times U^T: the identity, as H^-1 = U^T U.
    std::vector<double> row(static_cast<size_t>(k), 0);
    for (int64_t m = i; m < k; ++m) {
      for (int64_t j = 0; j < k; ++j) row[j] += static_cast<double>(u[i * k + m]) * gram[m * k + j];
    }
    for (int64_t j = 0; j < k; j += 5) {
      double sum = 0;
      for (int64_t m = j; m < k; ++m) sum += row[m] * u[j * k + m];
      largest = std::max(largest, std::abs(sum - (i == j ? 1 : 0)));
    }
  }
  EXPECT_LT(largest, 1e-5);
}

}  // namespace
}  // namespace llmc
