#include "runtime/device/cuda_run.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "runtime/plan/extents.h"
#include "runtime/plan/plan_arena.h"

namespace llmc {
namespace {

constexpr int64_t kMaxArenaBytes = int64_t{1} << 50;

absl::StatusOr<int64_t> Evaluate(const std::string& text, const StepDims& dims) {
  ASSIGN_OR_RETURN(const DimExpression expression, DimExpression::Parse(text));
  return expression.Evaluate(dims);
}

// Symbols are what the manifest gives a bound.
using Bounds = std::map<std::string, int64_t>;

absl::Status BindPlain(const plan::TensorSpec& spec, const HostTensor& tensor, const Bounds& bounds, StepDims* dims) {
  for (int i = 0; i < spec.shape_size(); ++i) {
    const auto bound = bounds.find(spec.shape(i));
    if (bound == bounds.end()) continue;
    const int64_t size = tensor.shape[static_cast<size_t>(i)];
    const auto [known, added] = dims->try_emplace(spec.shape(i), size);
    if (known->second != size) {
      return absl::InvalidArgumentError(absl::StrCat("input ", spec.name(), ": dim ", i, " is ", size, ", but ",
                                                     spec.shape(i), " is ", known->second));
    }
    if (size > bound->second) {
      return absl::InvalidArgumentError(absl::StrCat("input ", spec.name(), ": dim ", i, " is ", size,
                                                     ", the bound of ", spec.shape(i), " is ", bound->second));
    }
  }
  return absl::OkStatus();
}

// A sum such as "past + 1" whose one unknown symbol stands alone gives that symbol its size.
void SolveSum(const std::string& text, int64_t size, const Bounds& bounds, StepDims* dims) {
  if (Evaluate(text, *dims).ok()) return;
  for (const auto& [symbol, bound] : bounds) {
    if (dims->contains(symbol)) continue;
    StepDims trial = *dims;
    trial[symbol] = 0;
    const absl::StatusOr<int64_t> zero = Evaluate(text, trial);
    trial[symbol] = 1;
    const absl::StatusOr<int64_t> one = Evaluate(text, trial);
    int64_t rise = 0, step = 0;
    if (!zero.ok() || !one.ok() || __builtin_sub_overflow(size, *zero, &rise) ||
        __builtin_sub_overflow(*one, *zero, &step) || step == 0 || rise == std::numeric_limits<int64_t>::min() ||
        rise % step != 0) {
      continue;
    }
    trial[symbol] = rise / step;
    const absl::StatusOr<int64_t> again = Evaluate(text, trial);
    if (again.ok() && *again == size && trial[symbol] >= 0 && trial[symbol] <= bound) *dims = trial;
    return;
  }
}

absl::Status CheckShape(const plan::TensorSpec& spec, const HostTensor& tensor, const StepDims& dims) {
  const absl::StatusOr<std::vector<int64_t>> shape = EvaluateShape(spec.shape(), dims);
  if (!shape.ok() || *shape != tensor.shape) {
    return absl::InvalidArgumentError(absl::StrCat("input ", spec.name(), ": is [", absl::StrJoin(tensor.shape, ", "),
                                                   "], the model wants [", absl::StrJoin(spec.shape(), ", "), "]"));
  }
  return absl::OkStatus();
}

// An element of a tensor of integers.
absl::StatusOr<int64_t> ElementOf(const NamedHostTensors& inputs, const plan::SizeRule& rule) {
  const auto input = inputs.find(rule.input());
  if (input == inputs.end()) return absl::InvalidArgumentError(absl::StrCat("the input ", rule.input(), " is missing"));
  const HostTensor& tensor = input->second;
  const int64_t bytes = DTypeBits(tensor.type) / 8;
  const bool is_index = tensor.type == DType::kI64 || tensor.type == DType::kI32;
  if (!is_index || rule.element() >= tensor.byte_size() / bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the input ", rule.input(), " has no element ", rule.element()));
  }
  int64_t wide = 0;
  int32_t narrow = 0;
  const char* from = tensor.bytes.get() + rule.element() * bytes;
  std::memcpy(bytes == 8 ? static_cast<void*>(&wide) : &narrow, from, static_cast<size_t>(bytes));
  return bytes == 8 ? wide : narrow;
}

// Gives sizes to the symbols that inputs leave open, and checks what must hold.
absl::Status ApplyRules(const plan::Program& program, const NamedHostTensors& inputs, const Bounds& bounds,
                        StepDims* dims) {
  for (const plan::SizeRule& rule : program.size_rules()) {
    const auto wrong = [&rule](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat(why, "\n  at: ", rule.label()));
    };
    const absl::StatusOr<int64_t> size = rule.input().empty() ? Evaluate(rule.size(), *dims) : ElementOf(inputs, rule);
    if (!size.ok()) return wrong(size.status().message());
    if (!rule.expected().empty()) {
      const absl::StatusOr<int64_t> expected = Evaluate(rule.expected(), *dims);
      if (!expected.ok()) return wrong(expected.status().message());
      if (*expected != *size) return wrong(absl::StrCat(rule.size(), " is ", *size, ", not ", *expected));
    }
    if (rule.symbol().empty()) continue;
    const auto bound = bounds.find(rule.symbol());
    if (bound != bounds.end() && (*size < 0 || *size > bound->second)) {
      return wrong(absl::StrCat(rule.symbol(), " is ", *size, ", its bound is ", bound->second));
    }
    if (const auto [known, added] = dims->try_emplace(rule.symbol(), *size); known->second != *size) {
      return wrong(absl::StrCat(rule.symbol(), " is ", *size, ", but also ", known->second));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckType(const plan::TensorSpec& spec, const HostTensor& tensor) {
  if (absl::Status status = tensor.Check(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("input ", spec.name(), ": ", status.message()));
  }
  if (DTypeName(tensor.type) != spec.dtype() || static_cast<int>(tensor.shape.size()) != spec.shape_size()) {
    return absl::InvalidArgumentError(absl::StrCat("input ", spec.name(), ": is ", DTypeName(tensor.type), "[",
                                                   absl::StrJoin(tensor.shape, ", "), "], the model wants ",
                                                   spec.dtype(), "[", absl::StrJoin(spec.shape(), ", "), "]"));
  }
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
  run->runs_.emplace(run->model_->device(), /*captures=*/!options.check_kernels);
  return run;
}

CudaRun::~CudaRun() {
  if (model_ != nullptr) model_->device()->Use().IgnoreError();
}

absl::StatusOr<StepDims> CudaRun::BindDims(const plan::Program& program, const NamedHostTensors& inputs) const {
  const plan::EntryPoint& entry = plan_->manifest().entry_points(0);
  Bounds bounds;
  for (const plan::DimBound& bound : plan_->manifest().dims()) bounds[bound.name()] = bound.max();
  StepDims dims;
  for (const plan::TensorSpec& spec : entry.inputs()) {
    const auto input = inputs.find(spec.name());
    if (input == inputs.end())
      return absl::InvalidArgumentError(absl::StrCat("the input ", spec.name(), " is missing"));
    RETURN_IF_ERROR(CheckType(spec, input->second));
    RETURN_IF_ERROR(BindPlain(spec, input->second, bounds, &dims));
  }
  for (const plan::TensorSpec& spec : entry.inputs()) {
    const HostTensor& input = inputs.at(spec.name());
    for (int i = 0; i < spec.shape_size(); ++i) {
      SolveSum(spec.shape(i), input.shape[static_cast<size_t>(i)], bounds, &dims);
    }
  }
  for (const plan::TensorSpec& spec : entry.inputs()) {
    RETURN_IF_ERROR(CheckShape(spec, inputs.at(spec.name()), dims));
  }
  RETURN_IF_ERROR(ApplyRules(program, inputs, bounds, &dims));
  return dims;
}

absl::Status CudaRun::AllocateStates(const StepDims& dims) {
  std::vector<DeviceMemory> states;
  std::vector<int64_t> all_bytes;
  for (const plan::State& state : plan_->manifest().states()) {
    ASSIGN_OR_RETURN(const int64_t records, Evaluate(state.pool(), dims));
    const absl::StatusOr<int64_t> bytes =
        TensorBytes(DType::kU8, {records, static_cast<int64_t>(state.record_bytes())});
    if (!bytes.ok()) {
      return absl::Status(bytes.status().code(), absl::StrCat(state.name(), ": ", bytes.status().message()));
    }
    all_bytes.push_back(*bytes);
  }
  if (all_bytes == state_bytes_) return absl::OkStatus();  // they keep their contents
  runs_->Clear();
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
    const absl::StatusOr<int64_t> bytes = Evaluate(buffer.size(), dims);
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

absl::StatusOr<HostTensor> CudaRun::ReadOutput(const plan::TensorSpec& spec, const DeviceRange& from,
                                               const StepDims& dims) {
  const absl::StatusOr<DType> type = ParseDType(spec.dtype());
  const absl::StatusOr<std::vector<int64_t>> shape = EvaluateShape(spec.shape(), dims);
  if (!type.ok()) return type.status();
  if (!shape.ok()) return shape.status();
  ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(*type, *shape));
  if (absl::Status fits = CheckRoom(absl::StrCat("the output ", spec.name()), bytes, from.bytes); !fits.ok())
    return fits;
  HostTensor tensor{.type = *type, .shape = *shape, .bytes = output_memory_->Take(bytes)};
  if (tensor.bytes == nullptr) {
    ASSIGN_OR_RETURN(tensor, HostTensor::Zeros(*type, *shape));
  }
  const absl::Status status = model_->device()->CopyToHost(const_cast<char*>(tensor.bytes.get()), from.data, bytes);
  if (!status.ok()) return status;
  return tensor;
}

absl::StatusOr<NamedHostTensors> CudaRun::Run(const NamedHostTensors& inputs) {
  RETURN_IF_ERROR(model_->device()->Use());
  absl::StatusOr<NamedHostTensors> outputs = Enqueue(inputs);
  const absl::Status done = model_->device()->Synchronize(), device_error = model_->TakeDeviceError();
  // A device error of the device shows in whatever is asked of it next.
  if (!done.ok()) return model_->Finish(outputs.ok() ? done : outputs.status());
  if (!outputs.ok()) return outputs;
  if (!device_error.ok()) return device_error;
  return outputs;
}

// The outputs are whole when the device is done.
absl::StatusOr<NamedHostTensors> CudaRun::Enqueue(const NamedHostTensors& inputs) {
  const plan::EntryPoint& entry = plan_->manifest().entry_points(0);
  const plan::Program& program = *model_->code().programs().back();
  ASSIGN_OR_RETURN(const StepDims dims, BindDims(program, inputs));
  last_ = nullptr;  // what is prepared may go
  RETURN_IF_ERROR(AllocateStates(dims));
  ASSIGN_OR_RETURN(const DeviceProgram* prepared, Prepare(program, dims));
  for (const plan::TensorSpec& spec : entry.inputs()) {
    const HostTensor& input = inputs.at(spec.name());
    ASSIGN_OR_RETURN(const DeviceRange to, PlaceOf(*prepared, absl::StrCat("%", spec.name())));
    absl::Status status = CheckRoom(absl::StrCat("the input ", spec.name()), input.byte_size(), to.bytes);
    if (status.ok()) status = model_->device()->CopyToDevice(to.data, input.bytes.get(), input.byte_size());
    if (!status.ok()) return status;
  }
  RETURN_IF_ERROR(Compute(dims));
  NamedHostTensors outputs;
  for (int i = 0; i < entry.outputs_size(); ++i) {
    ASSIGN_OR_RETURN(const DeviceRange from, PlaceOf(*prepared, entry.output_values(i)));
    ASSIGN_OR_RETURN(HostTensor output, ReadOutput(entry.outputs(i), from, dims));
    outputs.emplace(entry.outputs(i).name(), std::move(output));
  }
  last_ = prepared;
  last_sizes_ = dims;
  return outputs;
}

}  // namespace llmc
