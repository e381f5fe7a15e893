// Numbers to codes: rules of scales by hand, ties, and that what codes stand for comes back.
#include "ir/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace llmc {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using testing::HasSubstr;

const Encoding* EncodingOf(const std::string& text) { return ParseEncoding(text).value(); }

Tensor Row(const std::vector<float>& numbers) {
  return Tensor::FromValues(DType::kF32, {1, static_cast<int64_t>(numbers.size())}, numbers);
}

Tensor RandomMatrix(int64_t rows, int64_t columns, float width = 1) {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal(0, width);
  std::vector<float> numbers(static_cast<size_t>(rows * columns));
  for (float& x : numbers) x = normal(generator);
  return Tensor::FromValues(DType::kF32, {rows, columns}, numbers);
}

std::vector<int64_t> Codes(const Tensor& encoded) { return ComponentOf(encoded, 0).ToInts(); }

TEST(Quantize, SymmetricIntegersUseBothEnds) {
  // amax / 7.5 = 2: 15 is 7.5 steps, which the highest code, 7, is nearest to.
  const Tensor encoded =
      Quantized(Row({-15, 15, 3, 1, 2.9f, 5}), EncodingOf("int4 per=token scale=f32"), DType::kF32).value();
  EXPECT_THAT(Codes(encoded), ElementsAre(-8, 7, 2, 0, 1, 2));  // 1.5 and 0.5 and 2.5 to even
  EXPECT_THAT(ComponentOf(encoded, 1).ToFloats(), ElementsAre(2));
  const Tensor wide = Quantized(Row({-255, 1}), EncodingOf("int8 per=token scale=f32"), DType::kF32).value();
  EXPECT_THAT(ComponentOf(wide, 1).ToFloats(), ElementsAre(2));
}

TEST(Quantize, RestrictedIntegersAreSymmetric) {
  const Tensor encoded =
      Quantized(Row({-14, 14, 3}), EncodingOf("int4 per=token scale=f32"), DType::kF32, {.restricted = true}).value();
  EXPECT_THAT(ComponentOf(encoded, 1).ToFloats(), ElementsAre(2));
  EXPECT_THAT(Codes(encoded), ElementsAre(-7, 7, 2));
}

TEST(Quantize, ZeroPointsMoveTheRange) {
  // From -2 to 28: 15 steps of 2, and the zero point is -8 + 1.
  const Tensor encoded =
      Quantized(Row({-2, 28, 0, 9}), EncodingOf("int4 per=token scale=f32 zero=i8"), DType::kF32).value();
  EXPECT_THAT(ComponentOf(encoded, 1).ToFloats(), ElementsAre(2));
  EXPECT_THAT(ComponentOf(encoded, 2).ToInts(), ElementsAre(-7));
  EXPECT_THAT(Codes(encoded), ElementsAre(-8, 7, -7, -2));  // 4.5 - 7 = -2.5, to even
  // 0 is always in the range: 4 to 6 is 0 to 6.
  const Tensor positive = Quantized(Row({4, 6}), EncodingOf("uint4 per=token scale=f32 zero=u4"), DType::kF32).value();
  EXPECT_THAT(ComponentOf(positive, 1).ToFloats(), ElementsAre(6.0f / 15));
  EXPECT_THAT(ComponentOf(positive, 2).ToInts(), ElementsAre(0));
}

TEST(Quantize, CodesAreMadeWithScalesAsStored) {
  // 1 / 7.5 is 0.13333…, in bf16 0.13378906.
  const Tensor encoded = Quantized(Row({1, 0.2f}), EncodingOf("int4 per=token scale=bf16"), DType::kF32).value();
  const float scale = ComponentOf(encoded, 1).ToFloats()[0];
  EXPECT_EQ(scale, 0.1337890625f);
  // With 1 / 7.5 the second would be a tie, and 2.
  EXPECT_THAT(Codes(encoded), ElementsAre(7, 1));
  EXPECT_THAT(Decoded(encoded, DType::kF32).ToFloats(), ElementsAre(7 * scale, scale));
}

TEST(Quantize, ExponentsAreOfTheOcpFormula) {
  // floor(log2(7)) - 2 = 0: numbers above 6 become 6. Ties go to even codes: 5 to 4, 3.5 to 4, 2.5 to 2.
  std::vector<float> numbers(32, 0);
  const std::vector<float> first = {7, 5, 3.5f, 2.5f, 0.25f, -0.75f, -0.1f};
  std::copy(first.begin(), first.end(), numbers.begin());
  const Tensor encoded = Quantized(Row(numbers), EncodingOf("mxfp4"), DType::kF32).value();
  EXPECT_THAT(ComponentOf(encoded, 1).ToInts(), ElementsAre(127));
  std::vector<float> decoded = Decoded(encoded, DType::kF32).ToFloats();
  decoded.resize(first.size());
  EXPECT_THAT(decoded, ElementsAre(6, 4, 4, 2, 0, -1, -0.0f));
  EXPECT_EQ(Codes(encoded)[6], 8) << "a negative number that rounds to 0 keeps its sign";
}

TEST(Quantize, NvFp4HasTwoLevels) {
  std::vector<float> numbers(32, 0);
  numbers[0] = 2688;  // 6 * 448
  numbers[16] = 6;
  const Tensor encoded = Quantized(Row(numbers), EncodingOf("nvfp4"), DType::kF32).value();
  EXPECT_EQ(ComponentOf(encoded, 2).ToFloats()[0], 1);
  EXPECT_THAT(ComponentOf(encoded, 1).ToFloats(), ElementsAre(448, 1));
  EXPECT_EQ(Decoded(encoded, DType::kF32).ToFloats()[0], 2688);
  EXPECT_EQ(Decoded(encoded, DType::kF32).ToFloats()[16], 6);
  // As if there were a number of 2 * 2688 beside them.
  const Tensor beside = Quantized(Row(numbers), EncodingOf("nvfp4"), DType::kF32, {.outer_amax = 5376}).value();
  EXPECT_EQ(ComponentOf(beside, 2).ToFloats()[0], 2);
  EXPECT_THAT(ComponentOf(beside, 1).ToFloats(), ElementsAre(224, 0.5f));
}

TEST(Quantize, FloatsSaturate) {
  const Tensor encoded =
      Quantized(Row({-448, 17, 0.001f}), EncodingOf("f8e4m3 per=token scale=f32"), DType::kF32).value();
  EXPECT_THAT(ComponentOf(encoded, 1).ToFloats(), ElementsAre(1));
  // 17 lies between 16 and 18, and 16 is the even one.
  EXPECT_THAT(Decoded(encoded, DType::kF32).ToFloats(), ElementsAre(-448, 16, 0.001953125f));
}

TEST(Quantize, NumbersThatAreAllZeroAreZero) {
  for (const char* text : {"int4 group=2 scale=f16", "int4 group=2 scale=f16 zero=i4", "f8e4m3 per=token scale=bf16",
                           "nf4 group=2 scale=f32"}) {
    const Tensor encoded = Quantized(Row({0, 0, 1, -1}), EncodingOf(text), DType::kF32).value();
    const std::vector<float> decoded = Decoded(encoded, DType::kF32).ToFloats();
    EXPECT_EQ(decoded[0], 0) << text;
    EXPECT_NEAR(decoded[2], 1, 0.08) << text;
  }
}

// What an encoding can hold comes back as it was, and other numbers differ by half a step at most.
TEST(Quantize, IsTheInverseOfDecoded) {
  const Tensor numbers = RandomMatrix(96, 256, 0.02f);
  struct Case {
    const char* encoding;
    double error;  // relative, of all
  };
  for (const Case& c :
       {Case{"int8 per=channel scale=f32", 0.0075}, Case{"int8 group=64 scale=bf16 zero=i8", 0.006},
        Case{"int4 group=32 scale=f16", 0.1}, Case{"uint4 group=128 scale=f32 zero=u4", 0.11},
        Case{"int4 group=128 along=-2 scale=f32", 0.11}, Case{"f8e4m3 block=32x64 scale=f32", 0.028},
        Case{"f8e4m3 per=tensor scale=f32", 0.028}, Case{"f8e5m2 per=channel scale=f32", 0.055},
        Case{"nf4 group=64 scale=f32", 0.095}, Case{"mxfp4", 0.15}, Case{"mxfp8", 0.035}, Case{"nvfp4", 0.1}}) {
    const Encoding* encoding = EncodingOf(c.encoding);
    const Tensor first = Quantized(numbers, encoding, DType::kF32).value();
    const Tensor decoded = Decoded(first, DType::kF32);
    double error = 0, all = 0;
    for (int64_t i = 0; i < numbers.size(); ++i) {
      const double a = decoded.GetFloat(i), b = numbers.GetFloat(i);
      error += (a - b) * (a - b);
      all += b * b;
    }
    EXPECT_LT(std::sqrt(error / all), c.error) << c.encoding;
    EXPECT_GT(std::sqrt(error / all), c.error / 4) << c.encoding;
    QuantizedParts parts{.scale = ComponentOf(first, 1)};
    if (encoding->zero.has_value()) parts.zero = ComponentOf(first, 2);
    if (encoding->format->outer_scale) parts.outer = ComponentOf(first, 2);
    EXPECT_EQ(QuantizedWith(decoded, encoding, DType::kF32, parts), first) << c.encoding;
  }
}

TEST(Quantize, OneNumberAtATimeIsTheSame) {
  const Tensor numbers = RandomMatrix(4, 64);
  for (const char* text :
       {"int4 per=token scale=f16 zero=i4", "nf4 per=token scale=f32", "f8e4m3 per=token scale=bf16"}) {
    const Encoding* encoding = EncodingOf(text);
    const Tensor decoded = Decoded(Quantized(numbers, encoding, DType::kF32).value(), DType::kF32);
    const Quantizer quantizer(*encoding);
    for (int64_t row = 0; row < 4; ++row) {
      float min = 0, max = 0;
      for (int64_t i = row * 64; i < row * 64 + 64; ++i) {
        min = std::min(min, static_cast<float>(numbers.GetFloat(i)));
        max = std::max(max, static_cast<float>(numbers.GetFloat(i)));
      }
      const Quantizer::Grid grid = quantizer.GridFor(min, max);
      for (int64_t i = row * 64; i < row * 64 + 64; ++i) {
        EXPECT_EQ(quantizer.Nearest(static_cast<float>(numbers.GetFloat(i)), grid), decoded.GetFloat(i)) << text;
      }
    }
  }
}

TEST(Quantize, ErrorsSayWhy) {
  EXPECT_THAT(
      std::string(Quantized(Row({1, NAN}), EncodingOf("int8 per=token scale=f32"), DType::kF32).status().message()),
      HasSubstr("not all numbers are finite"));
  EXPECT_THAT(std::string(Quantized(Row({1, INFINITY}), EncodingOf("mxfp4"), DType::kF32).status().message()),
              HasSubstr("not all numbers are finite"));
  EXPECT_THAT(std::string(Quantized(Row({1, 2}), EncodingOf("q8_0"), DType::kF32).status().message()),
              HasSubstr("superblocks"));
  EXPECT_THAT(
      std::string(Quantized(Row({1, 2}), EncodingOf("uint4 per=token scale=f32"), DType::kF32).status().message()),
      HasSubstr("need zero points"));
}

}  // namespace
}  // namespace llmc
