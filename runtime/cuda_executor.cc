#include "runtime/cuda_executor.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "runtime/plan_format.h"

namespace llmc {
namespace {

constexpr int64_t kLargestGraph = 8;  // sequences

absl::StatusOr<ElementType> TypeNamed(absl::string_view name) {
  for (int type = 0; type <= static_cast<int>(ElementType::kBool); ++type) {
    if (ElementTypeName(static_cast<ElementType>(type)) == name) return static_cast<ElementType>(type);
  }
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' is no element type"));
}

// An error of the device says what ran.
absl::Status At(const plan::Step& step, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "\n  at: ", step.label()));
}

// The tensors that describe a step (ir/ops_lm.h), padded to the sizes of a graph.
struct StepTensors {
  std::vector<int32_t> ids, pos, slots, pages, lens, starts = {0}, rows;
  int64_t wanted = 0;  // rows that are not padding

  void Add(const Chunk& chunk, int64_t page_size, int64_t pages_per_sequence) {
    const int64_t begin = static_cast<int64_t>(ids.size()), count = static_cast<int64_t>(chunk.ids.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = chunk.position + i;
      ids.push_back(chunk.ids[i]);
      pos.push_back(static_cast<int32_t>(position));
      slots.push_back(static_cast<int32_t>(chunk.pages[position / page_size] * page_size + position % page_size));
      if (chunk.logits == WantedLogits::kAll || (chunk.logits == WantedLogits::kLast && i == count - 1)) {
        rows.push_back(static_cast<int32_t>(begin + i));
      }
    }
    const int64_t used = (chunk.position + count + page_size - 1) / page_size;
    pages.insert(pages.end(), chunk.pages.begin(), chunk.pages.begin() + used);
    pages.resize((lens.size() + 1) * pages_per_sequence, 0);
    lens.push_back(static_cast<int32_t>(chunk.position + count));
    starts.push_back(static_cast<int32_t>(begin + count));
  }

  // Sequences of one token at position 0 that is written nowhere.
  void PadTo(int64_t sequences, int64_t pages_per_sequence) {
    while (static_cast<int64_t>(lens.size()) < sequences) {
      ids.push_back(0);
      pos.push_back(0);
      slots.push_back(-1);
      lens.push_back(1);
      starts.push_back(static_cast<int32_t>(ids.size()));
      pages.resize(lens.size() * pages_per_sequence, 0);
    }
    while (static_cast<int64_t>(rows.size()) < sequences) rows.push_back(0);
  }

  std::map<std::string, const std::vector<int32_t>*> Named() const {
    return {{"ids", &ids},   {"pos", &pos},       {"slots", &slots}, {"pages", &pages},
            {"lens", &lens}, {"starts", &starts}, {"rows", &rows}};
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaExecutor>> CudaExecutor::Create(const Plan* plan,
                                                                   const CudaExecutorOptions& options) {
  if (plan->manifest().kernels_size() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(plan->path(), ": has no code for a GPU; compile it with --target"));
  }
  auto executor = std::unique_ptr<CudaExecutor>(new CudaExecutor());
  executor->plan_ = plan;
  executor->use_graphs_ = options.use_graphs;
  if (absl::Status status = executor->ReadSymbols(); !status.ok()) return status;
  if (absl::Status status = executor->ReadLimits(options); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<Device>> device = Device::Open(options.device);
  if (!device.ok()) return device.status();
  executor->device_ = *std::move(device);
  absl::StatusOr<std::unique_ptr<MatrixProducts>> products = MatrixProducts::Create(executor->device_.get());
  if (!products.ok()) return products.status();
  executor->products_ = *std::move(products);
  absl::Status status = executor->LoadKernels();
  if (status.ok()) status = executor->LoadWeights();
  if (status.ok()) status = executor->Prepare();
  if (status.ok()) status = executor->AllocateStates(options);
  if (status.ok()) status = executor->BuildPrograms();
  if (!status.ok()) return status;
  return executor;
}

absl::Status CudaExecutor::ReadSymbols() {
  const plan::Manifest& manifest = plan_->manifest();
  std::map<std::string, int> ranks = {{"ids", 1},  {"pos", 1},    {"slots", 1}, {"pages", 2},
                                      {"lens", 1}, {"starts", 1}, {"rows", 1}};
  const bool one_step = manifest.entry_points_size() == 1 && manifest.programs_size() > 0 && manifest.states_size() > 0;
  if (one_step) {
    for (const plan::TensorSpec& input : manifest.entry_points(0).inputs()) {
      const auto it = ranks.find(input.name());
      if (it == ranks.end() || input.dtype() != "i32" || input.shape_size() != it->second) break;
      if (input.name() == "ids") tokens_ = input.shape(0);
      if (input.name() == "lens") sequences_ = input.shape(0);
      if (input.name() == "rows") rows_ = input.shape(0);
      if (input.name() == "pages") pages_ = input.shape(1);
      ranks.erase(it);
    }
  }
  if (!ranks.empty() || manifest.entry_points(0).output_values_size() != 1 || manifest.states(0).shape_size() != 5) {
    return absl::UnimplementedError("on a GPU only language models with a paged KV cache run so far");
  }
  pool_ = manifest.states(0).shape(0);
  return absl::OkStatus();
}

absl::Status CudaExecutor::ReadLimits(const CudaExecutorOptions& options) {
  const plan::Manifest& manifest = plan_->manifest();
  const plan::LanguageModel& lm = manifest.language_model();
  limits_.vocab_size = lm.vocab_size();
  limits_.page_size = lm.page_size();
  limits_.max_context = options.max_context == 0 ? lm.max_context() : std::min(options.max_context, lm.max_context());
  const plan::Program& widest = manifest.programs(manifest.programs_size() - 1);
  std::map<std::string, int64_t> bounds;
  for (const plan::DimBound& bound : widest.bounds()) bounds[bound.name()] = bound.max();
  for (const std::string* symbol : {&tokens_, &sequences_, &rows_, &pages_, &pool_}) {
    if (bounds[*symbol] < 1)
      return absl::InvalidArgumentError(absl::StrCat("the plan's dim ", *symbol, " has no bound"));
  }
  limits_.max_step_tokens = std::min(bounds[tokens_], bounds[rows_]);
  max_pages_ = bounds[pool_];
  limits_.max_sequences = bounds[sequences_];
  limits_.max_context = std::min(limits_.max_context, bounds[pages_] * limits_.page_size);
  if (limits_.max_context < 1) return absl::InvalidArgumentError("max_context must be at least 1");
  return absl::OkStatus();
}

absl::Status CudaExecutor::LoadKernels() {
  const std::string target = absl::StrCat("sm_", device_->capability());
  for (const plan::Kernel& kernel : plan_->manifest().kernels()) {
    const plan::Cubin* match = nullptr;
    for (const plan::Cubin& cubin : kernel.cubins()) {
      if (absl::string_view(cubin.target()).substr(0, target.size()) == target) match = &cubin;
    }
    if (match == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat(plan_->path(), ": has no code for ", device_->name(), " (", target, ")"));
    }
    const absl::string_view cubins = plan_->section(plan::Section::kCubins);
    absl::StatusOr<void*> module = device_->LoadModule(cubins.substr(match->offset(), match->bytes()));
    if (!module.ok()) return module.status();
    absl::StatusOr<DeviceFunction> function = device_->FindFunction(*module, kernel.entry());
    if (!function.ok()) return function.status();
    functions_.push_back(*function);
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::LoadWeights() {
  const plan::Manifest& manifest = plan_->manifest();
  std::vector<std::shared_ptr<const char>> hosts;  // until the copies are done
  for (int i = 0; i < manifest.weights_size(); ++i) {
    const int64_t bytes = static_cast<int64_t>(manifest.weights(i).bytes());
    absl::StatusOr<DeviceMemory> memory = device_->Allocate(bytes);
    if (!memory.ok()) return memory.status();
    hosts.push_back(plan_->WeightBytes(i));
    if (absl::Status status = device_->CopyToDevice(memory->data(), hosts.back().get(), bytes); !status.ok())
      return status;
    weights_.push_back(*std::move(memory));
  }
  for (const std::string& constant : manifest.constants()) {
    absl::StatusOr<DeviceMemory> memory = device_->Allocate(static_cast<int64_t>(constant.size()));
    if (!memory.ok()) return memory.status();
    const int64_t bytes = static_cast<int64_t>(constant.size());
    if (absl::Status status = device_->CopyToDevice(memory->data(), constant.data(), bytes); !status.ok())
      return status;
    constants_.push_back(*std::move(memory));
  }
  return device_->Synchronize();
}

absl::Status CudaExecutor::Prepare() {
  const plan::Program& prepare = plan_->manifest().prepare();
  absl::StatusOr<DeviceMemory> memory = device_->Allocate(static_cast<int64_t>(prepare.arena_bytes()));
  if (!memory.ok()) return memory.status();
  prepared_ = *std::move(memory);
  absl::StatusOr<Program> program = Build(prepare, prepared_.data());
  if (!program.ok()) return program.status();
  if (absl::Status status = Enqueue(*program, {}); !status.ok()) return status;
  if (absl::Status status = device_->Synchronize(); !status.ok()) return status;
  // Weights that only `prepare` read are not needed any more.
  std::vector<bool> used(weights_.size());
  for (const plan::Program& step_program : plan_->manifest().programs()) {
    for (const plan::Step& step : step_program.steps()) {
      for (const plan::Arg& arg : step.args()) {
        if (arg.what_case() == plan::Arg::kWeight) used[arg.weight()] = true;
      }
    }
  }
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!used[i]) weights_[i] = DeviceMemory();
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::AllocateStates(const CudaExecutorOptions& options) {
  const plan::Manifest& manifest = plan_->manifest();
  uint64_t arena_bytes = 0;
  for (const plan::Program& program : manifest.programs()) arena_bytes = std::max(arena_bytes, program.arena_bytes());
  absl::StatusOr<DeviceMemory> arena = device_->Allocate(static_cast<int64_t>(arena_bytes));
  if (!arena.ok()) return arena.status();
  arena_ = *std::move(arena);
  // NaN everywhere: what reads memory that nothing wrote shows.
  if (absl::Status status = device_->FillBytes(arena_.data(), 0xff, arena_.bytes()); !status.ok()) return status;

  std::vector<int64_t> page_bytes;
  int64_t all = 0;
  for (const plan::State& state : manifest.states()) {
    const absl::StatusOr<ElementType> type = TypeNamed(state.dtype());
    if (!type.ok()) return type.status();
    int64_t bytes = ElementTypeBits(*type) / 8;
    for (int i = 1; i < state.shape_size(); ++i) {
      const absl::StatusOr<DimExpression> dim = DimExpression::Parse(state.shape(i));
      if (!dim.ok()) return dim.status();
      const absl::StatusOr<int64_t> size = dim->Evaluate({});
      if (!size.ok()) return size.status();
      bytes *= *size;
    }
    page_bytes.push_back(bytes);
    all += bytes;
  }
  if (all < 1) return absl::InvalidArgumentError("a KV state of the plan has no size");
  // Slots are 32-bit numbers.
  const int64_t most = std::min(max_pages_, std::numeric_limits<int32_t>::max() / limits_.page_size);
  if (options.num_pages < 0 || options.num_pages > most) {
    return absl::InvalidArgumentError(absl::StrCat("num_pages is ", options.num_pages, ", must be in [1, ", most, "]"));
  }
  limits_.num_pages = options.num_pages;
  if (limits_.num_pages == 0) {
    const absl::StatusOr<Device::MemoryInfo> info = device_->memory();
    if (!info.ok()) return info.status();
    const int64_t wished = limits_.max_sequences * PagesFor(limits_.max_context, limits_.page_size);
    limits_.num_pages = std::min({wished, most, info->free / 10 * 9 / all});
  }
  if (limits_.num_pages < 1)
    return absl::ResourceExhaustedError("no page of the KV cache fits into the device's memory");
  for (const int64_t bytes : page_bytes) {
    absl::StatusOr<DeviceMemory> state = device_->Allocate(bytes * limits_.num_pages);
    if (!state.ok()) return state.status();
    if (absl::Status status = device_->FillBytes(state->data(), 0, state->bytes()); !status.ok()) return status;
    states_.push_back(*std::move(state));
  }
  return device_->Synchronize();
}

absl::Status CudaExecutor::BuildPrograms() {
  const plan::Manifest& manifest = plan_->manifest();
  for (const plan::Program& program : manifest.programs()) {
    absl::StatusOr<Program> built = Build(program, arena_.data());
    if (!built.ok()) return built.status();
    for (const plan::Buffer& buffer : program.buffers()) {
      for (const std::string& value : buffer.values()) {
        for (const plan::TensorSpec& input : manifest.entry_points(0).inputs()) {
          if (value == absl::StrCat("%", input.name())) built->inputs[input.name()] = arena_.data() + buffer.offset();
        }
        if (value == manifest.entry_points(0).output_values(0)) built->logits = arena_.data() + buffer.offset();
      }
    }
    if (built->logits == 0 || built->inputs.size() != 7) {
      return absl::InvalidArgumentError("a program of the plan lacks a place for an input or the logits");
    }
    programs_.push_back(*std::move(built));
  }
  const int64_t input_bytes = 4 * (4 * limits_.max_step_tokens +
                                   limits_.max_sequences * (3 + PagesFor(limits_.max_context, limits_.page_size)));
  absl::StatusOr<PinnedMemory> staging = device_->AllocatePinned(input_bytes + 4096);
  if (!staging.ok()) return staging.status();
  staging_ = *std::move(staging);
  return absl::OkStatus();
}

absl::StatusOr<CudaExecutor::Argument> CudaExecutor::MakeArgument(const plan::Arg& arg, const plan::Program& program,
                                                                  DevicePointer arena) const {
  Argument argument;
  const uint64_t offset = arg.offset();
  switch (arg.what_case()) {
    case plan::Arg::kBuffer:
      argument.pointer = arena + program.buffers(static_cast<int>(arg.buffer())).offset() + offset;
      return argument;
    case plan::Arg::kPrepared:
      argument.pointer =
          prepared_.data() + plan_->manifest().prepare().buffers(static_cast<int>(arg.prepared())).offset() + offset;
      return argument;
    case plan::Arg::kWeight:
      argument.pointer = weights_[arg.weight()].data() + offset;
      return argument;
    case plan::Arg::kState:
      argument.pointer = states_[arg.state()].data() + offset;
      return argument;
    case plan::Arg::kConstant:
      argument.pointer = constants_[arg.constant()].data() + offset;
      return argument;
    case plan::Arg::kDim: {
      absl::StatusOr<DimExpression> dim = DimExpression::Parse(arg.dim());
      if (!dim.ok()) return dim.status();
      argument.kind = Argument::Kind::kDim;
      argument.dim = *std::move(dim);
      return argument;
    }
    case plan::Arg::kNumber:
      argument.kind = Argument::Kind::kNumber;
      argument.number = static_cast<float>(arg.number());
      return argument;
    case plan::Arg::WHAT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("an argument of a step is nothing");
}

absl::StatusOr<CudaExecutor::Program> CudaExecutor::Build(const plan::Program& plan, DevicePointer arena) {
  Program program{.plan = &plan, .arena = arena};
  for (const plan::Step& step : plan.steps()) {
    Operation operation{.step = &step};
    std::vector<std::string> sizes;
    if (step.has_launch()) {
      operation.function = functions_[step.launch().kernel()];
      sizes.assign(step.launch().grid().begin(), step.launch().grid().end());
    } else if (step.has_gemm()) {
      sizes = {step.gemm().m()};
    } else if (step.has_copy()) {
      sizes = {step.copy().bytes()};
    }
    for (const std::string& size : sizes) {
      absl::StatusOr<DimExpression> parsed = DimExpression::Parse(size);
      if (!parsed.ok()) return At(step, parsed.status());
      operation.sizes.push_back(*std::move(parsed));
    }
    for (const plan::Arg& arg : step.args()) {
      absl::StatusOr<Argument> argument = MakeArgument(arg, plan, arena);
      if (!argument.ok()) return At(step, argument.status());
      operation.arguments.push_back(*std::move(argument));
    }
    program.operations.push_back(std::move(operation));
  }
  return program;
}

absl::Status CudaExecutor::Enqueue(const Program& program, const Dims& dims) {
  for (const Operation& operation : program.operations) {
    if (absl::Status status = EnqueueOne(operation, dims); !status.ok()) return At(*operation.step, status);
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::EnqueueOne(const Operation& operation, const Dims& dims) {
  std::vector<int64_t> sizes;
  for (const DimExpression& expression : operation.sizes) {
    const absl::StatusOr<int64_t> size = expression.Evaluate(dims);
    if (!size.ok()) return size.status();
    if (*size < 0 || *size > INT32_MAX) return absl::InvalidArgumentError(absl::StrCat("a size is ", *size));
    sizes.push_back(*size);
  }
  const plan::Step& step = *operation.step;
  const std::vector<Argument>& arguments = operation.arguments;
  if (step.has_gemm()) {
    const absl::StatusOr<ElementType> in = TypeNamed(step.gemm().in_dtype()), out = TypeNamed(step.gemm().out_dtype());
    if (!in.ok()) return in.status();
    if (!out.ok()) return out.status();
    return products_->Multiply({.m = sizes[0], .n = step.gemm().n(), .k = step.gemm().k(), .in = *in, .out = *out},
                               arguments[0].pointer, arguments[1].pointer, arguments[2].pointer);
  }
  if (step.has_copy()) return device_->CopyOnDevice(arguments[0].pointer, arguments[1].pointer, sizes[0]);
  std::vector<int64_t> values(arguments.size());
  std::vector<void*> pointers;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& a = arguments[i];
    if (a.kind == Argument::Kind::kPointer) {
      values[i] = static_cast<int64_t>(a.pointer);
    } else if (a.kind == Argument::Kind::kNumber) {
      std::memcpy(&values[i], &a.number, sizeof(a.number));
    } else {
      const absl::StatusOr<int64_t> size = a.dim->Evaluate(dims);
      if (!size.ok()) return size.status();
      values[i] = *size;
    }
    pointers.push_back(&values[i]);
  }
  LaunchShape shape;
  for (size_t i = 0; i < 3; ++i) shape.grid[i] = static_cast<uint32_t>(sizes[i]);
  if (shape.grid[0] == 0 || shape.grid[1] == 0 || shape.grid[2] == 0) return absl::OkStatus();
  const plan::Kernel& kernel = plan_->manifest().kernels(static_cast<int>(step.launch().kernel()));
  shape.threads = kernel.threads();
  shape.shared_bytes = kernel.shared_bytes();
  return device_->Launch(operation.function, shape, pointers);
}

absl::Status CudaExecutor::RunOrReplay(size_t index, const Dims& dims) {
  const Program& program = programs_[index];
  const int64_t sequences = dims.at(sequences_);
  if (!use_graphs_ || sequences > kLargestGraph || dims.at(tokens_) != sequences || dims.at(rows_) != sequences) {
    return Enqueue(program, dims);
  }
  const auto key = std::make_pair(index, sequences);
  auto graph = graphs_.find(key);
  if (graph == graphs_.end()) {
    // Once outside of the capture, so that products have found their algorithms.
    if (absl::Status status = Enqueue(program, dims); !status.ok()) return status;
    if (absl::Status status = device_->BeginCapture(); !status.ok()) return status;
    const absl::Status enqueued = Enqueue(program, dims);
    absl::StatusOr<DeviceGraph> captured = device_->EndCapture();
    if (!enqueued.ok()) return enqueued;
    if (!captured.ok()) return captured.status();
    graph = graphs_.emplace(key, *std::move(captured)).first;
    return absl::OkStatus();  // it ran above
  }
  return device_->Launch(graph->second);
}

absl::StatusOr<Logits> CudaExecutor::RunStep(const StepInput& input) {
  if (absl::Status status = CheckStepInput(limits_, input); !status.ok()) return status;
  const int64_t pages_per_sequence = PagesFor(limits_.max_context, limits_.page_size);
  StepTensors tensors;
  for (const Chunk& chunk : input.chunks) tensors.Add(chunk, limits_.page_size, pages_per_sequence);
  tensors.wanted = static_cast<int64_t>(tensors.rows.size());
  int64_t sequences = static_cast<int64_t>(tensors.lens.size());
  const bool decodes = static_cast<int64_t>(tensors.ids.size()) == sequences && tensors.wanted == sequences;
  if (decodes && sequences <= kLargestGraph) {
    int64_t bucket = 1;
    while (bucket < sequences) bucket *= 2;
    bucket = std::min({bucket, limits_.max_sequences, limits_.max_step_tokens});  // what the arena has room for
    tensors.PadTo(bucket, pages_per_sequence);
    sequences = bucket;
  }
  if (tensors.rows.empty()) tensors.rows.push_back(0);
  const Dims dims = {{tokens_, static_cast<int64_t>(tensors.ids.size())},
                     {sequences_, sequences},
                     {rows_, static_cast<int64_t>(tensors.rows.size())},
                     {pages_, pages_per_sequence},
                     {pool_, limits_.num_pages}};
  size_t index = 0;
  for (; index + 1 < programs_.size(); ++index) {
    const auto& bounds = programs_[index].plan->bounds();
    if (std::all_of(bounds.begin(), bounds.end(), [&](const plan::DimBound& bound) {
          const auto dim = dims.find(bound.name());
          return dim == dims.end() || bound.name() == pool_ || dim->second <= bound.max();
        })) {
      break;
    }
  }
  const Program& program = programs_[index];
  int64_t at = 0;
  for (const auto& [name, values] : tensors.Named()) {
    const int64_t bytes = static_cast<int64_t>(values->size() * sizeof(int32_t));
    std::memcpy(staging_.data() + at, values->data(), static_cast<size_t>(bytes));
    absl::Status status = device_->CopyToDevice(program.inputs.at(name), staging_.data() + at, bytes);
    if (!status.ok()) return status;
    at += bytes;
  }
  if (absl::Status status = RunOrReplay(index, dims); !status.ok()) return status;
  Logits logits{.rows = tensors.wanted, .vocab_size = limits_.vocab_size};
  const int64_t bytes = tensors.wanted * limits_.vocab_size * static_cast<int64_t>(sizeof(float));
  if (logits_.bytes() < bytes) {
    absl::StatusOr<PinnedMemory> memory = device_->AllocatePinned(bytes);
    if (!memory.ok()) return memory.status();
    logits_ = *std::move(memory);
  }
  absl::Status status = device_->CopyToHost(logits_.data(), program.logits, bytes);
  if (status.ok()) status = device_->Synchronize();
  if (!status.ok()) return status;
  logits.values.resize(static_cast<size_t>(tensors.wanted * limits_.vocab_size));
  std::memcpy(logits.values.data(), logits_.data(), static_cast<size_t>(bytes));
  return logits;
}

}  // namespace llmc
