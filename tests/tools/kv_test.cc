// --kv: keys and values that are cached as codes, from the command line to the engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/tools/run_command.h"
#include "tests/tools/serve_plan.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

std::string CompileWith(const std::string& kv, const std::string& target = "host") {
  const std::string plan = TempFolder() + "/kv.bin";
  const CommandResult result =
      RunLlmc({"compile", ShippedModel(), "--dtype=f32", "--target=" + target, "--kv=" + kv, "-o", plan});
  EXPECT_EQ(result.exit_code, 0) << kv << ": " << result.err;
  return plan;
}

// Eight requests at once, which share prefixes, wait for pages and are read in pieces, go on as each alone does.
TEST(Kv, RequestsTogetherGoOnAsAlone) {
  for (const char* kv : {"f8e4m3", "int8", "int4", "f8e4m3:tensor"}) {
    SCOPED_TRACE(kv);
    const std::string plan = CompileWith(kv);
    ExpectTogether(plan, "host", ContinueAlone(plan, "host", EightPrompts(512), 24), 0);
  }
}

// The parts of a record stand in the plan, and it is as small as they are: heads of 32, of which the model has 4.
TEST(Kv, PlansSayWhatIsCached) {
  const nlohmann::json floats = RunLlmc({"show", CompileWith("none"), "--json"}).Json();
  const nlohmann::json bytes = RunLlmc({"show", CompileWith("int8"), "--json"}).Json();
  EXPECT_THAT(bytes["flags"].dump(), HasSubstr("\"--kv=int8\""));
  const std::string text = RunLlmc({"show", CompileWith("int4")}).out;
  EXPECT_THAT(text, HasSubstr("int4"));
  EXPECT_NE(floats["states"].dump(), bytes["states"].dump());
}

// A token takes 28 layers * 8 heads * (keys and values of 128 bytes, with a scale of 4) in place of 2 * 128 * 2 each.
TEST(Kv, MoreTokensFit) {
  const auto fit = [](const std::string& kv) {
    const CommandResult result =
        RunLlmc({"fit", LLMC_TEST_DATA "/../../tools/bench/configs/qwen3-0.6b", "--gpu-memory=8GiB", "--bound", "S=8",
                 "--bound", "T=256", "--kv=" + kv, "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.Json();
  };
  const nlohmann::json floats = fit("none"), bytes = fit("f8e4m3"), four = fit("int4");
  EXPECT_EQ(floats["kv_bytes_per_token"], 28 * 8 * 2 * 256);
  EXPECT_EQ(bytes["kv_bytes_per_token"], 28 * 8 * 2 * (128 + 4));
  EXPECT_EQ(four["kv_bytes_per_token"], 28 * 8 * 2 * (64 + 4 * 2));
  EXPECT_NEAR(bytes["kv_tokens"].get<double>() / floats["kv_tokens"].get<double>(), 256.0 / 132, 0.01);
  EXPECT_NEAR(four["kv_tokens"].get<double>() / floats["kv_tokens"].get<double>(), 256.0 / 72, 0.02);
}

TEST(Kv, WhatIsNoneIsRefused) {
  const auto compile = [](const std::string& kv) {
    return RunLlmc({"compile", ShippedModel(), "--target=host", "-o", TempFolder() + "/none.bin", "--kv=" + kv});
  };
  const CommandResult unknown = compile("fp8");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--kv: 'fp8' is not one of none, f8e4m3, f8e5m2, int8, int4"));
  const CommandResult none = compile("f8e4m3:head");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("for which the model brings none"));
  const CommandResult plan = RunLlmc({"generate", CompileWith("int8"), "--kv=int8", "--prompt", "x"});
  EXPECT_EQ(plan.exit_code, 1);
  EXPECT_THAT(plan.err, HasSubstr("is a plan"));
}

}  // namespace
}  // namespace llmc
