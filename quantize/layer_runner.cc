#include "quantize/layer_runner.h"

#include <algorithm>
#include <numeric>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/drop_pages.h"
#include "ir/eval.h"
#include "ir/op.h"
#include "ir/step_inputs.h"
#include "quantize/part_model.h"

namespace llmc {
namespace {

constexpr int64_t kBatchTokens = 16384;  // on a device, where X^T X of each batch is copied to the host

}  // namespace

absl::StatusOr<std::unique_ptr<LayerRunner>> LayerRunner::Create(const Model* model,
                                                                 const std::vector<std::vector<int32_t>>* samples,
                                                                 const absl::flat_hash_set<const Node*>& products,
                                                                 StepRunner* device) {
  if (!IsPagedLanguageModel(*model)) {
    return absl::UnimplementedError("calibration is for decoders; for other models choose a scheme that needs none");
  }
  auto runner = std::unique_ptr<LayerRunner>(new LayerRunner());
  runner->model_ = model;
  runner->device_ = device;
  ASSIGN_OR_RETURN(runner->paged_, DescribePagedModel(*model));
  RETURN_IF_ERROR(runner->Init(products));
  RETURN_IF_ERROR(runner->AddBatches(*samples));
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

absl::Status LayerRunner::AddBatches(const std::vector<std::vector<int32_t>>& samples) {
  ASSIGN_OR_RETURN(const StepContract contract, ContractOf(*paged_.step));
  for (size_t begin = 0; begin < samples.size();) {
    size_t end = begin;
    int64_t tokens = 0;
    const auto fits = [&](const std::vector<int32_t>& ids) {
      return tokens + static_cast<int64_t>(ids.size()) <= kBatchTokens &&
             static_cast<int64_t>(end - begin) < paged_.max_sequences;
    };
    while (end == begin || (device_ != nullptr && end < samples.size() && fits(samples[end]))) {
      tokens += static_cast<int64_t>(samples[end++].size());
    }
    RETURN_IF_ERROR(AddBatch(absl::MakeConstSpan(samples).subspan(begin, end - begin), contract));
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status LayerRunner::AddBatch(absl::Span<const std::vector<int32_t>> samples, const StepContract& contract) {
  Batch batch;
  PageSizes page_sizes;
  for (const StatePool& pool : paged_.pools) page_sizes.push_back(pool.page_size);
  std::vector<std::vector<std::vector<int32_t>>> tables;  // of samples, of pools
  int64_t width = 1;
  for (const std::vector<int32_t>& ids : samples) {
    const auto tokens = static_cast<int64_t>(ids.size());
    if (tokens > paged_.max_context) {
      return absl::InvalidArgumentError(absl::StrCat("a sample of the calibration text has ", tokens,
                                                     " tokens, and the model a context of ", paged_.max_context));
    }
    std::vector<std::vector<int32_t>>& of_pools = tables.emplace_back();
    for (const StatePool& pool : paged_.pools) {
      const int64_t pages = (tokens + pool.page_size - 1) / pool.page_size;
      int64_t& used = batch.dims[pool.dim];
      of_pools.emplace_back(static_cast<size_t>(pages));
      std::iota(of_pools.back().begin(), of_pools.back().end(), static_cast<int32_t>(used));
      used += pages;
      width = std::max(width, pages);
    }
  }
  for (const auto& [dim, pages] : batch.dims) records_[dim] = std::max(records_[dim], pages);
  StepLayout layout(page_sizes, width);
  for (size_t s = 0; s < samples.size(); ++s) {
    PoolTables pages;
    for (const std::vector<int32_t>& table : tables[s]) pages.push_back(table);
    layout.Add({.ids = samples[s], .position = 0, .pages = pages}, /*rows=*/1);
  }
  for (int axis = 0; axis < kNumStepAxes; ++axis) {
    const std::string& dim = contract.SizeOf(static_cast<StepAxis>(axis));
    if (model_->dims.contains(dim)) batch.dims[dim] = layout.Size(static_cast<StepAxis>(axis));
  }
  for (const auto& [dim, size] : batch.dims) sizes_[dim] = std::max(sizes_[dim], size);
  for (const Value* param : paged_.step->params) {
    const StepRole role = param->role.role;
    const size_t pool = contract.PoolOfInput(param->name.substr(1));
    batch.values[param] =
        Tensor::FromValues(param->type.dtype, InputShape(role, layout), InputValues(role, layout, pool));
  }
  batches_.push_back(std::move(batch));
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

absl::StatusOr<Tensor> LayerRunner::WeightOf(const Value* value, const std::map<const Value*, Tensor>& weights) const {
  if (const auto weight = weights.find(value); weight != weights.end()) return weight->second;
  const auto data = model_->data.find(value->name);
  if (data == model_->data.end()) return absl::InternalError(absl::StrCat(value->name, " has no contents"));
  return data->second;
}

absl::StatusOr<Tensor> LayerRunner::Find(const Value* value, Batch* batch, Scope* run) const {
  if (value->kind == ValueKind::kWeight) return WeightOf(value, *run->weights);
  if (value->kind == ValueKind::kState) {
    Tensor& state = run->states[value];
    if (state.size() == 0) {
      Shape shape;
      for (const Dim& dim : value->type.shape) {
        ASSIGN_OR_RETURN(const int64_t size, dim.Evaluate(batch->dims));
        shape.push_back(size);
      }
      state = Tensor(value->type.dtype, std::move(shape));
    }
    return state;
  }
  if (const auto own = batch->values.find(value); own != batch->values.end()) return own->second;
  if (const auto fixed = run->fixed.find(value); fixed != run->fixed.end()) return fixed->second;
  if (value->def == nullptr || of_sample_.contains(value)) {
    return absl::InternalError(absl::StrCat(value->name, " is not there when it is needed"));
  }
  RETURN_IF_ERROR(RunNode(*value->def, batch, run));
  return run->fixed.at(value);
}

absl::Status LayerRunner::RunNode(const Node& node, Batch* batch, Scope* run) const {
  std::vector<Tensor> held;
  for (const Value* operand : node.operands) {
    if (operand == nullptr) {
      held.emplace_back();
      continue;
    }
    ASSIGN_OR_RETURN(held.emplace_back(), Find(operand, batch, run));
  }
  std::vector<const Tensor*> operands;
  for (size_t i = 0; i < held.size(); ++i) operands.push_back(node.operands[i] == nullptr ? nullptr : &held[i]);
  if (node.op->info.Has(kWritesState)) {
    const Types types;
    const EvalArgs args{
        .in = operands, .state = &run->states.at(node.operands[0]), .dims = &batch->dims, .result_types = &types};
    return node.op->eval(node, args).status();
  }
  ASSIGN_OR_RETURN(Tensors results, EvalNode(node, operands, batch->dims));
  for (size_t i = 0; i < results.size(); ++i) {
    const Value* result = node.results[i];
    (of_sample_.contains(result) ? batch->values : run->fixed)[result] = std::move(results[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerRunner::Values> LayerRunner::RunOnHost(size_t part, const std::vector<Tap>& taps, Batch* batch,
                                                           Scope* run) const {
  absl::flat_hash_set<const Value*> wanted;
  for (const Tap& tap : taps) wanted.insert({tap.value, tap.experts});
  Values seen;
  for (const Value* value : wanted) {
    const auto given = batch->values.find(value);
    if (given != batch->values.end()) seen[value] = given->second;
  }
  run->states.clear();
  const int64_t begin = Begin(part), end = ends_[part];
  for (int64_t i = begin; i < end; ++i) {
    const Node& node = *nodes_[static_cast<size_t>(i)];
    if (!node.results.empty() && !of_sample_.contains(node.results[0])) continue;  // made where it is needed
    RETURN_IF_ERROR(RunNode(node, batch, run));
    for (const Value* result : node.results) {
      if (wanted.contains(result)) seen[result] = batch->values.at(result);
    }
    for (const Value* operand : node.operands) {
      const bool is_done = operand != nullptr && operand->kind == ValueKind::kResult && last_use_.at(operand) == i;
      if (is_done) batch->values.erase(operand);
    }
  }
  return seen;
}

std::vector<const Value*> LayerRunner::PassingBehind(size_t part) const {
  std::vector<const Value*> passing;
  for (int64_t i = Begin(part); i < ends_[part]; ++i) {
    for (const Value* result : nodes_[static_cast<size_t>(i)]->results) {
      const auto last = last_use_.find(result);
      const bool passes = of_sample_.contains(result) && last != last_use_.end() && last->second >= ends_[part];
      if (passes) passing.push_back(result);
    }
  }
  return passing;
}

void LayerRunner::DropInputs(size_t part, Values* values) const {
  absl::erase_if(*values, [&](const auto& entry) {
    const auto last = last_use_.find(entry.first);
    return entry.first->kind == ValueKind::kResult && last != last_use_.end() && last->second < ends_[part];
  });
}

absl::StatusOr<std::vector<InputStats>> LayerRunner::RunOnDevice(size_t part,
                                                                 const std::map<const Value*, Tensor>& weights,
                                                                 const std::vector<Tap>& taps, bool advance,
                                                                 const std::function<void()>& on_batch) {
  PartModel::Request request{.of_sample = &of_sample_, .taps = taps, .records = records_, .sizes = sizes_};
  for (int64_t i = Begin(part); i < ends_[part]; ++i) {
    const Node* node = nodes_[static_cast<size_t>(i)];
    if (node->results.empty() || of_sample_.contains(node->results[0])) request.nodes.push_back(node);
  }
  if (advance) request.passing = PassingBehind(part);
  ASSIGN_OR_RETURN(const std::unique_ptr<PartModel> model, PartModel::Create(*model_, request));
  std::vector<InputStats> stats(taps.size());
  for (InputStats& of_tap : stats) of_tap.device = device_;
  for (Batch& batch : batches_) {
    NamedTensors inputs;
    for (const auto& [value, name] : model->inputs()) {
      const auto own = batch.values.find(value);
      if (own != batch.values.end()) {
        inputs[name] = own->second;
      } else {
        ASSIGN_OR_RETURN(inputs[name], WeightOf(value, weights));
      }
    }
    ASSIGN_OR_RETURN(const NamedTensors outputs, device_->Run(model->model(), inputs));
    for (size_t i = 0; i < taps.size(); ++i) {
      RETURN_IF_ERROR(model->AddStats(i, outputs, batch.dims, &stats[i]));
    }
    for (const auto& [value, name] : model->passing()) batch.values[value] = outputs.at(name);
    if (advance) DropInputs(part, &batch.values);
    on_batch();
  }
  return stats;
}

void LayerRunner::DropWeights(size_t part) const {
  for (int64_t i = Begin(part); i < ends_[part]; ++i) {
    for (const Value* operand : nodes_[static_cast<size_t>(i)]->operands) {
      if (operand == nullptr || operand->kind != ValueKind::kWeight) continue;
      const auto data = model_->data.find(operand->name);
      if (data == model_->data.end()) continue;
      DropPages({data->second.raw(), static_cast<size_t>(data->second.bytes())});
    }
  }
}

absl::StatusOr<std::vector<InputStats>> LayerRunner::Run(size_t part, const std::map<const Value*, Tensor>& weights,
                                                         const std::vector<Tap>& taps, bool advance,
                                                         const std::function<void()>& on_batch) {
  const absl::Cleanup drop = [&] {
    if (advance) DropWeights(part);
  };
  if (device_ != nullptr) return RunOnDevice(part, weights, taps, advance, on_batch);
  Scope run{.weights = &weights};
  std::vector<InputStats> stats(taps.size());
  for (Batch& kept : batches_) {
    Batch batch = kept;  // tensors are shared
    ASSIGN_OR_RETURN(const Values seen, RunOnHost(part, taps, &batch, &run));
    for (size_t i = 0; i < taps.size(); ++i) {
      const Tap& tap = taps[i];
      stats[i].AddRows(tap, seen.at(tap.value), tap.experts == nullptr ? nullptr : &seen.at(tap.experts));
    }
    if (advance) kept = std::move(batch);
    on_batch();
  }
  return stats;
}

}  // namespace llmc
