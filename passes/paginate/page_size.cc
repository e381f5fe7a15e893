#include "passes/paginate/page_size.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "ir/state_type.h"
#include "ir/step_inputs.h"

namespace llmc::pagination {
namespace {

using Sizes = std::map<std::string, int64_t>;  // by pool

Sizes SizesOf(const Model& model) {
  Sizes sizes;
  for (const Value* state : model.states) {
    if (state->state->kind == StateKind::kPaged) sizes[state->state->count.ToString()] = state->state->page_size;
  }
  return sizes;
}

int64_t SmallestOf(const Sizes& sizes) {
  return std::min_element(sizes.begin(), sizes.end(), [](const auto& a, const auto& b) { return a.second < b.second; })
      ->second;
}

absl::Status Wrong(absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat("--page-size: ", what)); }

}  // namespace

absl::Status SetPageSizes(const PageSizeWishes& sizes, Model* model) {
  const Sizes old = SizesOf(*model);
  if (old.empty()) return Wrong("the model has no states with pages");
  for (const auto& [pool, size] : sizes.of_pools) {
    if (old.contains(pool)) continue;
    const auto name = [](std::string* out, const auto& known) { absl::StrAppend(out, known.first); };
    return Wrong(absl::StrCat("the model has no pool ", pool, "; it has ", absl::StrJoin(old, ", ", name)));
  }
  for (Value* state : model->states) {
    if (state->state->kind != StateKind::kPaged) continue;
    StateType type = *state->state;
    if (sizes.all != 0) type.page_size = sizes.all;
    const auto of_pool = sizes.of_pools.find(type.count.ToString());
    if (of_pool != sizes.of_pools.end()) type.page_size = of_pool->second;
    if (const absl::Status status = type.Check(); !status.ok()) return Wrong(status.message());
    Model::SetStateType(state, type);
  }
  std::set<std::string> dims;
  for (const auto& step : model->steps) {
    ASSIGN_OR_RETURN(const StepContract contract, ContractOf(*step));
    dims.insert(contract.SizeOf(StepAxis::kPage));
  }
  const int64_t smallest = SmallestOf(SizesOf(*model));
  for (const std::string& dim : dims) {
    const auto bound = model->dims.find(dim);
    if (bound != model->dims.end()) bound->second = (bound->second * SmallestOf(old) + smallest - 1) / smallest;
  }
  return absl::OkStatus();
}

}  // namespace llmc::pagination
