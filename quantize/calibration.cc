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

// An expert that fewer tokens go to than this part of its inputs' channels is rounded to nearest: X^T X of so few says
// little of what the others are like.
constexpr int64_t kChannelsPerToken = 4;

bool HasEnoughTokens(const Tap& tap, const InputStats& stats) {
  return tap.experts == nullptr || stats.tokens >= stats.k / kChannelsPerToken;
}

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
      if (!goes_on) continue;
      for (const Value* result : user->results) open.push_back(result);
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
  ASSIGN_OR_RETURN(calibration->runner_,
                   LayerRunner::Create(plan->model.get(), &request->samples, products, request->device));
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

std::optional<Tap> Calibration::TapOf(const PlannedModule& module) const {
  const LinearModule& linear = module.linear;
  const Node& product = *linear.products.front();
  if (!linear.is_expert) return Tap{.value = View<Linear>(product).lhs};
  if (linear.expert < 0) return std::nullopt;
  const ExpertLinear op = View<ExpertLinear>(product);
  return Tap{.value = op.x, .experts = op.experts, .expert = linear.expert};
}

absl::StatusOr<std::vector<Calibration::Input>> Calibration::Observe(size_t part,
                                                                     const std::vector<const PlannedModule*>& modules,
                                                                     const std::function<void()>& on_batch) {
  std::vector<Tap> taps;
  const auto add = [&](const Tap& tap) {
    if (std::find(taps.begin(), taps.end(), tap) == taps.end()) taps.push_back(tap);
  };
  for (const PlannedModule* module : modules) {
    const std::optional<Tap> tap = TapOf(*module);
    if (!tap.has_value()) continue;
    add(*tap);
    // Factors of the channels of what all experts read are those of all tokens.
    const bool is_shared = tap->experts != nullptr && tap->value->type.rank() == 2;
    if (is_shared && ScalesChannels(module->scheme->method)) add({.value = tap->value});
  }
  const size_t of_products = taps.size();
  std::vector<std::string> kv;
  for (const auto& node : plan_.model->steps.front()->block.nodes) {
    if (!request_.kv_scales || !Is<KvWrite>(node.get()) || !runner_->IsIn(part, node.get())) continue;
    const KvWrite write = View<KvWrite>(*node);
    taps.push_back({.value = write.k, .with_gram = false});
    taps.push_back({.value = write.v, .with_gram = false});
    kv.insert(kv.end(), {node->loc + ".k_scale", node->loc + ".v_scale"});
  }
  ASSIGN_OR_RETURN(std::vector<InputStats> stats, runner_->Run(part, changed_, taps, /*advance=*/false, on_batch));
  for (size_t i = 0; i < kv.size(); ++i) {
    kv_amax_[kv[i]] = std::max(kv_amax_[kv[i]], stats[of_products + i].Largest());
  }
  std::vector<Input> inputs;
  for (size_t i = 0; i < of_products; ++i) inputs.push_back({taps[i], std::move(stats[i])});
  return inputs;
}

const InputStats& Calibration::AllStatsOf(const Tap& tap, const std::vector<Input>& inputs) {
  return std::find_if(inputs.begin(), inputs.end(), [&](const Input& input) { return input.tap == tap; })->stats;
}

const InputStats* Calibration::StatsOf(const PlannedModule& module, const std::vector<Input>& inputs,
                                       std::string* note) const {
  const bool has_method = module.scheme->method != QuantizeMethod::kRoundToNearest;
  const std::optional<Tap> tap = TapOf(module);
  if (!tap.has_value()) {
    if (has_method) *note = "rounded to nearest: which tokens go to it is not known";
    return nullptr;
  }
  const InputStats& stats = AllStatsOf(*tap, inputs);
  if (HasEnoughTokens(*tap, stats)) return &stats;
  if (has_method) *note = absl::StrCat("rounded to nearest: only ", stats.tokens, " tokens of the text go to it");
  return nullptr;
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

// In the order of the modules, each input once.
absl::Status Calibration::FoldAll(const std::vector<const PlannedModule*>& modules, std::vector<Input>* inputs) {
  std::vector<Tap> folded;
  for (const PlannedModule* module : modules) {
    std::optional<Tap> tap = TapOf(*module);
    if (!tap.has_value() || !ScalesChannels(module->scheme->method)) continue;
    if (tap->value->type.rank() == 2) tap = Tap{.value = tap->value};
    if (std::find(folded.begin(), folded.end(), *tap) != folded.end()) continue;
    folded.push_back(*tap);
    RETURN_IF_ERROR(Fold(*tap, module->scheme->method, inputs));
  }
  return absl::OkStatus();
}

absl::Status Calibration::Fold(const Tap& folded, QuantizeMethod method, std::vector<Input>* inputs) {
  InputStats& stats =
      std::find_if(inputs->begin(), inputs->end(), [&](const Input& i) { return i.tap == folded; })->stats;
  if (!HasEnoughTokens(folded, stats)) return absl::OkStatus();
  const bool is_of_expert = folded.experts != nullptr;
  const int64_t expert = is_of_expert ? folded.expert : -1;
  std::string why;
  const std::optional<ScaleFold> fold = is_of_expert
                                            ? FindExpertFold(folded.value, stats.k, expert, plan_.linears, &why)
                                            : FindFold(folded.value, stats.k, plan_.linears, &why);
  if (!fold.has_value()) {
    for (const PlannedModule& module : plan_.modules) {
      const std::optional<Tap> tap = TapOf(module);
      const bool reads = tap.has_value() && tap->value == folded.value && (!is_of_expert || *tap == folded);
      if (reads) notes_[module.linear.weight] = absl::StrCat("no factors of channels: ", why);
    }
    return absl::OkStatus();
  }
  const std::vector<const Value*> weights = WeightsOf(folded.value, expert, plan_.linears);
  std::vector<ScaledReader> readers;
  for (const Value* weight : weights) {
    const auto planned = planned_.find(weight);
    if (planned == planned_.end() || planned->second->scheme->method != method) continue;
    ASSIGN_OR_RETURN(Tensor numbers, Numbers(weight));
    readers.push_back({std::move(numbers), planned->second->encoding, planned->second->options});
  }
  std::vector<float> factors;
  if (method == QuantizeMethod::kAwq) {
    ASSIGN_OR_RETURN(factors, AwqFactors(stats, readers, fold->sharing));
  } else {
    factors = SmoothFactors(stats, readers, fold->sharing);
  }
  RETURN_IF_ERROR(Divide(*fold, &factors));
  for (const Value* weight : weights) {
    ASSIGN_OR_RETURN(const Tensor numbers, Numbers(weight));
    RETURN_IF_ERROR(SetNumbers(weight, ScaledColumns(numbers, factors)));
  }
  for (Input& input : *inputs) {
    const bool is_divided = input.tap.value == folded.value && (!is_of_expert || input.tap == folded);
    if (is_divided) input.stats.DivideBy(factors);
  }
  return absl::OkStatus();
}

absl::StatusOr<const GptqFactor*> Calibration::FactorFor(const PlannedModule& module, const InputStats& stats) {
  const GptqFactor::Options options = GptqOptionsFor(*module.encoding, module.scheme->act_order);
  if (factor_ != nullptr && factor_of_ == &stats && factor_->options() == options) return factor_.get();
  factor_.reset();
  Matrices* matrices = request_.device == nullptr ? nullptr : request_.device->matrices();
  if (matrices == nullptr) {
    if (host_matrices_ == nullptr) host_matrices_ = NewHostMatrices();
    matrices = host_matrices_.get();
  }
  ASSIGN_OR_RETURN(factor_, GptqFactor::Create(stats.gram, stats.k, options, matrices));
  factor_of_ = &stats;
  return factor_.get();
}

absl::StatusOr<Tensor> Calibration::Encode(const PlannedModule& module, const Tensor& numbers,
                                           const InputStats* stats) {
  const QuantizeOptions& options = module.options;
  if (stats != nullptr && module.scheme->method == QuantizeMethod::kGptq) {
    ASSIGN_OR_RETURN(const GptqFactor* factor, FactorFor(module, *stats));
    return GptqQuantized(numbers, module.encoding, module.dtype, *factor, options);
  }
  const bool clips = stats != nullptr && module.scheme->method == QuantizeMethod::kAwq &&
                     !LeadsToScores(*module.linear.products.front());
  if (!clips) return RoundedToNearest(module, numbers);
  ASSIGN_OR_RETURN(const QuantizedParts parts, ClippedParts({numbers, module.encoding, options}, *stats));
  return QuantizedWith(numbers, module.encoding, module.dtype, parts, options);
}

absl::Status Calibration::InModule(const PlannedModule& module, const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat(request_.folder, ": ", module.linear.tensor, ": ", status.message()));
}

absl::StatusOr<Calibration::Result> Calibration::Quantize(const PlannedModule& module, const InputStats* stats) {
  Result result{.module = &module, .note = notes_[module.linear.weight]};
  ASSIGN_OR_RETURN(result.numbers, Numbers(module.linear.weight));
  absl::StatusOr<Tensor> encoded = Encode(module, result.numbers, stats);
  if (!encoded.ok()) return InModule(module, encoded.status());
  result.encoded = *std::move(encoded);
  if (stats == nullptr) return result;
  ASSIGN_OR_RETURN(result.output_error, OutputError(Decoded(result.encoded, DType::kF32), result.numbers, *stats));
  return result;
}

absl::StatusOr<std::vector<Calibration::Result>> Calibration::RunPart(size_t part,
                                                                      const std::function<void()>& on_batch) {
  const std::vector<const PlannedModule*> modules = ModulesIn(part);
  ASSIGN_OR_RETURN(std::vector<Input> inputs, Observe(part, modules, on_batch));
  std::map<const PlannedModule*, double> nearest;
  std::map<const PlannedModule*, std::string> notes;
  for (const PlannedModule* module : modules) {
    const InputStats* stats = StatsOf(*module, inputs, &notes[module]);
    if (stats == nullptr) continue;
    ASSIGN_OR_RETURN(const Tensor numbers, Numbers(module->linear.weight));
    const absl::StatusOr<Tensor> rounded = RoundedToNearest(*module, numbers);
    if (!rounded.ok()) return InModule(*module, rounded.status());
    ASSIGN_OR_RETURN(nearest[module], OutputError(Decoded(*rounded, DType::kF32), numbers, *stats));
  }
  RETURN_IF_ERROR(FoldAll(modules, &inputs));
  std::vector<Result> results;
  std::map<const Value*, Tensor> weights = changed_;
  for (const PlannedModule* module : modules) {
    const InputStats* stats = StatsOf(*module, inputs, &notes[module]);
    ASSIGN_OR_RETURN(Result result, Quantize(*module, stats));
    if (stats != nullptr) result.nearest_error = nearest.at(module);
    if (!notes[module].empty()) result.note = notes[module];
    // Of however few tokens.
    if (const std::optional<Tap> tap = TapOf(*module)) result.input_amax = AllStatsOf(*tap, inputs).Largest();
    const Value* weight = module->linear.weight;
    ASSIGN_OR_RETURN(weights[weight], ConvertedTensor(Decoded(result.encoded, DType::kF32), weight->type.dtype));
    scaled_.erase(weight);
    results.push_back(std::move(result));
  }
  factor_.reset();
  RETURN_IF_ERROR(runner_->Run(part, weights, {}, /*advance=*/true, on_batch).status());
  return results;
}

}  // namespace llmc
