#include "quantize/calibration.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "frontend/import_options.h"
#include "ir/ops.h"
#include "quantize/gptq.h"

namespace llmc {
namespace {

// The weight that a linear layer reads, through casts.
const Value* WeightOf(const Node& product) {
  const Value* weight = View<Linear>(product).rhs;
  while (weight->kind == ValueKind::kResult && Is<Cast>(weight->def)) weight = weight->def->operands[0];
  return weight;
}

float LargestOf(const Tensor& tensor) {
  float largest = 0;
  for (const float x : tensor.ToFloats()) largest = std::max(largest, std::abs(x));
  return largest;
}

QuantizeOptions OptionsOf(const PlannedModule& module) { return module.options; }

bool ScalesChannels(QuantizeMethod method) {
  return method == QuantizeMethod::kAwq || method == QuantizeMethod::kSmoothQuant;
}

// Whether scores of attention are made of the product: those have no sums that average errors out, so AWQ clips none.
bool LeadsToScores(const Node& product) {
  std::vector<const Value*> open(product.results.begin(), product.results.end());
  for (size_t i = 0; i < open.size() && i < 16; ++i) {
    for (const Node* user : open[i]->users) {
      if (Is<Rope>(user)) return true;
      if (Is<PagedAttention>(user) && View<PagedAttention>(*user).q == open[i]) return true;
      if (Is<KvWrite>(user) && View<KvWrite>(*user).k == open[i]) return true;
      const bool goes_on = user->op->info.is_view() || user->op->info.is_elementwise() || Is<RmsNorm>(user);
      if (goes_on) open.insert(open.end(), user->results.begin(), user->results.end());
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Calibration>> Calibration::Create(const QuantizeRequest* request,
                                                                 const QuantizePlan* plan) {
  auto calibration = std::unique_ptr<Calibration>(new Calibration(request, plan));
  absl::flat_hash_set<const Node*> products;
  for (const PlannedModule& module : plan->modules) {
    calibration->planned_[module.linear.weight] = &module;
    products.insert(module.linear.products.begin(), module.linear.products.end());
  }
  for (const auto& node : plan->model->steps.front()->block.nodes) {
    if (request->kv_scales && Is<KvWrite>(node.get())) products.insert(node.get());
  }
  ASSIGN_OR_RETURN(calibration->runner_, LayerRunner::Create(plan->model.get(), &request->samples, products));
  return calibration;
}

std::vector<const PlannedModule*> Calibration::ModulesIn(size_t part) const {
  std::vector<const PlannedModule*> modules;
  for (const PlannedModule& module : plan_.modules) {
    if (runner_->IsIn(part, module.linear.products.front())) modules.push_back(&module);
  }
  return modules;
}

absl::StatusOr<Tensor> Calibration::Numbers(const Value* weight) const {
  if (const auto scaled = scaled_.find(weight); scaled != scaled_.end()) return scaled->second;
  const auto changed = changed_.find(weight);
  return ConvertedTensor(changed != changed_.end() ? changed->second : plan_.model->data.at(weight->name), DType::kF32);
}

absl::Status Calibration::SetNumbers(const Value* weight, Tensor numbers) {
  if (planned_.contains(weight)) {
    scaled_[weight] = std::move(numbers);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(changed_[weight], ConvertedTensor(numbers, weight->type.dtype));
  return absl::OkStatus();
}

absl::StatusOr<Calibration::Inputs> Calibration::Observe(size_t part, const std::vector<const PlannedModule*>& modules,
                                                         const std::function<void()>& on_sample) {
  Inputs inputs;
  absl::flat_hash_set<const Value*> watched;
  for (const PlannedModule* module : modules) {
    if (module->linear.is_expert) continue;
    inputs[View<Linear>(*module->linear.products.front()).lhs];
  }
  for (const auto& [value, stats] : inputs) watched.insert(value);
  std::map<const Value*, std::string> kv;
  for (const auto& node : plan_.model->steps.front()->block.nodes) {
    if (!request_.kv_scales || !Is<KvWrite>(node.get()) || !runner_->IsIn(part, node.get())) continue;
    const KvWrite write = View<KvWrite>(*node);
    kv[write.k] = node->loc + ".k_scale";
    kv[write.v] = node->loc + ".v_scale";
    watched.insert({write.k, write.v});
  }
  RETURN_IF_ERROR(runner_->Run(
      part, changed_, watched,
      [&](const Value* value, const Tensor& contents) {
        if (const auto input = inputs.find(value); input != inputs.end()) input->second.Add(contents);
        if (const auto scale = kv.find(value); scale != kv.end()) {
          kv_amax_[scale->second] = std::max(kv_amax_[scale->second], LargestOf(contents));
        }
        return absl::OkStatus();
      },
      /*advance=*/false, [&](int64_t) { on_sample(); }));
  return inputs;
}

// What is divided and is not quantized is rounded to its type. Where that is a norm, the factors become those that the
// rounded weights give, so that nothing is lost by it.
absl::Status Calibration::Divide(const ScaleFold& fold, std::vector<float>* factors) {
  std::vector<float> own(static_cast<size_t>(fold.sharing.count), 1);
  for (size_t c = 0; c < factors->size(); ++c) own[static_cast<size_t>(fold.sharing.index[c])] = (*factors)[c];
  for (const FoldTarget& target : fold.targets) {
    ASSIGN_OR_RETURN(const Tensor before, Numbers(target.weight));
    const int64_t columns = before.rank() == 2 ? before.shape()[1] : 1;
    Tensor divided(DType::kF32, before.shape());
    std::copy_n(before.data<float>(), before.size(), divided.mutable_data<float>());
    const auto added = static_cast<float>(target.added);
    for (size_t i = 0; i < own.size(); ++i) {
      float* row = divided.mutable_data<float>() + (target.first + static_cast<int64_t>(i)) * columns;
      for (int64_t c = 0; c < columns; ++c) row[c] = (row[c] + added) / own[i] - added;
    }
    RETURN_IF_ERROR(SetNumbers(target.weight, std::move(divided)));
    const bool is_weight_of_norm = fold.is_norm && &target == &fold.targets.front();
    if (!is_weight_of_norm) continue;
    ASSIGN_OR_RETURN(const Tensor after, Numbers(target.weight));
    for (size_t i = 0; i < own.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const double was = before.GetFloat(at) + target.added, is = after.GetFloat(at) + target.added;
      if (was != 0 && is != 0) own[i] = static_cast<float>(was / is);
    }
  }
  for (size_t c = 0; c < factors->size(); ++c) (*factors)[c] = own[static_cast<size_t>(fold.sharing.index[c])];
  return absl::OkStatus();
}

absl::Status Calibration::Fold(const Value* input, QuantizeMethod method, InputStats* stats) {
  std::vector<const Value*> weights;
  for (const Node* user : input->users) {
    if (Is<Linear>(user) && View<Linear>(*user).lhs == input) weights.push_back(WeightOf(*user));
  }
  std::string why;
  const std::optional<ScaleFold> fold = FindFold(input, stats->k, &why);
  if (!fold.has_value()) {
    for (const Value* weight : weights) notes_[weight] = absl::StrCat("no factors of channels: ", why);
    return absl::OkStatus();
  }
  std::vector<ScaledReader> readers;
  for (const Value* weight : weights) {
    const auto planned = planned_.find(weight);
    if (planned == planned_.end() || planned->second->scheme->method != method) continue;
    ASSIGN_OR_RETURN(Tensor numbers, Numbers(weight));
    readers.push_back({std::move(numbers), planned->second->encoding, OptionsOf(*planned->second)});
  }
  std::vector<float> factors;
  if (method == QuantizeMethod::kAwq) {
    ASSIGN_OR_RETURN(factors, AwqFactors(*stats, readers, fold->sharing));
  } else {
    factors = SmoothFactors(*stats, readers, fold->sharing);
  }
  RETURN_IF_ERROR(Divide(*fold, &factors));
  for (const Value* weight : weights) {
    ASSIGN_OR_RETURN(const Tensor numbers, Numbers(weight));
    RETURN_IF_ERROR(SetNumbers(weight, ScaledColumns(numbers, factors)));
  }
  stats->DivideBy(factors);
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Calibration::Encode(const PlannedModule& module, const Tensor& numbers,
                                           const InputStats* stats) const {
  const QuantizeOptions options = OptionsOf(module);
  if (stats != nullptr && module.scheme->method == QuantizeMethod::kGptq) {
    return GptqQuantized(numbers, module.encoding, module.dtype, stats->gram,
                         {.act_order = module.scheme->act_order, .quantize = options});
  }
  const bool clips = stats != nullptr && module.scheme->method == QuantizeMethod::kAwq &&
                     !LeadsToScores(*module.linear.products.front());
  if (!clips) return Quantized(numbers, module.encoding, module.dtype, options);
  ASSIGN_OR_RETURN(const QuantizedParts parts, ClippedParts({numbers, module.encoding, options}, *stats));
  return QuantizedWith(numbers, module.encoding, module.dtype, parts, options);
}

absl::StatusOr<Calibration::Result> Calibration::Quantize(const PlannedModule& module, const InputStats* stats) {
  Result result{.module = &module};
  ASSIGN_OR_RETURN(result.numbers, Numbers(module.linear.weight));
  absl::StatusOr<Tensor> encoded = Encode(module, result.numbers, stats);
  if (!encoded.ok()) {
    return absl::Status(encoded.status().code(),
                        absl::StrCat(request_.folder, ": ", module.linear.tensor, ": ", encoded.status().message()));
  }
  result.encoded = *std::move(encoded);
  result.note = notes_[module.linear.weight];
  if (stats == nullptr) {
    const bool had_method = module.scheme->method != QuantizeMethod::kRoundToNearest;
    if (had_method) result.note = "experts are rounded to nearest";
    return result;
  }
  result.output_error = OutputError(Decoded(result.encoded, DType::kF32), result.numbers, *stats);
  result.input_amax = *std::max_element(stats->amax.begin(), stats->amax.end());
  return result;
}

absl::StatusOr<std::vector<Calibration::Result>> Calibration::RunPart(size_t part,
                                                                      const std::function<void()>& on_sample) {
  const std::vector<const PlannedModule*> modules = ModulesIn(part);
  ASSIGN_OR_RETURN(Inputs inputs, Observe(part, modules, on_sample));
  std::map<const PlannedModule*, double> nearest;
  std::vector<std::pair<const Value*, QuantizeMethod>> folds;  // in the order of the modules
  for (const PlannedModule* module : modules) {
    if (module->linear.is_expert) continue;
    const Value* input = View<Linear>(*module->linear.products.front()).lhs;
    ASSIGN_OR_RETURN(const Tensor numbers, Numbers(module->linear.weight));
    ASSIGN_OR_RETURN(const Tensor rounded, Quantized(numbers, module->encoding, module->dtype, OptionsOf(*module)));
    nearest[module] = OutputError(Decoded(rounded, DType::kF32), numbers, inputs.at(input));
    const bool is_known = std::any_of(folds.begin(), folds.end(), [&](const auto& f) { return f.first == input; });
    if (!is_known && ScalesChannels(module->scheme->method)) folds.emplace_back(input, module->scheme->method);
  }
  for (const auto& [input, method] : folds) RETURN_IF_ERROR(Fold(input, method, &inputs.at(input)));
  std::vector<Result> results;
  std::map<const Value*, Tensor> weights = changed_;
  for (const PlannedModule* module : modules) {
    const bool is_expert = module->linear.is_expert;
    const Value* input = is_expert ? nullptr : View<Linear>(*module->linear.products.front()).lhs;
    ASSIGN_OR_RETURN(Result result, Quantize(*module, is_expert ? nullptr : &inputs.at(input)));
    if (!is_expert) result.nearest_error = nearest.at(module);
    const Value* weight = module->linear.weight;
    ASSIGN_OR_RETURN(weights[weight], ConvertedTensor(Decoded(result.encoded, DType::kF32), weight->type.dtype));
    scaled_.erase(weight);
    results.push_back(std::move(result));
  }
  RETURN_IF_ERROR(runner_->Run(part, weights, {}, nullptr, /*advance=*/true, [&](int64_t) { on_sample(); }));
  return results;
}

}  // namespace llmc
