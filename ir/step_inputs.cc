#include "ir/step_inputs.h"

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

Dim DimOf(StepAxis axis) {
  switch (axis) {
    case StepAxis::kToken:
      return Dim::Symbol("T");
    case StepAxis::kSequence:
      return Dim::Symbol("S");
    case StepAxis::kSequenceEdge:
      return Dim::Symbol("S") + Dim(1);
    case StepAxis::kRow:
      return Dim::Symbol("R");
    case StepAxis::kPage:
      return Dim::Symbol("P");
  }
  return Dim::Unknown();
}

}  // namespace

absl::StatusOr<StepContract> ContractOf(const Step& step) {
  std::vector<StepInputSpec> inputs;
  for (const Value* param : step.params) {
    StepInputSpec& input = inputs.emplace_back();
    input.name = param->name.substr(1);
    input.role = param->role.ToString();
    input.dtype = std::string(DTypeName(param->type.dtype));
    for (const Dim& dim : param->type.shape) input.shape.push_back(dim.ToString());
  }
  return StepContract::Read(inputs);
}

Value* FindInput(const Step& step, StepRole role) {
  for (Value* param : step.params) {
    if (param->role.role == role) return param;
  }
  return nullptr;
}

std::map<StepRole, Value*> AddPagedInputs(Model* model, Step* step) {
  std::map<StepRole, Value*> inputs;
  for (const StepRoleInfo& role : StepRoles()) {
    if (!role.needed) continue;
    TensorType type = {.dtype = *ParseDType(role.dtype)};
    for (const StepAxis axis : role.Axes()) type.shape.push_back(DimOf(axis));
    inputs[role.role] = model->AddParam(step, absl::StrCat("%", role.input), std::move(type), {.role = role.role});
  }
  return inputs;
}

}  // namespace llmc
