#include "runtime/cuda_executor.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "runtime/decode_batches.h"
#include "runtime/plan_format.h"
#include "runtime/trace.h"

namespace llmc {
namespace {

constexpr int64_t kStepsInFlight = 2;

}  // namespace

absl::StatusOr<std::unique_ptr<CudaExecutor>> CudaExecutor::Create(const Plan* plan,
                                                                   const CudaExecutorOptions& options) {
  if (absl::Status status = CheckHasDeviceCode(*plan); !status.ok()) return status;
  auto executor = std::unique_ptr<CudaExecutor>(new CudaExecutor());
  executor->plan_ = plan;
  executor->use_graphs_ =
      options.use_graphs && !options.check_kernels && (options.trace == nullptr || !options.trace->kernels());
  if (absl::Status status = executor->ReadSymbols(); !status.ok()) return status;
  if (absl::Status status = executor->ReadLimits(options); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<DeviceModel>> model =
      DeviceModel::Load(plan, {.device = options.device,
                               .pages = std::max<int64_t>(options.num_pages, 1),
                               .cache_folder = options.cache_folder,
                               .check_kernels = options.check_kernels});
  if (!model.ok()) return model.status();
  executor->model_ = *std::move(model);
  executor->model_->device()->set_trace(options.trace);
  absl::Status status = executor->AllocateArena();
  if (status.ok()) status = executor->AllocateSampling();
  if (status.ok()) status = executor->AllocateStates(options);
  if (status.ok()) status = executor->BuildPrograms();
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
    return absl::InvalidArgumentError("the step of the plan is not that of a language model with a paged KV cache");
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
    const int64_t most = symbol == &pool_ ? int64_t{1} << 40 : int64_t{1} << 24;
    if (bounds[*symbol] > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan's dim ", *symbol, " has a bound over ", most, "; compile with a smaller --bound"));
    }
  }
  limits_.max_step_tokens = bounds[tokens_];
  limits_.max_step_logits = bounds[rows_];
  limits_.max_sequences = std::min(bounds[sequences_], bounds[rows_]);
  limits_.max_context = std::min(limits_.max_context, bounds[pages_] * limits_.page_size);
  limits_.max_steps_in_flight = kStepsInFlight;
  if (limits_.max_context < 1) return absl::InvalidArgumentError("max_context must be at least 1");
  return absl::OkStatus();
}

absl::Status CudaExecutor::AllocateArena() {
  uint64_t bytes = 0;
  for (const plan::Program& program : plan_->manifest().programs()) {
    if (!program.unplanned().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("the plan does not fit a GPU at its bounds: ", program.unplanned(),
                                                     "; lower them with --bound"));
    }
    bytes = std::max(bytes, program.arena_bytes());
    StepDims bounds;
    for (const plan::DimBound& bound : program.bounds()) bounds[bound.name()] = bound.max();
    if (absl::Status status = model_->ReserveScratch(program, bounds); !status.ok()) return status;
  }
  absl::StatusOr<DeviceMemory> arena = model_->device()->Allocate(static_cast<int64_t>(bytes));
  if (!arena.ok()) return arena.status();
  arena_ = *std::move(arena);
  // NaN everywhere: what reads memory that nothing wrote shows.
  return model_->device()->FillBytes(arena_.data(), 0xff, arena_.bytes());
}

absl::Status CudaExecutor::AllocateStates(const CudaExecutorOptions& options) {
  const plan::Manifest& manifest = plan_->manifest();
  Device* device = model_->device();
  std::vector<DeviceMemory> states;
  const MemoryNeeds& needs = model_->needs();
  const int64_t most = needs.max_pages;
  if (options.num_pages < 0 || options.num_pages > most) {
    return absl::InvalidArgumentError(absl::StrCat("num_pages is ", options.num_pages, ", must be in [1, ", most, "]"));
  }
  limits_.num_pages = options.num_pages;
  if (limits_.num_pages == 0) {
    const int64_t wished = limits_.max_sequences * PagesFor(limits_.max_context, limits_.page_size);
    limits_.num_pages = std::min({wished, most, PagesThatFit(needs, model_->memory())});
  }
  for (const plan::State& plan_state : manifest.states()) {
    const absl::StatusOr<int64_t> bytes = StatePageBytes(plan_state);
    if (!bytes.ok()) return bytes.status();
    absl::StatusOr<DeviceMemory> state = device->Allocate(*bytes * limits_.num_pages);
    if (!state.ok()) return state.status();
    if (absl::Status status = device->FillBytes(state->data(), 0, state->bytes()); !status.ok()) return status;
    states.push_back(*std::move(state));
  }
  model_->SetStates(std::move(states));
  return device->Synchronize();
}

absl::Status CudaExecutor::AllocateSampling() {
  const plan::Program& sampling = plan_->manifest().sampling();
  max_draws_ = limits_.max_sequences;
  const StepSizes sizes = {.tokens = limits_.max_step_tokens,
                           .sequences = limits_.max_sequences,
                           .rows = limits_.max_step_logits,
                           .draws = max_draws_};
  constexpr int64_t kLeast = 16 * 1024;  // the kernel reads as much at once
  const int64_t bytes = StepMessage::MaxBytes(sizes, PagesFor(limits_.max_context, limits_.page_size));
  message_bytes_ = (std::max(bytes, kLeast) + 255) / 256 * 256;
  constexpr int kSteps = 4;
  int64_t message = 0, sampled = 0;
  for (const plan::Buffer& buffer : sampling.buffers()) {
    if (buffer.name() == "message") message = static_cast<int64_t>(buffer.bytes());
    if (buffer.name() == "sampled") sampled = static_cast<int64_t>(buffer.bytes());
  }
  if (sampling.steps_size() != kSteps || message < std::max(bytes, kLeast) || sampled < 4 * max_draws_) {
    return absl::FailedPreconditionError(
        absl::StrCat(plan_->path(), ": has no code that samples tokens; compile it again"));
  }
  Device* device = model_->device();
  absl::StatusOr<DeviceMemory> arena = device->Allocate(static_cast<int64_t>(sampling.arena_bytes()));
  if (!arena.ok()) return arena.status();
  sampling_arena_ = *std::move(arena);
  if (absl::Status status = device->FillBytes(sampling_arena_.data(), 0, sampling_arena_.bytes()); !status.ok()) {
    return status;
  }
  absl::StatusOr<PinnedMemory> messages = device->AllocatePinned(2 * message_bytes_);
  if (!messages.ok()) return messages.status();
  messages_ = *std::move(messages);
  absl::StatusOr<PinnedMemory> results =
      device->AllocatePinned(2 * max_draws_ * static_cast<int64_t>(sizeof(DrawResult)));
  if (!results.ok()) return results.status();
  results_ = *std::move(results);
  for (Place& place : places_) {
    absl::StatusOr<DeviceEvent> done = device->NewEvent();
    if (!done.ok()) return done.status();
    place.done = *std::move(done);
  }
  return device->Synchronize();
}

absl::Status CudaExecutor::BuildPrograms() {
  const plan::Manifest& manifest = plan_->manifest();
  for (const plan::Program& program : manifest.programs()) {
    std::map<std::string, DevicePointer> places = {{"messages", reinterpret_cast<DevicePointer>(messages_.data())}};
    std::vector<DevicePointer> buffers;
    for (const plan::Buffer& buffer : program.buffers()) {
      buffers.push_back(arena_.data() + buffer.offset());
      for (const std::string& value : buffer.values()) {
        for (const plan::TensorSpec& input : manifest.entry_points(0).inputs()) {
          if (value == absl::StrCat("%", input.name())) places[input.name()] = buffers.back();
        }
        if (value == manifest.entry_points(0).output_values(0)) places["logits"] = buffers.back();
      }
    }
    if (places.size() != 9) {
      return absl::InvalidArgumentError("a program of the plan lacks a place for an input or the logits");
    }
    absl::StatusOr<DeviceProgram> code = model_->Build(program, std::move(buffers));
    if (!code.ok()) return code.status();
    std::vector<DevicePointer> sampling_buffers;
    for (const plan::Buffer& buffer : manifest.sampling().buffers()) {
      const auto place = places.find(buffer.name());
      sampling_buffers.push_back(place == places.end() ? sampling_arena_.data() + buffer.offset() : place->second);
    }
    absl::StatusOr<DeviceProgram> sampling = model_->Build(manifest.sampling(), std::move(sampling_buffers));
    if (!sampling.ok()) return sampling.status();
    programs_.push_back({.code = *std::move(code), .sampling = *std::move(sampling), .logits = places["logits"]});
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::CaptureAll() {
  const int64_t most = std::min({kLargestGraph, limits_.max_sequences, limits_.max_step_tokens});
  for (int64_t sequences = 1; use_graphs_ && sequences <= most; sequences = BucketOf(sequences) + 1) {
    const int64_t size = std::min(BucketOf(sequences), most);
    const Shape shape = {.sizes = {.tokens = size, .sequences = size, .rows = size, .draws = size},
                         .decodes = true,
                         .sampling = SamplingKind::kGreedy};
    InFlight step;
    WriteMessage({}, shape, &step);
    if (absl::Status status = Run(shape); !status.ok()) return status;
    if (absl::Status status = model_->device()->Synchronize(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// The first whose bounds hold; the last is for all steps.
size_t CudaExecutor::ChooseProgram(const StepDims& dims, bool decodes) const {
  for (size_t i = 0; i + 1 < programs_.size(); ++i) {
    const plan::Program& program = *programs_[i].code.plan;
    const bool holds = std::all_of(program.bounds().begin(), program.bounds().end(), [&](const auto& bound) {
      const auto dim = dims.find(bound.name());
      return dim == dims.end() || bound.name() == pool_ || dim->second <= bound.max();
    });
    if (holds && (decodes || !program.decode())) return i;
  }
  return programs_.size() - 1;
}

absl::Status CudaExecutor::Submit(const StepInput& input) {
  if (!broken_.ok()) return broken_;
  if (in_flight_.size() == kStepsInFlight) {
    return absl::InvalidArgumentError(absl::StrCat("step: ", kStepsInFlight, " are in flight, which is the limit"));
  }
  if (absl::Status status = CheckStepInput(limits_, input); !status.ok()) return status;
  if (absl::Status status = model_->device()->Use(); !status.ok()) return status;
  if (absl::Status status = CheckSampledTokens(input); !status.ok()) return status;
  InFlight step{.step = num_steps_};
  const TraceSpan span(model_->device()->trace(), "submit a step");
  if (absl::Status status = PrepareCounts(input, &step); !status.ok()) return status;
  const Shape shape = ShapeOf(input);
  WriteMessage(input, shape, &step);
  absl::Status status = Run(shape);
  if (status.ok()) status = CopyRows(input, programs_[last_program_], &step);
  if (status.ok()) status = model_->device()->Record(places_[step.step % 2].done);
  // The device counts steps too: after half of one the two would not agree.
  if (!status.ok()) return broken_ = status;
  in_flight_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status CudaExecutor::CheckSampledTokens(const StepInput& input) const {
  for (const Chunk& chunk : input.chunks) {
    if (chunk.ids[0] != kSampledToken || state_of_.contains(chunk.sequence)) continue;
    return absl::InvalidArgumentError(absl::StrCat("step, sequence ", chunk.sequence, ": has sampled no token"));
  }
  return absl::OkStatus();
}

CudaExecutor::Shape CudaExecutor::ShapeOf(const StepInput& input) const {
  Shape shape;
  StepSizes& sizes = shape.sizes;
  sizes.sequences = static_cast<int64_t>(input.chunks.size());
  bool one_each = true;
  for (const Chunk& chunk : input.chunks) {
    sizes.tokens += static_cast<int64_t>(chunk.ids.size());
    sizes.rows += RowsOf(chunk);
    one_each = one_each && chunk.ids.size() == 1 && RowsOf(chunk) == 1;
    if (chunk.sampling == nullptr) continue;
    ++sizes.draws;
    const SamplingParams& params = chunk.sampling->params;
    const bool draws = params.temperature != 0 && params.top_k != 1;
    const bool has_log_probs = chunk.sampling->log_probs.value_or(kMaxDeviceTop + 1) <= kMaxDeviceTop;
    const SamplingKind kind = has_log_probs ? SamplingKind::kLogProbs
                              : draws       ? SamplingKind::kDraw
                                            : SamplingKind::kGreedy;
    shape.sampling = std::max(shape.sampling, kind);
  }
  sizes.rows = std::max<int64_t>(sizes.rows, 1);
  if (one_each && sizes.sequences <= kLargestGraph) {
    // At most what the arena has room for.
    const int64_t bucket = std::min({BucketOf(sizes.sequences), limits_.max_sequences, limits_.max_step_tokens});
    sizes = {.tokens = bucket, .sequences = bucket, .rows = bucket, .draws = sizes.draws > 0 ? bucket : 0};
    shape.decodes = true;
  }
  return shape;
}

// Sequences that sample with penalties for the first time get memory for their counts.
absl::Status CudaExecutor::PrepareCounts(const StepInput& input, InFlight* step) {
  for (const Chunk& chunk : input.chunks) {
    if (chunk.position == 0) EndSequence(chunk.sequence);
    if (chunk.sampling == nullptr) continue;
    Sequence& state = state_of_[chunk.sequence];
    if (!chunk.sampling->params.has_penalties() || state.counts.data() != 0) continue;
    absl::StatusOr<DeviceMemory> counts = CountsOf(*chunk.sampling, step);
    if (!counts.ok()) return counts.status();
    state.counts = *std::move(counts);
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceMemory> CudaExecutor::CountsOf(const Sampling& sampling, InFlight* step) {
  DeviceMemory memory;
  if (free_counts_.empty()) {
    absl::StatusOr<DeviceMemory> allocated = model_->device()->Allocate(limits_.vocab_size * 4);
    if (!allocated.ok()) return allocated.status();
    memory = *std::move(allocated);
  } else {
    memory = std::move(free_counts_.back());
    free_counts_.pop_back();
  }
  std::vector<uint32_t>& counts = step->counts.emplace_back(limits_.vocab_size);
  for (int32_t id : sampling.history.subspan(0, sampling.prompt_size)) counts[id] |= kInPrompt;
  for (int32_t id : sampling.history.subspan(sampling.prompt_size)) ++counts[id];
  absl::Status status = model_->device()->CopyToDevice(memory.data(), counts.data(), memory.bytes());
  if (!status.ok()) return status;
  return memory;
}

void CudaExecutor::EndSequence(int64_t sequence) {
  const auto it = state_of_.find(sequence);
  if (it == state_of_.end()) return;
  // Steps run in order, so the next owner overwrites them after the last step that counts there.
  if (it->second.counts.data() != 0) free_counts_.push_back(std::move(it->second.counts));
  state_of_.erase(it);
}

DrawResult* CudaExecutor::ResultOf(int64_t step, int64_t draw) const {
  return reinterpret_cast<DrawResult*>(results_.data()) + (step % 2) * max_draws_ + draw;
}

void CudaExecutor::WriteMessage(const StepInput& input, const Shape& shape, InFlight* step) {
  StepMessage message(messages_.data() + (num_steps_ % 2) * message_bytes_, shape.sizes);
  int64_t row = 0, host_rows = 0;
  int32_t draws = 0;
  for (const Chunk& chunk : input.chunks) {
    Pending pending{.sequence = chunk.sequence, .wants_rows = chunk.logits != WantedLogits::kNone};
    int32_t id = 0;
    if (chunk.ids[0] == kSampledToken) {
      const Sequence& state = state_of_.at(chunk.sequence);
      const bool is_known = in_flight_.empty() || state.step < in_flight_.front().step;
      id = is_known ? state.token : -1 - state.draw;
    }
    message.Add(chunk, id, limits_.page_size);
    if (pending.wants_rows) pending.num_host_rows = RowsOf(chunk);
    if (chunk.sampling != nullptr) {
      Sequence& state = state_of_.at(chunk.sequence);
      DeviceDraw draw = MakeDraw(chunk, row + RowsOf(chunk) - 1, state.counts);
      draw.result = reinterpret_cast<uint64_t>(ResultOf(num_steps_, draws));
      message.Add(draw);
      state.step = num_steps_;
      state.draw = pending.draw = draws++;
      if (chunk.sampling->log_probs.value_or(0) > kMaxDeviceTop) {
        pending.log_probs = *chunk.sampling->log_probs;
        pending.num_host_rows = std::max<int64_t>(pending.num_host_rows, 1);
      } else {
        pending.device_log_probs = chunk.sampling->log_probs.has_value();
      }
    }
    pending.host_row = host_rows;
    host_rows += pending.num_host_rows;
    row += RowsOf(chunk);
    step->chunks.push_back(pending);
  }
  message.Pad();
}

DeviceDraw CudaExecutor::MakeDraw(const Chunk& chunk, int64_t row, const DeviceMemory& counts) const {
  const SamplingParams& params = chunk.sampling->params;
  DeviceDraw draw = {.random = RandomBits(params.seed, chunk.sampling->index),
                     .repetition = static_cast<float>(params.repetition_penalty),
                     .frequency = static_cast<float>(params.frequency_penalty),
                     .presence = static_cast<float>(params.presence_penalty),
                     .row = static_cast<int32_t>(row)};
  if (params.has_penalties()) draw.counts = counts.data();
  if (params.temperature != 0 && params.top_k != 1) {
    const SamplingScale scale = ScaleOf(params);
    draw.log2_scale = scale.log2_scale;
    draw.top_p = scale.top_p;
    draw.min_weight = scale.min_weight;
    draw.top_k = scale.top_k;
  }
  const int64_t log_probs = chunk.sampling->log_probs.value_or(-1);
  if (log_probs <= kMaxDeviceTop) draw.log_probs = static_cast<int32_t>(log_probs);
  return draw;
}

absl::Status CudaExecutor::Run(const Shape& shape) {
  const StepDims dims = {{tokens_, shape.sizes.tokens},
                         {sequences_, shape.sizes.sequences},
                         {rows_, shape.sizes.rows},
                         {pages_, PagesFor(limits_.max_context, limits_.page_size)},
                         {pool_, limits_.num_pages}};
  last_program_ = ChooseProgram(dims, shape.decodes);
  const Program& program = programs_[last_program_];
  ++num_steps_;
  if (!use_graphs_ || !shape.decodes) return Enqueue(program, dims, shape);
  const auto key = std::make_tuple(last_program_, shape.sizes.sequences, shape.sampling);
  if (const auto graph = graphs_.find(key); graph != graphs_.end()) return model_->device()->Launch(graph->second);
  // Once outside of the capture, so that products have found their algorithms. That is this step's run.
  if (absl::Status status = Enqueue(program, dims, shape); !status.ok()) return status;
  if (absl::Status status = model_->device()->BeginCapture(); !status.ok()) return status;
  const absl::Status enqueued = Enqueue(program, dims, shape);
  absl::StatusOr<DeviceGraph> captured = model_->device()->EndCapture();
  if (!enqueued.ok()) return enqueued;
  if (!captured.ok()) return captured.status();
  graphs_.emplace(key, *std::move(captured));
  return absl::OkStatus();
}

absl::Status CudaExecutor::Enqueue(const Program& program, const StepDims& dims, const Shape& shape) {
  const StepDims sampling_dims = {{"draws", shape.sizes.draws},
                                  {"z", shape.sampling == SamplingKind::kLogProbs ? 2 : 1},
                                  {"message_words", message_bytes_ / 4},
                                  {"table_width", PagesFor(limits_.max_context, limits_.page_size)}};
  const std::vector<DeviceOperation>& operations = program.sampling.operations;
  absl::Status status = model_->Enqueue(operations[0], sampling_dims);
  if (status.ok()) status = model_->Enqueue(program.code, dims);
  const size_t count = shape.sampling == SamplingKind::kNone ? 1 : shape.sampling == SamplingKind::kGreedy ? 2 : 4;
  for (size_t i = 1; i < count && status.ok(); ++i) status = model_->Enqueue(operations[i], sampling_dims);
  return status;
}

// What the host needs of the logits.
absl::Status CudaExecutor::CopyRows(const StepInput& input, const Program& program, InFlight* step) {
  const int64_t row_bytes = limits_.vocab_size * static_cast<int64_t>(sizeof(float));
  int64_t all = 0, row = 0;
  for (const Pending& chunk : step->chunks) all += chunk.num_host_rows;
  PinnedMemory& logits = places_[step->step % 2].logits;
  if (logits.bytes() < all * row_bytes) {
    absl::StatusOr<PinnedMemory> memory = model_->device()->AllocatePinned(all * row_bytes);
    if (!memory.ok()) return memory.status();
    logits = *std::move(memory);
  }
  for (size_t i = 0; i < input.chunks.size(); ++i) {
    const Pending& chunk = step->chunks[i];
    row += RowsOf(input.chunks[i]);
    if (chunk.num_host_rows == 0) continue;
    absl::Status status = model_->device()->CopyToHost(logits.data() + chunk.host_row * row_bytes,
                                                       program.logits + (row - chunk.num_host_rows) * row_bytes,
                                                       chunk.num_host_rows * row_bytes);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Span<const float> CudaExecutor::HostRow(const InFlight& step, int64_t row) const {
  const auto* logits = reinterpret_cast<const float*>(places_[step.step % 2].logits.data());
  return {logits + row * limits_.vocab_size, static_cast<size_t>(limits_.vocab_size)};
}

absl::StatusOr<StepResult> CudaExecutor::Collect() {
  if (in_flight_.empty()) return absl::FailedPreconditionError("no step is in flight");
  if (absl::Status status = model_->device()->Use(); !status.ok()) return status;
  const InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  const TraceSpan span(model_->device()->trace(), "collect a step");
  if (absl::Status status = model_->Finish(model_->device()->Wait(places_[step.step % 2].done)); !status.ok()) {
    return broken_ = status;
  }
  if (absl::Status status = model_->CollectTrace(); !status.ok()) return broken_ = status;
  StepResult result{.logits = {.vocab_size = limits_.vocab_size},
                    .sampled = std::vector<SampledToken>(step.chunks.size())};
  for (size_t i = 0; i < step.chunks.size(); ++i) {
    const Pending& chunk = step.chunks[i];
    if (chunk.draw >= 0) {
      absl::StatusOr<SampledToken> sampled = ReadDraw(chunk, step);
      if (const auto state = state_of_.find(chunk.sequence);
          state != state_of_.end() && state->second.step == step.step) {
        state->second.token = sampled.ok() ? sampled->token : 0;
      }
      if (sampled.ok()) {
        result.sampled[i] = *std::move(sampled);
      } else {
        result.logits.failed[i] = sampled.status();
        continue;
      }
    }
    if (!chunk.wants_rows) continue;
    const float* values = HostRow(step, chunk.host_row).data();
    result.logits.values.insert(result.logits.values.end(), values, values + chunk.num_host_rows * limits_.vocab_size);
    result.logits.rows += chunk.num_host_rows;
  }
  return result;
}

absl::StatusOr<SampledToken> CudaExecutor::ReadDraw(const Pending& chunk, const InFlight& step) {
  const DrawResult& draw = *ResultOf(step.step, chunk.draw);
  if (draw.token < 0 || draw.token >= limits_.vocab_size || draw.top_count < 0 || draw.top_count > kMaxDeviceTop) {
    return absl::InternalError(absl::StrCat("the device sampled the token ", draw.token, ": the plan is damaged"));
  }
  if (draw.status == 1) {
    return absl::InvalidArgumentError(absl::StrCat("the model gave the logit ", draw.logit, " for token ", draw.token));
  }
  if (draw.status != 0) return absl::InvalidArgumentError("the model allows no token");
  SampledToken sampled{.token = draw.token};
  if (chunk.log_probs >= 0) {
    const absl::Span<const float> logits = HostRow(step, chunk.host_row + chunk.num_host_rows - 1);
    sampled.log_prob = logits[draw.token] - LogSumExp(logits);
    sampled.top_log_probs = TopLogProbs(logits, chunk.log_probs);
  } else if (chunk.device_log_probs) {
    const double log_sum = draw.largest + std::log(std::ldexp(static_cast<double>(draw.total), -40));
    sampled.log_prob = draw.logit - log_sum;
    for (int32_t i = 0; i < draw.top_count; ++i) {
      sampled.top_log_probs.push_back({draw.top_tokens[i], draw.top_logits[i] - log_sum});
    }
  }
  return sampled;
}

}  // namespace llmc
