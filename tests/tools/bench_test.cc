// llmc bench: what a step costs, and what is said where there is no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "codegen/plan_writer.h"
#include "tests/tools/run_command.h"
#include "tools/bench_cost.h"
#include "tools/model_source.h"
#include "tools/plan_options.h"

namespace llmc {
namespace {

using testing::HasSubstr;

const std::string kConfigs = LLMC_TEST_DATA "/../../tools/bench/configs/";

plan::Manifest ManifestOf(const std::string& name) {
  const ModelSource source = {.path = kConfigs + name, .random_weights = true};
  Progress progress;
  Ledger ledger;
  const auto model = LoadOptimized(source, {.target = "sm_90a"}, &ledger, &progress);
  EXPECT_TRUE(model.ok()) << model.status();
  auto options = MakePlanOptions(**model, source, {.targets = {"sm_90a"}}, ledger);
  EXPECT_TRUE(options.ok()) << options.status();
  auto manifest = MakeManifest(**model, *options);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return *std::move(manifest);
}

BenchStep StepOf(std::vector<BenchSequence> sequences) {
  const auto count = static_cast<int64_t>(sequences.size());
  int64_t tokens = 0;
  for (const BenchSequence& sequence : sequences) tokens += sequence.tokens;
  return {.dims = {{"T", tokens}, {"S", count}, {"R", count}, {"P", 8192}, {"N", 100000}},
          .sequences = std::move(sequences)};
}

// Computed by hand from the configurations: linear layers, head and KV cache in bf16.
TEST(BenchCost, ADecodeStepReadsWeightsAndCache) {
  struct Expected {
    double gigabytes;         // of the weights of linear layers and head
    double kv_bytes;          // of a token
    double layer_parameters;  // of linear layers, in millions
    double head_parameters;   // in millions
    double attention_width;   // layers * heads * head_dim
  };
  const std::map<std::string, Expected> kExpected = {{"llama-3.2-1b", {2.472, 32 << 10, 973.1, 262.7, 16 * 2048}},
                                                     {"llama-3.1-8b", {15.010, 128 << 10, 6979.3, 525.3, 32 * 4096}},
                                                     {"qwen3-0.6b", {1.192, 112 << 10, 440.4, 155.6, 28 * 2048}},
                                                     {"qwen3-8b", {15.137, 144 << 10, 6945.8, 622.3, 36 * 4096}}};
  for (const auto& [name, expected] : kExpected) {
    SCOPED_TRACE(name);
    const plan::Manifest manifest = ManifestOf(name);
    const plan::Program& one = manifest.programs(0);
    ASSERT_TRUE(one.decode());
    const StepCost cost = CostOf(manifest, one, StepOf({{.position = 999, .tokens = 1}}));
    EXPECT_NEAR(cost.weight_bytes * 1e-9, expected.gigabytes, 0.0015) << "norms and one row of the embedding are extra";
    EXPECT_EQ(cost.kv_bytes, 1001 * expected.kv_bytes) << "1000 tokens are read and one is written";

    const plan::Program& many = manifest.programs(manifest.programs_size() - 2);
    const StepCost batch = CostOf(manifest, many, StepOf(std::vector<BenchSequence>(16, {.position = 99})));
    EXPECT_NEAR(batch.weight_bytes * 1e-9, expected.gigabytes, 0.0015) << "weights are read once";
    EXPECT_EQ(batch.kv_bytes, 16 * 101 * expected.kv_bytes);

    const plan::Program& prompt = manifest.programs(manifest.programs_size() - 1);
    const StepCost prefill = CostOf(manifest, prompt, StepOf({{.position = 0, .tokens = 2048}}));
    const double linear = 2e6 * (expected.layer_parameters * 2048 + expected.head_parameters);
    const double attention = 4 * expected.attention_width * 2048 * 2049 / 2;
    EXPECT_NEAR(prefill.flops, linear + attention, 0.001 * linear);
    EXPECT_EQ(prefill.kv_bytes, 2 * 2048 * expected.kv_bytes);
  }
}

TEST(Bench, SaysWhatItNeeds) {
  const CommandResult result = RunLlmc({"bench", kConfigs + "qwen3-0.6b", "--random-weights", "--json"});
  if (result.exit_code == 0) GTEST_SKIP() << "there is a GPU here";
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.Json()["error"]["code"], "NOT_FOUND");
  EXPECT_THAT(result.err, HasSubstr("NVIDIA"));
  EXPECT_EQ(RunLlmc({"bench", kConfigs + "qwen3-0.6b", "--batch", "0"}).exit_code, 2);
  EXPECT_EQ(RunLlmc({"bench", kConfigs + "qwen3-0.6b", "--batch", "1,x"}).exit_code, 2);
  const CommandResult over = RunLlmc({"bench", kConfigs + "qwen3-0.6b", "--output", TempFolder()});
  EXPECT_EQ(over.exit_code, 1);
  EXPECT_THAT(over.err, HasSubstr("is a folder"));
}

// The table of tools/bench/table.sh, from a report as the command writes it.
TEST(Bench, ReportsBecomeATable) {
  const std::string folder = TempFolder() + "/reports";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/some-model.json")
      << nlohmann::ordered_json{{"gpu", "G"},
                                {"compile_s", 3.25},
                                {"load_s", 0.5},
                                {"decode",
                                 {{{"batch", 1},
                                   {"context", 128},
                                   {"median_us", 1000.4},
                                   {"floor_us", 800.2},
                                   {"of_floor", 0.8},
                                   {"tokens_per_s", 999.6},
                                   {"profile", {{{"kernel", "k"}, {"us", 7}}}}},
                                  {{"batch", 8}, {"context", 128}, {"left_out", "too large"}}}},
                                {"prefill",
                                 {{{"prompt", 512}, {"median_ms", 2.5}, {"tflops", 400.2}, {"of_matrix_rate", 0.5}}}},
                                {"engine", {{{"prompt", 512}, {"first_token_ms", 3.25}, {"token_us", 1100}}}}}
             .dump(2);
  FILE* table = popen((std::string(LLMC_TEST_DATA "/../../tools/bench/table.sh ") + folder).c_str(), "r");
  ASSERT_NE(table, nullptr);
  std::string text;
  for (int c = fgetc(table); c != EOF; c = fgetc(table)) text += static_cast<char>(c);
  EXPECT_EQ(pclose(table), 0);
  EXPECT_THAT(text, HasSubstr("| some-model | 1 | 128 | 1.000 | 0.800 | 80 % | 1000 |"));
  EXPECT_THAT(text, HasSubstr("| some-model | 512 | 2.50 | 400 | 50 % |"));
  EXPECT_THAT(text, HasSubstr("| some-model | 512 | 3.25 | 1.100 |"));
  EXPECT_THAT(text, HasSubstr("| some-model | 3.25 | 0.50 |"));
  EXPECT_THAT(text, testing::Not(HasSubstr("| 8 | 128 |"))) << "what was left out has no row";
}

}  // namespace
}  // namespace llmc
