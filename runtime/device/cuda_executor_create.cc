// How a CudaExecutor is made: the plan's dims and limits, memory, and programs ready to run.
#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/device/cuda_executor.h"
#include "runtime/device/graph_buckets.h"
#include "runtime/device/trace.h"
#include "runtime/plan/extents.h"
#include "runtime/plan/step_programs.h"

namespace llmc {

absl::StatusOr<std::unique_ptr<CudaExecutor>> CudaExecutor::Create(const Plan* plan,
                                                                   const CudaExecutorOptions& options) {
  RETURN_IF_ERROR(CheckHasDeviceCode(*plan));
  auto executor = std::unique_ptr<CudaExecutor>(new CudaExecutor());
  executor->plan_ = plan;
  executor->use_graphs_ =
      options.use_graphs && !options.check_kernels && (options.trace == nullptr || !options.trace->kernels());
  RETURN_IF_ERROR(executor->ReadSymbols());
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceModel> model,
                   DeviceModel::BeginLoading(plan, {.device = options.device,
                                                    .pages = std::max<int64_t>(options.num_pages, 1),
                                                    .memory_fraction = options.memory_fraction,
                                                    .cache_folder = options.cache_folder,
                                                    .check_kernels = options.check_kernels,
                                                    .trace = options.trace}));
  executor->model_ = std::move(model);
  // The cache may need the memory of weights that go away again.
  const bool waits = executor->model_->has_passing_weights();
  if (waits) RETURN_IF_ERROR(executor->model_->FinishLoading());
  RETURN_IF_ERROR(executor->ReadLimits(options));
  absl::Status status = executor->AllocateArena();
  if (status.ok()) status = executor->AllocateSampling();
  if (status.ok()) status = executor->AllocateStates(options);
  if (status.ok()) status = executor->BuildPrograms();
  // A product that cannot be says so where a step needs it.
  if (status.ok() && !waits) executor->WarmUpProducts().IgnoreError();
  if (status.ok() && !waits) status = executor->model_->FinishLoading();
  if (status.ok() && options.capture_at_start) status = executor->CaptureAll();
  if (!status.ok()) return status;
  return executor;
}

CudaExecutor::~CudaExecutor() {
  if (model_ == nullptr) return;
  model_->device()->Use().IgnoreError();
  model_->device()->Synchronize().IgnoreError();
}

absl::Status CudaExecutor::ReadSymbols() {
  const plan::Manifest& manifest = plan_->manifest();
  ASSIGN_OR_RETURN(contract_, PagedContractOf(manifest));
  tokens_ = contract_.SizeOf(StepAxis::kToken);
  sequences_ = contract_.SizeOf(StepAxis::kSequence);
  rows_ = contract_.SizeOf(StepAxis::kRow);
  pages_ = contract_.SizeOf(StepAxis::kPage);
  if (manifest.entry_points(0).output_values_size() != 1) {
    return absl::InvalidArgumentError("the step of the plan is not that of a language model with a paged KV cache");
  }
  for (const plan::State& state : manifest.states()) {
    const plan::LanguageModel::Pool* listed = FindPool(manifest.language_model(), state.pool());
    const bool has_pages =
        state.kind() == plan::State::PAGED && listed != nullptr && state.page_size() == listed->page_size();
    const std::optional<size_t> pool = has_pages ? contract_.PoolOf(state.pool()) : std::nullopt;
    if (!pool.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("the KV state ", state.name(), " has other pages"));
    }
    pool_of_.push_back(*pool);
    pools_.resize(contract_.pools().size());
    limits_.pools.resize(pools_.size());
    if (pools_[*pool].empty()) pools_[*pool] = state.pool();
    limits_.pools[*pool].page_size = state.page_size();
    if (pools_[*pool] != state.pool()) {
      return absl::InvalidArgumentError(absl::StrCat("the KV state ", state.name(), " has other pages"));
    }
  }
  for (const std::string* dim : {&tokens_, &sequences_, &rows_, &pages_}) {
    if (absl::c_linear_search(pools_, *dim)) {
      return absl::InvalidArgumentError(absl::StrCat("the plan's dim ", *dim, " counts pages and something else"));
    }
  }
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].empty())
      return absl::InvalidArgumentError(absl::StrCat("the pool ", contract_.pools()[i], " has no states"));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::ReadLimits(const CudaExecutorOptions& options) {
  const plan::Manifest& manifest = plan_->manifest();
  const plan::LanguageModel& lm = manifest.language_model();
  limits_.vocab_size = lm.vocab_size();
  limits_.max_context = options.max_context == 0 ? lm.max_context() : std::min(options.max_context, lm.max_context());
  if (model_->code().programs_size() == 0) return absl::InvalidArgumentError("the plan has no step to run");
  StepDims bounds = BoundsOf(*model_->code().programs().back());
  const auto check = [&](const std::string& symbol, int64_t most) {
    if (bounds[symbol] < 1) return absl::InvalidArgumentError(absl::StrCat("the plan's dim ", symbol, " has no bound"));
    if (bounds[symbol] <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the plan's dim ", symbol, " has a bound over ", most, "; compile with a smaller --bound"));
  };
  for (const std::string* symbol : {&tokens_, &sequences_, &rows_, &pages_}) {
    RETURN_IF_ERROR(check(*symbol, int64_t{1} << 24));
  }
  for (const std::string& pool : pools_) RETURN_IF_ERROR(check(pool, int64_t{1} << 40));
  limits_.max_step_tokens = bounds[tokens_];
  limits_.max_step_logits = bounds[rows_];
  limits_.max_sequences = std::min(bounds[sequences_], bounds[rows_]);
  const PageSizes page_sizes = PageSizesOf(limits_.pools);
  const int64_t smallest = *absl::c_min_element(page_sizes);
  limits_.max_context = std::min(limits_.max_context, bounds[pages_] * smallest);
  limits_.max_steps_in_flight = kDeviceStepsInFlight;
  limits_.shares_pages = true;
  if (limits_.max_context < 1) return absl::InvalidArgumentError("max_context must be at least 1");
  table_width_ = PagesFor(limits_.max_context, smallest);
  return absl::OkStatus();
}

absl::Status CudaExecutor::AllocateArena() {
  uint64_t bytes = 0;
  for (const plan::Program* program : model_->code().programs()) {
    if (!program->unplanned().empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the plan does not fit a GPU at its bounds: ", program->unplanned(), "; lower them with --bound"));
    }
    bytes = std::max(bytes, program->arena_bytes());
  }
  ASSIGN_OR_RETURN(DeviceMemory arena, model_->device()->Allocate(static_cast<int64_t>(bytes)));
  arena_ = std::move(arena);
  // NaN everywhere: what reads memory that nothing wrote shows.
  return model_->device()->FillBytes(arena_.data(), 0xff, arena_.bytes());
}

absl::Status CudaExecutor::AllocateStates(const CudaExecutorOptions& options) {
  const TraceSpan span(model_->device()->trace(), "allocate the cache");
  const plan::Manifest& manifest = plan_->manifest();
  Device* device = model_->device();
  std::vector<DeviceMemory> states;
  const MemoryNeeds& needs = model_->needs();
  const int64_t most = needs.max_pages;
  if (options.num_pages < 0 || options.num_pages > most) {
    return absl::InvalidArgumentError(absl::StrCat("num_pages is ", options.num_pages, ", must be in [1, ", most, "]"));
  }
  int64_t num_pages = options.num_pages;
  if (num_pages == 0) {
    const int64_t wished = needs.PagesOfSequences(limits_.max_sequences, limits_.max_context);
    num_pages = std::min({wished, most, PagesThatFit(needs, model_->memory())});
  }
  for (const MemoryNeeds::Pool& pool : needs.pools) {
    PoolLimits& limits = limits_.pools[contract_.PoolOf(pool.dim).value_or(0)];
    limits.num_pages = needs.PagesOf(pool, num_pages);
    limits.window = pool.window;
  }
  for (int i = 0; i < manifest.states_size(); ++i) {
    const auto bytes = static_cast<int64_t>(manifest.states(i).record_bytes());
    ASSIGN_OR_RETURN(DeviceMemory state, device->Allocate(bytes * limits_.pools[pool_of_[i]].num_pages));
    RETURN_IF_ERROR(device->FillBytes(state.data(), 0, state.bytes()));
    states.push_back(std::move(state));
  }
  model_->SetStates(std::move(states));
  return device->Synchronize();
}

absl::Status CudaExecutor::AllocateSampling() {
  max_draws_ = limits_.max_sequences;
  const StepSizes sizes = {.tokens = limits_.max_step_tokens,
                           .sequences = limits_.max_sequences,
                           .rows = limits_.max_step_logits,
                           .draws = max_draws_};
  constexpr int64_t kLeast = kLeastMessageBytes;
  const int64_t bytes = StepMessage::MaxBytes(sizes, static_cast<int64_t>(pools_.size()), table_width_);
  message_bytes_ = static_cast<int64_t>(plan::AlignUp(static_cast<uint64_t>(std::max(bytes, kLeast)), 256));
  const auto has_room = [&](absl::string_view name, int64_t needed) {
    const plan::Buffer* buffer = model_->code().FindPersistent(name);
    return buffer != nullptr && static_cast<int64_t>(buffer->bytes()) >= needed;
  };
  const int64_t message = std::max<int64_t>(CeilDiv(bytes, kMessageAlignment) * kMessageAlignment, kLeast);
  if (!has_room("message", message) || !has_room("sampled", 4 * max_draws_) || !has_room("state", 4)) {
    return absl::FailedPreconditionError(
        absl::StrCat(plan_->path(), ": has no code that samples tokens; compile it again"));
  }
  Device* device = model_->device();
  ASSIGN_OR_RETURN(PinnedMemory messages, device->AllocatePinned(2 * message_bytes_));
  messages_ = std::move(messages);
  model_->SetStepMessages({reinterpret_cast<DevicePointer>(messages_.data()), messages_.bytes()});
  ASSIGN_OR_RETURN(PinnedMemory results,
                   device->AllocatePinned(2 * max_draws_ * static_cast<int64_t>(sizeof(DrawResult))));
  results_ = std::move(results);
  // Kernels write what a draw asks for, and the memory may hold what another left.
  std::memset(results_.data(), 0, static_cast<size_t>(results_.bytes()));
  for (Place& place : places_) {
    ASSIGN_OR_RETURN(DeviceEvent done, device->NewEvent());
    place.done = std::move(done);
  }
  return device->Synchronize();
}

// Whether the places of a program's inputs and logits hold the largest steps that it runs.
absl::Status CudaExecutor::CheckPlaces(const plan::Program& program,
                                       const std::map<std::string, DeviceRange>& places) const {
  const plan::EntryPoint& entry = plan_->manifest().entry_points(0);
  StepDims bounds = BoundsOf(program);
  for (const plan::TensorSpec& input : entry.inputs()) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> shape, EvaluateShape(input.shape(), bounds));
    ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(DType::kI32, shape));
    RETURN_IF_ERROR(CheckRoom(absl::StrCat("the input ", input.name()), bytes, places.at("%" + input.name()).bytes));
  }
  ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(DType::kF32, {bounds[rows_], limits_.vocab_size}));
  return CheckRoom("the output logits", bytes, places.at("logits").bytes);
}

// Whether a task of the program gives all inputs their values.
absl::Status CudaExecutor::CheckInputs(const plan::Program& program) const {
  const plan::EntryPoint& entry = plan_->manifest().entry_points(0);
  const auto inputs = std::find_if(program.tasks().begin(), program.tasks().end(),
                                   [](const plan::Task& task) { return PartOf(task) == StepPart::kInputs; });
  if (inputs == program.tasks().end()) {
    return absl::FailedPreconditionError(
        absl::StrCat(plan_->path(), ": has no code that takes the inputs of a step; compile it again"));
  }
  for (const plan::TensorSpec& input : entry.inputs()) {
    const auto& args = inputs->args();
    const bool filled = std::any_of(args.begin(), args.end(), [&](const plan::Arg& arg) {
      return arg.has_buffer() && arg.writes() &&
             program.buffers(static_cast<int>(arg.buffer())).name() == absl::StrCat("%", input.name());
    });
    if (filled) continue;
    return absl::FailedPreconditionError(absl::StrCat(plan_->path(), ": has no code that gives its input ",
                                                      input.name(), " (", input.role(), ") its values"));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::BuildPrograms() {
  const TraceSpan span(model_->device()->trace(), "build programs");
  const plan::EntryPoint& entry = plan_->manifest().entry_points(0);
  plan_programs_ = model_->code().programs();
  for (const plan::Program* each : plan_programs_) {
    const plan::Program& program = *each;
    std::map<std::string, DeviceRange> places;
    std::vector<DeviceRange> buffers;
    for (const plan::Buffer& buffer : program.buffers()) {
      buffers.push_back({arena_.data() + buffer.offset(), static_cast<int64_t>(buffer.bytes())});
      for (const std::string& value : buffer.values()) {
        const std::string place = PlaceOf(value, contract_, entry);
        if (!place.empty()) places[place] = buffers.back();
      }
    }
    if (static_cast<int>(places.size()) != entry.inputs_size() + 1) {
      return absl::InvalidArgumentError("a program of the plan lacks a place for an input or the logits");
    }
    RETURN_IF_ERROR(CheckPlaces(program, places));
    RETURN_IF_ERROR(CheckInputs(program));
    ASSIGN_OR_RETURN(DeviceProgram code, model_->Build(program, std::move(buffers)));
    programs_.push_back({.code = std::move(code), .logits = places["logits"].data});
  }
  return absl::OkStatus();
}

// The first products of a process wait for cuBLASLt to load what they run, a tenth of a second: those of the first
// program that has any, at its bounds, once each, while the weights are on their way. What they give is dropped.
absl::Status CudaExecutor::WarmUpProducts() {
  if (!use_graphs_) return absl::OkStatus();  // each task may be watched
  const TraceSpan span(model_->device()->trace(), "warm up products");
  const auto multiplies = [](const DeviceTask& task) { return task.task->has_gemm(); };
  const auto program = std::find_if(programs_.begin(), programs_.end(), [&](const Program& each) {
    return std::any_of(each.code.tasks.begin(), each.code.tasks.end(), multiplies);
  });
  if (program == programs_.end()) return absl::OkStatus();
  const StepDims dims = BoundsOf(*program->code.plan);
  absl::Status status;
  std::set<std::string> done;
  for (const DeviceTask& task : program->code.tasks) {
    // Nothing that stays is written.
    if (!multiplies(task) || !task.task->args(0).has_buffer() ||
        !done.insert(task.task->gemm().SerializeAsString()).second)
      continue;
    if (status.ok()) status = model_->Enqueue(task, dims);
  }
  status.Update(model_->device()->Synchronize());
  status.Update(model_->device()->FillBytes(arena_.data(), 0xff, arena_.bytes()));
  return status;
}

absl::Status CudaExecutor::CaptureAll() {
  const int64_t most = std::min({kLargestGraph, limits_.max_sequences, limits_.max_step_tokens});
  for (int64_t sequences = 1; use_graphs_ && sequences <= most; sequences = GraphBucketOf(sequences) + 1) {
    const int64_t size = std::min(GraphBucketOf(sequences), most);
    const Shape shape = {.sizes = {.tokens = size, .sequences = size, .rows = size, .draws = size},
                         .decodes = true,
                         .sampling = plan::GREEDY};
    InFlight step;
    WriteMessage({}, shape, &step);
    RETURN_IF_ERROR(Run(shape));
    RETURN_IF_ERROR(model_->device()->Synchronize());
  }
  return absl::OkStatus();
}
}  // namespace llmc
