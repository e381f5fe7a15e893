// What `llmc check` says of quantized folders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

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
}

}  // namespace
}  // namespace llmc
