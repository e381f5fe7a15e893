#include "tools/bench_model.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/engine/executor.h"
#include "runtime/plan/memory_needs.h"
#include "runtime/plan/step_programs.h"
#include "tools/bench_device.h"
#include "tools/bench_sampling.h"
#include "tools/timed_program.h"

namespace llmc {
namespace {

// Benchmarks give each sequence all of its pages, also where a window would let go of some.
MemoryNeeds OfWholePools(MemoryNeeds needs) {
  for (MemoryNeeds::Pool& pool : needs.pools) pool.max_pages = needs.max_pages * (needs.page_size / pool.page_size);
  return needs;
}

bool Decodes(const std::vector<BenchSequence>& sequences) {
  return std::all_of(sequences.begin(), sequences.end(), [](const BenchSequence& s) { return s.tokens == 1; });
}

}  // namespace

int64_t LargestThatFits(const std::vector<int64_t>& wishes, int64_t most) {
  int64_t largest = 0;
  for (const int64_t wish : wishes) {
    if (wish <= most) largest = std::max(largest, wish);
  }
  return largest > 0 ? largest : most;
}

absl::StatusOr<std::unique_ptr<BenchModel>> BenchModel::Load(const Plan* plan, const std::vector<int64_t>& wishes) {
  auto bench = std::unique_ptr<BenchModel>(new BenchModel());
  RETURN_IF_ERROR(bench->ReadSymbols(*plan));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceModel> model, DeviceModel::Load(plan, {.pages = 1, .memory_fraction = 1}));
  bench->model_ = std::move(model);
  bench->ReadBounds();
  absl::Status status = bench->Allocate(wishes);
  if (status.ok()) status = bench->BuildPrograms();
  if (!status.ok()) return status;
  return bench;
}

absl::Status BenchModel::ReadSymbols(const Plan& plan) {
  const plan::Manifest& manifest = plan.manifest();
  absl::StatusOr<StepContract> contract = PagedContractOf(manifest);
  if (!contract.ok() || manifest.states(0).kind() != plan::State::PAGED) {
    return absl::UnimplementedError(
        absl::StrCat(plan.path(), ": only language models with a paged KV cache (Hugging Face folders) can be timed"));
  }
  contract_ = *std::move(contract);
  tokens_ = contract_.SizeOf(StepAxis::kToken);
  sequences_ = contract_.SizeOf(StepAxis::kSequence);
  rows_ = contract_.SizeOf(StepAxis::kRow);
  table_ = contract_.SizeOf(StepAxis::kPage);
  page_sizes_.assign(contract_.pools().size(), 0);
  for (const plan::State& state : manifest.states()) {
    if (const auto pool = contract_.PoolOf(state.pool()); pool.has_value()) page_sizes_[*pool] = state.page_size();
  }
  for (size_t i = 0; i < page_sizes_.size(); ++i) {
    if (page_sizes_[i] > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(plan.path(), ": the pool ", contract_.pools()[i], " has no states with pages"));
  }
  return absl::OkStatus();
}

void BenchModel::ReadBounds() {
  if (code().programs_size() == 0) return;  // no step is within the bounds then
  const StepDims bounds = BoundsOf(*code().programs().back());
  const auto bound = [&](const std::string& symbol) {
    const auto it = bounds.find(symbol);
    return it == bounds.end() ? 0 : it->second;
  };
  max_step_tokens_ = bound(tokens_);
  max_sequences_ = std::min(bound(sequences_), bound(rows_));
}

absl::Status BenchModel::Allocate(const std::vector<int64_t>& wishes) {
  Device* device = model_->device();
  ASSIGN_OR_RETURN(BenchKernels kernels, BenchKernels::Create(device));
  ASSIGN_OR_RETURN(DeviceMemory arena, device->Allocate(needs().arena));
  arena_ = std::move(arena);
  RETURN_IF_ERROR(device->FillBytes(arena_.data(), 0, arena_.bytes()));
  ASSIGN_OR_RETURN(BenchSampling sampling,
                   BenchSampling::Create(model_.get(), page_sizes_, max_sequences_,
                                         PagesFor(needs().max_context, needs().SmallestPage())));
  sampling_ = std::move(sampling);
  room_ = PagesThatFit(OfWholePools(needs()), model_->memory()) * needs().page_size;
  pages_ = PagesFor(LargestThatFits(wishes, room_), needs().page_size);
  std::vector<DeviceMemory> states;
  for (const plan::State& state : manifest().states()) {
    ASSIGN_OR_RETURN(const DType type, ParseDType(state.components(0).dtype()));  // kernels want one for all
    const int64_t pages = PagesOf(contract_.PoolOf(state.pool()).value_or(0));
    ASSIGN_OR_RETURN(DeviceMemory memory, device->Allocate(static_cast<int64_t>(state.record_bytes()) * pages));
    RETURN_IF_ERROR(kernels.FillRandom(memory, type));
    states.push_back(std::move(memory));
  }
  model_->SetStates(std::move(states));
  return device->Synchronize();
}

absl::Status BenchModel::BuildPrograms() {
  const plan::EntryPoint& entry = manifest().entry_points(0);
  for (const plan::Program* each : code().programs()) {
    const plan::Program& plan = *each;
    std::vector<DeviceRange> buffers;
    Program& program = programs_.emplace_back();
    for (const plan::Buffer& buffer : plan.buffers()) {
      buffers.push_back({arena_.data() + buffer.offset(), static_cast<int64_t>(buffer.bytes())});
      for (const std::string& value : buffer.values()) {
        const std::string place = PlaceOf(value, contract_, entry);
        if (!place.empty()) program.places[place] = buffers.back();
      }
    }
    ASSIGN_OR_RETURN(program.code, model_->Build(plan, buffers));
    ASSIGN_OR_RETURN(program.each, model_->Build(plan, std::move(buffers), /*model_alone=*/true, /*runs=*/false));
  }
  return absl::OkStatus();
}

int64_t BenchModel::PagesOf(size_t pool) const { return pages_ * (needs().page_size / page_sizes_[pool]); }

// Tokens and pages of a step's sequences: random tokens, pages in a random order.
BenchModel::Layout BenchModel::LayoutOf(const BenchStep& step) const {
  const int64_t vocabulary = std::max<int64_t>(manifest().language_model().vocab_size(), 1);
  std::mt19937 random(7);
  Layout made{.step = StepLayout(page_sizes_, step.dims.at(table_))};
  for (size_t pool = 0; pool < page_sizes_.size(); ++pool) {
    std::vector<int32_t>& pages = made.pages.emplace_back(static_cast<size_t>(PagesOf(pool)));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random);
  }
  for (int64_t i = 0; i < step.dims.at(tokens_); ++i) made.ids.push_back(static_cast<int32_t>(random() % vocabulary));
  size_t token = 0;
  std::vector<size_t> page(page_sizes_.size());
  for (const BenchSequence& sequence : step.sequences) {
    const auto tokens = static_cast<size_t>(sequence.tokens);
    PoolTables tables;
    for (size_t pool = 0; pool < page_sizes_.size(); ++pool) {
      const auto pages = static_cast<size_t>(PagesFor(sequence.position + sequence.tokens, page_sizes_[pool]));
      tables.push_back(absl::MakeConstSpan(made.pages[pool]).subspan(page[pool], pages));
      page[pool] += pages;
    }
    made.step.Add({.ids = absl::MakeConstSpan(made.ids).subspan(token, tokens),
                   .position = sequence.position,
                   .pages = std::move(tables)},
                  1);
    token += tokens;
  }
  return made;
}

absl::StatusOr<BenchStep> BenchModel::MakeStep(std::vector<BenchSequence> sequences) const {
  const auto count = static_cast<int64_t>(sequences.size());
  int64_t tokens = 0, pages = 0;
  for (const BenchSequence& sequence : sequences) {
    tokens += sequence.tokens;
    pages += PagesFor(sequence.position + sequence.tokens, needs().page_size);
    if (sequence.position + sequence.tokens > needs().max_context) {
      return absl::InvalidArgumentError(absl::StrCat(
          sequence.position + sequence.tokens, " tokens are more than the model's context of ", needs().max_context));
    }
  }
  if (count > max_sequences_ || tokens > max_step_tokens_) {
    return absl::InvalidArgumentError(absl::StrCat("a step of ", count, " sequences and ", tokens,
                                                   " tokens is above the plan's bounds, ", max_sequences_, " and ",
                                                   max_step_tokens_));
  }
  if (pages > pages_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it needs ", pages * needs().page_size, " tokens of KV cache; the GPU has room for ", room_));
  }
  BenchStep step;
  step.dims = {{tokens_, tokens},
               {sequences_, count},
               {rows_, count},
               {table_, PagesFor(needs().max_context, needs().SmallestPage())}};
  for (const MemoryNeeds::Pool& pool : needs().pools)
    step.dims[pool.dim] = PagesOf(contract_.PoolOf(pool.dim).value_or(0));
  std::vector<const plan::Program*> programs;
  for (const Program& program : programs_) programs.push_back(program.code.plan);
  step.program = ChooseProgram(programs, step.dims, Decodes(sequences));
  step.sequences = std::move(sequences);
  return step;
}

absl::StatusOr<BenchInputs> BenchModel::MakeInputs(const BenchStep& step) {
  const Layout layout = LayoutOf(step);
  std::map<std::string, std::vector<int32_t>> values;
  int64_t bytes = 0;
  for (const plan::TensorSpec& input : manifest().entry_points(0).inputs()) {
    std::vector<int32_t>& numbers = values[input.name()];
    numbers = InputValues(contract_.RoleOf(input.name()), layout.step, contract_.PoolOfInput(input.name()));
    bytes += static_cast<int64_t>(numbers.size() * sizeof(int32_t));
  }
  ASSIGN_OR_RETURN(DeviceMemory memory, device()->Allocate(bytes));
  BenchInputs inputs{.memory = std::move(memory)};
  DevicePointer from = inputs.memory.data();
  for (const auto& [name, numbers] : values) {
    const auto place = programs_[step.program].places.find(absl::StrCat("%", name));
    if (place == programs_[step.program].places.end()) continue;  // nothing reads it
    inputs.copies.push_back({place->second.data, from, static_cast<int64_t>(numbers.size() * sizeof(int32_t))});
    if (inputs.copies.back().bytes > place->second.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan is damaged: the input ", name, " has too small a place"));
    }
    absl::Status status = device()->CopyToDevice(from, numbers.data(), inputs.copies.back().bytes);
    if (!status.ok()) return status;
    from += static_cast<DevicePointer>(inputs.copies.back().bytes);
  }
  RETURN_IF_ERROR(device()->Synchronize());
  return inputs;
}

absl::Status BenchModel::SetInputs(const BenchInputs& inputs) {
  for (const BenchInputs::Copy& copy : inputs.copies) {
    RETURN_IF_ERROR(device()->CopyOnDevice(copy.to, copy.from, copy.bytes));
  }
  return absl::OkStatus();
}

absl::Status BenchModel::Enqueue(const BenchStep& step) {
  for (const DeviceTask& task : programs_[step.program].code.tasks) {
    if (PartOf(*task.task) != StepPart::kModel) continue;
    RETURN_IF_ERROR(model_->Enqueue(task, step.dims));
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceGraph> BenchModel::Capture(const BenchStep& step) {
  RETURN_IF_ERROR(device()->BeginCapture());
  const absl::Status enqueued = Enqueue(step);
  absl::StatusOr<DeviceGraph> graph = device()->EndCapture();
  if (!enqueued.ok()) return enqueued;
  return graph;
}

absl::StatusOr<DeviceGraph> BenchModel::CaptureTasks(const BenchStep& step, const std::vector<int>& tasks,
                                                     int repeats) {
  return CaptureEach(model_.get(), programs_[step.program].each, step.dims, tasks, repeats);
}

absl::StatusOr<DeviceGraph> BenchModel::CaptureSampled(const BenchStep& step, BenchSampling::Kind kind) {
  RETURN_IF_ERROR(device()->Synchronize());  // no step reads the last message
  const Layout layout = LayoutOf(step);
  std::vector<Chunk> chunks;
  for (int64_t i = 0; i < layout.step.Size(StepAxis::kSequence); ++i) {
    const StepSequence& sequence = layout.step.sequence(i);
    chunks.push_back({.sequence = i,
                      .ids = sequence.ids,
                      .position = sequence.position,
                      .pages = sequence.pages,
                      .logits = WantedLogits::kLast});
  }
  sampling_.Write(chunks, kind);
  const Program& program = programs_[step.program];
  RETURN_IF_ERROR(device()->BeginCapture());
  StepDims dims = sampling_.Dims();
  dims.insert(step.dims.begin(), step.dims.end());
  const absl::Status enqueued =
      model_->Enqueue(program.code, dims, kind == BenchSampling::Kind::kGreedy ? plan::GREEDY : plan::DRAWS);
  absl::StatusOr<DeviceGraph> graph = device()->EndCapture();
  if (!enqueued.ok()) return enqueued;
  return graph;
}

absl::Status BenchModel::CheckSampled() {
  RETURN_IF_ERROR(device()->Synchronize());
  return sampling_.CheckTokens();
}

absl::StatusOr<std::vector<double>> BenchModel::Time(int runs, const BenchInputs& inputs,
                                                     absl::FunctionRef<absl::Status()> run) {
  return TimeRuns(
      device(), runs, [&] { return SetInputs(inputs); }, run);
}

}  // namespace llmc
