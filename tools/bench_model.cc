#include "tools/bench_model.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/executor.h"
#include "runtime/memory_needs.h"
#include "tools/bench_device.h"

namespace llmc {
namespace {

bool Decodes(const std::vector<BenchSequence>& sequences) {
  return std::all_of(sequences.begin(), sequences.end(), [](const BenchSequence& s) { return s.tokens == 1; });
}

// The inputs of ir/ops_lm.h.
std::map<std::string, std::vector<int32_t>> Inputs(const BenchStep& step, int64_t vocabulary, int64_t page_size,
                                                   int64_t table_width, int64_t pages) {
  std::mt19937 random(7);
  std::vector<int32_t> free(static_cast<size_t>(pages));
  std::iota(free.begin(), free.end(), 0);
  std::shuffle(free.begin(), free.end(), random);
  std::map<std::string, std::vector<int32_t>> inputs = {{"starts", {0}}};
  size_t next = 0;
  for (const BenchSequence& sequence : step.sequences) {
    const int64_t length = sequence.position + sequence.tokens;
    const size_t row = inputs["pages"].size();
    inputs["pages"].resize(row + static_cast<size_t>(table_width));
    for (int64_t p = 0; p < PagesFor(length, page_size); ++p) inputs["pages"][row + p] = free[next++];
    for (int64_t position = sequence.position; position < length; ++position) {
      inputs["ids"].push_back(static_cast<int32_t>(random() % vocabulary));
      inputs["pos"].push_back(static_cast<int32_t>(position));
      const int64_t page = inputs["pages"][row + position / page_size];
      inputs["slots"].push_back(static_cast<int32_t>(page * page_size + position % page_size));
    }
    inputs["lens"].push_back(static_cast<int32_t>(length));
    inputs["starts"].push_back(static_cast<int32_t>(inputs["ids"].size()));
    inputs["rows"].push_back(static_cast<int32_t>(inputs["ids"].size()) - 1);
  }
  return inputs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchModel>> BenchModel::Load(const Plan* plan, int64_t tokens) {
  auto bench = std::unique_ptr<BenchModel>(new BenchModel());
  if (absl::Status status = bench->ReadSymbols(*plan); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<DeviceModel>> model = DeviceModel::Load(plan, {.pages = 1});
  if (!model.ok()) return model.status();
  bench->model_ = *std::move(model);
  absl::Status status = bench->Allocate(tokens);
  if (status.ok()) status = bench->BuildPrograms();
  if (!status.ok()) return status;
  return bench;
}

absl::Status BenchModel::ReadSymbols(const Plan& plan) {
  const plan::Manifest& manifest = plan.manifest();
  std::map<std::string, std::string> symbols;
  for (int i = 0; manifest.entry_points_size() == 1 && i < manifest.entry_points(0).inputs_size(); ++i) {
    const plan::TensorSpec& input = manifest.entry_points(0).inputs(i);
    if (input.shape_size() > 0) symbols[input.name()] = input.shape(input.shape_size() - 1);
  }
  tokens_ = symbols["ids"];
  sequences_ = symbols["lens"];
  rows_ = symbols["rows"];
  table_ = symbols["pages"];
  pool_ = manifest.states_size() > 0 ? manifest.states(0).shape(0) : "";
  if (tokens_.empty() || sequences_.empty() || rows_.empty() || table_.empty() || pool_.empty()) {
    return absl::UnimplementedError(
        absl::StrCat(plan.path(), ": only language models with a paged KV cache (Hugging Face folders) can be timed"));
  }
  if (manifest.programs_size() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(plan.path(), ": has no code for a GPU; compile it with --target"));
  }
  const StepDims bounds = BoundsOf(manifest.programs(manifest.programs_size() - 1));
  const auto bound = [&](const std::string& symbol) {
    const auto it = bounds.find(symbol);
    return it == bounds.end() ? 0 : it->second;
  };
  max_step_tokens_ = bound(tokens_);
  max_sequences_ = std::min(bound(sequences_), bound(rows_));
  return absl::OkStatus();
}

absl::Status BenchModel::Allocate(int64_t tokens) {
  Device* device = model_->device();
  absl::StatusOr<BenchKernels> kernels = BenchKernels::Create(device);
  if (!kernels.ok()) return kernels.status();
  for (const plan::Program& program : manifest().programs()) {
    if (absl::Status status = model_->ReserveScratch(program, BoundsOf(program)); !status.ok()) return status;
  }
  absl::StatusOr<DeviceMemory> arena = device->Allocate(needs().arena);
  if (!arena.ok()) return arena.status();
  arena_ = *std::move(arena);
  if (absl::Status status = device->FillBytes(arena_.data(), 0, arena_.bytes()); !status.ok()) return status;
  pages_ = std::min(PagesFor(tokens, needs().page_size), PagesThatFit(needs(), model_->memory()));
  std::vector<DeviceMemory> states;
  for (const plan::State& state : manifest().states()) {
    const absl::StatusOr<int64_t> bytes = StatePageBytes(state);
    const absl::StatusOr<ElementType> type = ElementTypeNamed(state.dtype());
    if (!bytes.ok()) return bytes.status();
    if (!type.ok()) return type.status();
    absl::StatusOr<DeviceMemory> memory = device->Allocate(*bytes * pages_);
    if (!memory.ok()) return memory.status();
    if (absl::Status status = kernels->FillRandom(*memory, *type); !status.ok()) return status;
    states.push_back(*std::move(memory));
  }
  model_->SetStates(std::move(states));
  return device->Synchronize();
}

absl::Status BenchModel::BuildPrograms() {
  for (const plan::Program& plan : manifest().programs()) {
    std::vector<DeviceRange> buffers;
    for (const plan::Buffer& buffer : plan.buffers()) {
      buffers.push_back({arena_.data() + buffer.offset(), static_cast<int64_t>(buffer.bytes())});
    }
    absl::StatusOr<DeviceProgram> code = model_->Build(plan, std::move(buffers));
    if (!code.ok()) return code.status();
    Program& program = programs_.emplace_back();
    program.code = *std::move(code);
    for (int i = 0; i < plan.buffers_size(); ++i) {
      for (const std::string& value : plan.buffers(i).values()) {
        for (const plan::TensorSpec& input : manifest().entry_points(0).inputs()) {
          if (value == absl::StrCat("%", input.name()))
            program.inputs[input.name()] = program.code.buffers[static_cast<size_t>(i)];
        }
      }
    }
  }
  return absl::OkStatus();
}

// As an executor does: the first for steps of one token each that is wide enough, else the last.
size_t BenchModel::ChooseProgram(int64_t sequences, bool decodes) const {
  for (size_t i = 0; decodes && i + 1 < programs_.size(); ++i) {
    const plan::Program& program = *programs_[i].code.plan;
    if (program.decode() && BoundsOf(program)[sequences_] >= sequences) return i;
  }
  return programs_.size() - 1;
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
    return absl::ResourceExhaustedError(absl::StrCat("it needs ", pages * needs().page_size,
                                                     " tokens of KV cache; the GPU has room for ", kv_tokens()));
  }
  BenchStep step{.program = ChooseProgram(count, Decodes(sequences)), .sequences = std::move(sequences)};
  step.dims = {{tokens_, tokens},
               {sequences_, count},
               {rows_, count},
               {table_, PagesFor(needs().max_context, needs().page_size)},
               {pool_, pages_}};
  return step;
}

absl::StatusOr<BenchInputs> BenchModel::MakeInputs(const BenchStep& step) {
  const int64_t vocabulary = std::max<int64_t>(manifest().language_model().vocab_size(), 1);
  const auto values = Inputs(step, vocabulary, needs().page_size, step.dims.at(table_), pages_);
  int64_t bytes = 0;
  for (const auto& [name, numbers] : values) bytes += static_cast<int64_t>(numbers.size() * sizeof(int32_t));
  absl::StatusOr<DeviceMemory> memory = device()->Allocate(bytes);
  if (!memory.ok()) return memory.status();
  BenchInputs inputs{.memory = *std::move(memory)};
  DevicePointer from = inputs.memory.data();
  for (const auto& [name, numbers] : values) {
    const auto place = programs_[step.program].inputs.find(name);
    if (place == programs_[step.program].inputs.end()) continue;  // nothing reads it
    inputs.copies.push_back({place->second.data, from, static_cast<int64_t>(numbers.size() * sizeof(int32_t))});
    if (inputs.copies.back().bytes > place->second.bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan is damaged: the input ", name, " has too small a place"));
    }
    absl::Status status = device()->CopyToDevice(from, numbers.data(), inputs.copies.back().bytes);
    if (!status.ok()) return status;
    from += static_cast<DevicePointer>(inputs.copies.back().bytes);
  }
  if (absl::Status status = device()->Synchronize(); !status.ok()) return status;
  return inputs;
}

absl::Status BenchModel::SetInputs(const BenchInputs& inputs) {
  for (const BenchInputs::Copy& copy : inputs.copies) {
    if (absl::Status status = device()->CopyOnDevice(copy.to, copy.from, copy.bytes); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status BenchModel::Enqueue(const BenchStep& step) {
  return model_->Enqueue(programs_[step.program].code, step.dims);
}

absl::StatusOr<DeviceGraph> BenchModel::Capture(const BenchStep& step,
                                                absl::FunctionRef<bool(const plan::Step&)> wanted, int repeats) {
  if (absl::Status status = device()->BeginCapture(); !status.ok()) return status;
  absl::Status enqueued;
  for (int i = 0; i < repeats; ++i) {
    for (const DeviceOperation& operation : programs_[step.program].code.operations) {
      if (enqueued.ok() && wanted(*operation.step)) enqueued = model_->Enqueue(operation, step.dims);
    }
  }
  absl::StatusOr<DeviceGraph> graph = device()->EndCapture();
  if (!enqueued.ok()) return enqueued;
  return graph;
}

absl::StatusOr<std::vector<double>> BenchModel::Time(int runs, const BenchInputs& inputs,
                                                     absl::FunctionRef<absl::Status()> run) {
  std::vector<std::pair<DeviceEvent, DeviceEvent>> marks;
  for (int i = 0; i <= runs; ++i) {
    if (absl::Status status = SetInputs(inputs); !status.ok()) return status;
    absl::StatusOr<DeviceEvent> begin = device()->Mark();
    if (!begin.ok()) return begin.status();
    if (absl::Status status = run(); !status.ok()) return status;
    absl::StatusOr<DeviceEvent> end = device()->Mark();
    if (!end.ok()) return end.status();
    marks.emplace_back(*std::move(begin), *std::move(end));
  }
  std::vector<double> seconds;
  for (int i = 1; i <= runs; ++i) {
    const absl::StatusOr<double> time = device()->SecondsBetween(marks[i].first, marks[i].second);
    if (!time.ok()) return time.status();
    seconds.push_back(*time);
  }
  return seconds;
}

}  // namespace llmc
