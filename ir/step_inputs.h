// The inputs of a language model's step by their roles (base/step_contract.h).
#pragma once

#include <map>

#include "absl/status/statusor.h"
#include "base/step_contract.h"
#include "ir/graph.h"

namespace llmc {

// Names are those of inputs, without sigil. Errors are StepContract::Read's.
absl::StatusOr<StepContract> ContractOf(const Step& step);

// The parameter with a role; nullptr: there is none.
Value* FindInput(const Step& step, StepRole role);

// Adds what a step with a paged cache needs, with T tokens of S sequences, R rows of logits and P pages of a sequence:
// those dims must have bounds in the end.
std::map<StepRole, Value*> AddPagedInputs(Model* model, Step* step);

}  // namespace llmc
