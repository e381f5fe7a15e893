// The model of a device plan on one GPU: kernels, weights, constants, prepared values, and its programs ready to be
// enqueued. Who runs them decides where their buffers lie.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/cublaslt.h"
#include "runtime/device/device.h"
#include "runtime/device/device_error.h"
#include "runtime/device/plan_kernels.h"
#include "runtime/device/weight_loader.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/memory_needs.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/target_code.h"
#include "runtime/plan/weight_layout.h"

namespace llmc {

// A piece of memory that a device can use.
struct DeviceRange {
  DevicePointer data = 0;
  int64_t bytes = 0;
};

// An argument that is ready to be passed: a pointer, a size to evaluate, a number, or a map of `dim` rows at the
// pointer.
struct DeviceArgument {
  enum class Kind : uint8_t { kPointer, kDim, kNumber, kTiles };
  Kind kind = Kind::kPointer;
  DevicePointer pointer = 0;
  int64_t bytes = 0;  // that are there from the pointer on
  std::optional<DimExpression> dim;
  float number = 0;
  int64_t row_bytes = 0;   // of a map
  uint32_t tile_rows = 0;  // of a map
  bool read_once = false;  // what a map is of
};

// A task, ready to be launched.
struct DeviceTask {
  const plan::Task* task = nullptr;
  plan::Launch::Mode mode = plan::Launch::SERIAL;
  DeviceFunction function;
  std::vector<DimExpression> sizes;  // the tiles, the sizes and strides of a product, or the bytes of a copy
  std::vector<DeviceArgument> arguments;
  // Many tasks in one launch, in place of all this but the arguments behind their words; `task` is the first.
  const plan::Run* run = nullptr;
  std::vector<DeviceTask> members;
};

struct DeviceProgram {
  const plan::Program* plan = nullptr;
  std::vector<DeviceRange> buffers;  // of plan->buffers()
  std::vector<DeviceTask> tasks;
};

struct DeviceModelOptions {
  int device = 0;     // as in DeviceChoice
  int64_t pages = 0;  // of a KV cache that must fit beside the model
  // Of the GPU's memory, for all that stays after loading and the KV cache; buffers of single runs come on top.
  double memory_fraction = kDefaultMemoryFraction;
  std::string cache_folder;  // of kernels that are compiled here; empty: they are compiled each time
  // Wait for each task before the next is given, so that a device error is reported at the one that caused it.
  bool check_kernels = false;
  Trace* trace = nullptr;  // of loading and of the device, if not nullptr; must outlive the model
};

// One thread at a time.
class DeviceModel {
 public:
  // Loads kernels and weights and runs `prepare`. `plan` must outlive the model. FailedPrecondition: the plan has no
  // code for this device; NotFound: there is no such device; ResourceExhausted, before any weight is read: it does not
  // fit.
  static absl::StatusOr<std::unique_ptr<DeviceModel>> Load(const Plan* plan, const DeviceModelOptions& options);
  // The same in two parts, for who has work to do while weights are on their way: after the first one kernels are
  // loaded and programs can be built, but what runs before the second one has no results.
  static absl::StatusOr<std::unique_ptr<DeviceModel>> BeginLoading(const Plan* plan, const DeviceModelOptions& options);
  absl::Status FinishLoading();
  // Whether weights take memory that FinishLoading gives back.
  bool has_passing_weights() const { return passing_weights_.bytes() > 0 || temporaries_.bytes() > 0; }

  Device* device() { return device_.get(); }
  const plan::Manifest& manifest() const { return plan_->manifest(); }
  const TargetCode& code() const { return code_; }  // that this device runs
  const MemoryNeeds& needs() const { return needs_; }
  const GpuMemory& memory() const { return memory_; }  // before loading

  // By the order of manifest().states(); before programs that use them are built.
  void SetStates(std::vector<DeviceMemory> states) { states_ = std::move(states); }
  const std::vector<DeviceMemory>& states() const { return states_; }
  // The host's memory, from which the steps of a language model come (kernels/layout/step_message.h); before programs
  // that take them are built.
  void SetStepMessages(const DeviceRange& messages) { step_messages_ = messages; }

  // `buffers`: where each of program.buffers() lies. `model_alone`: without the tasks of a language model that take the
  // inputs of a step from a message, and that choose tokens. `runs`: many tasks are one launch where the plan has it.
  absl::StatusOr<DeviceProgram> Build(const plan::Program& program, std::vector<DeviceRange> buffers,
                                      bool model_alone = false, bool runs = true) const;
  // On the device's stream, or into a capture: the tasks of a step that does this with its logits.
  absl::Status Enqueue(const DeviceProgram& program, const StepDims& dims, plan::Sampling sampling = plan::NO_SAMPLING);
  absl::Status Enqueue(const DeviceTask& task, const StepDims& dims);
  // Of `ran`, the end of a wait for what was enqueued: an error says how to find the op that caused it.
  absl::Status Finish(absl::Status ran) const;
  // What kernels told of the data of runs that are done: InvalidArgument, once, with the op and its place.
  absl::Status TakeDeviceError();
  // For a trace that wants kernels: waits for what was enqueued and adds when each task since the last call ran, by its
  // label. Nothing to do and no wait otherwise.
  absl::Status CollectTrace();

 private:
  DeviceModel() = default;
  absl::Status LoadKernels(const std::string& cache_folder);
  uint32_t SharedBytesOf(const plan::Kernel& kernel) const;  // of a block, on this device
  absl::Status LoadKernel(size_t index, const std::string& image);
  absl::Status LoadConstants();
  absl::Status MakeDeviceErrorRecord();
  absl::Status AllocatePersistent();
  absl::Status PlaceWeights();
  std::vector<WeightCopy> CopiesOf(int group) const;
  absl::Status Prepare();
  absl::Status RunGroup(int group);
  absl::Status CheckArguments(const plan::KernelTask& kernel, const std::vector<DeviceArgument>& arguments) const;
  DevicePointer PreparedPointer(uint64_t offset) const;
  absl::StatusOr<DeviceRange> MemoryOf(const plan::Arg& arg, const std::vector<DeviceRange>& buffers) const;
  absl::StatusOr<DeviceArgument> MakeArgument(const plan::Arg& arg, const std::vector<DeviceRange>& buffers) const;
  absl::StatusOr<DeviceTask> MakeTask(const plan::Task& task, plan::Launch::Mode mode,
                                      const std::vector<DeviceRange>& buffers) const;
  absl::StatusOr<DeviceTask> MakeRun(const plan::Run& run, const plan::Program& program,
                                     const std::vector<DeviceRange>& buffers) const;
  absl::Status EnqueueUntraced(const DeviceTask& task, const StepDims& dims);
  absl::Status Multiply(const DeviceTask& task, const std::vector<int64_t>& sizes);
  absl::Status Issue(const DeviceTask& task, const StepDims& dims);
  absl::Status EnqueueTraced(const DeviceTask& task, const StepDims& dims);
  absl::StatusOr<std::vector<int64_t>> SizesOf(const DeviceTask& task, const StepDims& dims) const;
  static absl::StatusOr<int64_t> WordOf(const DeviceArgument& argument, const StepDims& dims);
  absl::Status LaunchRun(const DeviceTask& run, const StepDims& dims);
  absl::StatusOr<TileMap> MapTiles(const DeviceArgument& argument, const StepDims& dims) const;
  absl::Status Launch(const DeviceTask& task, const std::vector<int64_t>& tiles, const StepDims& dims);

  const Plan* plan_ = nullptr;
  TargetCode code_;
  bool check_kernels_ = false;
  std::unique_ptr<Device> device_;
  std::unique_ptr<MatrixProducts> products_;
  std::vector<DeviceFunction> functions_;  // of all kernels of the plan; those of other targets are not loaded
  std::vector<std::optional<std::vector<size_t>>> parameter_sizes_;  // of each; unknown to old drivers
  MemoryNeeds needs_;
  GpuMemory memory_;
  WeightLayout layout_;
  std::vector<DevicePointer> weights_;  // 0: not there
  std::vector<DeviceMemory> states_, constants_;
  DeviceMemory kept_weights_, prepared_, persistent_;
  DeviceRange step_messages_;
  PinnedMemory device_error_;                   // a DeviceErrorRecord, if kernels of the plan can meet device errors
  DeviceMemory passing_weights_, temporaries_;  // while `prepare` runs
  std::unique_ptr<WeightCopying> copying_;      // while loading; destroyed before what it copies to
  // Of a trace: what ran since the last CollectTrace, and an event whose time the host knows.
  struct TracedTask {
    const plan::Task* task;
    DeviceEvent begin, end;
  };
  std::vector<TracedTask> traced_;
  DeviceEvent trace_begin_;
  double trace_begin_time_ = 0;
};

}  // namespace llmc
