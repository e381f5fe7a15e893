// Decode steps as captured graphs, what traces show of them, and what a device error of the device says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "ir/text.h"
#include "runtime/device/cuda_executor.h"
#include "runtime/device/cuda_run.h"
#include "runtime/device/trace.h"
#include "runtime/engine/engine.h"
#include "runtime/host/host_tensors.h"
#include "tests/gpu/device_check.h"
#include "tests/runtime/plan_bytes.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

// For each step that the host submitted, in order, how often each other call was made in it.
std::vector<std::map<std::string, int>> CallsOfSteps(const Trace& trace) {
  const nlohmann::json json = nlohmann::json::parse(trace.ToJson());
  std::vector<std::map<std::string, int>> steps;
  std::map<std::string, int> calls;  // a span comes after those in it
  for (const nlohmann::json& event : json["traceEvents"]) {
    if (event["ph"] != "X" || event["tid"] != 0) continue;
    if (event["name"] == "submit a step") {
      steps.push_back(std::move(calls));
      calls.clear();
    } else if (event["name"] != "collect a step") {
      ++calls[event["name"]];
    }
  }
  return steps;
}

class GraphsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    LLMC_NEEDS_GPU();
    const std::string path = TempFolder() + "/graphs.bin";
    const CommandResult compiled =
        RunLlmc({"compile", ShippedModel(), "-o", path, "--target", TargetHere().name, "--no-tune"});
    ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
    auto plan = Plan::Load(path);
    ASSERT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
  }

  // Three requests of one prompt's length, which start together.
  void Generate(CudaExecutorOptions options) {
    options.trace = &trace_;
    auto executor = CudaExecutor::Create(plan_.get(), options);
    ASSERT_TRUE(executor.ok()) << executor.status();
    auto engine = Engine::Create(executor->get(), nullptr, {.max_tokens_per_step = 256, .max_sequences = 3});
    ASSERT_TRUE(engine.ok()) << engine.status();
    for (int i = 0; i < 3; ++i) {
      Request request{.prompt_ids = std::vector<int32_t>(16, 100 + i), .max_new_tokens = 24, .ignore_eos = true};
      ASSERT_TRUE((*engine)->AddRequest(std::move(request), nullptr).ok());
    }
    const absl::Status status = (*engine)->RunUntilIdle();
    ASSERT_TRUE(status.ok()) << status;
    steps_ = CallsOfSteps(trace_);
  }

  const std::map<std::string, int> one_graph_ = {{"cuGraphLaunch", 1}};
  std::unique_ptr<Plan> plan_;
  Trace trace_{/*kernels=*/false};
  std::vector<std::map<std::string, int>> steps_;
};

TEST_F(GraphsTest, ADecodeStepIsOneLaunch) {
  Generate({});
  ASSERT_GE(steps_.size(), 24u);
  EXPECT_GT(steps_[0].count("cuLaunchKernelEx"), 0u) << "the prompts";
  EXPECT_GT(steps_[1].count("cuLaunchKernelEx"), 0u) << "the step that is captured";
  for (size_t i = 2; i < steps_.size(); ++i) EXPECT_EQ(steps_[i], one_graph_) << "step " << i;
}

TEST_F(GraphsTest, CapturedAtStart) {
  Generate({.capture_at_start = true});
  ASSERT_GE(steps_.size(), 24u);
  EXPECT_GT(steps_[0].count("cuLaunchKernelEx"), 0u) << "the prompts";
  for (size_t i = 1; i < steps_.size(); ++i) EXPECT_EQ(steps_[i], one_graph_) << "step " << i;
}

TEST_F(GraphsTest, NotWhereKernelsAreChecked) {
  Generate({.check_kernels = true});
  ASSERT_GE(steps_.size(), 24u);
  for (const auto& calls : steps_) {
    EXPECT_EQ(calls.count("cuGraphLaunch"), 0u);
    EXPECT_GT(calls.count("cuLaunchKernelEx"), 0u);
  }
}

// The error of a run of "%a = exp, %b = rms_norm, %c = cumsum", whose norm traps.
std::string ErrorOfTrap(bool check_kernels) {
  absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(R"(model m
step main(%x: f32[40, 64], %w: f32[64]) {
  %a = exp %x
  %b = rms_norm %a, %w loc "model.norm"
  %c = cumsum %b {axis = 0}
  return "c" = %c
}
)",
                                                            "m.lir");
  if (!model.ok()) return std::string(model.status().message());
  const std::string path = TempFolder() + "/trap.bin";
  const absl::Status written = WritePlan(**model, {.compiler_version = "test", .targets = {TargetHere()}}, path);
  if (!written.ok()) return std::string(written.message());
  std::stringstream file;
  file << std::ifstream(path, std::ios::binary).rdbuf();
  // Kernels are compiled from their sources, where the call of the norm is a trap of the same length.
  std::vector<PlanPart> parts = PartsOfFile(AlteredPlan(file.str(), [](plan::Manifest* m) {
    for (plan::Kernel& kernel : *m->mutable_kernels()) kernel.clear_cubins();
  }));
  for (PlanPart& part : parts) {
    const size_t begin = part.contents.find("  llmc::RmsNorm<Config>(");
    if (begin == std::string::npos) continue;
    std::string trap = "  asm volatile(\"trap;\");";
    trap.resize(part.contents.find('\n', begin) - begin, ' ');
    part.contents.replace(begin, trap.size(), trap);
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc) << Assemble(parts);
  const auto plan = Plan::Load(path);
  if (!plan.ok()) return std::string(plan.status().message());
  const auto run = CudaRun::Create(plan->get(), {.check_kernels = check_kernels});
  if (!run.ok()) return std::string(run.status().message());
  const NamedHostTensors inputs = {{"x", ToHostTensor(RandomFloats(DType::kF32, {40, 64}, 1))},
                                   {"w", ToHostTensor(RandomFloats(DType::kF32, {64}, 2))}};
  return std::string((*run)->Run(inputs).status().message());
}

// In processes of their own: after a trap the GPU runs nothing more for its process.
TEST(DeviceErrors, NameTheirOpIfKernelsAreChecked) {
  LLMC_NEEDS_GPU();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto print_and_exit = [](bool check_kernels) {
    std::fprintf(stderr, "%s\n", ErrorOfTrap(check_kernels).c_str());
    std::exit(0);
  };
  EXPECT_EXIT(print_and_exit(true), ::testing::ExitedWithCode(0),
              ::testing::AllOf(HasSubstr("at: %b = rms_norm %a, %w"), HasSubstr("model.norm")));
  EXPECT_EXIT(print_and_exit(false), ::testing::ExitedWithCode(0), HasSubstr("run again with --check-kernels"));
}

}  // namespace
}  // namespace llmc
