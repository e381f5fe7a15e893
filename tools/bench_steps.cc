#include "tools/bench_steps.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/status_macros.h"

namespace llmc {
namespace {

constexpr double kDecodeSeconds = 0.25;
constexpr int kLeastDecodeRuns = 10, kMostDecodeRuns = 50;
constexpr int kColdSteps = 5;
constexpr int kLeastHotRuns = 3, kMostHotRuns = 2000;
constexpr std::chrono::milliseconds kRest(500);

}  // namespace

int RunsFor(double one, double seconds, int least, int most) {
  if (one <= 0) return most;
  return static_cast<int>(std::clamp(std::ceil(seconds / one), static_cast<double>(least), static_cast<double>(most)));
}

absl::StatusOr<RunTimes> StepTimer::Time(int runs, const BenchInputs& inputs, absl::FunctionRef<absl::Status()> run) {
  if (monitor_ != nullptr) monitor_->Start();
  const absl::StatusOr<std::vector<double>> times = model_->Time(runs, inputs, run);
  RunTimes result = {.runs = runs};
  if (monitor_ != nullptr) result.gpu = monitor_->Stop();
  if (!times.ok()) return times.status();
  result.median = Median(*times);
  result.fastest = *std::min_element(times->begin(), times->end());
  return result;
}

absl::StatusOr<DecodeTimes> StepTimer::Decode(const BenchStep& step, const BenchInputs& inputs, DeviceGraph* graph) {
  Device* device = model_->device();
  RETURN_IF_ERROR(model_->SetInputs(inputs));
  // Once outside of the capture, so that products have found their algorithms.
  RETURN_IF_ERROR(model_->Enqueue(step));
  ASSIGN_OR_RETURN(const Device::MemoryInfo before, device->memory());
  ASSIGN_OR_RETURN(DeviceGraph captured, model_->Capture(step));
  *graph = std::move(captured);
  const auto launch = [&] { return device->Launch(*graph); };
  ASSIGN_OR_RETURN(const RunTimes one, Time(1, inputs, launch));
  ASSIGN_OR_RETURN(const Device::MemoryInfo after, device->memory());
  const int runs = RunsFor(one.median, kDecodeSeconds, kLeastDecodeRuns, kMostDecodeRuns);
  ASSIGN_OR_RETURN(const RunTimes alone, Time(runs, inputs, launch));
  ASSIGN_OR_RETURN(const RunTimes greedy, TimeSampled(step, inputs, BenchSampling::Kind::kGreedy, runs));
  ASSIGN_OR_RETURN(const RunTimes drawn, TimeSampled(step, inputs, BenchSampling::Kind::kDraw, runs));
  return DecodeTimes{.step = alone, .greedy = greedy, .drawn = drawn, .graph_bytes = before.free - after.free};
}

absl::StatusOr<RunTimes> StepTimer::TimeSampled(const BenchStep& step, const BenchInputs& inputs,
                                                BenchSampling::Kind kind, int runs) {
  ASSIGN_OR_RETURN(const DeviceGraph graph, model_->CaptureSampled(step, kind));
  ASSIGN_OR_RETURN(RunTimes times, Time(runs, inputs, [&] { return model_->device()->Launch(graph); }));
  RETURN_IF_ERROR(model_->CheckSampled());
  return times;
}

absl::StatusOr<PrefillTimes> StepTimer::Prefill(const std::vector<BenchStep>& steps,
                                                const std::vector<BenchInputs>& inputs, double seconds) {
  const auto run = [&] {
    absl::Status status;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (i > 0 && status.ok()) status = model_->SetInputs(inputs[i]);
      if (status.ok()) status = model_->Enqueue(steps[i]);
    }
    return status;
  };
  // Once for what a shape needs when it is met for the first time.
  if (const absl::StatusOr<RunTimes> first = Time(1, inputs[0], run); !first.ok()) return first.status();
  std::this_thread::sleep_for(kRest);
  PrefillTimes times{.hot_seconds = seconds};
  ASSIGN_OR_RETURN(const RunTimes cold, Time(kColdSteps, inputs[0], run));
  times.cold = cold;
  const int heating = RunsFor(cold.median, seconds, kLeastHotRuns, kMostHotRuns);
  if (const absl::StatusOr<RunTimes> heated = Time(heating, inputs[0], run); !heated.ok()) return heated.status();
  ASSIGN_OR_RETURN(const RunTimes hot, Time(std::max(kLeastHotRuns, heating / 2), inputs[0], run));
  times.hot = hot;
  return times;
}

}  // namespace llmc
