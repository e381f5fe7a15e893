// llmc bench on a small model: every number that docs/performance.md is made from is there and has its size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/gpu/device_check.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

using testing::HasSubstr;

TEST(Bench, TimesStepsWithSamplingAndWithout) {
  LLMC_NEEDS_GPU();
  const CommandResult result = RunLlmc({"bench", ShippedModel(), "--batch", "1,4", "--context", "64,4096", "--prompt",
                                        "128", "--sustain", "0.1", "--no-tune", "--profile", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = result.Json();
  EXPECT_EQ(report["weights_from"], "files");
  EXPECT_GT(report["hot_read"]["gb_per_s"], 0);
  EXPECT_GT(report["hot_matrix"]["tflops"], 0);
  ASSERT_EQ(report["decode"].size(), 4U);
  for (const nlohmann::json& row : report["decode"]) {
    SCOPED_TRACE(row.dump());
    if (row["context"] == 4096) {
      EXPECT_THAT(row["left_out"].get<std::string>(), HasSubstr("more than the model's context of 2048"));
      continue;
    }
    const double step = row["median_us"], greedy = row["greedy_us"], drawn = row["drawn_us"];
    EXPECT_GT(step, 0);
    EXPECT_GT(greedy, step * 0.9) << "the same step, and more";
    EXPECT_GT(drawn, step * 0.9);
    EXPECT_LT(drawn, step + 1000) << "a draw takes microseconds";
    double sum = 0;
    for (const nlohmann::json& kernel : row["profile"]) sum += kernel["us"].get<double>();
    EXPECT_NEAR(sum, row["profile_step_us"], 1e-6);
  }
  ASSERT_EQ(report["prefill"].size(), 1U);
  EXPECT_GT(report["prefill"][0]["median_ms"], 0);
  EXPECT_GT(report["prefill"][0]["hot"]["median_ms"], 0);
  ASSERT_EQ(report["engine"].size(), 1U);
}

// An encoder: its profile is of all of its kernels, and what is left adds up to the run.
TEST(Bench, TimesModelsOverNamedTensors) {
  LLMC_NEEDS_GPU();
  const std::string config = TempFolder() + "/bert";
  std::filesystem::create_directories(config);
  std::ofstream(config + "/config.json") << R"({"architectures": ["BertModel"], "model_type": "bert",
      "hidden_act": "gelu", "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
      "max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
      "position_embedding_type": "absolute", "torch_dtype": "bfloat16", "type_vocab_size": 2, "vocab_size": 30522})";
  const CommandResult result = RunLlmc({"bench", config, "--random-weights", "--dtype=f16", "--dim", "B=2", "--dim",
                                        "L=64", "--sustain", "0.1", "--profile", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = result.Json();
  ASSERT_EQ(report["runs"].size(), 1U);
  const nlohmann::json& run = report["runs"][0];
  SCOPED_TRACE(run.dump());
  EXPECT_EQ(run["dims"], (nlohmann::json{{"B", 2}, {"L", 64}}));
  EXPECT_FALSE(run.contains("no_graph"));
  const double alone = run["gpu"]["median_ms"], with_copies = run["clock"]["median_ms"];
  EXPECT_GT(alone, 0);
  EXPECT_GT(with_copies, alone) << "the same, and copies";
  EXPECT_GT(run["clock_on_device"]["median_ms"].get<double>(), 0.9 * alone) << "the same, and copies on the GPU";
  EXPECT_GT(run["clock_pinned"]["median_ms"].get<double>(), alone);
  EXPECT_GT(run["first_ms"].get<double>(), with_copies) << "no graph, and buffers to allocate";
  // 12 layers of 7.08 million parameters, and the pooler's, for 128 and 2 tokens; attention of 64 keys.
  const double linear = 2e-12 * (12 * 7.078e6 * 128 + 768 * 768 * 2), attention = 4e-12 * 12 * 128 * 64 * 768;
  EXPECT_NEAR(run["tflop"].get<double>(), linear + attention, 0.001 * linear);
  EXPECT_GT(run["weight_bytes"].get<double>(), 2 * 12 * 7.078e6);
  EXPECT_LT(run["of_floor"].get<double>(), 1.0);
  double sum = 0;
  int kernels = 0;
  for (const nlohmann::json& kernel : run["profile"]) {
    sum += kernel["us"].get<double>();
    kernels += kernel.value("count", 0);
  }
  EXPECT_NEAR(sum, run["profile_step_us"], 1e-6);
  EXPECT_GT(kernels, 12 * 5);
}

}  // namespace
}  // namespace llmc
