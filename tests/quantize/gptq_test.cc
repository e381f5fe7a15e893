#include "quantize/gptq.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

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

Tensor ByGptq(const Tensor& w, const Encoding* encoding, const std::vector<float>& gram, bool act_order = false,
              double damping = 0.01) {
  const std::unique_ptr<Matrices> matrices = NewHostMatrices();
  GptqFactor::Options options = GptqOptionsFor(*encoding, act_order);
  options.damping = damping;
  const auto factor = GptqFactor::Create(gram, w.shape()[1], options, matrices.get()).value();
  return GptqQuantized(w, encoding, DType::kF32, *factor, {}).value();
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
  const Tensor rounded = Decoded(ByGptq(w, encoding, gram, false, 0), DType::kF32);
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
      EXPECT_EQ(ByGptq(w, encoding, gram, act_order), Quantized(w, encoding, DType::kF32).value()) << text;
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
      const Tensor rounded = Decoded(ByGptq(w, encoding, stats.gram, act_order), DType::kF32);
      EXPECT_LT(OutputError(rounded, w, stats).value(), 0.75 * by_nearest) << text << " " << act_order;
    }
  }
}

TEST(Gptq, ChannelsThatAreAlwaysZeroDoNoHarm) {
  Tensor x = CorrelatedInputs(64, 32);
  for (int64_t r = 0; r < 64; ++r) x.mutable_data<float>()[r * 32 + 7] = 0;
  const Tensor w = NormalWeights(4, 32);
  const Encoding* encoding = GptqEncoding("int8 per=channel scale=f32");
  const Tensor rounded = Decoded(ByGptq(w, encoding, StatsOf(x).gram), DType::kF32);
  for (int64_t r = 0; r < 4; ++r) EXPECT_NEAR(rounded.GetFloat(r * 32 + 7), w.GetFloat(r * 32 + 7), 5e-4);
}

TEST(Gptq, AGramMatrixWithoutInverseIsAnError) {
  std::vector<float> gram = {1, 2, 2, 1};  // eigenvalues 3 and -1
  const std::unique_ptr<Matrices> matrices = NewHostMatrices();
  const absl::Status status = GptqFactor::Create(gram, 2, {}, matrices.get()).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("the products of its inputs are not finite"));
}

// [[4, 2], [2, 3]] = C C^T with C = [[sqrt(8 / 3), 2 / sqrt(3)], [0, sqrt(3)]].
TEST(Gptq, TheFactorIsAnUpperTriangle) {
  const std::unique_ptr<Matrices> matrices = NewHostMatrices();
  const auto factor = GptqFactor::Create({4, 2, 2, 3}, 2, {.damping = 0}, matrices.get()).value();
  const std::vector<float> c = factor->Read().value();
  EXPECT_NEAR(c[0], std::sqrt(8.0 / 3), 1e-6);
  EXPECT_NEAR(c[1], 2 / std::sqrt(3.0), 1e-6);
  EXPECT_EQ(c[2], 0);
  EXPECT_NEAR(c[3], std::sqrt(3.0), 1e-6);
  EXPECT_NEAR(factor->Inverse(0)[0], 1 / c[0], 1e-6);
  EXPECT_NEAR(factor->Inverse(0)[1], -c[1] / (c[0] * c[3]), 1e-6);
}

// Of many blocks, the last of which is not whole, with columns in another order.
TEST(Gptq, TheFactorOfALargeMatrix) {
  const int64_t k = 600;
  std::vector<float> gram(static_cast<size_t>(k * k));
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      gram[i * k + j] = static_cast<float>((i == j ? 2 + static_cast<double>(i % 7) : 0) +
                                           1.0 / static_cast<double>(1 + std::abs(i - j)));
    }
  }
  const std::unique_ptr<Matrices> matrices = NewHostMatrices();
  const auto factor =
      GptqFactor::Create(gram, k, {.act_order = true, .damping = 0, .block = 64}, matrices.get()).value();
  const std::vector<float> c = factor->Read().value();
  const std::vector<int64_t>& order = factor->order();
  EXPECT_EQ(order[0] % 7, 6);
  for (int64_t i = 0; i < k; i += 7) {
    for (int64_t j = i; j < k; j += 5) {
      double sum = 0;
      for (int64_t m = j; m < k; ++m) sum += static_cast<double>(c[i * k + m]) * c[j * k + m];
      ASSERT_NEAR(sum, gram[order[i] * k + order[j]], 1e-5) << i << " " << j;
      ASSERT_EQ(i < j ? c[j * k + i] : 0, 0) << i << " " << j;
    }
  }
}

// Blocks after each other must give what all columns in one block do.
TEST(Gptq, BlocksMakeUpForThoseBefore) {
  const Tensor x = CorrelatedInputs(512, 200), w = NormalWeights(24, 200);
  const InputStats stats = StatsOf(x);
  const Encoding* encoding = GptqEncoding("int4 per=channel scale=f32");
  const std::unique_ptr<Matrices> matrices = NewHostMatrices();
  std::vector<Tensor> rounded;
  for (const int64_t block : {200, 32}) {
    const auto factor = GptqFactor::Create(stats.gram, 200, {.block = block}, matrices.get()).value();
    rounded.push_back(Decoded(GptqQuantized(w, encoding, DType::kF32, *factor, {}).value(), DType::kF32));
  }
  int64_t differ = 0;
  for (int64_t i = 0; i < w.size(); ++i) differ += rounded[0].GetFloat(i) != rounded[1].GetFloat(i) ? 1 : 0;
  EXPECT_LE(differ, w.size() / 100);  // where sums in another order round otherwise
}

}  // namespace
}  // namespace llmc
