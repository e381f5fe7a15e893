// Times of models over named tensors, such as encoders: with the copies of inputs and outputs and without, on a GPU; on
// the host.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/device/cuda_run.h"
#include "runtime/llmc.h"
#include "tools/bench_device.h"
#include "tools/bench_steps.h"
#include "tools/gpu_monitor.h"
#include "tools/model_source.h"
#include "tools/progress.h"
#include "tools/run_inputs.h"
#include "tools/timed_program.h"

namespace llmc {

// The program of a run, ready to be repeated on the GPU, where its inputs are kept beside those that it may write over.
class TensorProgram : public TimedProgram {
 public:
  // Runs the model, twice, so that `run` has a graph. Both must outlive it, and nothing else runs on `run` meanwhile.
  static absl::StatusOr<std::unique_ptr<TensorProgram>> Create(CudaRun* run, const NamedHostTensors& inputs);

  Device* device() override { return run_->model()->device(); }
  const plan::Manifest& manifest() const override { return run_->model()->manifest(); }
  const plan::Program& program() const override { return *each_.plan; }
  const StepDims& sizes() const override { return sizes_; }
  StepCost CostOf(const plan::Task& task) const override { return llmc::CostOf(task, {.dims = sizes_}); }
  bool IsInput(const std::string& name) const override;
  absl::Status SetInputs() override;
  absl::Status Run() override { return run_->Repeat(); }
  absl::StatusOr<DeviceGraph> CaptureTasks(const std::vector<int>& tasks, int repeats) override {
    return CaptureEach(run_->model(), each_, sizes_, tasks, repeats);
  }

  double first_seconds() const { return first_seconds_; }  // of the first run, with copies

 private:
  explicit TensorProgram(CudaRun* run) : run_(run) {}
  absl::Status KeepInputs();

  CudaRun* run_;
  StepDims sizes_;
  DeviceProgram each_;  // the tasks, each in a launch of its own
  DeviceMemory kept_;
  std::vector<BenchInputs::Copy> copies_;
  double first_seconds_ = 0;
};

struct TensorTimes {
  double first = 0;      // the first run of these sizes, on the clock
  RunTimes with_copies;  // on the clock
  RunTimes alone;        // on the GPU, the inputs there; none on the host, as of what follows
  RunTimes pinned;       // with_copies, from inputs in page-locked memory
  RunTimes on_device;    // on the clock, inputs and outputs as tensors of the GPU
};

// What a model takes: from files, or at random, in sizes that are given.
struct TensorInputs {
  InputOptions from;  // nothing: random numbers
  DimEnv sizes;       // as TakeInputSizes gives them
  std::map<std::string, int64_t> tables = {};

  absl::StatusOr<NamedHostTensors> For(const std::vector<TensorInfo>& infos) const;
};

// An entry of the report: its sizes and times, what it must do and at best could, and its kernels if `profile`.
// `monitor` may be nullptr.
absl::StatusOr<nlohmann::ordered_json> BenchTensors(const std::shared_ptr<const Plan>& plan, const TensorInputs& inputs,
                                                    const DeviceRates& rates, GpuMonitor* monitor, bool profile);
// The same of a model on the host: at least one run after the first, for some seconds.
absl::StatusOr<nlohmann::ordered_json> BenchTensorsOnHost(ModelSource source, TensorInputs inputs, Progress* progress);

// Its parts. On a GPU what it must do is in an entry of its own.
nlohmann::ordered_json TensorsJson(const StepDims& sizes, const TensorTimes& times);
void AddTensorCost(const StepCost& cost, const DeviceRates& rates, nlohmann::ordered_json* entry);
std::string TensorsText(const nlohmann::ordered_json& entry);

}  // namespace llmc
