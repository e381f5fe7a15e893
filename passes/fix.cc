#include "passes/fix.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "ir/op.h"
#include "ir/ops.h"
#include "ir/state_type.h"
#include "passes/driver/infer.h"

namespace llmc {
namespace {

using FixedNumbers = std::map<std::string, Dim, std::less<>>;

void Substitute(const FixedNumbers& numbers, Dims* dims) {
  for (Dim& dim : *dims) dim = dim.Substitute(numbers);
}

void Substitute(const FixedNumbers& numbers, Value* value) {
  Substitute(numbers, &value->type.shape);
  if (value->contents.has_value()) Substitute(numbers, &*value->contents);
}

void Substitute(const FixedNumbers& numbers, Block* block) {
  for (const auto& node : block->nodes) {
    for (auto& [name, attr] : node->attrs) {
      if (Dims* dims = std::get_if<Dims>(&attr)) Substitute(numbers, dims);
    }
    for (Value* result : node->results) Substitute(numbers, result);
  }
}

}  // namespace

absl::Status FixDims(Model* model, const DimEnv& sizes) {
  if (sizes.empty()) return absl::OkStatus();
  FixedNumbers numbers;
  for (const auto& [name, size] : sizes) {
    numbers.emplace(name, Dim(size));
    model->dims.erase(name);
  }
  for (Value* state : model->states) {
    StateType type = *state->state;
    type.count = type.count.Substitute(numbers);
    Model::SetStateType(state, type);
  }
  Substitute(numbers, &model->prepare);
  for (const auto& step : model->steps) {
    for (Value* param : step->params) Substitute(numbers, param);
    Substitute(numbers, &step->block);
  }
  const absl::Status status = InferAgain(model);
  return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat("with these sizes, ", status.message()));
}

absl::Status FixInput(Model* model, const std::string& name, const Tensor& contents) {
  for (const auto& step : model->steps) {
    const auto param =
        std::find_if(step->params.begin(), step->params.end(), [&](const Value* value) { return value->name == name; });
    if (param == step->params.end()) continue;
    Value* old = *param;
    step->params.erase(param);
    model->Rename(old, absl::StrCat(name, ".input"));  // nothing refers to it any more
    Node* first = step->block.nodes.empty() ? nullptr : step->block.nodes.front().get();
    Builder builder(model, &step->block, first);
    Value* constant = builder.Add(Constant{.value = contents}, name);
    if (constant == nullptr) return builder.status();
    model->ReplaceUses(old, constant);
  }
  return InferAgain(model);
}

}  // namespace llmc
