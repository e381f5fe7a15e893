// The bits of codes in folders of compressed-tensors and bitsandbytes, by hand.
#include "quantize/stored_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ir/quantize.h"

namespace llmc {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::map<std::string, Tensor> Stored(const std::string& text, const Tensor& numbers) {
  const Scheme scheme = ParseScheme(text).value();
  const Encoding* encoding = scheme.EncodingFor(DType::kF32).value();
  const Tensor encoded = Quantized(numbers, encoding, DType::kF32, {.restricted = scheme.restricted}).value();
  std::map<std::string, Tensor> tensors;
  const std::vector<StoredPart> parts =
      StoredParts(scheme, *encoding, numbers.shape()[0], numbers.shape()[1], DType::kF32).value();
  for (const StoredPart& part : parts) {
    const Tensor contents = part.contents(encoded);
    EXPECT_EQ(contents.dtype(), part.entry.dtype) << part.suffix;
    EXPECT_EQ(contents.shape(), part.entry.shape) << part.suffix;
    tensors[part.suffix] = contents;
  }
  return tensors;
}

Tensor Matrix(int64_t rows, int64_t columns, const std::vector<float>& numbers) {
  return Tensor::FromValues(DType::kF32, {rows, columns}, numbers);
}

TEST(NestedScalesTest, ScalesAreNearAndTheEndsOfTheMapAreThere) {
  EXPECT_EQ(NestedScaleMap().size(), 256u);
  EXPECT_EQ(NestedScaleMap().back(), 1);
  EXPECT_FLOAT_EQ(NestedScaleMap().front(), -0.99296875f);  // the middle of the last of 64 parts of [0.1, 1]
  std::vector<float> scales;
  for (int i = 0; i < 600; ++i) scales.push_back(0.02f + 0.01f * std::sin(static_cast<float>(i)));
  const NestedScales nested = NestScales(Tensor::FromValues(DType::kF32, {600}, scales));
  EXPECT_NEAR(nested.offset, 0.02, 1e-4);
  EXPECT_EQ(nested.block_scale.shape(), Shape{3});
  const std::vector<float> decoded = nested.Decoded({600}).ToFloats();
  for (size_t i = 0; i < scales.size(); ++i) EXPECT_NEAR(decoded[i], scales[i], 0.01 * 0.9 / 64) << i;
}

TEST(NestedScalesTest, EqualScalesAreExact) {
  const NestedScales nested = NestScales(Tensor::FromValues(DType::kF32, {3}, std::vector<float>{0.5, 0.5, 0.5}));
  EXPECT_THAT(nested.Decoded({3}).ToFloats(), ElementsAre(0.5, 0.5, 0.5));
}

TEST(StoredForm, FourBitsAreUnsignedTheFirstLowest) {
  // Scales are 15 / 7.5 = 2: codes -8, 7, 0, 1 and zeros, of which 8 is added.
  const auto tensors = Stored("int4:channel", Matrix(1, 10, {-15, 15, 0, 2, 0, 0, 0, 0, -2, 0}));
  EXPECT_THAT(tensors.at(".weight_packed").ToInts(),
              ElementsAre(static_cast<int32_t>(0x888898f0u), static_cast<int32_t>(0x87u)));
  EXPECT_THAT(tensors.at(".weight_scale").ToFloats(), ElementsAre(2));
  EXPECT_EQ(tensors.at(".weight_scale").shape(), (Shape{1, 1}));
  EXPECT_THAT(tensors.at(".weight_shape").ToInts(), ElementsAre(1, 10));
}

TEST(StoredForm, ZeroPointsArePackedAlongOutputs) {
  // From 0 to 30: scale 2, zero point -8; from -30 to 0: 7; from -2 to 28: -7.
  const auto tensors = Stored("int4:g2:asym", Matrix(3, 2, {0, 30, -30, 0, -2, 28}));
  EXPECT_EQ(tensors.at(".weight_zero_point").shape(), (Shape{1, 1}));
  EXPECT_THAT(tensors.at(".weight_zero_point").ToInts(), ElementsAre(0x1f0));
  EXPECT_THAT(tensors.at(".weight_packed").ToInts(), ElementsAre(0xf0, 0xf0, 0xf0));
}

TEST(StoredForm, FloatsOfFourBitsAreTwoInAByte) {
  std::vector<float> numbers(32, 0);
  numbers[0] = 6;   // 7
  numbers[1] = -1;  // 10
  const auto mx = Stored("mxfp4", Matrix(1, 32, numbers));
  EXPECT_EQ(mx.at(".weight_packed").GetInt(0), 0xa7);
  EXPECT_THAT(mx.at(".weight_scale").ToInts(), ElementsAre(127));
  const auto nv = Stored("nvfp4", Matrix(1, 32, numbers));
  EXPECT_EQ(nv.at(".weight_packed").GetInt(0), 0xa7);
  // The reciprocal of what multiplies.
  EXPECT_FLOAT_EQ(nv.at(".weight_global_scale").ToFloats()[0], 448);
}

TEST(StoredForm, BitsAndBytesHasTheFirstCodeInTheHighHalf) {
  std::vector<float> numbers(64, 0);
  numbers[0] = 2;   // 15
  numbers[1] = -2;  // 0
  const auto tensors = Stored("nf4", Matrix(1, 64, numbers));
  EXPECT_EQ(tensors.at(".weight").GetInt(0), 0xf0);
  EXPECT_EQ(tensors.at(".weight").GetInt(1), 0x77);
  EXPECT_THAT(tensors.at(".weight.absmax").ToFloats(), ElementsAre(2));
  const Tensor state = tensors.at(".weight.quant_state.bitsandbytes__nf4");
  EXPECT_EQ(std::string(state.raw(), static_cast<size_t>(state.bytes())),
            R"({"quant_type":"nf4","blocksize":64,"dtype":"float32","shape":[1,64]})");
  const auto int8 = Stored("llm.int8", Matrix(1, 2, {-254, 2}));
  EXPECT_THAT(int8.at(".weight").ToInts(), ElementsAre(-127, 1));
  EXPECT_THAT(int8.at(".SCB").ToFloats(), ElementsAre(254));
}

TEST(StoredForm, GroupsMustBeWhole) {
  const Scheme scheme = ParseScheme("int4:g128").value();
  const Encoding* encoding = scheme.EncodingFor(DType::kF32).value();
  EXPECT_THAT(std::string(StoredParts(scheme, *encoding, 4, 100, DType::kF32).status().message()),
              HasSubstr("rows of 100 are no whole groups of 128; choose another group"));
}

TEST(StoredForm, InputsOfFourBits) {
  const Scheme nv = ParseScheme("nvfp4:local").value(), mx = ParseScheme("mxfp4:dynamic").value();
  // Of inputs up to 7: (6 * 448) / 7.
  const std::vector<StoredPart> scale = StoredInputScale(nv, DType::kBF16, 7.0f / 448);
  ASSERT_EQ(scale.size(), 1u);
  EXPECT_EQ(scale[0].suffix, ".input_global_scale");
  EXPECT_EQ(scale[0].entry.dtype, DType::kF32);
  EXPECT_THAT(scale[0].contents(Tensor()).ToFloats(), ElementsAre(testing::FloatEq(384)));
  EXPECT_TRUE(StoredInputScale(mx, DType::kBF16, 1).empty());
  const auto config = [](const Scheme& scheme) {
    const auto all = QuantizationConfig({.modules = {{"q", &scheme}}}, DType::kBF16).value();
    return all["config_groups"]["group_0"]["input_activations"];
  };
  EXPECT_EQ(config(nv), nlohmann::ordered_json::parse(R"({"num_bits": 4, "type": "float", "symmetric": true,
      "strategy": "tensor_group", "dynamic": "local", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"})"));
  EXPECT_EQ(config(mx), nlohmann::ordered_json::parse(R"({"num_bits": 4, "type": "float", "symmetric": true,
      "strategy": "group", "dynamic": true, "group_size": 32, "scale_dtype": "torch.uint8"})"));
}

TEST(StoredForm, ConfigNamesModulesWhereThereAreSeveralSchemes) {
  const Scheme a = ParseScheme("int4:g128").value(), b = ParseScheme("fp8").value(), c = ParseScheme("nf4").value();
  const auto one =
      QuantizationConfig({.modules = {{"q", &a}, {"k", &a}}, .ignored = {"lm_head"}}, DType::kBF16).value();
  EXPECT_EQ(one["format"], "pack-quantized");
  EXPECT_EQ(one["config_groups"]["group_0"]["targets"], nlohmann::ordered_json({"Linear"}));
  EXPECT_EQ(one["config_groups"]["group_0"]["input_activations"], nullptr);
  const auto two = QuantizationConfig({.modules = {{"q", &a}, {"k", &b}}}, DType::kBF16).value();
  EXPECT_EQ(two["format"], "mixed-precision");
  EXPECT_EQ(two["config_groups"]["group_0"]["targets"], nlohmann::ordered_json({"k"}));
  EXPECT_EQ(two["config_groups"]["group_0"]["input_activations"]["strategy"], "token");
  EXPECT_THAT(std::string(QuantizationConfig({.modules = {{"q", &a}, {"k", &c}}}, DType::kBF16).status().message()),
              HasSubstr("one folder cannot hold both"));
}

}  // namespace
}  // namespace llmc
