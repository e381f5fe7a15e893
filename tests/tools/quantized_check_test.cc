// What `llmc check` says of quantized folders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "frontend/formats/safetensors.h"
#include "tests/frontend/packed_model.h"
#include "tests/frontend/test_folder.h"
#include "tests/tools/run_command.h"
#include "tools/quantization_report.h"

namespace llmc {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(QuantizedCheck, SaysHowEachKindOfModuleIsStored) {
  const std::string data = SharedData("quant");
  if (data.empty()) GTEST_SKIP() << "the shared test data is not there";
  const CommandResult text = RunLlmc({"check", data + "/ct-w4a16-g128"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("quantization: compressed-tensors, pack-quantized\n"));
  EXPECT_THAT(text.out, HasSubstr("quantized: model.layers.*.mlp.down_proj (2): int4 group=128 scale=bf16, 4.12 bits"));
  EXPECT_THAT(text.out, testing::Not(HasSubstr("warning")));
  const nlohmann::json json = RunLlmc({"check", data + "/moe-gptq-w4-g64", "--json"}).Json();
  ASSERT_EQ(json["quantized"].size(), 5) << json.dump(1);
  int64_t weights = 0;
  for (const auto& group : json["quantized"]) {
    weights += group["weights"].get<int64_t>();
    EXPECT_GT(group["least_scale"], 0) << group;
    EXPECT_NEAR(group["bits"].get<double>(), 4.25, 0.01) << group;
  }
  // Two layers: attention of 4 and 2 heads of 64, and eight experts of three matrices.
  EXPECT_EQ(weights, 2 * (2 * 256 * 256 + 2 * 128 * 256 + 8 * 3 * 128 * 256));
}

TEST(QuantizedCheck, WarnsOfZeroScales) {
  const std::string data = SharedData("quant");
  if (data.empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::string scale = "model.layers.0.self_attn.q_proj.scales[1, 7] is 0";
  const CommandResult result = RunLlmc({"check", data + "/bad-scale-zero"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("warning: " + scale));
  const CommandResult strict = RunLlmc({"check", data + "/bad-scale-zero", "--strict"});
  EXPECT_EQ(strict.exit_code, 1);
  EXPECT_THAT(strict.err, HasSubstr(scale));
  EXPECT_EQ(RunLlmc({"check", data + "/bad-scale-zero", "--json"}).Json()["ok"], true);
  EXPECT_EQ(RunLlmc({"check", data + "/bad-scale-zero", "--json", "--strict"}).Json()["ok"], false);
}

// ---- layers of a model in FP8 with a scale each --------------------------------------------------------------------

constexpr int kLayers = 4;

NamedTensors Fp8Layers(json* config) {
  NamedTensors tensors;
  AddUnquantized(&tensors);
  Draw draw(5);
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string begin = absl::StrCat("model.layers.", layer, ".");
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) {
      tensors[begin + norm] = tensors[absl::StrCat("model.layers.0.", norm)];
    }
    for (const Matrix& m : kMatrices) {
      const std::string module = absl::StrReplaceAll(m.module, {{"model.layers.0.", begin}});
      Tensor codes(DType::kF8E4M3, {m.out, m.in}), scale(DType::kF32, {1, 1});
      for (int64_t i = 0; i < codes.size(); ++i) codes.SetFloat(i, static_cast<double>(draw.Below(200)) - 100);
      scale.SetFloat(0, 0.001);
      tensors[module + ".weight"] = codes;
      tensors[module + ".weight_scale_inv"] = scale;
    }
  }
  *config = SmallConfig();
  (*config)["num_hidden_layers"] = kLayers;
  (*config)["quantization_config"] = {
      {"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
  return tensors;
}

// What is said of the model with one scale multiplied by `factor`.
std::vector<std::string> WarningsWith(const std::string& module, double factor) {
  json config;
  NamedTensors tensors = Fp8Layers(&config);
  Tensor& scale = tensors.at(module + ".weight_scale_inv");
  scale.SetFloat(0, factor * scale.GetFloat(0));
  const TestFolder folder;
  WriteFolder(folder, config, tensors);
  const CommandResult result = RunLlmc({"check", folder.path(), "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> warnings;
  const json report = result.Json();
  for (const json& finding : report["findings"]) warnings.push_back(finding["message"].get<std::string>());
  return warnings;
}

TEST(QuantizedCheck, NamesTheLayerOfAnotherSize) {
  const std::string module = "model.layers.2.mlp.down_proj";
  EXPECT_THAT(WarningsWith(module, 1), IsEmpty());
  EXPECT_THAT(WarningsWith(module, 10), IsEmpty());
  EXPECT_THAT(WarningsWith(module, 100), ElementsAre(AllOf(HasSubstr(module + ": weights are of size 5.77"),
                                                           HasSubstr("and those of other layers about 0.0"))));
  EXPECT_THAT(WarningsWith(module, 1e-6), ElementsAre(HasSubstr(module + ": weights are of size 5.")));
}

// Of a large model the numbers of the first layers are looked at, and the scales of all.
TEST(QuantizedCheck, ScalesTellTheSizesOfLayersThatAreNotDecoded) {
  json config;
  NamedTensors tensors = Fp8Layers(&config);
  const std::string module = "model.layers.2.mlp.down_proj";
  tensors.at(module + ".weight_scale_inv").SetFloat(0, 0.1);
  const TestFolder folder;
  WriteFolder(folder, config, tensors);
  const absl::StatusOr<std::unique_ptr<Model>> model = ImportHuggingFace(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::StatusOr<QuantizationReport> report = ReportQuantization(**model, {.max_elements = 1});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->groups.size(), 7);
  EXPECT_EQ(report->groups[0].sampled, 1);
  EXPECT_EQ(report->groups[0].most_scale, 0.1f);
  EXPECT_THAT(report->warnings, ElementsAre(HasSubstr(module + ": weights are of size 5.")));
}

TEST(QuantizedCheck, WarnsOfNegativeScales) {
  const std::string module = "model.layers.3.self_attn.k_proj";
  EXPECT_THAT(WarningsWith(module, -1), ElementsAre(HasSubstr(module + ": 1 of 1 scales are negative")));
}

// Of integers some scales may be negative, but not all of many.
TEST(QuantizedCheck, SomeIntegersHaveNegativeScales) {
  for (const bool all : {false, true}) {
    const TestFolder folder;
    WritePacked(
        {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}, {"sym", true}},
        [&](const Matrix& m, Draw& draw, NamedTensors* t) {
          std::vector<float> numbers = PackGptq({.symmetric = true}, m, draw, t);
          Tensor& scales = t->at(m.module + ".scales");
          for (int64_t i = all ? 0 : 1; i < scales.size(); ++i) scales.SetFloat(i, -scales.GetFloat(i));
          return numbers;
        },
        folder);
    const std::string text = RunLlmc({"check", folder.path()}).out;
    EXPECT_THAT(text, HasSubstr("every other tensor is used"));
    const std::string warning = "model.layers.0.mlp.down_proj: 192 of 192 scales are negative";
    EXPECT_THAT(text, all ? testing::Matcher<std::string>(HasSubstr(warning)) : Not(HasSubstr("negative")));
  }
}

// An expert is one of a weight of all of them.
TEST(QuantizedCheck, NamesTheExpertOfAnotherSize) {
  const std::string data = SharedData("quant");
  if (data.empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::string from = data + "/moe-fp8-block128", module = "model.layers.1.mlp.experts.5.up_proj";
  absl::StatusOr<NamedTensors> tensors = ReadSafetensors(from + "/model.safetensors");
  ASSERT_TRUE(tensors.ok());
  Tensor& scale = tensors->at(module + ".weight_scale_inv");
  Tensor larger(scale.dtype(), scale.shape());
  for (int64_t i = 0; i < scale.size(); ++i) larger.SetFloat(i, 100 * scale.GetFloat(i));
  scale = larger;
  const TestFolder folder;
  WriteFolder(folder, json::parse(ReadFile(from + "/config.json")), *tensors);
  EXPECT_THAT(RunLlmc({"check", folder.path()}).out, HasSubstr("warning: " + module + ": weights are of size"));
}

}  // namespace
}  // namespace llmc
