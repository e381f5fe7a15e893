#include "runtime/plan/step_programs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"

namespace llmc {

absl::StatusOr<StepContract> ContractOf(const plan::EntryPoint& entry) {
  std::vector<StepInputSpec> inputs;
  for (const plan::TensorSpec& input : entry.inputs()) {
    inputs.push_back({.name = input.name(),
                      .role = input.role(),
                      .dtype = input.dtype(),
                      .shape = {input.shape().begin(), input.shape().end()}});
  }
  return StepContract::Read(inputs);
}

absl::StatusOr<StepContract> PagedContractOf(const plan::Manifest& manifest) {
  if (manifest.entry_points_size() == 1 && manifest.states_size() > 0) {
    absl::StatusOr<StepContract> contract = ContractOf(manifest.entry_points(0));
    if (!contract.ok() || contract->is_paged()) return contract;
  }
  return absl::InvalidArgumentError("the step of the plan is not that of a language model with a paged KV cache");
}

const plan::LanguageModel::Pool* FindPool(const plan::LanguageModel& model, absl::string_view dim) {
  const auto pool = absl::c_find_if(model.pools(), [&](const auto& each) { return each.dim() == dim; });
  return pool == model.pools().end() ? nullptr : &*pool;
}

StepPart PartOf(const plan::Task& task) {
  if (task.sampling_size() > 0) return StepPart::kSampling;
  const bool takes_message =
      std::any_of(task.args().begin(), task.args().end(), [](const plan::Arg& arg) { return arg.has_step_messages(); });
  return takes_message ? StepPart::kInputs : StepPart::kModel;
}

std::string PlaceOf(const std::string& value, const StepContract& contract, const plan::EntryPoint& entry) {
  if (entry.output_values_size() > 0 && value == entry.output_values(0)) return "logits";
  const bool is_input = absl::StartsWith(value, "%") && contract.RoleOf(value.substr(1)) != StepRole::kNone;
  return is_input ? value : "";
}

size_t ChooseProgram(absl::Span<const plan::Program* const> programs, const StepDims& dims, bool decodes) {
  for (size_t i = 0; i + 1 < programs.size(); ++i) {
    const bool holds = std::all_of(programs[i]->bounds().begin(), programs[i]->bounds().end(), [&](const auto& bound) {
      const auto dim = dims.find(bound.name());
      return dim == dims.end() || dim->second <= bound.max();
    });
    if (holds && (decodes || !programs[i]->decode())) return i;
  }
  return programs.size() - 1;
}

}  // namespace llmc
