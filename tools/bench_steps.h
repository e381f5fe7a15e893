// Times of decode steps and of prefill, cold and hot, with the GPU's clock and power while they run.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "tools/bench_model.h"
#include "tools/gpu_monitor.h"
#include "tools/timed_program.h"

namespace llmc {

// Seconds on the device of runs right after each other.
struct RunTimes {
  double median = 0, fastest = 0;
  int runs = 0;
  GpuState gpu;
};

struct DecodeTimes {
  RunTimes step;    // the model alone
  RunTimes greedy;  // the step as an executor runs it: its inputs read, the likeliest tokens chosen
  RunTimes drawn;   // likewise, tokens drawn at temperature 0.8 and top_p 0.95
  int64_t graph_bytes = 0;
};

struct PrefillTimes {
  RunTimes cold;           // the first runs after a rest
  RunTimes hot;            // runs after hot_seconds of them
  double hot_seconds = 0;  // asked for
};

// A step with its inputs, to be profiled; `run` runs it. All must outlive it.
class TimedStep : public TimedProgram {
 public:
  TimedStep(BenchModel* model, const BenchStep& step, const BenchInputs& inputs, absl::FunctionRef<absl::Status()> run)
      : model_(model), step_(step), inputs_(inputs), run_(run) {}
  Device* device() override { return model_->device(); }
  const plan::Manifest& manifest() const override { return model_->manifest(); }
  const plan::Program& program() const override { return model_->program(step_); }
  const StepDims& sizes() const override { return step_.dims; }
  StepCost CostOf(const plan::Task& task) const override { return llmc::CostOf(task, step_); }
  bool IsInput(const std::string& name) const override { return model_->contract().RoleOf(name) != StepRole::kNone; }
  absl::Status SetInputs() override { return model_->SetInputs(inputs_); }
  absl::Status Run() override { return run_(); }
  absl::StatusOr<DeviceGraph> CaptureTasks(const std::vector<int>& tasks, int repeats) override {
    return model_->CaptureTasks(step_, tasks, repeats);
  }

 private:
  BenchModel* model_;
  const BenchStep& step_;
  const BenchInputs& inputs_;
  absl::FunctionRef<absl::Status()> run_;
};

// How many runs of `one` seconds each take `seconds`, in [least, most].
int RunsFor(double one, double seconds, int least, int most);

// `monitor` may be nullptr in all of them.
class StepTimer {
 public:
  StepTimer(BenchModel* model, GpuMonitor* monitor) : model_(model), monitor_(monitor) {}

  // Leaves the captured step in `graph`.
  absl::StatusOr<DecodeTimes> Decode(const BenchStep& step, const BenchInputs& inputs, DeviceGraph* graph);
  // A prompt in one step or several, of which each has its inputs; hot after `seconds`.
  absl::StatusOr<PrefillTimes> Prefill(const std::vector<BenchStep>& steps, const std::vector<BenchInputs>& inputs,
                                       double seconds);

 private:
  absl::StatusOr<RunTimes> Time(int runs, const BenchInputs& inputs, absl::FunctionRef<absl::Status()> run);
  absl::StatusOr<RunTimes> TimeSampled(const BenchStep& step, const BenchInputs& inputs, BenchSampling::Kind kind,
                                       int runs);

  BenchModel* model_;
  GpuMonitor* monitor_;
};

}  // namespace llmc
