#include "quantize/layer_runner.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/eval.h"
#include "ir/op.h"
#include "ir/step_inputs.h"

namespace llmc {

absl::StatusOr<std::unique_ptr<LayerRunner>> LayerRunner::Create(const Model* model,
                                                                 const std::vector<std::vector<int32_t>>* samples,
                                                                 const absl::flat_hash_set<const Node*>& products) {
  if (!IsPagedLanguageModel(*model)) {
    return absl::UnimplementedError("calibration is for decoders; for other models choose a scheme that needs none");
  }
  auto runner = std::unique_ptr<LayerRunner>(new LayerRunner());
  runner->model_ = model;
  ASSIGN_OR_RETURN(runner->paged_, DescribePagedModel(*model));
  RETURN_IF_ERROR(runner->Init(products));
  ASSIGN_OR_RETURN(const StepContract contract, ContractOf(*runner->paged_.step));
  for (const std::vector<int32_t>& ids : *samples) RETURN_IF_ERROR(runner->AddSample(ids, contract));
  return runner;
}

absl::Status LayerRunner::Init(const absl::flat_hash_set<const Node*>& products) {
  for (const auto& node : paged_.step->block.nodes) {
    place_.emplace(node.get(), static_cast<int64_t>(nodes_.size()));
    nodes_.push_back(node.get());
  }
  FindUses();
  FindParts(products);
  return absl::OkStatus();
}

absl::Status LayerRunner::AddSample(const std::vector<int32_t>& ids, const StepContract& contract) {
  Sample sample;
  PageSizes page_sizes;
  std::vector<std::vector<int32_t>> tables;
  const auto tokens = static_cast<int64_t>(ids.size());
  if (tokens > paged_.max_context) {
    return absl::InvalidArgumentError(absl::StrCat("a sample of the calibration text has ", tokens,
                                                   " tokens, and the model a context of ", paged_.max_context));
  }
  int64_t width = 1;
  for (const StatePool& pool : paged_.pools) {
    const int64_t pages = (tokens + pool.page_size - 1) / pool.page_size;
    page_sizes.push_back(pool.page_size);
    tables.emplace_back(static_cast<size_t>(pages));
    std::iota(tables.back().begin(), tables.back().end(), 0);
    sample.dims[pool.dim] = pages;
    width = std::max(width, pages);
  }
  PoolTables pages;
  for (const std::vector<int32_t>& table : tables) pages.push_back(table);
  StepLayout layout(page_sizes, width);
  layout.Add({.ids = ids, .position = 0, .pages = pages}, /*rows=*/1);
  for (int axis = 0; axis < kNumStepAxes; ++axis) {
    const std::string& dim = contract.SizeOf(static_cast<StepAxis>(axis));
    if (model_->dims.contains(dim)) sample.dims[dim] = layout.Size(static_cast<StepAxis>(axis));
  }
  for (const Value* param : paged_.step->params) {
    const StepRole role = param->role.role;
    const size_t pool = contract.PoolOfInput(param->name.substr(1));
    sample.values[param] =
        Tensor::FromValues(param->type.dtype, InputShape(role, layout), InputValues(role, layout, pool));
  }
  samples_.push_back(std::move(sample));
  return absl::OkStatus();
}

void LayerRunner::FindUses() {
  of_sample_.insert(paged_.step->params.begin(), paged_.step->params.end());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = *nodes_[i];
    const auto is_of_sample = [&](const Value* value) {
      return value != nullptr && (of_sample_.contains(value) || value->kind == ValueKind::kState);
    };
    bool depends = std::any_of(node.operands.begin(), node.operands.end(), is_of_sample);
    // Sizes may be those of the sample.
    for (const Value* result : node.results) {
      for (const Dim& dim : result->type.shape) depends |= !dim.is_constant();
    }
    for (const auto& [name, attr] : node.attrs) {
      const auto* dims = std::get_if<Dims>(&attr);
      depends |=
          dims != nullptr && std::any_of(dims->begin(), dims->end(), [](const Dim& d) { return !d.is_constant(); });
    }
    if (depends) of_sample_.insert(node.results.begin(), node.results.end());
    for (const Value* operand : node.operands) {
      if (operand != nullptr) last_use_[operand] = static_cast<int64_t>(i);
    }
  }
}

void LayerRunner::FindParts(const absl::flat_hash_set<const Node*>& products) {
  const auto count = static_cast<int64_t>(nodes_.size());
  std::vector<int64_t> passing(static_cast<size_t>(count) + 1, 0);  // over the border before node i
  const auto add = [&](int64_t from, int64_t to, int64_t weight) {
    for (int64_t i = from + 1; i <= to; ++i) passing[static_cast<size_t>(i)] += weight;
  };
  // A cache lives from its first use to its last, and is never kept.
  const int64_t kNever = count + 1;
  absl::flat_hash_map<const Value*, int64_t> first_use;
  int64_t end = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Node* node = nodes_[static_cast<size_t>(i)];
    if (products.contains(node)) end = i + 1;
    for (const Value* operand : node->operands) {
      if (operand != nullptr && operand->kind == ValueKind::kState) first_use.emplace(operand, i);
    }
    for (const Value* result : node->results) {
      const auto last = last_use_.find(result);
      if (of_sample_.contains(result) && last != last_use_.end()) add(i, last->second, 1);
    }
  }
  for (const auto& [state, first] : first_use) add(first, last_use_[state], kNever);
  int64_t least = kNever;
  bool is_behind_product = false, has_product = false;
  std::vector<int64_t> borders;
  for (int64_t i = 1; i < end; ++i) {
    is_behind_product |= products.contains(nodes_[static_cast<size_t>(i - 1)]);
    if (is_behind_product) least = std::min(least, passing[static_cast<size_t>(i)]);
  }
  for (int64_t i = 1; i < end; ++i) {
    has_product |= products.contains(nodes_[static_cast<size_t>(i - 1)]);
    if (!has_product || passing[static_cast<size_t>(i)] != least) continue;
    ends_.push_back(i);
    has_product = false;
  }
  ends_.push_back(end);
}

bool LayerRunner::IsIn(size_t part, const Node* node) const {
  const auto at = place_.find(node);
  return at != place_.end() && at->second >= Begin(part) && at->second < ends_[part];
}

absl::StatusOr<const Tensor*> LayerRunner::Find(const Value* value, Sample* sample, Scope* run) const {
  if (const auto weight = run->weights->find(value); weight != run->weights->end()) return &weight->second;
  if (value->kind == ValueKind::kWeight) {
    const auto data = model_->data.find(value->name);
    if (data == model_->data.end()) return absl::InternalError(absl::StrCat(value->name, " has no contents"));
    return &data->second;
  }
  if (value->kind == ValueKind::kState) {
    Tensor& state = run->states[value];
    if (state.size() == 0) {
      Shape shape;
      for (const Dim& dim : value->type.shape) {
        ASSIGN_OR_RETURN(const int64_t size, dim.Evaluate(sample->dims));
        shape.push_back(size);
      }
      state = Tensor(value->type.dtype, std::move(shape));
    }
    return &state;
  }
  if (const auto own = sample->values.find(value); own != sample->values.end()) return &own->second;
  if (const auto fixed = run->fixed.find(value); fixed != run->fixed.end()) return &fixed->second;
  if (value->def == nullptr || of_sample_.contains(value)) {
    return absl::InternalError(absl::StrCat(value->name, " is not there when it is needed"));
  }
  RETURN_IF_ERROR(RunNode(*value->def, sample, run));
  return &run->fixed.at(value);
}

absl::Status LayerRunner::RunNode(const Node& node, Sample* sample, Scope* run) const {
  std::vector<Tensor> held;  // what is found may move as more is
  for (const Value* operand : node.operands) {
    if (operand == nullptr) {
      held.emplace_back();
      continue;
    }
    ASSIGN_OR_RETURN(const Tensor* found, Find(operand, sample, run));
    held.push_back(*found);
  }
  std::vector<const Tensor*> operands;
  for (size_t i = 0; i < held.size(); ++i) operands.push_back(node.operands[i] == nullptr ? nullptr : &held[i]);
  if (node.op->info.Has(kWritesState)) {
    const Types types;
    const EvalArgs args{
        .in = operands, .state = &run->states.at(node.operands[0]), .dims = &sample->dims, .result_types = &types};
    return node.op->eval(node, args).status();
  }
  ASSIGN_OR_RETURN(Tensors results, EvalNode(node, operands, sample->dims));
  for (size_t i = 0; i < results.size(); ++i) {
    const Value* result = node.results[i];
    (of_sample_.contains(result) ? sample->values : run->fixed)[result] = std::move(results[i]);
  }
  return absl::OkStatus();
}

absl::Status LayerRunner::Run(size_t part, const std::map<const Value*, Tensor>& weights,
                              const absl::flat_hash_set<const Value*>& watched, const Watch& watch, bool advance,
                              const std::function<void(int64_t done)>& on_sample) {
  Scope run{.weights = &weights};
  const int64_t begin = Begin(part), end = ends_[part];
  for (size_t s = 0; s < samples_.size(); ++s) {
    Sample sample = samples_[s];  // tensors are shared
    run.states.clear();
    for (const Value* value : watched) {
      const auto given = sample.values.find(value);
      if (given != sample.values.end()) RETURN_IF_ERROR(watch(value, given->second));
    }
    for (int64_t i = begin; i < end; ++i) {
      const Node& node = *nodes_[static_cast<size_t>(i)];
      if (!node.results.empty() && !of_sample_.contains(node.results[0])) continue;  // made where it is needed
      RETURN_IF_ERROR(RunNode(node, &sample, &run));
      for (const Value* result : node.results) {
        if (watched.contains(result)) RETURN_IF_ERROR(watch(result, sample.values.at(result)));
      }
      for (const Value* operand : node.operands) {
        const bool is_done = operand != nullptr && operand->kind == ValueKind::kResult && last_use_.at(operand) == i;
        if (is_done) sample.values.erase(operand);
      }
    }
    if (advance) samples_[s] = std::move(sample);
    if (on_sample) on_sample(static_cast<int64_t>(s) + 1);
  }
  return absl::OkStatus();
}

}  // namespace llmc
