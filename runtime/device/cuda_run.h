// Runs a step of a device plan over named tensors on an NVIDIA GPU: any model that is not served by CudaExecutor. A run
// of sizes that came before replays a captured graph.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/device/device_model.h"
#include "runtime/device/output_memory.h"
#include "runtime/device/prepared_runs.h"
#include "runtime/device/run_sizes.h"
#include "runtime/device_tensor.h"
#include "runtime/host_tensor.h"
#include "runtime/plan/plan.h"

namespace llmc {

// Where a value of the program lies, such as "%x", the input x. NotFound: nothing of the program keeps it.
absl::StatusOr<DeviceRange> PlaceOf(const DeviceProgram& program, const std::string& value);

// One thread at a time.
class CudaRun {
 public:
  ~CudaRun();
  // `plan` must outlive it. Errors are those of DeviceModel::Load.
  static absl::StatusOr<std::unique_ptr<CudaRun>> Create(const Plan* plan, const DeviceModelOptions& options = {});

  // Runs the first entry point. Each input must have its type and a shape that gives every symbol one size within its
  // bound; nothing else may be given. States start as zeros and keep their contents. Sizes decide where buffers lie, so
  // no bound of a dim costs memory. Buffers stay for later runs, as large as the largest so far; the kMaxPreparedRuns
  // sizes used last keep their launches, and from their second run on a graph, unless kernels are checked. Outputs lie
  // in page-locked memory, up to kMaxOutputMemory of it, which later runs take again when nobody has them any more.
  absl::StatusOr<NamedHostTensors> Run(const NamedHostTensors& inputs);
  // The same with inputs of either kind, which must be written, and outputs that stay on the GPU, in memory of their
  // own (later runs take it again as above). They are whole when it returns.
  absl::StatusOr<NamedDeviceTensors> RunOnDevice(const NamedAnyTensors& inputs);

  // Zeros, in page-locked memory, from which runs copy at full speed.
  absl::StatusOr<HostTensor> NewHostTensor(DType type, std::vector<int64_t> shape);
  // Copies, whole when they return. InvalidArgument: the tensor lies on another GPU.
  absl::StatusOr<DeviceTensor> ToDevice(const HostTensor& tensor);
  absl::StatusOr<HostTensor> ToHost(const DeviceTensor& tensor);

  // Of the last run: seconds on the GPU, from when its inputs were there to when its outputs were, without the copies
  // of both. FailedPrecondition: there was none.
  absl::StatusOr<double> DeviceSeconds();
  // Computes the last run again, on what lies at its inputs now: from its graph, unless there is none. What runs leaves
  // nothing at the inputs: who repeats sets them before. On the device's stream, without a wait. FailedPrecondition:
  // there was none.
  absl::Status Repeat();
  // Of the last run, for who times it: where its buffers lie, its tasks and its sizes. nullptr: there was none.
  const DeviceProgram* last_program() const { return last_; }
  const StepDims& last_sizes() const { return last_sizes_; }
  DeviceModel* model() { return model_.get(); }

  // Why runs have no new graphs any more, but are launched kernel by kernel; OK while they have.
  absl::Status graph_status() const { return runs_->capture_status(); }
  size_t num_graphs() const { return runs_->num_graphs(); }

 private:
  CudaRun() = default;
  struct Output {
    const std::string* name = nullptr;
    DType type = DType::kF32;
    std::vector<int64_t> shape;
    int64_t bytes = 0;
    DeviceRange from;
  };
  using TakeOutput = absl::FunctionRef<absl::Status(const Output& output)>;
  absl::Status RunOf(const GivenInputs& inputs, TakeOutput take);
  absl::Status Enqueue(const GivenInputs& inputs, TakeOutput take);
  absl::Status AllocateStates(const StepDims& dims);
  absl::StatusOr<std::vector<DeviceRange>> PlaceBuffers(const plan::Program& program, const StepDims& dims);
  absl::StatusOr<const DeviceProgram*> Prepare(const plan::Program& program, const StepDims& dims);
  absl::Status Compute(const StepDims& dims);
  absl::StatusOr<Output> FindOutput(const DeviceProgram& program, int index, const StepDims& dims) const;
  absl::Status ReadOutput(const Output& output, NamedHostTensors* outputs);
  absl::Status KeepOutput(const Output& output, NamedDeviceTensors* outputs);
  absl::Status CheckIsHere(const DeviceTensor& tensor, absl::string_view what) const;

  const Plan* plan_ = nullptr;
  std::unique_ptr<DeviceModel> model_;
  std::vector<int64_t> state_bytes_;
  DeviceMemory arena_;
  std::optional<PreparedRuns<Device, DeviceProgram>> runs_;  // in the arena and the states that there are
  std::optional<OutputMemory<Device>> output_memory_;
  struct SharedOnDevice {
    Device* device = nullptr;
    absl::StatusOr<std::shared_ptr<char>> AllocateShared(int64_t bytes) {
      return device->AllocateSharedOnDevice(bytes);
    }
  };
  SharedOnDevice shared_on_device_;
  std::optional<OutputMemory<SharedOnDevice>> device_memory_;
  DeviceEvent begin_, end_;              // of what the last run computed
  const DeviceProgram* last_ = nullptr;  // of runs_
  StepDims last_sizes_;
};

}  // namespace llmc
