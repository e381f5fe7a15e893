// llmc bench on a small model: every number that docs/performance.md is made from is there and has its size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace llmc
