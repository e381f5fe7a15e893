#include "codegen/tasks/sampling.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/step_inputs.h"
#include "kernels/layout/sampling.h"
#include "kernels/layout/step_message.h"

namespace llmc {
namespace {

// What the kernel writes, in the order of its parameters: inputs of the step, then those of each pool.
constexpr StepRole kInputs[] = {StepRole::kTokenIds, StepRole::kPositions, StepRole::kLengths, StepRole::kStarts,
                                StepRole::kRows};
constexpr StepRole kPoolInputs[] = {StepRole::kSlots, StepRole::kPageTable};

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

KernelCall InputsCall(const Step& step, const StepContract& contract, const StepMemory& memory) {
  KernelCall call = {.header = "sampling/step_inputs", .function = "StepInputs", .threads = kStepInputsThreads};
  call.params = {{"const llmc::u32*", "messages", KernelArg::OfStepMessages()},
                 Count(Symbol(kMessageWords), "message_words"),
                 {"llmc::u32*", "state", KernelArg::OfPersistent("state", 4)},
                 memory.Sampled("const llmc::i32*"),
                 memory.Message("llmc::u32*")};
  const auto add = [&](StepRole role, size_t pool, const std::string& suffix) {
    const std::string& name = contract.NameOf(role, pool);
    const auto is = [&](const Value* param) { return param->name.substr(1) == name; };
    const Value* input = *std::find_if(step.params.begin(), step.params.end(), is);
    call.params.push_back({"llmc::i32*", absl::StrCat(InfoOf(role).input, suffix), KernelArg::Of(input)});
  };
  for (const StepRole role : kInputs) add(role, 0, "");
  call.params.push_back(Count(Symbol(kTableWidth), "table_width"));
  for (size_t pool = 0; pool < contract.pools().size(); ++pool) {
    for (const StepRole role : kPoolInputs) add(role, pool, pool == 0 ? "" : absl::StrCat(pool));
  }
  return call;
}

KernelCall SampleCall(const Value* logits, const StepMemory& memory, const std::string& function, bool chooses) {
  const int64_t vocabulary = logits->type.shape.back().value();
  KernelCall call = {.header = "sampling/sample",
                     .function = function,
                     .types = {{"T", DeviceType(logits)}},
                     .constants = {{"kVocab", vocabulary}},
                     .grid = {Dim(SampleSlices(vocabulary)), Symbol(kDraws), Symbol(kSampledForms)},
                     .threads = kSampleThreads,
                     .pdl = true};
  call.params = {
      {"const Config::T*", "logits", KernelArg::Of(logits)}, memory.Message("const llmc::StepHeader*"), memory.Work()};
  if (chooses) call.params.push_back(memory.Sampled("llmc::i32*"));
  return call;
}

// Nothing if the step is not that of a language model with a paged cache.
std::optional<StepMemory> MemoryOf(const Model& model, const Step& step, const StepContract& contract,
                                   int64_t vocabulary) {
  const size_t inputs_of_pools = contract.pools().size() * std::size(kPoolInputs);
  if (!contract.is_paged() || step.params.size() != std::size(kInputs) + inputs_of_pools) return std::nullopt;
  std::map<StepRole, int64_t> elements;  // of the inputs, at the bounds
  for (const Value* param : step.params) {
    const absl::StatusOr<int64_t> size = Product(param->type.shape).Evaluate(model.dims);
    if (!size.ok()) return std::nullopt;
    elements[param->role.role] = *size;
  }
  StepMemory memory;
  const int64_t rows = elements[StepRole::kRows];
  memory.draws = std::min(elements[StepRole::kLengths], rows);
  const auto pools = static_cast<int64_t>(contract.pools().size());
  const StepMessageParts parts =
      PartsOfStepMessage(elements[StepRole::kTokenIds], elements[StepRole::kLengths], rows, memory.draws, pools);
  const int64_t bytes = 4 * (parts.page_tables + pools * elements[StepRole::kPageTable]);
  memory.message_bytes = std::max<int64_t>(CeilDiv(bytes, kMessageAlignment) * kMessageAlignment, kLeastMessageBytes);
  memory.work_bytes = 2 * memory.draws * SampleWorkBytes(SampleSlices(vocabulary));
  return memory;
}

}  // namespace

std::optional<SamplingCalls> SelectSampling(const Model& model) {
  if (model.steps.size() != 1 || model.states.empty() || model.steps[0]->outputs.size() != 1) return std::nullopt;
  const Step& step = *model.steps[0];
  const absl::StatusOr<StepContract> contract = ContractOf(step);
  if (!contract.ok()) return std::nullopt;
  const Value* logits = step.outputs[0].value;
  if (logits->type.rank() != 2 || !ConstantLast(logits) || logits->type.dtype != DType::kF32) return std::nullopt;
  const std::optional<StepMemory> memory = MemoryOf(model, step, *contract, logits->type.shape[1].value());
  if (!memory.has_value()) return std::nullopt;
  const std::vector<plan::Sampling> all = {plan::GREEDY, plan::DRAWS, plan::LOG_PROBS},
                                    draws = {plan::DRAWS, plan::LOG_PROBS};
  SamplingCalls calls;
  calls.inputs = {"the inputs of a step", InputsCall(step, *contract, *memory), {}};
  calls.choice = {{"sampling: largest logits", SampleCall(logits, *memory, "SampleMax", true), all},
                  {"sampling: histograms", SampleCall(logits, *memory, "SampleHistogram", false), draws},
                  {"sampling: draws", SampleCall(logits, *memory, "SampleFinish", true), draws}};
  return calls;
}

}  // namespace llmc
