#include "codegen/tasks/sampling.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "ir/step_inputs.h"
#include "kernels/layout/sampling.h"
#include "kernels/layout/step_message.h"
#include "runtime/plan/plan_arena.h"
#include "runtime/plan/plan_format.h"

namespace llmc {
namespace {

// What the kernel writes, in the order of its parameters.
constexpr StepRole kInputs[] = {StepRole::kTokenIds, StepRole::kPositions, StepRole::kSlots,    StepRole::kLengths,
                                StepRole::kStarts,   StepRole::kRows,      StepRole::kPageTable};

Dim Symbol(const std::string& name) { return Dim::Symbol(name); }

// The buffers of the program by name, each at its own place of the arena; those without a size lie elsewhere.
class Buffers {
 public:
  explicit Buffers(plan::Program* program) : program_(program) {}

  void Add(const std::string& name, int64_t bytes) {
    plan::Buffer* buffer = program_->add_buffers();
    buffer->set_name(name);
    buffer->set_size(absl::StrCat(bytes));
    buffer->set_bytes(static_cast<uint64_t>(bytes));
    buffer->set_offset(program_->arena_bytes());
    program_->set_arena_bytes(plan::AlignUp(program_->arena_bytes() + static_cast<uint64_t>(bytes), kBufferAlignment));
    program_->set_lower_bound_bytes(program_->arena_bytes());
  }
  KernelParam Param(const std::string& type, const std::string& name) const {
    for (int i = 0; i < program_->buffers_size(); ++i) {
      if (program_->buffers(i).name() == name) return {type, name, KernelArg::OfBuffer(i)};
    }
    return {type, name, {}};
  }

 private:
  plan::Program* program_;
};

KernelCall InputsCall(const Buffers& buffers) {
  KernelCall call = {.header = "sampling/step_inputs", .function = "StepInputs", .threads = kStepInputsThreads};
  call.params = {buffers.Param("const llmc::u32*", "messages"), Count(Symbol("message_words"), "message_words"),
                 buffers.Param("llmc::u32*", "state"), buffers.Param("const llmc::i32*", "sampled"),
                 buffers.Param("llmc::u32*", "message")};
  for (const StepRole role : kInputs) {
    call.params.push_back(buffers.Param("llmc::i32*", std::string(InfoOf(role).input)));
  }
  call.params.push_back(Count(Symbol("table_width"), "table_width"));
  return call;
}

KernelCall SampleCall(const Buffers& buffers, const TensorType& logits, const std::string& function, bool chooses) {
  const int64_t vocabulary = logits.shape.back().value();
  KernelCall call = {.header = "sampling/sample",
                     .function = function,
                     .types = {{"T", DeviceType(logits.dtype)}},
                     .constants = {{"kVocab", vocabulary}},
                     .grid = {Dim(SampleSlices(vocabulary)), Symbol("draws"), Symbol("z")},
                     .threads = kSampleThreads,
                     .pdl = true};
  call.params = {buffers.Param("const Config::T*", "logits"), buffers.Param("const llmc::StepHeader*", "message"),
                 buffers.Param("llmc::u8*", "work")};
  if (chooses) call.params.push_back(buffers.Param("llmc::i32*", "sampled"));
  return call;
}

}  // namespace

std::optional<SamplingCode> SelectSampling(const Model& model) {
  if (model.steps.size() != 1 || model.states.empty() || model.steps[0]->outputs.size() != 1) return std::nullopt;
  const Step& step = *model.steps[0];
  const absl::StatusOr<StepContract> contract = ContractOf(step);
  if (!contract.ok() || !contract->is_paged() || step.params.size() != std::size(kInputs)) return std::nullopt;
  std::map<StepRole, int64_t> elements;  // of the inputs at the bounds
  const DimEnv bounds(model.dims.begin(), model.dims.end());
  for (const Value* param : step.params) {
    const absl::StatusOr<int64_t> size = Product(param->type.shape).Evaluate(bounds);
    if (!size.ok()) return std::nullopt;
    elements[param->role.role] = *size;
  }
  const TensorType& logits = step.outputs[0].value->type;
  if (logits.rank() != 2 || !logits.shape[1].is_constant() || logits.dtype != DType::kF32) {
    return std::nullopt;
  }
  const int64_t rows = elements[StepRole::kRows], table = elements[StepRole::kPageTable];
  const int64_t draws = std::min(elements[StepRole::kLengths], rows);
  const StepMessageParts parts =
      PartsOfStepMessage(elements[StepRole::kTokenIds], elements[StepRole::kLengths], rows, draws);
  const int64_t message_bytes = 4 * (parts.page_tables + table);
  SamplingCode code;
  plan::Program* program = &code.memory;
  program->set_entry_point("sampling");
  Buffers buffers(program);
  buffers.Add("messages", 0);
  for (const StepRole role : kInputs) buffers.Add(std::string(InfoOf(role).input), 0);
  buffers.Add("logits", 0);
  buffers.Add("state", 4);
  buffers.Add("sampled", 4 * draws);
  buffers.Add("message",
              std::max<int64_t>(CeilDiv(message_bytes, kMessageAlignment) * kMessageAlignment, kLeastMessageBytes));
  buffers.Add("work", 2 * draws * SampleWorkBytes(SampleSlices(logits.shape[1].value())));
  const std::pair<std::string, int64_t> dims[] = {
      {"draws", draws}, {"z", 2}, {"message_words", message_bytes / 4 + 4096}, {"table_width", table}};
  for (const auto& [name, max] : dims) {
    plan::DimBound* bound = program->add_bounds();
    bound->set_name(name);
    bound->set_max(max);
  }
  code.launches = {{"the inputs of a step", InputsCall(buffers)},
                   {"sampling: largest logits", SampleCall(buffers, logits, "SampleMax", true)},
                   {"sampling: histograms", SampleCall(buffers, logits, "SampleHistogram", false)},
                   {"sampling: draws", SampleCall(buffers, logits, "SampleFinish", true)}};
  return code;
}

}  // namespace llmc
