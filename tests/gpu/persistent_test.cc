// Decode steps whose tasks are one persistent launch give the tokens that launches of each task give.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/plan/plan.h"
#include "tests/gpu/device_check.h"
#include "tests/shared_data.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

std::string Compile(const std::string& model, const std::string& steps) {
  const std::string path = TempFolder() + "/persistent-" + steps + ".bin";
  const CommandResult compiled =
      RunLlmc({"compile", model, "-o", path, "--target", TargetHere().name, "--no-tune", "--steps", steps});
  EXPECT_EQ(compiled.exit_code, 0) << compiled.err;
  return path;
}

std::string Tokens(const std::string& plan, const std::string& prompt, const std::vector<std::string>& more = {}) {
  std::vector<std::string> command = {"generate",         plan, "--device=cuda", "--prompt-ids",  prompt,
                                      "--max-new-tokens", "48", "--ignore-eos",  "--temperature", "0"};
  command.insert(command.end(), more.begin(), more.end());
  const CommandResult result = RunLlmc(command);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

int TasksInRuns(const std::string& path) {
  const auto plan = Plan::Load(path);
  EXPECT_TRUE(plan.ok()) << plan.status();
  int tasks = 0;
  for (const plan::Program& program : (*plan)->manifest().programs()) {
    for (const plan::Run& run : program.runs()) tasks += static_cast<int>(run.count());
  }
  return tasks;
}

class Persistent : public testing::TestWithParam<const char*> {};

TEST_P(Persistent, TokensAreThoseOfLaunches) {
  LLMC_NEEDS_GPU();
  if (!FindTarget(TargetHere().name)->bulk_copies) GTEST_SKIP() << "persistent launches need bulk copies";
  const std::string models = SharedData("tiny-models");
  if (models.empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::string model = models + "/" + GetParam();
  const std::string launches = Compile(model, "launches"), persistent = Compile(model, "persistent");
  EXPECT_EQ(TasksInRuns(launches), 0);
  EXPECT_GE(TasksInRuns(persistent), 6) << "in two layers, a product, attention and a product follow each other";
  for (const char* prompt : {"1", "1,5,9,2,7", "3,1,4,1,5,9,2,6,5,3,5,8,9,7,9,3,2,3,8,4,6,2,6,4,3,3,8,3,2,7"}) {
    EXPECT_EQ(Tokens(persistent, prompt), Tokens(launches, prompt)) << prompt;
  }
  // Each task by itself, from the same plan.
  EXPECT_EQ(Tokens(persistent, "1,5,9,2,7", {"--check-kernels"}), Tokens(launches, "1,5,9,2,7"));
}

INSTANTIATE_TEST_SUITE_P(Models, Persistent,
                         testing::Values("llama-gqa", "llama-tied-bias", "qwen2-bias", "qwen3", "phi3", "gemma2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace llmc
