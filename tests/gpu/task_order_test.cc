// Tasks in other orders than the plan's: every order that Task.after allows gives the same tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <vector>

#include "absl/strings/str_replace.h"
#include "tests/gpu/device_check.h"
#include "tests/runtime/plan_bytes.h"
#include "tests/shared_data.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

// Tasks in a random order that `after` allows, each a launch of its own that begins when all before have ended.
void Shuffle(std::mt19937* random, plan::Program* program) {
  const plan::Program old = *program;
  std::vector<uint32_t> number(static_cast<size_t>(old.tasks_size()));  // new, by old
  std::vector<bool> done(number.size());
  program->clear_tasks();
  while (program->tasks_size() < old.tasks_size()) {
    std::vector<int> ready;
    for (int i = 0; i < old.tasks_size(); ++i) {
      const auto& after = old.tasks(i).after();
      if (!done[i] && std::all_of(after.begin(), after.end(), [&](uint32_t before) { return done[before]; })) {
        ready.push_back(i);
      }
    }
    const int next = ready[(*random)() % ready.size()];
    done[next] = true;
    number[next] = static_cast<uint32_t>(program->tasks_size());
    plan::Task* task = program->add_tasks();
    *task = old.tasks(next);
    for (uint32_t& before : *task->mutable_after()) before = number[before];
    std::sort(task->mutable_after()->begin(), task->mutable_after()->end());
  }
  for (plan::Launch& launch : *program->mutable_launches()) launch.set_mode(plan::Launch::SERIAL);
}

TEST(TaskOrder, EveryOrderThatBytesAllowGivesTheSame) {
  LLMC_NEEDS_GPU();
  const std::string models = SharedData("tiny-models"), path = TempFolder() + "/task-order.bin";
  if (models.empty()) GTEST_SKIP() << "the shared test data is not there";
  // Its queries, keys and values go different ways between the product and attention, if their norms cannot be one op.
  const CommandResult dump = RunLlmc({"opt", models + "/qwen3", "--stop-after=paginate"});
  ASSERT_EQ(dump.exit_code, 0) << dump.err;
  const std::string edited = TempFolder() + "/task-order.lir";
  std::ofstream(edited) << absl::StrReplaceAll(dump.out, {{"k_norm {eps = 1e-06}", "k_norm {eps = 2e-06}"}});
  const CommandResult compiled = RunLlmc({"compile", edited, "--weights-folder", models + "/qwen3", "-o", path,
                                          "--target", TargetHere().name, "--no-tune"});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  const auto tokens = [&path] {
    const CommandResult result = RunLlmc({"generate", path, "--device=cuda", "--prompt-ids", "1,5,9,2,7",
                                          "--max-new-tokens", "48", "--ignore-eos", "--temperature", "0"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string expected = tokens(), bytes = ReadFile(path);
  std::mt19937 random(3);
  int moved = 0;
  for (int round = 0; round < 3; ++round) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << AlteredPlan(bytes, [&](plan::Manifest* manifest) {
      for (const uint32_t index : manifest->targets(0).programs()) {
        plan::Program* program = manifest->mutable_programs(static_cast<int>(index));
        const plan::Program old = *program;
        Shuffle(&random, program);
        for (int i = 0; i < old.tasks_size(); ++i) moved += program->tasks(i).label() != old.tasks(i).label() ? 1 : 0;
      }
    });
    EXPECT_EQ(tokens(), expected) << "round " << round;
  }
  EXPECT_GT(moved, 0) << "there was but one order";
}

}  // namespace
}  // namespace llmc
