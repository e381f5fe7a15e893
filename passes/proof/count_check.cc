#include "passes/proof/count_check.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "ir/op.h"
#include "ir/text.h"
#include "passes/driver/numerics.h"
#include "passes/pipeline.h"
#include "passes/proof/counts.h"

namespace llmc {
namespace {

constexpr int64_t kMostPartElements = 1 << 24;

// Integers and truths that a model makes of floats, which come from integers alone.
std::set<std::string> CountedOfFloats(const Model& model) {
  const auto origins = OriginsOf(model);
  std::set<std::string> names;
  for (const auto& step : model.steps) {
    for (const auto& node : step->block.nodes) {
      const bool takes_floats = std::any_of(node->operands.begin(), node->operands.end(), [](const Value* operand) {
        return operand != nullptr && IsFloat(operand->type.dtype);
      });
      for (const Value* result : node->results) {
        const bool is_counted = origins.at(result) == Origin::kCounted && !IsFloat(result->type.dtype);
        if (takes_floats && is_counted) names.insert(result->name);
      }
    }
  }
  return names;
}

// What of a model computes the values of these names, which are its outputs.
absl::StatusOr<std::unique_ptr<Model>> PartFor(const Model& model, const std::set<std::string>& names) {
  ASSIGN_OR_RETURN(std::unique_ptr<Model> part, ParseModel(PrintModel(model), model.name));
  for (const auto& step : part->steps) {
    step->outputs.clear();
    for (const auto& node : step->block.nodes) {
      for (Value* result : node->results) {
        if (names.contains(result->name)) step->outputs.push_back({result->name, result});
      }
    }
  }
  RemoveDeadOps(part.get());
  for (const Value* weight : part->weights) {
    const auto data = model.data.find(weight->name);
    if (data != model.data.end()) part->data[weight->name] = data->second;
  }
  return part;
}

// Of all that it computes, as far as sizes of inputs tell it.
double ElementsOf(const Model& model, const DimEnv& dims) {
  double elements = 0;
  const auto add = [&](const Value& value) {
    double size = 1;
    for (const Dim& dim : value.type.shape) {
      const absl::StatusOr<int64_t> length = dim.Evaluate(dims);
      size *= length.ok() ? static_cast<double>(*length) : 1;
    }
    elements += size;
  };
  for (const auto& step : model.steps) {
    for (const Value* param : step->params) add(*param);
    for (const auto& node : step->block.nodes) {
      for (const Value* result : node->results) add(*result);
    }
  }
  return elements;
}

}  // namespace

CountCheck::CountCheck(const Model& model) {
  if (!model.states.empty()) return;
  names_ = CountedOfFloats(model);
  if (names_.empty()) return;
  const absl::StatusOr<std::unique_ptr<Model>> part = PartFor(model, names_);
  if (!part.ok()) return;
  for (const int64_t tokens : {600, 300, 40, 7}) {
    const DimEnv dims = LongDims(model, tokens);
    if (ElementsOf(**part, dims) > kMostPartElements) continue;
    absl::StatusOr<SmallRun> run = RunWith(**part, dims, 1);
    if (!run.ok()) continue;
    inputs_ = std::move(run->inputs);
    numbers_ = std::move(run->outputs);
    return;
  }
}

absl::Status CountCheck::Compare(const Model& after) const {
  if (numbers_.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> part, PartFor(after, names_));
  NamedTensors inputs;
  for (const auto& step : part->steps) {
    for (const Value* param : step->params) {
      const std::string name = step->name + "/" + param->name.substr(1);
      const Tensor& input = inputs_.at(name);
      inputs[name] = input.dtype() == param->type.dtype ? input : Tensor(param->type.dtype, input.shape());
    }
  }
  ASSIGN_OR_RETURN(const NamedTensors numbers, EvaluateSmall(*part, inputs));
  NamedTensors before = numbers_;
  std::erase_if(before, [&](const auto& number) { return !numbers.contains(number.first); });  // nobody used them
  return CompareResults(before, numbers);
}

}  // namespace llmc
