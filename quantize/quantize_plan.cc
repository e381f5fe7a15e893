#include "quantize/quantize_plan.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/drop_pages.h"
#include "frontend/formats/json_file.h"
#include "frontend/import.h"
#include "ir/ops.h"

namespace llmc {
namespace {

constexpr absl::string_view kHeadPattern = "lm_head";
constexpr char kConfigFile[] = "config.json";

absl::Status CheckPatterns(const QuantizeRequest& request, const std::vector<LinearModule>& linears) {
  const auto matches = [&](const std::string& pattern) {
    return std::any_of(linears.begin(), linears.end(),
                       [&](const LinearModule& linear) { return MatchesModule(pattern, linear.name); });
  };
  std::vector<std::string> patterns;
  for (const SchemeRule& rule : request.rules) patterns.push_back(rule.pattern);
  for (const std::string& pattern : request.ignore) {
    if (pattern != kHeadPattern) patterns.push_back(pattern);
  }
  for (const std::string& pattern : patterns) {
    if (matches(pattern)) continue;
    std::set<std::string> endings;
    for (const LinearModule& linear : linears) endings.insert(linear.name.substr(linear.name.rfind('.') + 1));
    return absl::InvalidArgumentError(absl::StrCat(request.folder, ": no linear layer is called '", pattern,
                                                   "'; their names end in ", absl::StrJoin(endings, ", ")));
  }
  return absl::OkStatus();
}

// Empty: it is not ignored.
std::string WhyIgnored(const QuantizeRequest& request, const LinearModule& linear) {
  if (linear.is_router) return "it says which experts a token goes to";
  for (const std::string& pattern : request.ignore) {
    const bool is_ignored = MatchesModule(pattern, linear.name) || (linear.is_head && pattern == kHeadPattern);
    if (is_ignored) return absl::StrCat("--ignore ", pattern);
  }
  return linear.reason;
}

absl::Status ChooseSchemes(const QuantizeRequest& request, QuantizePlan* plan) {
  for (const LinearModule& linear : plan->linears) {
    if (std::string why = WhyIgnored(request, linear); !why.empty()) {
      plan->left_out.emplace_back(linear.name, std::move(why));
      continue;
    }
    const auto rule = std::find_if(request.rules.begin(), request.rules.end(),
                                   [&](const SchemeRule& r) { return MatchesModule(r.pattern, linear.name); });
    if (rule == request.rules.end() || !rule->scheme.has_value()) {
      plan->left_out.emplace_back(linear.name, "no scheme is given for it");
      continue;
    }
    PlannedModule module{.linear = linear, .scheme = &*rule->scheme};
    module.dtype = plan->checkpoint.at(linear.tensor).tensor.dtype();
    ASSIGN_OR_RETURN(module.encoding, rule->scheme->EncodingFor(module.dtype));
    absl::StatusOr<std::vector<StoredPart>> parts =
        StoredParts(*rule->scheme, *module.encoding, linear.out, linear.in, module.dtype);
    if (!parts.ok()) {
      return absl::Status(parts.status().code(), absl::StrCat(request.folder, ": ", linear.tensor, ": ",
                                                              rule->scheme->text, ": ", parts.status().message()));
    }
    module.parts = *std::move(parts);
    module.options.restricted = rule->scheme->restricted;
    module.has_input_scale = !StoredInputScale(*rule->scheme, module.dtype, 1).empty();
    if (rule->scheme->NeedsCalibration() && request.samples.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("scheme ", rule->scheme->text, " needs a calibration text: give --calibration=FILE"));
    }
    plan->modules.push_back(std::move(module));
  }
  if (!plan->modules.empty()) return absl::OkStatus();
  std::string why;
  for (size_t i = 0; i < std::min<size_t>(plan->left_out.size(), 3); ++i) {
    absl::StrAppend(&why, "; ", plan->left_out[i].first, ": ", plan->left_out[i].second);
  }
  return absl::InvalidArgumentError(absl::StrCat(request.folder, ": no layer would be quantized", why));
}

// Layers of one module that read the same value (q, k and v; gate and up, also of an expert) get one outer scale, where
// there are two levels: programs that make one weight of them can do so.
void ShareOuterScales(QuantizePlan* plan) {
  std::map<std::pair<std::string, const Value*>, std::vector<PlannedModule*>> groups;
  for (PlannedModule& module : plan->modules) {
    if (!module.encoding->format->outer_scale || module.linear.products.empty()) continue;
    const std::string& name = module.linear.name;
    groups[{name.substr(0, name.rfind('.')), module.linear.products[0]->operands[0]}].push_back(&module);
  }
  for (auto& [key, modules] : groups) {
    if (modules.size() < 2) continue;
    float amax = 0;
    for (const PlannedModule* module : modules) {
      const Tensor& numbers = plan->checkpoint.at(module->linear.tensor).tensor;
      for (const float x : numbers.ToFloats()) amax = std::max(amax, std::fabs(x));
      DropPages({numbers.raw(), static_cast<size_t>(numbers.bytes())});
    }
    for (PlannedModule* module : modules) module->options.outer_amax = amax;
  }
}

absl::Status PlanKvScales(const QuantizeRequest& request, QuantizePlan* plan) {
  if (request.samples.empty()) {
    return absl::InvalidArgumentError("--kv needs a calibration text: give --calibration=FILE");
  }
  for (const auto& node : plan->model->steps.front()->block.nodes) {
    if (!Is<KvWrite>(node.get())) continue;
    if (node->loc.empty() || View<KvWrite>(*node).keys == View<KvWrite>(*node).values) {
      return absl::UnimplementedError(absl::StrCat(request.folder, ": --kv is for caches with keys and values apart"));
    }
    for (const char* name : {".k_scale", ".v_scale"}) {
      plan->kv_scales[node->loc + name] = plan->checkpoint.at(plan->modules.front().linear.tensor).file;
    }
  }
  return absl::OkStatus();
}

DType NumbersOf(const QuantizePlan& plan) { return plan.modules.front().dtype; }

}  // namespace

const PlannedModule* QuantizePlan::Of(const Value* weight) const {
  const auto module =
      std::find_if(modules.begin(), modules.end(), [&](const PlannedModule& m) { return m.linear.weight == weight; });
  return module == modules.end() ? nullptr : &*module;
}

absl::StatusOr<Tensor> RoundedToNearest(const PlannedModule& module, const Tensor& numbers) {
  if (!module.scheme->nests_scales) return Quantized(numbers, module.encoding, module.dtype, module.options);
  ASSIGN_OR_RETURN(QuantizedParts parts, PartsFor(numbers, *module.encoding, module.options));
  parts.scale = NestScales(parts.scale).Decoded(parts.scale.shape());
  return QuantizedWith(numbers, module.encoding, module.dtype, parts, module.options);
}

absl::Status WriteStored(const PlannedModule& module, const Tensor& encoded, const Tensor& numbers,
                         const std::function<absl::Status(const std::string& name, const Tensor& tensor)>& write) {
  NestedScales nested;
  if (module.scheme->nests_scales) {
    ASSIGN_OR_RETURN(const QuantizedParts parts, PartsFor(numbers, *module.encoding, module.options));
    nested = NestScales(parts.scale);
  }
  for (const StoredPart& part : module.parts) {
    const Tensor contents = part.of_scales ? part.of_scales(nested) : part.contents(encoded);
    RETURN_IF_ERROR(write(module.linear.name + part.suffix, contents));
  }
  return absl::OkStatus();
}

absl::StatusOr<QuantizePlan> PlanQuantization(const QuantizeRequest& request) {
  QuantizePlan plan;
  if (TransformerFolder(request.folder) != request.folder) {
    return absl::UnimplementedError(absl::StrCat(
        request.folder, ": is a folder of sentence-transformers with modules; give the folder of its transformer, ",
        TransformerFolder(request.folder)));
  }
  ASSIGN_OR_RETURN(plan.config, ReadJsonFile(request.folder, kConfigFile));
  if (plan.config.contains("quantization_config")) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.folder, "/", kConfigFile,
                     ": has a quantization_config, so it is quantized already; give the model that it was made of"));
  }
  ASSIGN_OR_RETURN(plan.model, ImportHuggingFace(request.folder));
  ASSIGN_OR_RETURN(plan.checkpoint, ReadCheckpoint(request.folder));
  plan.linears = FindLinearModules(*plan.model);
  RETURN_IF_ERROR(CheckPatterns(request, plan.linears));
  RETURN_IF_ERROR(ChooseSchemes(request, &plan));
  ShareOuterScales(&plan);
  if (request.kv_scales) RETURN_IF_ERROR(PlanKvScales(request, &plan));
  return plan;
}

std::map<std::string, ModelFolderWriter::Entry> PlannedEntries(const QuantizePlan& plan, std::optional<DType> decoded) {
  std::map<std::string, ModelFolderWriter::Entry> entries;
  for (const auto& [name, tensor] : plan.checkpoint) {
    const DType own = tensor.tensor.dtype();
    const DType dtype = decoded.has_value() && IsFloat(own) ? *decoded : own;
    entries[name] = {.file = tensor.file, .entry = {dtype, tensor.tensor.shape()}};
  }
  if (decoded.has_value()) return entries;
  for (const PlannedModule& module : plan.modules) {
    const std::string file = entries.at(module.linear.tensor).file;
    entries.erase(module.linear.tensor);
    for (const StoredPart& part : module.parts) {
      entries[module.linear.name + part.suffix] = {.file = file, .entry = part.entry};
    }
    for (const StoredPart& part : StoredInputScale(*module.scheme, module.dtype, 1)) {
      entries[module.linear.name + part.suffix] = {.file = file, .entry = part.entry};
    }
  }
  for (const auto& [name, file] : plan.kv_scales) {
    entries[name] = {.file = file, .entry = {DType::kF32, {1}}};
  }
  return entries;
}

absl::StatusOr<std::string> PlannedConfig(const QuantizePlan& plan, std::optional<DType> decoded) {
  nlohmann::json config = plan.config;
  if (decoded.has_value()) {
    const std::string name = *decoded == DType::kBF16 ? "bfloat16" : *decoded == DType::kF16 ? "float16" : "float32";
    config[config.contains("torch_dtype") ? "torch_dtype" : "dtype"] = name;
    return config.dump(2) + "\n";
  }
  QuantizedNames names;
  for (const PlannedModule& module : plan.modules) names.modules[module.linear.name] = module.scheme;
  for (const auto& [name, why] : plan.left_out) names.ignored.push_back(name);
  names.has_kv_scales = !plan.kv_scales.empty();
  ASSIGN_OR_RETURN(const nlohmann::ordered_json quantization, QuantizationConfig(names, NumbersOf(plan)));
  config["quantization_config"] = nlohmann::json::parse(quantization.dump());
  return config.dump(2) + "\n";
}

}  // namespace llmc
