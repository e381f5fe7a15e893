#include "tools/summary.h"

#include <algorithm>
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ir/op.h"
#include "ir/text.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

std::map<std::string, int> CountOps(const Block& block) {
  std::map<std::string, int> counts;
  for (const auto& node : block.nodes) ++counts[std::string(node->op->info.name)];
  return counts;
}

// Most frequent first, then by name.
std::vector<std::pair<std::string, int>> Ranked(const std::map<std::string, int>& counts) {
  std::vector<std::pair<std::string, int>> ranked(counts.begin(), counts.end());
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return ranked;
}

// The weight's bytes; those without constant shapes do not occur.
int64_t WeightBytes(const Value& weight) {
  int64_t elements = 1;
  for (const Dim& dim : weight.type.shape) elements *= dim.is_constant() ? dim.value() : 0;
  return (elements * DTypeBits(weight.type.dtype) + 7) / 8;
}

struct WeightTotals {
  int64_t bytes = 0;
  std::map<std::string, int> dtypes;
};

WeightTotals TotalWeights(const Model& model) {
  WeightTotals totals;
  for (const Value* weight : model.weights) {
    totals.bytes += WeightBytes(*weight);
    ++totals.dtypes[std::string(DTypeName(weight->type.dtype))];
  }
  return totals;
}

Json TypeJson(const Value& value) { return TypeText(value); }

Json StepJson(const Step& step) {
  Json json = {{"name", step.name}, {"inputs", Json::object()}, {"outputs", Json::object()}, {"ops", Json::object()}};
  for (const Value* param : step.params) json["inputs"][param->name.substr(1)] = TypeJson(*param);
  for (const Output& output : step.outputs) json["outputs"][output.name] = TypeJson(*output.value);
  for (const auto& [op, count] : CountOps(step.block)) json["ops"][op] = count;
  json["op_count"] = step.block.nodes.size();
  return json;
}

std::string OpsLine(const std::map<std::string, int>& counts) {
  return absl::StrJoin(Ranked(counts), ", ",
                       [](std::string* out, const auto& item) { absl::StrAppend(out, item.first, " x", item.second); });
}

// The first few entries of a long list, and how many more there are.
template <class List, class Format>
std::string Listed(const List& list, Format format) {
  constexpr size_t kShown = 8;
  std::string out;
  size_t shown = 0;
  for (const auto& item : list) {
    if (shown++ == kShown) break;
    absl::StrAppend(&out, "    ", format(item), "\n");
  }
  if (list.size() > kShown) absl::StrAppend(&out, "    … ", list.size() - kShown, " more\n");
  return out;
}

}  // namespace

std::string HumanBytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  int unit = -1;
  while (value >= 1024 && unit < 3) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, units[unit]);
}

Json SummaryJson(const Model& model) {
  Json json = {{"name", model.name}};
  json["dims"] = Json(model.dims);
  const WeightTotals totals = TotalWeights(model);
  json["weights"] = {{"count", model.weights.size()}, {"bytes", totals.bytes}, {"dtypes", Json(totals.dtypes)}};
  json["states"] = Json::object();
  for (const Value* state : model.states) json["states"][state->name.substr(1)] = TypeJson(*state);
  json["prepare_ops"] = model.prepare.nodes.size();
  json["steps"] = Json::array();
  for (const auto& step : model.steps) json["steps"].push_back(StepJson(*step));
  return json;
}

std::string SummaryText(const Model& model, absl::string_view title) {
  const WeightTotals totals = TotalWeights(model);
  std::string out = absl::StrCat(title, "\n");
  if (!model.dims.empty()) {
    absl::StrAppend(&out, "  dims     ", absl::StrJoin(model.dims, ", ", absl::PairFormatter(" <= ")), "\n");
  }
  absl::StrAppend(&out, "  weights  ", model.weights.size(), ", ", HumanBytes(totals.bytes), " (",
                  OpsLine(totals.dtypes), ")\n");
  if (!model.states.empty()) {
    std::vector<std::string> types;
    for (const Value* state : model.states) {
      if (std::string type = TypeText(*state); !absl::c_linear_search(types, type)) types.push_back(std::move(type));
    }
    absl::StrAppend(&out, "  states   ", model.states.size(), types.size() == 1 ? ", each " : ": ",
                    absl::StrJoin(types, ", "), "\n");
  }
  if (!model.prepare.nodes.empty()) absl::StrAppend(&out, "  prepare  ", model.prepare.nodes.size(), " ops\n");
  for (const auto& step : model.steps) {
    absl::StrAppend(&out, "  step ", step->name, ": ", step->block.nodes.size(), " ops\n");
    absl::StrAppend(&out, "   inputs\n", Listed(step->params, [](const Value* param) {
      return absl::StrCat(param->name.substr(1), "  ", param->type.ToString());
    }));
    absl::StrAppend(&out, "   outputs\n", Listed(step->outputs, [](const Output& output) {
      return absl::StrCat(output.name, "  ", output.value->type.ToString());
    }));
    absl::StrAppend(&out, "   ops\n    ", OpsLine(CountOps(step->block)), "\n");
  }
  return out;
}

}  // namespace llmc
