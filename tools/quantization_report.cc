#include "tools/quantization_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "ir/encoding.h"
#include "ir/eval.h"
#include "ir/ops.h"

namespace llmc {
namespace {

// Weights of layers that were trained are of this size; others are probably not what the file means: a scale that is
// multiplied where it divides, bytes that are taken for numbers.
constexpr double kLeastDeviation = 1e-5, kMostDeviation = 10;
constexpr double kManySaturated = 0.25;

// The contents of a value that is made of weights and constants.
class PreparedValues {
 public:
  explicit PreparedValues(const Model& model) : model_(model) {}

  absl::StatusOr<Tensor> Of(const Value* value) {
    if (const auto known = made_.find(value); known != made_.end()) return known->second;
    if (value->kind == ValueKind::kWeight) {
      const auto data = model_.data.find(value->name);
      if (data == model_.data.end()) return absl::InternalError(absl::StrCat(value->name, " has no contents"));
      return data->second;
    }
    if (value->def == nullptr) return absl::InternalError(absl::StrCat(value->name, " is not made of weights"));
    Tensors operands;
    for (const Value* operand : value->def->operands) {
      if (operand == nullptr) continue;
      ASSIGN_OR_RETURN(Tensor tensor, Of(operand));
      operands.push_back(std::move(tensor));
    }
    std::vector<const Tensor*> in;
    size_t next = 0;
    for (const Value* operand : value->def->operands) in.push_back(operand == nullptr ? nullptr : &operands[next++]);
    ASSIGN_OR_RETURN(const Tensors results, EvalNode(*value->def, in, {}));
    // What several weights need, such as an order of columns, is small.
    if (results[0].bytes() < 1 << 20) made_[value] = results[0];
    return results[0];
  }

 private:
  const Model& model_;
  absl::flat_hash_map<const Value*, Tensor> made_;
};

// Whether a code is the smallest or largest of its format.
class CodeEnds {
 public:
  explicit CodeEnds(const EncodingFormat& format) {
    const bool has_map = format.codebook != nullptr;
    const int bits = format.bits();
    const bool is_signed = format.is_signed();
    if (has_map) {
      const auto [low, high] = std::minmax_element(format.codebook, format.codebook + 16);
      low_ = low - format.codebook;
      high_ = high - format.codebook;
    } else if (format.is_integer()) {
      low_ = is_signed ? -(int64_t{1} << (bits - 1)) : 0;
      high_ = low_ + (int64_t{1} << bits) - 1;
    } else {
      limit_ = format.codes == DType::kF8E4M3 ? 448 : 57344;
    }
  }
  bool IsAt(const Tensor& codes, int64_t i) const {
    if (limit_ > 0) return std::abs(codes.GetFloat(i)) >= limit_;
    const int64_t code = codes.GetInt(i);
    return code == low_ || code == high_;
  }

 private:
  int64_t low_ = 0, high_ = 0;
  double limit_ = 0;
};

struct GroupSums {
  double squares = 0;
  int64_t elements = 0, saturated = 0;
};

class Reporter {
 public:
  Reporter(const Model& model, int64_t max_elements) : values_(model), max_elements_(max_elements) {}

  absl::Status Add(const Node& node) {
    const Value* value = node.results[0];
    const Encoding& e = *value->type.encoding;
    const std::string modules = KindOfModule(node.loc);
    QuantizedGroupReport& group = groups_[{modules, e.text}];
    group.modules = modules;
    group.encoding = e.text;
    const int64_t elements = ElementsOf(value->type.shape).number();
    group.bits =
        8.0 * static_cast<double>(value->type.Bytes().number()) / static_cast<double>(std::max<int64_t>(elements, 1));
    ++group.count;
    group.elements += elements;
    GroupSums& sums = sums_[{modules, e.text}];
    if (e.format->superblock > 0 || (sums.elements > 0 && sums.elements + elements > max_elements_)) {
      return absl::OkStatus();
    }
    return Look(node, e, &group, &sums);
  }

  QuantizationReport Finish() {
    QuantizationReport report;
    for (auto& [key, group] : groups_) {
      const GroupSums& sums = sums_[key];
      const double elements = static_cast<double>(std::max<int64_t>(sums.elements, 1));
      group.deviation = std::sqrt(sums.squares / elements);
      group.saturation = static_cast<double>(sums.saturated) / elements;
      if (group.sampled > 0) Warn(group, &report.warnings);
      report.groups.push_back(group);
    }
    return report;
  }

 private:
  absl::Status Look(const Node& node, const Encoding& e, QuantizedGroupReport* group, GroupSums* sums) {
    Tensors components;
    for (const Value* operand : node.operands) {
      ASSIGN_OR_RETURN(Tensor component, values_.Of(operand));
      components.push_back(std::move(component));
    }
    std::vector<const Tensor*> in;
    for (const Tensor& component : components) in.push_back(&component);
    ASSIGN_OR_RETURN(const Tensors encoded, EvalNode(node, in, {}));
    AddScales(e, components, group);
    const CodeEnds ends(*e.format);
    const Tensor codes = CodesOf(encoded[0]);
    for (int64_t i = 0; i < codes.size(); ++i) sums->saturated += ends.IsAt(codes, i) ? 1 : 0;
    const Tensor numbers = Decoded(encoded[0], DType::kF32);
    const int64_t columns = numbers.shape().back();
    for (int64_t row = 0; columns > 0 && row < numbers.size() / columns; ++row) {
      double squares = 0;
      for (int64_t c = 0; c < columns; ++c) {
        const double x = numbers.data<float>()[row * columns + c];
        squares += x * x;
        group->largest = std::max(group->largest, std::abs(x));
      }
      if (squares == 0) ++group->dead_rows;
      sums->squares += squares;
    }
    sums->elements += numbers.size();
    ++group->sampled;
    return absl::OkStatus();
  }

  static void AddScales(const Encoding& e, const Tensors& components, QuantizedGroupReport* group) {
    const double outer = e.format->outer_scale ? std::abs(components.back().GetFloat(0)) : 1;
    for (int64_t i = 0; i < components[1].size(); ++i) {
      const double number = e.format->scale_is_exponent ? std::ldexp(1, static_cast<int>(components[1].GetInt(i)) - 127)
                                                        : std::abs(components[1].GetFloat(i)) * outer;
      if (number == 0) {
        ++group->zero_scales;
        continue;
      }
      group->least_scale = group->least_scale == 0 ? number : std::min(group->least_scale, number);
      group->most_scale = std::max(group->most_scale, number);
    }
  }

  static void Warn(const QuantizedGroupReport& group, std::vector<std::string>* warnings) {
    if (!(group.deviation >= kLeastDeviation && group.deviation <= kMostDeviation)) {
      warnings->push_back(
          absl::StrFormat("%s: weights are of size %.3g, up to %.3g, and those of trained layers are about 0.02: the "
                          "scales are perhaps "
                          "the reciprocals of what the file means, or not those of these codes",
                          group.modules, group.deviation, group.largest));
    }
    if (group.saturation > kManySaturated) {
      warnings->push_back(absl::StrFormat("%s: %.0f %% of the codes are the smallest or largest that there is",
                                          group.modules, 100 * group.saturation));
    }
    if (group.dead_rows > 0) {
      warnings->push_back(absl::StrCat(group.modules, ": ", group.dead_rows, " outputs have weights of zero alone"));
    }
  }

  PreparedValues values_;
  const int64_t max_elements_;
  std::map<std::pair<std::string, std::string>, QuantizedGroupReport> groups_;
  std::map<std::pair<std::string, std::string>, GroupSums> sums_;
};

}  // namespace

std::string KindOfModule(const std::string& module) {
  std::vector<std::string> parts = absl::StrSplit(module, '.');
  for (std::string& part : parts) {
    const bool is_number = !part.empty() && std::all_of(part.begin(), part.end(), absl::ascii_isdigit);
    if (is_number) part = "*";
  }
  return absl::StrJoin(parts, ".");
}

absl::StatusOr<QuantizationReport> ReportQuantization(const Model& model, int64_t max_elements) {
  Reporter reporter(model, max_elements);
  std::vector<const Block*> blocks = {&model.prepare};
  for (const auto& step : model.steps) blocks.push_back(&step->block);
  for (const Block* block : blocks) {
    for (const auto& node : block->nodes) {
      if (!Is<Encode>(node.get())) continue;
      // Matrices that become those of all experts are looked at there.
      const Value* value = node->results[0];
      if (value->users.empty()) continue;
      RETURN_IF_ERROR(reporter.Add(*node));
    }
  }
  return reporter.Finish();
}

std::string QuantizationText(const QuantizationReport& report) {
  std::string text;
  for (const QuantizedGroupReport& g : report.groups) {
    absl::StrAppendFormat(&text, "  quantized: %s (%d): %s, %.2f bits a weight", g.modules, g.count, g.encoding,
                          g.bits);
    if (g.sampled > 0) {
      absl::StrAppendFormat(&text, ", scales %.3g to %.3g, %.1f %% of codes at their ends, weights of size %.3g",
                            g.least_scale, g.most_scale, 100 * g.saturation, g.deviation);
    }
    if (g.zero_scales > 0) absl::StrAppend(&text, ", ", g.zero_scales, " scales of zero");
    if (g.dead_rows > 0) absl::StrAppend(&text, ", ", g.dead_rows, " dead outputs");
    if (g.sampled > 0 && g.sampled < g.count) absl::StrAppend(&text, " (in ", g.sampled, " of them)");
    absl::StrAppend(&text, "\n");
  }
  return text;
}

nlohmann::ordered_json QuantizationJson(const QuantizationReport& report) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const QuantizedGroupReport& g : report.groups) {
    json.push_back({{"modules", g.modules},
                    {"count", g.count},
                    {"encoding", g.encoding},
                    {"bits", g.bits},
                    {"weights", g.elements},
                    {"sampled", g.sampled},
                    {"least_scale", g.least_scale},
                    {"most_scale", g.most_scale},
                    {"saturation", g.saturation},
                    {"zero_scales", g.zero_scales},
                    {"dead_outputs", g.dead_rows},
                    {"deviation", g.deviation}});
  }
  return json;
}

}  // namespace llmc
