// The step of a plan's language model: what it asks for, and which of the plan's programs runs it.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/step_contract.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// Errors are StepContract::Read's.
absl::StatusOr<StepContract> ContractOf(const plan::EntryPoint& entry);
// InvalidArgument unless the plan has one step, states, and that is the step of a language model with a paged cache.
absl::StatusOr<StepContract> PagedContractOf(const plan::Manifest& manifest);

// The pool whose pages a dim counts; nullptr: there is none.
const plan::LanguageModel::Pool* FindPool(const plan::LanguageModel& model, absl::string_view dim);

// What a task is to a step: it takes the inputs from the step's message, computes the model, or chooses tokens.
enum class StepPart { kInputs, kModel, kSampling };
StepPart PartOf(const plan::Task& task);

// What a value of a program is to the step: itself ("%ids") if it is an input with a role, "logits" if it is the first
// output, and "" if it stays in the program.
std::string PlaceOf(const std::string& value, const StepContract& contract, const plan::EntryPoint& entry);

// The number of the first program that is for steps of these sizes: each of its bounds holds, and, if it is for decode
// steps only, `decodes`: the step is one token of each sequence, each with a row of logits. A dim without a size holds.
// The last is for what no other is for. There must be one.
size_t ChooseProgram(absl::Span<const plan::Program* const> programs, const StepDims& dims, bool decodes);

}  // namespace llmc
