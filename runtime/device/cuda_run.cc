#include "runtime/device/cuda_run.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/plan/extents.h"
#include "runtime/plan/plan_arena.h"

namespace llmc {
namespace {

constexpr int64_t kMaxArenaBytes = int64_t{1} << 50;

GivenInput Given(const HostTensor& tensor) {
  return {.type = tensor.type, .shape = tensor.shape, .bytes = tensor.byte_size(), .host = tensor.bytes.get()};
}
GivenInput Given(const DeviceTensor& tensor) {
  return {.type = tensor.type,
          .shape = tensor.shape,
          .bytes = tensor.byte_size(),
          .device = reinterpret_cast<DevicePointer>(tensor.data.get())};
}

template <class Tensor>
absl::Status Give(const std::string& name, const Tensor& tensor, GivenInputs* given) {
  if (absl::Status status = tensor.Check(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("input ", name, ": ", status.message()));
  }
  given->emplace(name, Given(tensor));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DeviceRange> PlaceOf(const DeviceProgram& program, const std::string& value) {
  for (int i = 0; i < program.plan->buffers_size(); ++i) {
    const auto& values = program.plan->buffers(i).values();
    if (std::find(values.begin(), values.end(), value) != values.end()) return program.buffers[static_cast<size_t>(i)];
  }
  return absl::NotFoundError(absl::StrCat(value, " has no place in the program"));
}

absl::StatusOr<std::unique_ptr<CudaRun>> CudaRun::Create(const Plan* plan, const DeviceModelOptions& options) {
  const auto no_step = absl::InvalidArgumentError(absl::StrCat(plan->path(), ": has no step to run"));
  if (plan->manifest().entry_points_size() == 0) return no_step;
  auto run = std::unique_ptr<CudaRun>(new CudaRun());
  run->plan_ = plan;
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceModel> model, DeviceModel::Load(plan, options));
  if (model->code().programs_size() == 0) return no_step;
  run->model_ = std::move(model);
  run->output_memory_.emplace(run->model_->device());
  run->shared_on_device_.device = run->model_->device();
  run->device_memory_.emplace(&run->shared_on_device_);
  run->runs_.emplace(run->model_->device(), /*captures=*/!options.check_kernels);
  return run;
}

CudaRun::~CudaRun() {
  if (model_ != nullptr) model_->device()->Use().IgnoreError();
}

absl::Status CudaRun::AllocateStates(const StepDims& dims) {
  std::vector<DeviceMemory> states;
  std::vector<int64_t> all_bytes;
  for (const plan::State& state : plan_->manifest().states()) {
    ASSIGN_OR_RETURN(const int64_t records, EvaluateSize(state.pool(), dims));
    const absl::StatusOr<int64_t> bytes =
        TensorBytes(DType::kU8, {records, static_cast<int64_t>(state.record_bytes())});
    if (!bytes.ok()) {
      return absl::Status(bytes.status().code(), absl::StrCat(state.name(), ": ", bytes.status().message()));
    }
    all_bytes.push_back(*bytes);
  }
  if (all_bytes == state_bytes_) return absl::OkStatus();  // they keep their contents
  runs_->Clear();
  device_memory_->Release();
  state_bytes_.clear();
  for (const int64_t bytes : all_bytes) {
    ASSIGN_OR_RETURN(DeviceMemory memory, model_->device()->Allocate(bytes));
    RETURN_IF_ERROR(model_->device()->FillBytes(memory.data(), 0, bytes));
    states.push_back(std::move(memory));
  }
  model_->SetStates(std::move(states));
  state_bytes_ = std::move(all_bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DeviceRange>> CudaRun::PlaceBuffers(const plan::Program& program, const StepDims& dims) {
  std::vector<BufferRange> ranges;
  int64_t total = 0;
  for (const plan::Buffer& buffer : program.buffers()) {
    const absl::StatusOr<int64_t> bytes = EvaluateSize(buffer.size(), dims);
    if (!bytes.ok())
      return absl::Status(bytes.status().code(), absl::StrCat(buffer.name(), ": ", bytes.status().message()));
    if (*bytes < 0 || *bytes > kMaxArenaBytes || (total += *bytes) > kMaxArenaBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(buffer.name(), ": ", *bytes, " bytes are too many"));
    }
    ranges.push_back({.bytes = *bytes, .first = buffer.first_task(), .last = buffer.last_task()});
  }
  const int64_t arena_bytes = AssignOffsets(&ranges);
  if (arena_bytes > arena_.bytes()) {
    runs_->Clear();
    device_memory_->Release();
    arena_ = DeviceMemory();
    ASSIGN_OR_RETURN(DeviceMemory memory, model_->device()->Allocate(arena_bytes));
    arena_ = std::move(memory);
  }
  // NaN everywhere: what reads memory that nothing wrote shows in the first run of these sizes.
  RETURN_IF_ERROR(model_->device()->FillBytes(arena_.data(), 0xff, arena_bytes));
  std::vector<DeviceRange> buffers;
  for (const BufferRange& range : ranges) {
    buffers.push_back({arena_.data() + static_cast<uint64_t>(range.offset), range.bytes});
  }
  return buffers;
}

absl::StatusOr<const DeviceProgram*> CudaRun::Prepare(const plan::Program& program, const StepDims& dims) {
  if (const DeviceProgram* known = runs_->Find(dims); known != nullptr) return known;
  ASSIGN_OR_RETURN(std::vector<DeviceRange> buffers, PlaceBuffers(program, dims));
  ASSIGN_OR_RETURN(DeviceProgram built, model_->Build(program, std::move(buffers), /*model_alone=*/true));
  return runs_->Add(dims, std::move(built));
}

absl::Status CudaRun::Compute(const StepDims& dims) {
  ASSIGN_OR_RETURN(begin_, model_->device()->Mark());
  RETURN_IF_ERROR(runs_->Enqueue([&](const DeviceProgram& program) { return model_->Enqueue(program, dims); }));
  ASSIGN_OR_RETURN(end_, model_->device()->Mark());
  return absl::OkStatus();
}

absl::Status CudaRun::Repeat() {
  if (last_ == nullptr) return absl::FailedPreconditionError("no run has computed anything yet");
  return runs_->Enqueue([&](const DeviceProgram& program) { return model_->Enqueue(program, last_sizes_); });
}

absl::StatusOr<double> CudaRun::DeviceSeconds() {
  if (end_.handle() == nullptr) return absl::FailedPreconditionError("no run has computed anything yet");
  RETURN_IF_ERROR(model_->device()->Use());
  return model_->device()->SecondsBetween(begin_, end_);
}

absl::StatusOr<CudaRun::Output> CudaRun::FindOutput(const DeviceProgram& program, int index,
                                                    const StepDims& dims) const {
  const plan::EntryPoint& entry = plan_->manifest().entry_points(0);
  const plan::TensorSpec& spec = entry.outputs(index);
  Output output{.name = &spec.name()};
  ASSIGN_OR_RETURN(output.from, PlaceOf(program, entry.output_values(index)));
  ASSIGN_OR_RETURN(output.type, ParseDType(spec.dtype()));
  ASSIGN_OR_RETURN(output.shape, EvaluateShape(spec.shape(), dims));
  ASSIGN_OR_RETURN(output.bytes, TensorBytes(output.type, output.shape));
  RETURN_IF_ERROR(CheckRoom(absl::StrCat("the output ", spec.name()), output.bytes, output.from.bytes));
  return output;
}

absl::Status CudaRun::ReadOutput(const Output& output, NamedHostTensors* outputs) {
  HostTensor tensor{.type = output.type, .shape = output.shape, .bytes = output_memory_->Take(output.bytes)};
  if (tensor.bytes == nullptr) {
    ASSIGN_OR_RETURN(tensor, HostTensor::Zeros(output.type, output.shape));
  }
  char* const to = const_cast<char*>(tensor.bytes.get());
  RETURN_IF_ERROR(model_->device()->CopyToHost(to, output.from.data, output.bytes));
  outputs->emplace(*output.name, std::move(tensor));
  return absl::OkStatus();
}

// Where buffers lie the next run writes.
absl::Status CudaRun::KeepOutput(const Output& output, NamedDeviceTensors* outputs) {
  std::shared_ptr<const char> memory = device_memory_->Take(output.bytes);
  if (memory == nullptr) {
    ASSIGN_OR_RETURN(memory, model_->device()->AllocateSharedOnDevice(output.bytes));
  }
  const auto to = reinterpret_cast<DevicePointer>(memory.get());
  RETURN_IF_ERROR(model_->device()->CopyOnDevice(to, output.from.data, output.bytes));
  outputs->emplace(
      *output.name,
      DeviceTensor{
          .type = output.type, .shape = output.shape, .device = model_->device()->index(), .data = std::move(memory)});
  return absl::OkStatus();
}

absl::StatusOr<NamedHostTensors> CudaRun::Run(const NamedHostTensors& inputs) {
  GivenInputs given;
  for (const auto& [name, tensor] : inputs) RETURN_IF_ERROR(Give(name, tensor, &given));
  NamedHostTensors outputs;
  RETURN_IF_ERROR(RunOf(given, [&](const Output& output) { return ReadOutput(output, &outputs); }));
  return outputs;
}

absl::StatusOr<NamedDeviceTensors> CudaRun::RunOnDevice(const NamedAnyTensors& inputs) {
  GivenInputs given;
  for (const auto& [name, input] : inputs) {
    if (const auto* tensor = std::get_if<DeviceTensor>(&input); tensor != nullptr) {
      RETURN_IF_ERROR(CheckIsHere(*tensor, absl::StrCat("input ", name)));
    }
    const auto give = [&](const auto& tensor) { return Give(name, tensor, &given); };
    RETURN_IF_ERROR(std::visit(give, input));
  }
  NamedDeviceTensors outputs;
  RETURN_IF_ERROR(RunOf(given, [&](const Output& output) { return KeepOutput(output, &outputs); }));
  return outputs;
}

absl::Status CudaRun::CheckIsHere(const DeviceTensor& tensor, absl::string_view what) const {
  const int here = model_->device()->index();
  if (tensor.device == here) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " lies on GPU ", tensor.device, ", the model runs on GPU ", here, "; copy it there first"));
}

absl::StatusOr<HostTensor> CudaRun::NewHostTensor(DType type, std::vector<int64_t> shape) {
  HostTensor tensor{.type = type, .shape = std::move(shape)};
  RETURN_IF_ERROR(model_->device()->Use());
  ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(type, tensor.shape));
  ASSIGN_OR_RETURN(const std::shared_ptr<char> memory, model_->device()->AllocateShared(bytes));
  std::fill_n(memory.get(), bytes, '\0');
  tensor.bytes = memory;
  return tensor;
}

absl::StatusOr<DeviceTensor> CudaRun::ToDevice(const HostTensor& tensor) {
  RETURN_IF_ERROR(tensor.Check());
  Device* const device = model_->device();
  RETURN_IF_ERROR(device->Use());
  ASSIGN_OR_RETURN(const std::shared_ptr<char> memory, device->AllocateSharedOnDevice(tensor.byte_size()));
  const auto to = reinterpret_cast<DevicePointer>(memory.get());
  const absl::Status copied = device->CopyToDevice(to, tensor.bytes.get(), tensor.byte_size());
  RETURN_IF_ERROR(device->Synchronize());
  RETURN_IF_ERROR(copied);
  return DeviceTensor{.type = tensor.type, .shape = tensor.shape, .device = device->index(), .data = memory};
}

absl::StatusOr<HostTensor> CudaRun::ToHost(const DeviceTensor& tensor) {
  RETURN_IF_ERROR(tensor.Check());
  RETURN_IF_ERROR(CheckIsHere(tensor, "the tensor"));
  Device* const device = model_->device();
  RETURN_IF_ERROR(device->Use());
  ASSIGN_OR_RETURN(const HostTensor host, HostTensor::Zeros(tensor.type, tensor.shape));
  const auto from = reinterpret_cast<DevicePointer>(tensor.data.get());
  const absl::Status copied = device->CopyToHost(const_cast<char*>(host.bytes.get()), from, tensor.byte_size());
  RETURN_IF_ERROR(device->Synchronize());
  RETURN_IF_ERROR(copied);
  return host;
}

absl::Status CudaRun::RunOf(const GivenInputs& inputs, TakeOutput take) {
  RETURN_IF_ERROR(model_->device()->Use());
  const absl::Status enqueued = Enqueue(inputs, take);
  const absl::Status done = model_->device()->Synchronize(), device_error = model_->TakeDeviceError();
  // A device error of the device shows in whatever is asked of it next.
  if (!done.ok()) return model_->Finish(enqueued.ok() ? done : enqueued);
  if (!enqueued.ok()) return enqueued;
  return device_error;
}

// The outputs are whole when the device is done.
absl::Status CudaRun::Enqueue(const GivenInputs& inputs, TakeOutput take) {
  const plan::EntryPoint& entry = plan_->manifest().entry_points(0);
  const plan::Program& program = *model_->code().programs().back();
  Device* const device = model_->device();
  const auto read = [&](void* to, DevicePointer from, int64_t bytes) -> absl::Status {
    RETURN_IF_ERROR(device->CopyToHost(to, from, bytes));
    return device->Synchronize();
  };
  ASSIGN_OR_RETURN(const StepDims dims, SizesOfRun(plan_->manifest(), program, inputs, read));
  last_ = nullptr;  // what is prepared may go
  RETURN_IF_ERROR(AllocateStates(dims));
  ASSIGN_OR_RETURN(const DeviceProgram* prepared, Prepare(program, dims));
  for (const plan::TensorSpec& spec : entry.inputs()) {
    const GivenInput& input = inputs.at(spec.name());
    ASSIGN_OR_RETURN(const DeviceRange to, PlaceOf(*prepared, absl::StrCat("%", spec.name())));
    RETURN_IF_ERROR(CheckRoom(absl::StrCat("the input ", spec.name()), input.bytes, to.bytes));
    if (input.bytes == 0) continue;
    RETURN_IF_ERROR(input.host != nullptr ? device->CopyToDevice(to.data, input.host, input.bytes)
                                          : device->CopyOnDevice(to.data, input.device, input.bytes));
  }
  RETURN_IF_ERROR(Compute(dims));
  for (int i = 0; i < entry.outputs_size(); ++i) {
    ASSIGN_OR_RETURN(const Output output, FindOutput(*prepared, i, dims));
    RETURN_IF_ERROR(take(output));
  }
  last_ = prepared;
  last_sizes_ = dims;
  return absl::OkStatus();
}

}  // namespace llmc
