// Runs a step of a device plan once over named tensors on an NVIDIA GPU: any model that is not served by CudaExecutor.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/device/device_model.h"
#include "runtime/host_tensor.h"
#include "runtime/plan/plan.h"

namespace llmc {

// One thread at a time.
class CudaRun {
 public:
  ~CudaRun();
  // `plan` must outlive it. Errors are those of DeviceModel::Load.
  static absl::StatusOr<std::unique_ptr<CudaRun>> Create(const Plan* plan, const DeviceModelOptions& options = {});

  // Runs the first entry point. Each input must have its type and a shape that gives every symbol one size within its
  // bound; nothing else may be given. States start as zeros and keep their contents. Sizes decide where buffers lie, so
  // no bound of a dim costs memory.
  absl::StatusOr<NamedHostTensors> Run(const NamedHostTensors& inputs);

 private:
  CudaRun() = default;
  absl::StatusOr<NamedHostTensors> Enqueue(const NamedHostTensors& inputs);
  absl::StatusOr<StepDims> BindDims(const plan::Program& program, const NamedHostTensors& inputs) const;
  absl::Status AllocateStates(const StepDims& dims);
  absl::StatusOr<std::vector<DeviceRange>> PlaceBuffers(const plan::Program& program, const StepDims& dims);
  absl::StatusOr<HostTensor> ReadOutput(const plan::TensorSpec& spec, const DeviceRange& from, const StepDims& dims);

  const Plan* plan_ = nullptr;
  std::unique_ptr<DeviceModel> model_;
  std::vector<int64_t> state_bytes_;
  DeviceMemory arena_;
};

}  // namespace llmc
