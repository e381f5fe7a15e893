// A program of a device plan with chosen sizes and inputs, as it is timed and profiled: a step of a language model, or
// a run of named tensors.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "runtime/device/device_model.h"
#include "tools/bench_cost.h"

namespace llmc {

// Seconds on the device of each of `runs` runs, one after the other, after one that is not counted. The inputs are set
// before each, beside the time.
absl::StatusOr<std::vector<double>> TimeRuns(Device* device, int runs, absl::FunctionRef<absl::Status()> set_inputs,
                                             absl::FunctionRef<absl::Status()> run);

class TimedProgram {
 public:
  virtual ~TimedProgram() = default;

  virtual Device* device() = 0;
  virtual const plan::Manifest& manifest() const = 0;
  virtual const plan::Program& program() const = 0;
  virtual const StepDims& sizes() const = 0;
  virtual StepCost CostOf(const plan::Task& task) const = 0;
  // Whether the value of this name is an input, which what runs later may write over.
  virtual bool IsInput(const std::string& name) const = 0;

  // Puts the inputs to where the program reads them.
  virtual absl::Status SetInputs() = 0;
  virtual absl::Status Run() = 0;
  // These tasks, by their numbers in the program, each in a launch of its own; all of them `repeats` times.
  virtual absl::StatusOr<DeviceGraph> CaptureTasks(const std::vector<int>& tasks, int repeats) = 0;

  absl::StatusOr<std::vector<double>> Time(int runs, absl::FunctionRef<absl::Status()> run) {
    return TimeRuns(
        device(), runs, [&] { return SetInputs(); }, run);
  }
};

// Captures `tasks` of `program`, of which `each` has the launches, `repeats` times.
absl::StatusOr<DeviceGraph> CaptureEach(DeviceModel* model, const DeviceProgram& each, const StepDims& sizes,
                                        const std::vector<int>& tasks, int repeats);

}  // namespace llmc
