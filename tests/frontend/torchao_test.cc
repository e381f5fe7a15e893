// torchao's tensors in safetensors: small models packed here beside the same model in plain floats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "ir/tensor.h"
#include "tests/frontend/packed_model.h"
#include "tests/frontend/small_forward.h"

namespace llmc {
namespace {

json OfClass(const char* name, json data) { return {{"_type", name}, {"_version", 2}, {"_data", std::move(data)}}; }
json Config(json type) { return {{"quant_method", "torchao"}, {"quant_type", {{"default", std::move(type)}}}}; }
json Named(const char* type, const char* value) { return {{"_type", type}, {"_data", value}}; }
json OfGranularity(const char* name, json data = json::object()) { return OfClass(name, std::move(data)); }

// Codes of a byte with a scale for each `rows` x `columns` numbers, and zero points of up to `zeros`.
struct Runs {
  DType codes = DType::kI8;
  int64_t rows = 1, columns = 0;  // 0: all of them
  int64_t limit = 128;
  int64_t zeros = 0;
};

std::vector<float> PackBytes(const Runs& runs, const Matrix& m, Draw& draw, NamedTensors* t) {
  const int64_t rows = runs.rows > 0 ? runs.rows : m.out, columns = runs.columns > 0 ? runs.columns : m.in;
  const Shape parts = {(m.out + rows - 1) / rows, (m.in + columns - 1) / columns};
  Tensor codes(runs.codes, {m.out, m.in}), scale(DType::kF32, parts), zero(DType::kI8, parts);
  const bool is_float = runs.codes == DType::kF8E4M3;
  for (int64_t i = 0; i < scale.size(); ++i) {
    scale.SetFloat(i, draw.Scale() * (is_float ? 0.5f : 8.0f / static_cast<float>(runs.limit)));
    if (runs.zeros > 0) zero.SetInt(i, draw.Below(2 * runs.zeros) - runs.zeros);
  }
  std::vector<float> numbers;
  for (int64_t i = 0; i < codes.size(); ++i) {
    if (is_float) {
      codes.SetFloat(i, static_cast<float>(draw.Below(33) - 16) / 8);
    } else {
      codes.SetInt(i, draw.Below(2 * runs.limit) - runs.limit);
    }
    const int64_t part = i / m.in / rows * parts[1] + i % m.in / columns;
    const double code = is_float ? codes.GetFloat(i) : static_cast<double>(codes.GetInt(i) - zero.GetInt(part));
    numbers.push_back(static_cast<float>(code) * static_cast<float>(scale.GetFloat(part)));
  }
  (*t)[m.module + "._weight_qdata"] = codes;
  (*t)[m.module + "._weight_scale"] = scale;
  if (!is_float) (*t)[m.module + "._weight_zero_point"] = zero;
  return numbers;
}

std::string Agrees(const json& type, const Runs& runs) {
  SCOPED_TRACE(type.dump());
  return ExpectSameNumbers(Config(type),
                           [&](const Matrix& m, Draw& draw, NamedTensors* t) { return PackBytes(runs, m, draw, t); });
}

TEST(QuantizedTorchao, IntegersOfAllGranularities) {
  const auto config = [](const json& granularity) {
    return OfClass("Int8WeightOnlyConfig", {{"group_size", nullptr}, {"granularity", granularity}});
  };
  EXPECT_EQ(Agrees(config(OfGranularity("PerRow", {{"dim", -1}})), {}), "int8 per=channel scale=f32");
  EXPECT_EQ(Agrees(config(OfGranularity("PerTensor")), {.rows = 0}), "int8 per=tensor scale=f32");
  EXPECT_EQ(Agrees(config(OfGranularity("PerGroup", {{"group_size", 32}})), {.columns = 32}),
            "int8 group=32 scale=f32");
  const json with_inputs =
      OfClass("Int8DynamicActivationInt8WeightConfig", {{"act_mapping_type", Named("MappingType", "SYMMETRIC")},
                                                        {"granularity", OfGranularity("PerRow", {{"dim", -1}})}});
  EXPECT_EQ(Agrees(with_inputs, {}), "int8 per=channel scale=f32");
}

// The logits with inputs quantized, too, against loops with the same weights in floats.
void ExpectInputsAs(const json& type, const Runs& weights, const SmallForward::Inputs& inputs) {
  SCOPED_TRACE(type.dump());
  const TestFolder folder;
  const NamedTensors plain = WritePacked(
      Config(type), [&](const Matrix& m, Draw& draw, NamedTensors* t) { return PackBytes(weights, m, draw, t); },
      folder);
  std::unique_ptr<Model> model;
  const auto actual = LogitsOf(folder.path(), &model, {.activations = true});
  ASSERT_TRUE(actual.ok()) << actual.status();
  const std::vector<float> expected = SmallForward(plain, inputs).Logits(kIds),
                           floats = SmallForward(plain, [](auto row) { return row; }).Logits(kIds);
  ASSERT_EQ(actual->size(), expected.size());
  double changed = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR((*actual)[i], expected[i], 2e-5) << i;
    changed = std::max<double>(changed, std::abs(expected[i] - floats[i]));
  }
  EXPECT_GT(changed, 1e-4) << "the logits say nothing of the inputs";
}

TEST(QuantizedTorchao, InputsHaveTheScalesOfTheirGranularity) {
  const json row = OfGranularity("PerRow", {{"dim", -1}}), tensor = OfGranularity("PerTensor");
  const json integers = OfClass("Int8DynamicActivationInt8WeightConfig", {{"granularity", row}});
  const auto floats = [](const json& inputs, const json& weights) {
    return OfClass("Float8DynamicActivationFloat8WeightConfig", {{"granularity", {inputs, weights}}});
  };
  const auto block = [](int64_t rows) { return OfGranularity("PerBlock", {{"block_size", {rows, 32}}}); };
  const auto in_codes = [](DType dtype, size_t run, float limit) {
    return [=](std::vector<float> x) { return InCodes(dtype, run, limit, std::move(x)); };
  };
  ExpectInputsAs(integers, {}, in_codes(DType::kI8, 0, 127.5));
  ExpectInputsAs(floats(row, row), {.codes = DType::kF8E4M3}, in_codes(DType::kF8E4M3, 0, 448));
  // One scale of all tokens of a step would make them depend on each other: each has one.
  ExpectInputsAs(floats(tensor, tensor), {.codes = DType::kF8E4M3, .rows = 0}, in_codes(DType::kF8E4M3, 0, 448));
  ExpectInputsAs(floats(block(1), block(16)), {.codes = DType::kF8E4M3, .rows = 16, .columns = 32},
                 in_codes(DType::kF8E4M3, 32, 448));
}

TEST(QuantizedTorchao, IntegersOfFewBits) {
  const auto config = [](const char* name, const char* type, const char* granularity) {
    return OfClass(name, {{"weight_dtype", Named("torch.dtype", type)},
                          {granularity, OfGranularity("PerGroup", {{"group_size", 32}})},
                          {"intx_packing_format", Named("IntxPackingFormat", "UNPACKED_TO_INT8")}});
  };
  EXPECT_EQ(Agrees(config("IntxWeightOnlyConfig", "int4", "granularity"), {.columns = 32, .limit = 8}),
            "int4 group=32 scale=f32");
  EXPECT_EQ(Agrees(config("IntxWeightOnlyConfig", "int4", "granularity"), {.columns = 32, .limit = 8, .zeros = 8}),
            "int4 group=32 scale=f32 zero=i8");
  EXPECT_EQ(Agrees(config("IntxWeightOnlyConfig", "int6", "granularity"), {.columns = 32, .limit = 32}),
            "int8 group=32 scale=f32");
  EXPECT_EQ(Agrees(config("Int8DynamicActivationIntxWeightConfig", "int4", "weight_granularity"),
                   {.columns = 32, .limit = 8}),
            "int4 group=32 scale=f32");
}

TEST(QuantizedTorchao, FloatsOfAllGranularities) {
  const json row = OfGranularity("PerRow", {{"dim", -1}}), tensor = OfGranularity("PerTensor");
  const auto both = [](const json& inputs, const json& weights) {
    return OfClass("Float8DynamicActivationFloat8WeightConfig",
                   {{"weight_dtype", Named("torch.dtype", "float8_e4m3fn")},
                    {"granularity", {inputs, weights}},
                    {"packing_format", Named("Float8PackingFormat", "PLAIN")}});
  };
  const auto block = [](int64_t rows, int64_t columns) {
    return OfGranularity("PerBlock", {{"block_size", {rows, columns}}});
  };
  const Runs floats = {.codes = DType::kF8E4M3};
  EXPECT_EQ(Agrees(OfClass("Float8WeightOnlyConfig", {{"granularity", row}}), floats), "f8e4m3 per=channel scale=f32");
  EXPECT_EQ(Agrees(OfClass("Float8WeightOnlyConfig", json::object()), floats), "f8e4m3 per=channel scale=f32");
  EXPECT_EQ(Agrees(both(row, row), floats), "f8e4m3 per=channel scale=f32");
  EXPECT_EQ(Agrees(both(tensor, tensor), {.codes = DType::kF8E4M3, .rows = 0}), "f8e4m3 per=tensor scale=f32");
  EXPECT_EQ(Agrees(both(block(1, 32), block(16, 32)), {.codes = DType::kF8E4M3, .rows = 16, .columns = 32}),
            "f8e4m3 block=16x32 scale=f32");
}

// Two signed codes a byte, scales and what is added in columns.
TEST(QuantizedTorchao, PackedIntegers) {
  constexpr int64_t kGroup = 32;
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    Tensor codes(DType::kU8, {m.out, m.in / 2});
    Tensor scale(DType::kF32, {m.in / kGroup, m.out}), added(DType::kF32, {m.in / kGroup, m.out});
    for (int64_t i = 0; i < scale.size(); ++i) {
      scale.SetFloat(i, draw.Scale());
      added.SetFloat(i, draw.Scale() * static_cast<float>(draw.Below(5) - 2));
    }
    std::vector<float> numbers;
    for (int64_t i = 0; i < m.out * m.in; ++i) {
      const int64_t code = draw.Below(16), part = i % m.in / kGroup * m.out + i / m.in;
      codes.SetInt(i / 2, i % 2 == 0 ? code : codes.GetInt(i / 2) + 16 * code);
      const auto number = static_cast<float>(code < 8 ? code : code - 16);
      numbers.push_back(number * static_cast<float>(scale.GetFloat(part)) + static_cast<float>(added.GetFloat(part)));
    }
    (*t)[m.module + "._weight_qdata"] = codes;
    (*t)[m.module + "._weight_scale"] = scale;
    (*t)[m.module + "._weight_zero_point"] = added;
    return numbers;
  };
  const json plain = OfClass("Int4WeightOnlyConfig",
                             {{"group_size", kGroup}, {"int4_packing_format", Named("Int4PackingFormat", "PLAIN")}});
  EXPECT_EQ(ExpectSameNumbers(Config(plain), pack), "uint4 group=32 scale=f32 zero=f32");
}

// Names come before patterns, which must be of the whole name; null leaves floats.
TEST(QuantizedTorchao, ModulesByNameAndPattern) {
  const json eight = OfClass("Int8WeightOnlyConfig", {{"granularity", OfGranularity("PerRow")}});
  const json floats = OfClass("Float8WeightOnlyConfig", {{"granularity", OfGranularity("PerRow")}});
  const auto config = [&](const json& modules) {
    return Config(OfClass("FqnToConfig", {{"fqn_to_config", modules}, {"module_fqn_to_config", modules}}));
  };
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    if (m.module.ends_with("q_proj")) return PackBytes({.codes = DType::kF8E4M3}, m, draw, t);
    const std::vector<float> numbers = PackBytes({}, m, draw, t);
    if (!m.module.ends_with("o_proj")) return numbers;
    for (const char* part : {"qdata", "scale", "zero_point"}) t->erase(absl::StrCat(m.module, "._weight_", part));
    (*t)[m.module + ".weight"] = Tensor::FromValues(DType::kF32, {m.out, m.in}, numbers);
    return numbers;
  };
  const json modules = {{"model.layers.0.self_attn.q_proj", floats},
                        {"re:.*self_attn\\.o_proj", nullptr},
                        {"re:.*_norm", nullptr},
                        {"re:.*self_attn", floats},
                        {"re:.*q_proj", eight},
                        {"re:.*k_proj.weight", eight},
                        {"_default", eight}};
  EXPECT_EQ(ExpectSameNumbers(config(modules), pack), "f8e4m3 per=channel scale=f32");
}

// The import of a model whose matrices are packed so.
absl::Status StatusOf(const json& type, const Runs& runs, const std::string& part = "") {
  NamedTensors tensors;
  AddUnquantized(&tensors);
  Draw draw(17);
  for (const Matrix& m : kMatrices) PackBytes(runs, m, draw, &tensors);
  if (!part.empty())
    tensors[kMatrices[0].module + part] = Tensor::FromValues(DType::kF32, {}, std::vector<double>{0.5});
  json config = SmallConfig();
  config["quantization_config"] = Config(type);
  const TestFolder folder;
  WriteFolder(folder, config, tensors);
  return ImportHuggingFace(folder.path()).status();
}

TEST(QuantizedTorchao, ComplaintsNameTheModule) {
  const json four = OfClass("IntxWeightOnlyConfig", {{"weight_dtype", Named("torch.dtype", "int4")},
                                                     {"granularity", OfGranularity("PerAxis")}});
  EXPECT_THAT(std::string(StatusOf(four, {}).message()), testing::HasSubstr("has numbers of more than 4 bits"));
  const json eight = OfClass("Int8WeightOnlyConfig", {{"granularity", OfGranularity("PerRow")}});
  const json both = OfClass("FqnToConfig", {{"fqn_to_config", {{"re:.*proj", eight}, {"re:.*k_proj", four}}}});
  const std::string message(StatusOf(both, {.limit = 8}).message());
  EXPECT_THAT(message, testing::HasSubstr("k_proj._weight_qdata is of the patterns"));
  EXPECT_THAT(message, testing::HasSubstr("which say different things"));
  EXPECT_THAT(message, testing::Not(testing::HasSubstr("q_proj")));
}

// Of inputs whose scales are in the checkpoint.
TEST(QuantizedTorchao, StaticInputsAreRefused) {
  const json row = OfGranularity("PerRow", {{"dim", -1}});
  for (const char* name : {"Int8StaticActivationInt8WeightConfig", "Float8StaticActivationFloat8WeightConfig"}) {
    const std::string message(StatusOf(OfClass(name, {{"granularity", row}}), {}).message());
    EXPECT_THAT(message, testing::HasSubstr(absl::StrCat("\"", name, "\" is not supported; supported: Int8")));
  }
  const json weights = OfClass("Int8WeightOnlyConfig", {{"granularity", row}});
  for (const char* part : {"._weight_act_quant_scale", "._weight_act_quant_zero_point", "._weight_act_pre_scale"}) {
    const absl::Status status = StatusOf(weights, {}, part);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(absl::StrCat("q_proj", part)));
  }
}

// An expert whose zero points are all 0 is stored as the others are; elsewhere none are stored then.
TEST(QuantizedTorchao, ZeroPointsThatAreAllZero) {
  const json asymmetric = OfClass("IntxWeightOnlyConfig", {{"weight_dtype", Named("torch.dtype", "int4")},
                                                           {"granularity", OfGranularity("PerAxis")},
                                                           {"mapping_type", Named("MappingType", "ASYMMETRIC")}});
  EXPECT_EQ(Agrees(asymmetric, {.limit = 8}), "int4 per=channel scale=f32");
}

}  // namespace
}  // namespace llmc
