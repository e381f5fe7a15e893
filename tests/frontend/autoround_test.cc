// AutoRound's checkpoints: small models packed here beside the same model in plain floats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/config_reader.h"
#include "frontend/huggingface/quantized/scheme.h"
#include "ir/tensor.h"
#include "tests/frontend/packed_model.h"

namespace llmc {
namespace {

json AutoRoundConfig(const char* packing, bool symmetric, const json& extra = json::object()) {
  return {{"quant_method", "auto-round"},
          {"packing_format", packing},
          {"bits", 4},
          {"group_size", 32},
          {"sym", symmetric},
          {"data_type", "int"},
          {"autoround_version", "0.16.1"},
          {"block_name_to_quantize", "model.layers"},
          {"extra_config", extra}};
}

std::string GptqAgrees(const json& config, const GptqCase& c) {
  return ExpectSameNumbers(config,
                           [&](const Matrix& m, Draw& draw, NamedTensors* t) { return PackGptq(c, m, draw, t); });
}

TEST(QuantizedAutoRound, AsGptq) {
  const json plain_head = {{"lm_head", {{"bits", 16}}}};
  EXPECT_EQ(GptqAgrees(AutoRoundConfig("auto_round:auto_gptq", true, plain_head), {.symmetric = true}),
            "int4 group=32 scale=f16");
  // Its own packing and that of GPTQModel store zero points as they are.
  EXPECT_EQ(GptqAgrees(AutoRoundConfig("auto_round:auto_gptq", false), {}), "uint4 group=32 scale=f16 zero=u4");
  EXPECT_EQ(GptqAgrees(AutoRoundConfig("auto_round", false), {.v2 = true}), "uint4 group=32 scale=f16 zero=u4");
  EXPECT_EQ(GptqAgrees(AutoRoundConfig("auto_round:gptqmodel", false), {.v2 = true}),
            "uint4 group=32 scale=f16 zero=u4");
}

TEST(QuantizedAutoRound, CodesThatDoNotFillWords) {
  json config = AutoRoundConfig("auto_round", false);
  config["bits"] = 3;
  EXPECT_EQ(GptqAgrees(config, {.bits = 3, .v2 = true}), "uint3 group=32 scale=f16 zero=u4");
}

// What inputs are rounded to is said of those that are known; with others they stay floats, and the reason is kept.
TEST(QuantizedAutoRound, InputsThatAreNotKnown) {
  const auto inputs = [](const json& more) {
    json config = {{"quantization_config", AutoRoundConfig("auto_round:fp8_static", true)}};
    json& quantization = config["quantization_config"];
    quantization.update({{"data_type", "fp"}, {"bits", 8}, {"group_size", -1}, {"act_bits", 8}});
    quantization.update(more);
    hf::ConfigReader reader(&config, "config.json");
    const auto scheme = hf::ReadQuantization(reader);
    EXPECT_TRUE(reader.Finish().ok()) << reader.Finish();
    const auto spec = scheme == nullptr ? std::nullopt : scheme->ActivationOf({.name = "model.layers.0.mlp.up_proj"});
    return spec.has_value() ? spec->unsupported : "none";
  };
  EXPECT_EQ(inputs({{"act_data_type", "fp8_e4m3"}, {"act_sym", true}}), "");
  EXPECT_EQ(inputs({{"act_data_type", "fp"}, {"act_group_size", {1, 128}}}), "");
  EXPECT_THAT(inputs({{"act_data_type", "fp8_e5m2"}}), testing::HasSubstr("act_data_type \"fp8_e5m2\""));
  EXPECT_THAT(inputs({{"act_data_type", "int"}}), testing::HasSubstr("act_data_type \"int\""));
  EXPECT_THAT(inputs({{"act_data_type", "fp"}, {"act_bits", 4}}), testing::HasSubstr("with act_bits 4"));
  EXPECT_THAT(inputs({{"act_data_type", "fp"}, {"act_sym", false}}), testing::HasSubstr("act_sym"));
  EXPECT_THAT(inputs({{"act_data_type", "fp"}, {"act_group_size", {128, 128}}}), testing::HasSubstr("act_group_size"));
}

TEST(QuantizedAutoRound, AsAwq) {
  const auto agrees = [](const json& config, const AwqCase& c) {
    return ExpectSameNumbers(config,
                             [&](const Matrix& m, Draw& draw, NamedTensors* t) { return PackAwq(c, m, draw, t); });
  };
  EXPECT_EQ(agrees(AutoRoundConfig("auto_round:auto_awq", false), {}), "uint4 group=32 scale=f16 zero=u4");
  EXPECT_EQ(agrees(AutoRoundConfig("auto_round:auto_awq", true), {.symmetric = true}), "int4 group=32 scale=f16");
}

// A module's name comes before patterns, which are searched in it; what neither names is as all.
TEST(QuantizedAutoRound, ModulesByNameAndPattern) {
  const json modules = {{"model.layers.0.self_attn.q_proj", {{"bits", 8}, {"sym", false}}},
                        {".*_proj$", {{"bits", 2}, {"group_size", 16}}},
                        {"up|gate_proj", {{"bits", 2}, {"group_size", 16}}},
                        {".*k_proj.*", json::object()},
                        {"model.layers.0.self_attn.o_proj", {{"bits", 16}}},
                        {"model.layers.0.mlp.down_proj", json::object()}};
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    if (m.module.ends_with("q_proj")) return PackGptq({.bits = 8}, m, draw, t);
    if (m.module.ends_with("down_proj")) return PackGptq({.symmetric = true}, m, draw, t);
    if (!m.module.ends_with("o_proj")) return PackGptq({.bits = 2, .group = 16, .symmetric = true}, m, draw, t);
    std::vector<float> numbers;
    for (int64_t i = 0; i < m.out * m.in; ++i) numbers.push_back(draw.Scale());
    (*t)[m.module + ".weight"] = Tensor::FromValues(DType::kF32, {m.out, m.in}, numbers);
    return numbers;
  };
  EXPECT_EQ(ExpectSameNumbers(AutoRoundConfig("auto_round:auto_gptq", true, modules), pack),
            "uint8 group=32 scale=f16 zero=u8");
}

// JSON's readers do not keep which pattern comes first.
TEST(QuantizedAutoRound, PatternsThatContradict) {
  NamedTensors tensors;
  AddUnquantized(&tensors);
  Draw draw(17);
  for (const Matrix& m : kMatrices) PackGptq({.symmetric = true}, m, draw, &tensors);
  json config = SmallConfig();
  config["quantization_config"] =
      AutoRoundConfig("auto_round:auto_gptq", true, {{".*k_proj", {{"bits", 4}}}, {".*proj", {{"bits", 8}}}});
  const TestFolder folder;
  WriteFolder(folder, config, tensors);
  EXPECT_TRUE(Says(ImportHuggingFace(folder.path()).status(), "k_proj.qweight is of the patterns"));
}

// Codes of f8 or e2m1 with exponents of groups of 32; of f8 with a scale for each output.
TEST(QuantizedAutoRound, Floats) {
  const auto agrees = [](const char* type, int bits, int64_t group) {
    const bool is_mx = type[0] == 'm';
    const auto pack = [=](const Matrix& m, Draw& draw, NamedTensors* t) {
      const int64_t groups = group < 0 ? 1 : m.in / group;
      constexpr float kFours[] = {0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6};
      Tensor eights(DType::kF8E4M3, {m.out, m.in}), fours(DType::kU8, {m.out, m.in / 2});
      Tensor scale(is_mx ? DType::kU8 : DType::kBF16, group < 0 ? Shape{m.out} : Shape{m.out, groups});
      for (int64_t i = 0; i < scale.size(); ++i) {
        if (is_mx) scale.SetInt(i, 118 + draw.Below(3));
        if (!is_mx) scale.SetFloat(i, draw.Scale());
      }
      std::vector<float> numbers;
      for (int64_t i = 0; i < m.out * m.in; ++i) {
        const int64_t code = draw.Below(16), part = i / m.in * groups + (group < 0 ? 0 : i % m.in / group);
        if (bits == 8) eights.SetFloat(i, static_cast<double>(code - 8) / 2);
        if (bits == 4) fours.SetInt(i / 2, i % 2 == 0 ? code : fours.GetInt(i / 2) + 16 * code);
        const double number = bits == 8 ? eights.GetFloat(i) : kFours[code];
        const double factor = is_mx ? std::ldexp(1, static_cast<int>(scale.GetInt(part)) - 127) : scale.GetFloat(part);
        numbers.push_back(static_cast<float>(number * factor));
      }
      (*t)[m.module + (bits == 8 ? ".weight" : ".weight_packed")] = bits == 8 ? eights : fours;
      (*t)[m.module + ".weight_scale"] = scale;
      return numbers;
    };
    json config = AutoRoundConfig("auto_round:llm_compressor", true);
    config.update(
        {{"data_type", type}, {"bits", bits}, {"group_size", group}, {"act_bits", 8}, {"act_data_type", type}});
    return ExpectSameNumbers(config, pack);
  };
  EXPECT_EQ(agrees("mx_fp", 4, 32), "mxfp4");
  EXPECT_EQ(agrees("mx_fp", 8, 32), "f8e4m3 group=32 scale=bf16");
  EXPECT_EQ(agrees("fp", 8, -1), "f8e4m3 per=channel scale=bf16");
}

}  // namespace
}  // namespace llmc
