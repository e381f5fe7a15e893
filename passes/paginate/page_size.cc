#include "passes/paginate/page_size.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/state_type.h"
#include "ir/step_inputs.h"

namespace llmc::pagination {

absl::Status SetPageSize(int64_t tokens, Model* model) {
  std::map<std::string, int64_t> old;  // by pool
  for (Value* state : model->states) {
    if (state->state->kind != StateKind::kPaged) continue;
    StateType type = *state->state;
    old.emplace(type.count.ToString(), type.page_size);
    type.page_size = tokens;
    if (const absl::Status status = type.Check(); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--page-size: ", status.message()));
    }
    Model::SetStateType(state, type);
  }
  if (old.empty()) return absl::InvalidArgumentError("--page-size: the model has no states with pages");
  for (const auto& step : model->steps) {
    ASSIGN_OR_RETURN(const StepContract contract, ContractOf(*step));
    const auto bound = model->dims.find(contract.SizeOf(StepAxis::kPage));
    if (bound != model->dims.end()) bound->second = (bound->second * old.begin()->second + tokens - 1) / tokens;
  }
  return absl::OkStatus();
}

}  // namespace llmc::pagination
