// Whole folders: that of the shipped model, quantized and decoded, must stay nearly the same model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "files/temporary_folder.h"
#include "frontend/formats/safetensors.h"
#include "frontend/import.h"
#include "quantize/quantize.h"
#include "runtime/engine/perplexity.h"
#include "runtime/host/host_executor.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const std::string kFolder = LLMC_TEST_DATA "/tale-7m";

// What is behind them need not run.
const std::string kFirstLayers = "layers.0.*|layers.1.*=";

// Ids that follow each other as in no text, but the same ones for all.
std::vector<int32_t> Ids(int64_t count, int32_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * i * 37 + i * 11 + seed) % 4000 + 20));
  return ids;
}

double LossOf(const std::string& folder) {
  const std::unique_ptr<Model> model = ImportHuggingFace(folder).value();
  const std::unique_ptr<Executor> executor = NewHostExecutor(model.get(), {}).value();
  return Perplexity(executor.get(), Ids(128, 1), {.window = 64}).value().mean_log_loss;
}

class QuantizeFolderTest : public testing::Test {
 protected:
  QuantizeRequest Request(const std::string& scheme, const std::string& name, bool calibrated = false) const {
    QuantizeRequest request{.folder = kFolder, .output = folder_.PathOf(name)};
    request.rules = ParseSchemeRules(scheme).value();
    if (calibrated) request.samples = {Ids(64, 5), Ids(64, 1000)};
    return request;
  }
  const TemporaryFolder folder_ = TemporaryFolder::Create().value();
};

TEST_F(QuantizeFolderTest, FactorsOfChannelsLeaveTheModelAsItWas) {
  const double before = LossOf(kFolder);
  for (const std::string scheme : {"int8:g32:awq", "smoothquant"}) {
    QuantizeRequest request = Request(kFirstLayers + scheme, scheme, /*calibrated=*/true);
    request.decoded = DType::kF32;
    const QuantizeReport report = QuantizeFolder(request).value();
    EXPECT_NEAR(LossOf(request.output), before, 0.005 * before) << scheme;
    if (scheme != "smoothquant") continue;
    const Checkpoint was = ReadCheckpoint(kFolder).value(), is = ReadCheckpoint(request.output).value();
    const std::string norm = "model.layers.0.input_layernorm.weight";
    EXPECT_NE(was.at(norm).tensor.ToFloats(), is.at(norm).tensor.ToFloats()) << "nothing was folded";
    EXPECT_EQ(was.at("model.norm.weight").tensor.ToFloats(), is.at("model.norm.weight").tensor.ToFloats());
    EXPECT_EQ(report.modules.size(), 14u);
    EXPECT_EQ(report.left_out.size(), 43u);
  }
}

TEST_F(QuantizeFolderTest, MethodsChangeOutputsLessThanRoundingToNearest) {
  for (const std::string scheme : {"gptq", "gptq:actorder", "awq"}) {
    const QuantizeRequest request = Request(kFirstLayers + scheme, scheme, /*calibrated=*/true);
    const QuantizeReport report = QuantizeFolder(request).value();
    double nearest = 0, own = 0;
    for (const QuantizedModule& module : report.modules) {
      ASSERT_TRUE(module.output_error.has_value() && module.nearest_error.has_value());
      nearest += *module.nearest_error;
      own += *module.output_error;
    }
    EXPECT_LT(own, 0.9 * nearest) << scheme;
  }
}

TEST_F(QuantizeFolderTest, FilesAreWholeAndOfTheirTypes) {
  const QuantizeReport report = QuantizeFolder(Request("down_proj=fp8-static,*=int4:g64", "mixed", true)).value();
  const std::string output = folder_.PathOf("mixed");
  const NamedTensors tensors = ReadSafetensors(output + "/model.safetensors").value();
  EXPECT_EQ(tensors.at("model.layers.0.mlp.down_proj.weight").dtype(), DType::kF8E4M3);
  EXPECT_EQ(tensors.at("model.layers.0.mlp.down_proj.input_scale").shape(), Shape{1});
  EXPECT_GT(tensors.at("model.layers.0.mlp.down_proj.input_scale").GetFloat(0), 0);
  EXPECT_EQ(tensors.at("model.layers.3.self_attn.q_proj.weight_packed").shape(), (Shape{256, 32}));
  EXPECT_FALSE(tensors.contains("model.layers.3.self_attn.q_proj.weight"));
  EXPECT_TRUE(fs::exists(output + "/tokenizer.json"));
  EXPECT_FALSE(fs::exists(output + "/model.safetensors.index.json"));
  std::ifstream file(output + "/config.json");
  const nlohmann::json config = nlohmann::json::parse(file);
  EXPECT_EQ(config["quantization_config"]["format"], "mixed-precision");
  EXPECT_EQ(config["model_type"], "llama");
  ASSERT_EQ(report.left_out.size(), 1u);
  EXPECT_EQ(report.left_out[0].first, "lm_head");
}

TEST_F(QuantizeFolderTest, LayersThatBecomeOneShareTheirOuterScale) {
  const QuantizeRequest request = Request("layers.0.*=nvfp4", "nvfp4");
  ASSERT_TRUE(QuantizeFolder(request).ok());
  const Checkpoint checkpoint = ReadCheckpoint(request.output).value();
  const auto scale = [&](const std::string& module) {
    return checkpoint.at("model.layers.0." + module + ".weight_global_scale").tensor.ToFloats();
  };
  EXPECT_EQ(scale("self_attn.q_proj"), scale("self_attn.k_proj"));
  EXPECT_EQ(scale("self_attn.q_proj"), scale("self_attn.v_proj"));
  EXPECT_EQ(scale("mlp.gate_proj"), scale("mlp.up_proj"));
  EXPECT_NE(scale("self_attn.q_proj"), scale("self_attn.o_proj"));
  EXPECT_NE(scale("mlp.gate_proj"), scale("mlp.down_proj"));
}

TEST_F(QuantizeFolderTest, ScalesOfKeysAndValues) {
  QuantizeRequest request = Request(kFirstLayers + "int8", "kv", /*calibrated=*/true);
  request.kv_scales = true;
  ASSERT_TRUE(QuantizeFolder(request).ok());
  const NamedTensors tensors = ReadSafetensors(request.output + "/model.safetensors").value();
  for (const char* name : {"k_scale", "v_scale"}) {
    const double scale = tensors.at(std::string("model.layers.7.self_attn.") + name).GetFloat(0);
    EXPECT_GT(scale, 1e-4) << name;
    EXPECT_LT(scale, 1) << name;
  }
}

TEST_F(QuantizeFolderTest, ErrorsLeaveNothingBehind) {
  const auto error = [&](const QuantizeRequest& request) {
    const absl::StatusOr<QuantizeReport> report = QuantizeFolder(request);
    EXPECT_TRUE(fs::is_empty(folder_.path())) << "something is left of " << request.output;
    return std::string(report.status().message());
  };
  EXPECT_THAT(error(Request("gptq", "a")), HasSubstr("needs a calibration text: give --calibration=FILE"));
  EXPECT_THAT(error(Request("x_proj=int4,*=int8", "a")),
              HasSubstr("no linear layer is called 'x_proj'; their names end in"));
  EXPECT_THAT(error(Request("int4:g96", "a")), HasSubstr("rows of 256 are no whole groups of 96"));
  EXPECT_THAT(error(Request("q_proj=nf4,*=int4", "a")), HasSubstr("one folder cannot hold both"));
  EXPECT_THAT(error(Request("none", "a")), HasSubstr("no layer would be quantized"));
  QuantizeRequest request = Request("int4", "a");
  request.ignore = {"*"};
  EXPECT_THAT(error(request), HasSubstr("no layer would be quantized"));
  request = Request("int4", "a", /*calibrated=*/true);
  request.samples = {Ids(4096, 0)};
  EXPECT_THAT(error(request), HasSubstr("a context of 2048"));
  request = Request("int4", "a");
  request.output = folder_.path() + "/no/such/folder";
  EXPECT_THAT(error(request), HasSubstr("cannot be made"));
}

TEST_F(QuantizeFolderTest, RefusesWhatIsThereAndWhatIsQuantized) {
  ASSERT_TRUE(QuantizeFolder(Request("int8", "once")).ok());
  EXPECT_THAT(std::string(QuantizeFolder(Request("int8", "once")).status().message()), HasSubstr("is there already"));
  QuantizeRequest again = Request("int8", "twice");
  again.folder = folder_.PathOf("once");
  EXPECT_THAT(std::string(QuantizeFolder(again).status().message()), HasSubstr("is quantized already"));
}

}  // namespace
}  // namespace llmc
