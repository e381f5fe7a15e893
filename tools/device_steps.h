// Runs steps of small models that a command makes as it goes, such as parts of a decoder, on a GPU.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cubins/targets.h"
#include "quantize/step_runner.h"
#include "runtime/device/cuda_run.h"
#include "runtime/device/device.h"
#include "runtime/plan/plan.h"
#include "tools/device_matrices.h"

namespace llmc {

// Compiles each model once, as long as it is among the kMostPlans that were used last: no more than the buffers of so
// many are in the GPU's memory.
class DeviceSteps : public StepRunner {
 public:
  static constexpr size_t kMostPlans = 6;

  // `device` as in DeviceChoice. Without such a GPU an error that says how to go on without one.
  static absl::StatusOr<std::unique_ptr<DeviceSteps>> Create(int device);

  absl::StatusOr<NamedTensors> Run(const Model& model, const NamedTensors& inputs) override;
  // nullptr: there is no cuBLASLt.
  Matrices* matrices() override { return matrices_.get(); }

 private:
  struct Compiled {
    std::string text;  // of the model
    std::unique_ptr<Plan> plan;
    std::unique_ptr<CudaRun> run;
  };
  DeviceSteps() = default;
  absl::StatusOr<Compiled> Compile(const Model& model) const;
  absl::StatusOr<NamedTensors> RunOrFail(const Model& model, const NamedTensors& inputs);

  int index_ = 0;
  std::unique_ptr<Device> device_;  // stays open while plans come and go
  std::unique_ptr<DeviceMatrices> matrices_;
  Target target_;
  std::list<Compiled> compiled_;  // the last used first
};

}  // namespace llmc
