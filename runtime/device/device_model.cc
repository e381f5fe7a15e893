#include "runtime/device/device_model.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/device/plan_kernels.h"
#include "runtime/device/product_tuning.h"
#include "runtime/device/trace.h"
#include "runtime/plan/extents.h"
#include "runtime/plan/plan_format.h"
#include "runtime/plan/step_programs.h"

namespace llmc {
namespace {

// An error of the device says what ran.
absl::Status At(const plan::Task& task, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "\n  at: ", task.label()));
}

// Whether a step that does this with its logits runs the task.
bool RunsFor(const plan::Task& task, plan::Sampling sampling) {
  const auto& kinds = task.sampling();
  return kinds.empty() || std::find(kinds.begin(), kinds.end(), sampling) != kinds.end();
}

// The expressions that a task evaluates before it runs.
std::vector<std::string> SizeTextsOf(const plan::Task& task) {
  if (task.has_kernel()) return {task.kernel().tiles().begin(), task.kernel().tiles().end()};
  if (task.has_gemm()) {
    const plan::Gemm& gemm = task.gemm();
    return {gemm.m(), gemm.n(), gemm.k(), gemm.batch(), gemm.x_stride(), gemm.weight_stride()};
  }
  if (task.has_copy()) return {task.copy().bytes()};
  return {};
}

}  // namespace

absl::Status DeviceModel::LoadKernels(const std::string& cache_folder) {
  const TraceSpan span(device_->trace(), "load kernels");
  ASSIGN_OR_RETURN(const std::vector<std::string> images,
                   KernelImages(*plan_, {.name = device_->name(), .capability = device_->capability()}, cache_folder));
  functions_.resize(images.size());
  parameter_sizes_.resize(images.size());
  for (size_t i = 0; i < images.size(); ++i) {
    if (images[i].empty()) continue;
    const plan::Kernel& kernel = manifest().kernels(static_cast<int>(i));
    const absl::Status status = LoadKernel(i, images[i]);
    if (status.ok()) continue;
    if (absl::IsResourceExhausted(status)) return status;
    return absl::InvalidArgumentError(absl::StrCat(plan_->path(), ": kernel ", kernel.entry(), " cannot be used: ",
                                                   status.message(), "; compile the model for this GPU"));
  }
  return absl::OkStatus();
}

uint32_t DeviceModel::SharedBytesOf(const plan::Kernel& kernel) const {
  return kernel.adapts() ? std::min(kernel.shared_bytes(), device_->max_shared_bytes()) : kernel.shared_bytes();
}

absl::Status DeviceModel::LoadKernel(size_t index, const std::string& image) {
  const plan::Kernel& kernel = manifest().kernels(static_cast<int>(index));
  ASSIGN_OR_RETURN(void* module, device_->LoadModule(image));
  ASSIGN_OR_RETURN(const DeviceFunction function, device_->FindFunction(module, kernel.entry()));
  ASSIGN_OR_RETURN(const uint32_t threads, device_->MaxThreads(function));
  if (kernel.threads() > threads) {
    return absl::InvalidArgumentError(
        absl::StrCat("it runs ", threads, " threads of a block and not ", kernel.threads()));
  }
  ASSIGN_OR_RETURN(std::optional<std::vector<size_t>> parameters, device_->ParameterSizes(function));
  if (const uint32_t bytes = SharedBytesOf(kernel); bytes > 0) {
    if (bytes > device_->max_shared_bytes()) {
      return absl::InvalidArgumentError(absl::StrCat("it needs ", bytes, " bytes of shared memory, and ",
                                                     device_->name(), " has ", device_->max_shared_bytes()));
    }
    RETURN_IF_ERROR(device_->AllowSharedBytes(function, bytes));
  }
  functions_[index] = function;
  parameter_sizes_[index] = std::move(parameters);
  return absl::OkStatus();
}

absl::Status DeviceModel::LoadConstants() {
  for (const std::string& constant : manifest().constants()) {
    const int64_t bytes = static_cast<int64_t>(constant.size());
    ASSIGN_OR_RETURN(DeviceMemory memory, device_->Allocate(bytes));
    RETURN_IF_ERROR(device_->CopyToDevice(memory.data(), constant.data(), bytes));
    constants_.push_back(std::move(memory));
  }
  return absl::OkStatus();
}

absl::Status DeviceModel::MakeDeviceErrorRecord() {
  if (manifest().device_errors_size() == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(PinnedMemory word, device_->AllocatePinned(sizeof(DeviceErrorRecord)));
  device_error_ = std::move(word);
  new (device_error_.data()) DeviceErrorRecord;
  return absl::OkStatus();
}

absl::Status DeviceModel::TakeDeviceError() {
  if (device_error_.data() == nullptr) return absl::OkStatus();
  return llmc::TakeDeviceError(manifest(), reinterpret_cast<volatile DeviceErrorRecord*>(device_error_.data()));
}

absl::Status DeviceModel::AllocatePersistent() {
  const auto bytes = static_cast<int64_t>(code_.persistent_bytes());
  if (bytes == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(persistent_, device_->Allocate(bytes));
  return device_->FillBytes(persistent_.data(), 0, bytes);
}

DevicePointer DeviceModel::PreparedPointer(uint64_t offset) const {
  const uint64_t kept = static_cast<uint64_t>(prepared_.bytes());
  return offset < kept ? prepared_.data() + offset : temporaries_.data() + (offset - kept);
}

absl::Status DeviceModel::Prepare() {
  const TraceSpan span(device_->trace(), "prepare weights");
  for (int group = 0; group < static_cast<int>(layout_.ends.size()); ++group) {
    RETURN_IF_ERROR(RunGroup(group));
  }
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (layout_.places[i].where == WeightPlace::Where::kPassing) weights_[i] = 0;
  }
  passing_weights_ = DeviceMemory();
  temporaries_ = DeviceMemory();
  return absl::OkStatus();
}

std::vector<WeightCopy> DeviceModel::CopiesOf(int group) const {
  std::vector<WeightCopy> copies;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] != 0 && layout_.places[i].group == group) {
      copies.push_back({.weight = static_cast<int>(i), .to = weights_[i]});
    }
  }
  return copies;
}

// Weights come before the steps of `prepare` that read them; those of the first group are there.
absl::Status DeviceModel::RunGroup(int group) {
  if (group > 0) {
    RETURN_IF_ERROR(CopyWeights(*plan_, CopiesOf(group), /*verify=*/false, device_.get()));
  }
  for (int i = group == 0 ? 0 : layout_.ends[static_cast<size_t>(group) - 1];
       i < layout_.ends[static_cast<size_t>(group)]; ++i) {
    if (layout_.skipped[static_cast<size_t>(i)]) continue;
    const plan::Task& task = code_.prepare().tasks(i);
    const absl::StatusOr<DeviceTask> made = MakeTask(task, code_.prepare().launches(i).mode(), {});
    if (!made.ok()) return At(task, made.status());
    if (absl::Status status = EnqueueUntraced(*made, {}); !status.ok()) return At(task, status);
  }
  return Finish(device_->Synchronize());
}

// All of it, from the beginning.
absl::StatusOr<DeviceRange> DeviceModel::MemoryOf(const plan::Arg& arg, const std::vector<DeviceRange>& buffers) const {
  const auto range = [](const DeviceMemory& memory) { return DeviceRange{memory.data(), memory.bytes()}; };
  switch (arg.what_case()) {
    case plan::Arg::kBuffer:
      return buffers[arg.buffer()];
    case plan::Arg::kPrepared: {
      const plan::Buffer& buffer = code_.prepare().buffers(static_cast<int>(arg.prepared()));
      return DeviceRange{PreparedPointer(buffer.offset()), static_cast<int64_t>(buffer.bytes())};
    }
    case plan::Arg::kWeight:
      if (weights_[arg.weight()] == 0) return absl::FailedPreconditionError("a weight is not loaded");
      return DeviceRange{weights_[arg.weight()],
                         static_cast<int64_t>(manifest().weights(static_cast<int>(arg.weight())).bytes())};
    case plan::Arg::kState:
      if (arg.state() >= states_.size()) return absl::FailedPreconditionError("a state is not allocated");
      return range(states_[arg.state()]);
    case plan::Arg::kConstant:
      return range(constants_[arg.constant()]);
    case plan::Arg::kPersistent: {
      const plan::Buffer& buffer = code_.persistent()[static_cast<int>(arg.persistent())];
      return DeviceRange{persistent_.data() + buffer.offset(), static_cast<int64_t>(buffer.bytes())};
    }
    case plan::Arg::kStepMessages:
      if (step_messages_.data == 0) return absl::FailedPreconditionError("there are no messages of steps");
      return step_messages_;
    case plan::Arg::kDeviceErrorRecord:
      return DeviceRange{reinterpret_cast<DevicePointer>(device_error_.data()), device_error_.bytes()};
    default:
      return absl::InvalidArgumentError("an argument of a task is nothing");
  }
}

absl::StatusOr<DeviceArgument> DeviceModel::MakeArgument(const plan::Arg& arg,
                                                         const std::vector<DeviceRange>& buffers) const {
  DeviceArgument argument;
  if (arg.has_dim()) {
    ASSIGN_OR_RETURN(DimExpression dim, DimExpression::Parse(arg.dim()));
    argument.kind = DeviceArgument::Kind::kDim;
    argument.dim = std::move(dim);
  } else if (arg.has_number()) {
    argument.kind = DeviceArgument::Kind::kNumber;
    argument.number = static_cast<float>(arg.number());
  } else {
    ASSIGN_OR_RETURN(const DeviceRange memory, MemoryOf(arg, buffers));
    if (arg.offset() > static_cast<uint64_t>(memory.bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan is damaged: an argument lies ", arg.offset(), " bytes into memory of ", memory.bytes));
    }
    argument.pointer = memory.data + arg.offset();
    argument.bytes = memory.bytes - static_cast<int64_t>(arg.offset());
  }
  if (arg.has_tiles()) {
    argument.kind = DeviceArgument::Kind::kTiles;
    if (!arg.tiles().all_rows()) {
      ASSIGN_OR_RETURN(argument.dim, DimExpression::Parse(arg.tiles().rows()));
    }
    argument.row_bytes = static_cast<int64_t>(arg.tiles().row_bytes());
    argument.tile_rows = arg.tiles().tile_rows();
    argument.read_once = arg.tiles().read_once();
  }
  return argument;
}

// The driver would read beyond the arguments that a damaged plan gives.
absl::Status DeviceModel::CheckArguments(const plan::KernelTask& kernel,
                                         const std::vector<DeviceArgument>& arguments) const {
  const std::optional<std::vector<size_t>>& sizes = parameter_sizes_[kernel.kernel()];
  if (!sizes.has_value()) return absl::OkStatus();
  bool fit = sizes->size() == arguments.size();
  for (size_t i = 0; fit && i < arguments.size(); ++i) {
    using Kind = DeviceArgument::Kind;
    const Kind kind = arguments[i].kind;
    fit = (*sizes)[i] == (kind == Kind::kNumber  ? sizeof(float)
                          : kind == Kind::kTiles ? sizeof(TileMap)
                                                 : sizeof(int64_t));
  }
  if (fit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(plan_->path(), ": kernel ", manifest().kernels(static_cast<int>(kernel.kernel())).entry(), " takes ",
                   sizes->size(), " parameters, which the ", arguments.size(),
                   " arguments of a task do not fit; the plan is damaged: compile the model again"));
}

absl::StatusOr<DeviceTask> DeviceModel::MakeTask(const plan::Task& task, plan::Launch::Mode mode,
                                                 const std::vector<DeviceRange>& buffers) const {
  DeviceTask made{.task = &task, .mode = mode};
  if (task.has_kernel()) made.function = functions_[task.kernel().kernel()];
  for (const std::string& size : SizeTextsOf(task)) {
    ASSIGN_OR_RETURN(DimExpression parsed, DimExpression::Parse(size));
    made.sizes.push_back(std::move(parsed));
  }
  for (const plan::Arg& arg : task.args()) {
    ASSIGN_OR_RETURN(DeviceArgument argument, MakeArgument(arg, buffers));
    made.arguments.push_back(std::move(argument));
  }
  if (task.has_kernel()) {
    RETURN_IF_ERROR(CheckArguments(task.kernel(), made.arguments));
  }
  return made;
}

absl::StatusOr<DeviceProgram> DeviceModel::Build(const plan::Program& program, std::vector<DeviceRange> buffers,
                                                 bool model_alone, bool runs) const {
  DeviceProgram built{.plan = &program, .buffers = std::move(buffers)};
  const bool wants_each = check_kernels_ || (device_->trace() != nullptr && device_->trace()->kernels());
  auto run = program.runs().begin();
  uint32_t done = 0;  // tasks of runs
  for (const plan::Launch& launch : program.launches()) {
    const plan::Task& task = program.tasks(static_cast<int>(launch.first()));
    if (launch.first() < done || (model_alone && PartOf(task) != StepPart::kModel)) continue;
    while (run != program.runs().end() && run->first() < launch.first()) ++run;
    if (runs && !wants_each && run != program.runs().end() && run->first() == launch.first() &&
        run->blocks() <= static_cast<uint32_t>(device_->multiprocessors())) {
      ASSIGN_OR_RETURN(DeviceTask all, MakeRun(*run, program, built.buffers));
      built.tasks.push_back(std::move(all));
      done = run->first() + run->count();
      continue;
    }
    absl::StatusOr<DeviceTask> made = MakeTask(task, launch.mode(), built.buffers);
    if (!made.ok()) return At(task, made.status());
    built.tasks.push_back(*std::move(made));
  }
  return built;
}

absl::Status DeviceModel::Enqueue(const DeviceProgram& program, const StepDims& dims, plan::Sampling sampling) {
  for (const DeviceTask& task : program.tasks) {
    if (!RunsFor(*task.task, sampling)) continue;
    RETURN_IF_ERROR(Enqueue(task, dims));
  }
  return absl::OkStatus();
}

absl::Status DeviceModel::Enqueue(const DeviceTask& task, const StepDims& dims) {
  const bool traced = device_->trace() != nullptr && device_->trace()->kernels();
  return At(*task.task, traced ? EnqueueTraced(task, dims) : EnqueueUntraced(task, dims));
}

absl::Status DeviceModel::EnqueueTraced(const DeviceTask& task, const StepDims& dims) {
  if (trace_begin_.handle() == nullptr) {
    ASSIGN_OR_RETURN(DeviceEvent begin, device_->Mark());
    RETURN_IF_ERROR(device_->Wait(begin));
    trace_begin_time_ = device_->trace()->Now();
    trace_begin_ = std::move(begin);
  }
  ASSIGN_OR_RETURN(DeviceEvent begin, device_->Mark());
  RETURN_IF_ERROR(EnqueueUntraced(task, dims));
  ASSIGN_OR_RETURN(DeviceEvent end, device_->Mark());
  traced_.push_back({task.task, std::move(begin), std::move(end)});
  return absl::OkStatus();
}

absl::Status DeviceModel::CollectTrace() {
  for (const TracedTask& traced : traced_) {
    const absl::StatusOr<double> begin = device_->SecondsBetween(trace_begin_, traced.begin);
    const absl::StatusOr<double> end = device_->SecondsBetween(trace_begin_, traced.end);
    if (!begin.ok()) return begin.status();
    if (!end.ok()) return end.status();
    device_->trace()->Add(Trace::Row::kDevice, traced.task->label(), trace_begin_time_ + 1e6 * *begin,
                          trace_begin_time_ + 1e6 * *end);
  }
  traced_.clear();
  return absl::OkStatus();
}

absl::Status DeviceModel::Finish(absl::Status ran) const {
  if (ran.ok() || check_kernels_) return ran;
  return absl::Status(ran.code(), absl::StrCat(ran.message(),
                                               "; run again with --check-kernels (check_kernels of "
                                               "LoadOptions) to see in which op"));
}

absl::Status DeviceModel::EnqueueUntraced(const DeviceTask& task, const StepDims& dims) {
  const ProfilerRange range(task.task->label());
  absl::Status status = Issue(task, dims);
  if (status.ok() && check_kernels_) status = device_->Synchronize();
  return status;
}

absl::StatusOr<std::vector<int64_t>> DeviceModel::SizesOf(const DeviceTask& task, const StepDims& dims) const {
  std::vector<int64_t> sizes;
  for (const DimExpression& expression : task.sizes) {
    ASSIGN_OR_RETURN(const int64_t size, expression.Evaluate(dims));
    const bool is_count = task.task->has_kernel() || (task.task->has_gemm() && sizes.size() < 4);
    if (size < 0 || (is_count && size > std::numeric_limits<int32_t>::max())) {
      return absl::InvalidArgumentError(absl::StrCat("a size is ", size));
    }
    sizes.push_back(size);
  }
  return sizes;
}

absl::Status DeviceModel::Issue(const DeviceTask& task, const StepDims& dims) {
  if (task.run != nullptr) return LaunchRun(task, dims);
  ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, SizesOf(task, dims));
  const std::vector<DeviceArgument>& arguments = task.arguments;
  if (task.task->has_kernel()) return Launch(task, sizes, dims);
  if (task.task->has_gemm()) return Multiply(task, sizes);
  if (!task.task->has_copy()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckCopy(sizes[0], arguments[0].bytes, arguments[1].bytes));
  return device_->CopyOnDevice(arguments[0].pointer, arguments[1].pointer, sizes[0]);
}

absl::Status DeviceModel::Multiply(const DeviceTask& task, const std::vector<int64_t>& sizes) {
  const plan::Gemm& gemm = task.task->gemm();
  ASSIGN_OR_RETURN(MatrixProducts::Shape shape, ShapeOf(gemm, sizes[0], sizes[1], sizes[2]));
  shape.batch = sizes[3];
  shape.x_stride = sizes[4];
  shape.weight_stride = sizes[5];
  const std::vector<DeviceArgument>& args = task.arguments;
  MatrixProducts::Operands operands = {.out = args[0].pointer, .x = args[1].pointer, .weight = args[2].pointer};
  ProductBytes bytes = {.out = args[0].bytes, .x = args[1].bytes, .weight = args[2].bytes};
  if (gemm.bias()) {
    operands.bias = args[3].pointer;
    bytes.bias = args[3].bytes;
  }
  const size_t residual = gemm.bias() ? 4 : 3;
  if (gemm.residual()) {
    operands.residual = args[residual].pointer;
    bytes.residual = args[residual].bytes;
  }
  if (gemm.scales() != plan::NO_SCALES) {
    operands.x_scale = args[args.size() - 2].pointer;
    operands.weight_scale = args.back().pointer;
    bytes.x_scale = args[args.size() - 2].bytes;
    bytes.weight_scale = args.back().bytes;
  }
  RETURN_IF_ERROR(CheckProduct(shape, bytes));
  const TraceSpan span(device_->trace(), "cublasLtMatmul");
  return products_->Multiply(shape, operands);
}

absl::StatusOr<TileMap> DeviceModel::MapTiles(const DeviceArgument& argument, const StepDims& dims) const {
  int64_t rows = argument.bytes / argument.row_bytes;
  if (argument.dim.has_value()) {
    ASSIGN_OR_RETURN(rows, argument.dim->Evaluate(dims));
  }
  if (rows < 0 || rows > argument.bytes / argument.row_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(rows, " rows of ", argument.row_bytes,
                                                   " bytes are not in memory of ", argument.bytes,
                                                   "; the plan is damaged: compile the model again"));
  }
  return device_->MapTiles(argument.pointer, std::max<int64_t>(rows, 1), argument.row_bytes, argument.tile_rows,
                           argument.read_once);
}

// An argument that is no map.
absl::StatusOr<int64_t> DeviceModel::WordOf(const DeviceArgument& argument, const StepDims& dims) {
  if (argument.kind == DeviceArgument::Kind::kPointer) return static_cast<int64_t>(argument.pointer);
  if (argument.kind == DeviceArgument::Kind::kDim) return argument.dim->Evaluate(dims);
  int64_t word = 0;
  std::memcpy(&word, &argument.number, sizeof(argument.number));
  return word;
}

absl::Status DeviceModel::Launch(const DeviceTask& task, const std::vector<int64_t>& tiles, const StepDims& dims) {
  if (std::find(tiles.begin(), tiles.end(), 0) != tiles.end()) return absl::OkStatus();
  const std::vector<DeviceArgument>& arguments = task.arguments;
  std::vector<int64_t> values(arguments.size());
  std::deque<TileMap> maps;
  std::vector<void*> pointers;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const DeviceArgument& argument = arguments[i];
    if (argument.kind == DeviceArgument::Kind::kTiles) {
      ASSIGN_OR_RETURN(const TileMap map, MapTiles(argument, dims));
      pointers.push_back(&maps.emplace_back(map));
      continue;
    }
    ASSIGN_OR_RETURN(values[i], WordOf(argument, dims));
    pointers.push_back(&values[i]);
  }
  const plan::Kernel& kernel = manifest().kernels(static_cast<int>(task.task->kernel().kernel()));
  const LaunchShape shape = {
      .grid = {static_cast<uint32_t>(tiles[0]), static_cast<uint32_t>(tiles[1]), static_cast<uint32_t>(tiles[2])},
      .threads = kernel.threads(),
      .shared_bytes = SharedBytesOf(kernel),
      .pdl = task.mode == plan::Launch::DEPENDENT};
  return device_->Launch(task.function, shape, pointers);
}

}  // namespace llmc
