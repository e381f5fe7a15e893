// Quark's checkpoints: small models packed here beside the same model in plain floats.
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "ir/tensor.h"
#include "tests/frontend/packed_model.h"

namespace llmc {
namespace {

json TensorOf(const char* type, const char* scheme, const json& more = json::object()) {
  json tensor = {{"dtype", type},       {"qscheme", scheme},           {"symmetric", true},
                 {"is_dynamic", false}, {"round_method", "half_even"}, {"observer_cls", "PerTensorMinMaxObserver"},
                 {"ch_axis", nullptr},  {"scale_format", nullptr},     {"scale_type", "float"}};
  tensor.update(more);
  return tensor;
}

json QuarkConfig(const json& weight, const json& more = json::object()) {
  json config = {{"quant_method", "quark"},
                 {"global_quant_config",
                  {{"weight", weight}, {"input_tensors", nullptr}, {"output_tensors", nullptr}, {"bias", nullptr}}},
                 {"exclude", {"lm_head"}},
                 {"export", {{"pack_method", "reorder"}, {"weight_format", "real_quantized"}, {"min_kv_scale", 0.0}}},
                 {"algo_config", nullptr},
                 {"layer_type_quant_config", json::object()},
                 {"quant_mode", "eager_mode"},
                 {"version", "0.13"}};
  config.update(more);
  return config;
}

// Codes of a byte with a scale for each output, or one for all.
std::vector<float> PackBytes(DType type, bool is_channel, const Matrix& m, Draw& draw, NamedTensors* t) {
  Tensor codes(type, {m.out, m.in}), scale(DType::kBF16, is_channel ? Shape{m.out} : Shape{});
  for (int64_t i = 0; i < scale.size(); ++i) scale.SetFloat(i, draw.Scale() / (type == DType::kI8 ? 16 : 1));
  std::vector<float> numbers;
  for (int64_t i = 0; i < codes.size(); ++i) {
    if (type == DType::kI8) codes.SetInt(i, draw.Below(256) - 128);
    if (type != DType::kI8) codes.SetFloat(i, static_cast<double>(draw.Below(33) - 16) / 4);
    const double code = type == DType::kI8 ? static_cast<double>(codes.GetInt(i)) : codes.GetFloat(i);
    numbers.push_back(static_cast<float>(code) * static_cast<float>(scale.GetFloat(is_channel ? i / m.in : 0)));
  }
  (*t)[m.module + ".weight"] = codes;
  (*t)[m.module + ".weight_scale"] = scale;
  if (type == DType::kI8) (*t)[m.module + ".weight_zero_point"] = Tensor(DType::kI8, scale.shape());
  return numbers;
}

TEST(QuantizedQuark, Bytes) {
  const auto agrees = [](const json& weight, DType type, bool is_channel) {
    return ExpectSameNumbers(QuarkConfig(weight), [&](const Matrix& m, Draw& draw, NamedTensors* t) {
      return PackBytes(type, is_channel, m, draw, t);
    });
  };
  EXPECT_EQ(agrees(TensorOf("fp8_e4m3", "per_tensor"), DType::kF8E4M3, false), "f8e4m3 per=tensor scale=bf16");
  EXPECT_EQ(agrees(TensorOf("fp8_e4m3", "per_channel"), DType::kF8E4M3, true), "f8e4m3 per=channel scale=bf16");
  EXPECT_EQ(agrees(TensorOf("int8", "per_channel"), DType::kI8, true), "int8 per=channel scale=bf16");
  EXPECT_EQ(agrees(TensorOf("int8", "per_tensor"), DType::kI8, false), "int8 per=tensor scale=bf16");
}

const AwqCase kWords = {.codes = "weight", .scale = "weight_scale", .zero = "weight_zero_point"};

TEST(QuantizedQuark, IntegersOfFourBits) {
  const auto agrees = [](const char* type, AwqCase c) {
    json config = QuarkConfig(TensorOf(type, "per_group", {{"group_size", 32}, {"symmetric", c.symmetric}}));
    config["export"]["pack_method"] = c.is_in_order ? "order" : "reorder";
    return ExpectSameNumbers(config,
                             [&](const Matrix& m, Draw& draw, NamedTensors* t) { return PackAwq(c, m, draw, t); });
  };
  AwqCase c = kWords;
  EXPECT_EQ(agrees("uint4", c), "uint4 group=32 scale=f16 zero=u4");
  c.is_in_order = c.is_signed = true;
  EXPECT_EQ(agrees("int4", c), "uint4 group=32 scale=f16 zero=u4");
  c.symmetric = true;
  EXPECT_EQ(agrees("int4", c), "int4 group=32 scale=f16");
  c.is_in_order = false;
  EXPECT_EQ(agrees("int4", c), "int4 group=32 scale=f16");
}

std::vector<float> PackMxfp4(const Matrix& m, Draw& draw, NamedTensors* t) {
  constexpr float kNumbers[] = {0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6};
  Tensor codes(DType::kU8, {m.out, m.in / 2}), scale(DType::kU8, {m.out, m.in / 32});
  for (int64_t i = 0; i < scale.size(); ++i) scale.SetInt(i, 118 + draw.Below(3));
  std::vector<float> numbers;
  for (int64_t i = 0; i < m.out * m.in; ++i) {
    const int64_t code = draw.Below(16), exponent = scale.GetInt(i / 32);
    codes.SetInt(i / 2, i % 2 == 0 ? code : codes.GetInt(i / 2) + 16 * code);
    numbers.push_back(std::ldexp(kNumbers[code], static_cast<int>(exponent) - 127));
  }
  (*t)[m.module + ".weight"] = codes;
  (*t)[m.module + ".weight_scale"] = scale;
  return numbers;
}

// Layers of their own, and one of plain floats that is excluded.
TEST(QuantizedQuark, LayersByPattern) {
  const json four = TensorOf("fp4", "per_group", {{"group_size", 32}, {"scale_format", "e8m0"}});
  const json layers = {{"*self_attn*", {{"weight", TensorOf("fp8_e4m3", "per_tensor")}}},
                       {"*.down_proj", {{"weight", TensorOf("int4", "per_group", {{"group_size", 32}})}}}};
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    if (m.module.ends_with("gate_proj")) {
      std::vector<float> numbers;
      for (int64_t i = 0; i < m.out * m.in; ++i) numbers.push_back(draw.Scale());
      (*t)[m.module + ".weight"] = Tensor::FromValues(DType::kF32, {m.out, m.in}, numbers);
      return numbers;
    }
    if (m.module.ends_with("up_proj")) return PackMxfp4(m, draw, t);
    if (!m.module.ends_with("down_proj")) return PackBytes(DType::kF8E4M3, false, m, draw, t);
    AwqCase c = kWords;
    c.symmetric = c.is_signed = true;
    return PackAwq(c, m, draw, t);
  };
  const json config =
      QuarkConfig(four, {{"layer_quant_config", layers}, {"exclude", {"lm_head", "re:model.layers.*gate_proj"}}});
  EXPECT_EQ(ExpectSameNumbers(config, pack), "f8e4m3 per=tensor scale=bf16");
}

// A name counts before a pattern, and is not of what is inside of the module.
TEST(QuantizedQuark, NamesBeforePatterns) {
  const json eight = TensorOf("fp8_e4m3", "per_tensor"), of_rows = TensorOf("fp8_e4m3", "per_channel");
  const json layers = {{"*proj", {{"weight", eight}}},
                       {"model.layers.0.self_attn.q_proj", {{"weight", of_rows}}},
                       {"model.layers.0.mlp", {{"weight", of_rows}}}};
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    return PackBytes(DType::kF8E4M3, m.module.ends_with("q_proj"), m, draw, t);
  };
  EXPECT_EQ(ExpectSameNumbers(QuarkConfig(eight, {{"layer_quant_config", layers}}), pack),
            "f8e4m3 per=channel scale=bf16");
}

// Scales of keys and values stand behind their projections, and inputs have some, which are used if it is asked for.
TEST(QuantizedQuark, CachesAndInputs) {
  const json eight = TensorOf("fp8_e4m3", "per_tensor");
  const json cached = {{"weight", eight}, {"input_tensors", eight}, {"output_tensors", eight}};
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    (*t)[m.module + ".input_scale"] = Tensor::FromValues(DType::kBF16, {}, std::vector<double>{0.0625});
    if (m.module.ends_with("k_proj") || m.module.ends_with("v_proj")) {
      (*t)[m.module + ".output_scale"] = Tensor::FromValues(DType::kBF16, {}, std::vector<double>{0.0625});
    }
    return PackBytes(DType::kF8E4M3, false, m, draw, t);
  };
  const json layers = {{"*k_proj", cached}, {"*v_proj", cached}};
  json config = QuarkConfig(eight, {{"kv_cache_quant_config", layers}});
  config["global_quant_config"]["input_tensors"] = eight;
  EXPECT_EQ(ExpectSameNumbers(config, pack), "f8e4m3 per=tensor scale=bf16");
  // As versions before wrote it.
  config = QuarkConfig(eight, {{"layer_quant_config", layers}});
  config["export"]["kv_cache_group"] = {"*k_proj", "*v_proj"};
  EXPECT_EQ(ExpectSameNumbers(config, pack), "f8e4m3 per=tensor scale=bf16");

  NamedTensors tensors;
  AddUnquantized(&tensors);
  Draw draw(17);
  for (const Matrix& m : kMatrices) pack(m, draw, &tensors);
  json model = SmallConfig();
  model["quantization_config"] = config;
  const TestFolder folder;
  WriteFolder(folder, model, tensors);
  const QuantizedUse use = {.activations = true, .kv = QuantizedUse::Kv::kAsCheckpoint};
  const auto imported = ImportHuggingFace(folder.path(), nullptr, {}, DecoderForm::kServed, use);
  EXPECT_TRUE(imported.ok()) << imported.status();
}

}  // namespace
}  // namespace llmc
