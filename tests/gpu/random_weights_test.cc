// Weights of random numbers are the same on the GPU and on the host, and what fits is what was said to fit.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/device/cuda_executor.h"
#include "runtime/device/device_model.h"
#include "runtime/device/graph_buckets.h"
#include "runtime/llmc.h"
#include "runtime/plan/plan.h"
#include "tests/gpu/device_check.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

std::string CompileRandom(const std::string& dtype) {
  const std::string plan = TempFolder() + "/random-" + dtype + ".bin";
  const CommandResult result = RunLlmc({"compile", ShippedModel(), "--random-weights", "--dtype=" + dtype,
                                        "--target=" + TargetHere().name, "--no-tune", "-o", plan});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return plan;
}

std::vector<float> LogitsOf(const std::string& path, const std::string& device) {
  const auto plan = LoadedPlan::Load(path, {.device = device, .num_pages = 64});
  EXPECT_TRUE(plan.ok()) << plan.status();
  const auto ids = HostTensor::FromInts({5, 600, 7, 80, 901, 1000, 3, 2}, {1, 8});
  const auto outputs = (*plan)->Run({{"input_ids", *ids}});
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  const auto logits = outputs->at("logits").values<float>();
  return {logits.begin(), logits.end()};
}

TEST(RandomWeights, AreThoseOfTheHost) {
  LLMC_NEEDS_GPU();
  // In 16-bit types the sums differ by rounding too, but other weights would change everything.
  for (const auto& [dtype, tolerance] : {std::pair("f32", 1e-4), std::pair("f16", 0.02), std::pair("bf16", 0.1)}) {
    const std::string plan = CompileRandom(dtype);
    const std::vector<float> host = LogitsOf(plan, "host"), device = LogitsOf(plan, "cuda");
    ASSERT_EQ(host.size(), device.size());
    double squares = 0, errors = 0;
    for (size_t i = 0; i < host.size(); ++i) {
      squares += host[i] * host[i];
      errors += (host[i] - device[i]) * (host[i] - device[i]);
    }
    EXPECT_GT(squares, 0);
    EXPECT_LT(std::sqrt(errors / squares), tolerance) << dtype;
  }
}

TEST(MemoryNeeds, AreNotLessThanWhatIsTaken) {
  LLMC_NEEDS_GPU();
  const auto plan = Plan::Load(CompileRandom("bf16"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  auto model = DeviceModel::Load(plan->get(), {.pages = 64});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto after = (*model)->device()->memory();
  ASSERT_TRUE(after.ok());
  const int64_t taken = (*model)->memory().free - after->free;
  const MemoryNeeds needs = (*model)->needs();
  EXPECT_GE(taken, needs.weights + needs.prepared);
  // The arena is not there yet, nor what comes with steps; allocations are rounded up.
  EXPECT_LE(taken, needs.Fixed() - needs.arena - needs.counts - needs.graphs + (int64_t{32} << 20));
  const int64_t free = (*model)->memory().free;
  model->reset();
  // With the greedy graphs of all batch sizes, a quarter of those that there can be.
  const auto executor = CudaExecutor::Create(plan->get(), {.num_pages = 64, .capture_at_start = true});
  ASSERT_TRUE(executor.ok()) << executor.status();
  const std::unique_ptr<Device> device = *Device::Open();
  const int64_t running = free - device->memory()->free;
  const int64_t steps = needs.Fixed() - needs.counts - needs.graphs + needs.graphs / kGraphKinds + needs.CacheBytes(64);
  EXPECT_GE(running, needs.weights + needs.prepared + needs.arena + needs.CacheBytes(64));
  EXPECT_LE(running, steps + (int64_t{48} << 20));
  const auto refused = DeviceModel::Load(plan->get(), {.pages = int64_t{1} << 40});
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
}

}  // namespace
}  // namespace llmc
