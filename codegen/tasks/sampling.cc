#include "codegen/tasks/sampling.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "ir/step_inputs.h"
#include "kernels/layout/sampling.h"
#include "kernels/layout/step_message.h"

namespace llmc {
namespace {

// What the kernel writes, in the order of its parameters.
constexpr StepRole kInputs[] = {StepRole::kTokenIds, StepRole::kPositions, StepRole::kSlots,    StepRole::kLengths,
                                StepRole::kStarts,   StepRole::kRows,      StepRole::kPageTable};

Dim Symbol(absl::string_view name) { return Dim::Symbol(std::string(name)); }

// The memory that these kernels keep, for the largest step of a model.
struct StepMemory {
  int64_t message_bytes = 0, draws = 0, work_bytes = 0;

  KernelParam Message(const std::string& type) const {
    return {type, "message", KernelArg::OfPersistent("message", message_bytes)};
  }
  KernelParam Sampled(const std::string& type) const {
    return {type, "sampled", KernelArg::OfPersistent("sampled", 4 * draws)};
  }
  KernelParam Work() const { return {"llmc::u8*", "work", KernelArg::OfPersistent("work", work_bytes)}; }
};

KernelCall InputsCall(const std::map<StepRole, const Value*>& inputs, const StepMemory& memory) {
  KernelCall call = {.header = "sampling/step_inputs", .function = "StepInputs", .threads = kStepInputsThreads};
  call.params = {{"const llmc::u32*", "messages", KernelArg::OfStepMessages()},
                 Count(Symbol(kMessageWords), "message_words"),
                 {"llmc::u32*", "state", KernelArg::OfPersistent("state", 4)},
                 memory.Sampled("const llmc::i32*"),
                 memory.Message("llmc::u32*")};
  for (const StepRole role : kInputs) {
    call.params.push_back({"llmc::i32*", std::string(InfoOf(role).input), KernelArg::Of(inputs.at(role))});
  }
  call.params.push_back(Count(Symbol(kTableWidth), "table_width"));
  return call;
}

KernelCall SampleCall(const Value* logits, const StepMemory& memory, const std::string& function, bool chooses) {
  const int64_t vocabulary = logits->type.shape.back().value();
  KernelCall call = {.header = "sampling/sample",
                     .function = function,
                     .types = {{"T", DeviceType(logits->type.dtype)}},
                     .constants = {{"kVocab", vocabulary}},
                     .grid = {Dim(SampleSlices(vocabulary)), Symbol(kDraws), Symbol(kSampledForms)},
                     .threads = kSampleThreads,
                     .pdl = true};
  call.params = {
      {"const Config::T*", "logits", KernelArg::Of(logits)}, memory.Message("const llmc::StepHeader*"), memory.Work()};
  if (chooses) call.params.push_back(memory.Sampled("llmc::i32*"));
  return call;
}

// The elements of the inputs at the bounds; nothing if the step is not that of a language model with a paged cache.
std::optional<std::map<StepRole, int64_t>> ElementsOfInputs(const Model& model, const Step& step) {
  const absl::StatusOr<StepContract> contract = ContractOf(step);
  if (!contract.ok() || !contract->is_paged() || step.params.size() != std::size(kInputs)) return std::nullopt;
  std::map<StepRole, int64_t> elements;
  const DimEnv bounds(model.dims.begin(), model.dims.end());
  for (const Value* param : step.params) {
    const absl::StatusOr<int64_t> size = Product(param->type.shape).Evaluate(bounds);
    if (!size.ok()) return std::nullopt;
    elements[param->role.role] = *size;
  }
  return elements;
}

StepMemory MemoryOf(std::map<StepRole, int64_t> elements, int64_t vocabulary) {
  StepMemory memory;
  const int64_t rows = elements[StepRole::kRows];
  memory.draws = std::min(elements[StepRole::kLengths], rows);
  const StepMessageParts parts =
      PartsOfStepMessage(elements[StepRole::kTokenIds], elements[StepRole::kLengths], rows, memory.draws);
  const int64_t bytes = 4 * (parts.page_tables + elements[StepRole::kPageTable]);
  memory.message_bytes = std::max<int64_t>(CeilDiv(bytes, kMessageAlignment) * kMessageAlignment, kLeastMessageBytes);
  memory.work_bytes = 2 * memory.draws * SampleWorkBytes(SampleSlices(vocabulary));
  return memory;
}

}  // namespace

std::optional<SamplingCalls> SelectSampling(const Model& model) {
  if (model.steps.size() != 1 || model.states.empty() || model.steps[0]->outputs.size() != 1) return std::nullopt;
  const Step& step = *model.steps[0];
  const std::optional<std::map<StepRole, int64_t>> elements = ElementsOfInputs(model, step);
  const Value* logits = step.outputs[0].value;
  if (!elements.has_value() || logits->type.rank() != 2 || !logits->type.shape[1].is_constant() ||
      logits->type.dtype != DType::kF32) {
    return std::nullopt;
  }
  std::map<StepRole, const Value*> inputs;
  for (const Value* param : step.params) inputs[param->role.role] = param;
  const StepMemory memory = MemoryOf(*elements, logits->type.shape[1].value());
  const std::vector<plan::Sampling> all = {plan::GREEDY, plan::DRAWS, plan::LOG_PROBS},
                                    draws = {plan::DRAWS, plan::LOG_PROBS};
  SamplingCalls calls;
  calls.inputs = {"the inputs of a step", InputsCall(inputs, memory), {}};
  calls.choice = {{"sampling: largest logits", SampleCall(logits, memory, "SampleMax", true), all},
                  {"sampling: histograms", SampleCall(logits, memory, "SampleHistogram", false), draws},
                  {"sampling: draws", SampleCall(logits, memory, "SampleFinish", true), draws}};
  return calls;
}

}  // namespace llmc
