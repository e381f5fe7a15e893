#include "tools/quantization_report.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "ir/encoding.h"
#include "ir/eval.h"
#include "ir/ops.h"

namespace llmc {
namespace {

// Weights of layers that were trained are of this size; others are probably not what the file means: a scale that is
// multiplied where it divides, bytes that are taken for numbers.
constexpr double kLeastDeviation = 1e-5, kMostDeviation = 10, kUsualDeviation = 0.02;
// Layers of one kind differ by less.
constexpr double kMostRatio = 30;
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

// One matrix. That of an expert has a name of its own, or the layer's with the expert's number.
struct MatrixNumbers {
  std::string name, kind;
  const Encoding* encoding = nullptr;
  double squares = 0, largest = 0;
  int64_t elements = 0, dead_rows = 0;  // of the rows that were looked at; none: its scales alone are known
  double scale_squares = 0, least_scale = 0, most_scale = 0;  // of absolute values; without zeros
  int64_t scales = 0, negative_scales = 0, zero_scales = 0, first_zero = -1;
  double deviation = 0;

  double ScaleSize() const { return scales > 0 ? std::sqrt(scale_squares / static_cast<double>(scales)) : 0; }
  void AddRow(absl::Span<const float> numbers) {
    double sum = 0;
    for (const double x : numbers) {
      sum += x * x;
      largest = std::max(largest, std::abs(x));
    }
    if (sum == 0) ++dead_rows;
    squares += sum;
    elements += static_cast<int64_t>(numbers.size());
  }
  void AddScale(double scale) {
    if (scale < 0) ++negative_scales;
    if (scale == 0 && zero_scales++ == 0) first_zero = scales;
    scale_squares += scale * scale;
    ++scales;
    scale = std::abs(scale);
    if (scale == 0) return;
    least_scale = least_scale == 0 ? scale : std::min(least_scale, scale);
    most_scale = std::max(most_scale, scale);
  }
};

// A message for each matrix that something is odd about, those of one kind together: the first one's text and how many
// others there are.
class Warnings {
 public:
  void Add(const MatrixNumbers& of, const std::string& text) {
    const auto [at, is_new] = all_.try_emplace(of.kind, Entry{of.name + ": " + text});
    at->second.others += is_new ? 0 : 1;
  }
  void MoveTo(std::vector<std::string>* warnings) const {
    for (const auto& [kind, entry] : all_) {
      const std::string others = entry.others > 0 ? absl::StrCat("; likewise ", entry.others,
                                                                 entry.others == 1 ? " other" : " others", " of ", kind)
                                                  : "";
      warnings->push_back(absl::StrCat(entry.text, others));
    }
  }

 private:
  struct Entry {
    std::string text;
    int64_t others = 0;
  };
  std::map<std::string, Entry> all_;
};

// The middle one; of an even number the one of two that is nearer to `usual`, as a ratio.
double MiddleOf(std::vector<double> sizes, double usual) {
  std::sort(sizes.begin(), sizes.end());
  const double high = sizes[sizes.size() / 2], low = sizes[(sizes.size() - 1) / 2];
  return high * low > usual * usual ? low : high;
}

class Reporter {
 public:
  Reporter(const Model& model, const QuantizationReportOptions& options) : values_(model), options_(options) {}

  // A matrix that becomes one of those of all experts, which are the weight.
  void AddPart(const Node& node) { parts_[node.operands[0]] = &node; }

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
    group.has_ends = e.format->superblock == 0;
    ++group.count;
    group.elements += elements;
    GroupSums& sums = sums_[{modules, e.text}];
    const bool is_beyond = sums.elements > 0 && sums.elements + elements > options_.max_elements;
    std::vector<MatrixNumbers> all;
    for (const Node* part : PartsOf(node)) {
      ASSIGN_OR_RETURN(std::vector<MatrixNumbers> matrices, Look(*part, is_beyond, &sums));
      for (MatrixNumbers& matrix : matrices) all.push_back(std::move(matrix));
    }
    // The vocabulary may have rows that no token has.
    const bool is_table =
        std::any_of(value->users.begin(), value->users.end(), [](const Node* user) { return Is<Gather>(user); });
    for (const MatrixNumbers& matrix : all) AddTo(&group, &sums, matrix, is_table);
    if (!is_beyond || e.format->superblock > 0) ++group.sampled;
    return absl::OkStatus();
  }

  QuantizationReport Finish() {
    QuantizationReport report;
    for (auto& [key, group] : groups_) {
      const GroupSums& sums = sums_[key];
      const double elements = static_cast<double>(std::max<int64_t>(sums.elements, 1));
      group.deviation = std::sqrt(sums.squares / elements);
      group.saturation = static_cast<double>(sums.saturated) / elements;
      if (group.saturation > kManySaturated) {
        report.warnings.push_back(absl::StrFormat("%s: %.0f %% of the codes are the smallest or largest that there is",
                                                  group.modules, 100 * group.saturation));
      }
      report.groups.push_back(group);
    }
    WarnOfSizes(&report.warnings);
    signs_.MoveTo(&report.warnings);
    zeros_.MoveTo(&report.warnings);
    dead_.MoveTo(&report.warnings);
    return report;
  }

 private:
  // The matrices that a weight of all experts was put together of, if it was; else the weight.
  std::vector<const Node*> PartsOf(const Node& node) const {
    const Node* concat = node.operands[0]->def;
    if (concat != nullptr && Is<Reshape>(concat)) concat = concat->operands[0]->def;
    if (concat == nullptr || !Is<Concat>(concat)) return {&node};
    std::vector<const Node*> parts;
    for (const Value* codes : concat->operands) {
      const auto part = parts_.find(codes);
      if (part == parts_.end()) return {&node};
      parts.push_back(part->second);
    }
    return parts;
  }

  // One for each matrix of a weight.
  static std::vector<MatrixNumbers> MatricesOf(const Node& node) {
    const Dims& shape = node.results[0]->type.shape;
    const int64_t count = shape.size() == 3 ? shape[0].value() : 1;
    const MatrixNumbers one = {
        .name = node.loc, .kind = KindOfModule(node.loc), .encoding = node.results[0]->type.encoding};
    std::vector<MatrixNumbers> matrices(static_cast<size_t>(count), one);
    for (int64_t i = 0; count > 1 && i < count; ++i) {
      matrices[static_cast<size_t>(i)].name = absl::StrCat(node.loc, ", expert ", i);
    }
    return matrices;
  }

  absl::StatusOr<std::vector<MatrixNumbers>> Look(const Node& node, bool is_beyond, GroupSums* sums) {
    const Encoding& e = *node.results[0]->type.encoding;
    std::vector<MatrixNumbers> matrices = MatricesOf(node);
    if (e.format->superblock > 0) {
      ASSIGN_OR_RETURN(const Tensor blocks, values_.Of(node.operands[0]));
      LookAtBlocks(*e.format, blocks, is_beyond, &matrices);
      return matrices;
    }
    Tensors components(node.operands.size());
    for (size_t i = is_beyond ? 1 : 0; i < components.size(); ++i) {
      ASSIGN_OR_RETURN(components[i], values_.Of(node.operands[i]));
    }
    LookAtScales(e, components, &matrices);
    if (is_beyond) return matrices;
    std::vector<const Tensor*> in;
    for (const Tensor& component : components) in.push_back(&component);
    ASSIGN_OR_RETURN(const Tensors encoded, EvalNode(node, in, {}));
    const CodeEnds ends(*e.format);
    const Tensor codes = CodesOf(encoded[0]);
    for (int64_t i = 0; i < codes.size(); ++i) sums->saturated += ends.IsAt(codes, i) ? 1 : 0;
    const Tensor numbers = Decoded(encoded[0], DType::kF32);
    const int64_t columns = numbers.shape().back(), rows = columns > 0 ? numbers.size() / columns : 0;
    for (int64_t row = 0; row < rows; ++row) {
      const auto length = static_cast<size_t>(columns);
      MatrixAt(row, rows, &matrices).AddRow({numbers.data<float>() + row * columns, length});
    }
    return matrices;
  }

  // Where element i of `count`, which lie matrix by matrix, belongs.
  static MatrixNumbers& MatrixAt(int64_t i, int64_t count, std::vector<MatrixNumbers>* matrices) {
    return (*matrices)[static_cast<size_t>(i * static_cast<int64_t>(matrices->size()) / count)];
  }

  // An outer scale holds of as many scales as any other of them, one behind the other.
  static void LookAtScales(const Encoding& e, const Tensors& components, std::vector<MatrixNumbers>* matrices) {
    const Tensor& scales = components[1];
    const int64_t count = scales.size();
    for (int64_t i = 0; i < count; ++i) {
      double scale =
          e.format->scale_is_exponent ? std::ldexp(1, static_cast<int>(scales.GetInt(i)) - 127) : scales.GetFloat(i);
      if (e.format->outer_scale) scale *= components.back().GetFloat(i * components.back().size() / count);
      MatrixAt(i, count, matrices).AddScale(scale);
    }
  }

  // All scales, and with `is_beyond` some rows only.
  static void LookAtBlocks(const EncodingFormat& format, const Tensor& blocks, bool is_beyond,
                           std::vector<MatrixNumbers>* matrices) {
    constexpr int64_t kRows = 64;
    const int64_t row_bytes = blocks.shape().back(), of_row = row_bytes / format.superblock_bytes,
                  rows = row_bytes > 0 ? blocks.size() / row_bytes : 0,
                  stride = is_beyond ? std::max<int64_t>(rows / kRows, 1) : 1;
    std::vector<float> numbers(static_cast<size_t>(of_row * format.superblock));
    for (int64_t row = 0; row < rows; ++row) {
      MatrixNumbers& matrix = MatrixAt(row, rows, matrices);
      for (int64_t i = 0; i < of_row; ++i) {
        const auto* block = blocks.data<uint8_t>() + row * row_bytes + i * format.superblock_bytes;
        if (format.halves_at[0] >= 0) {
          uint16_t half = 0;
          std::memcpy(&half, block + format.halves_at[0], sizeof(half));
          matrix.AddScale(HalfToFloat(half));
        }
        if (row % stride == 0) format.decode_superblock(block, numbers.data() + i * format.superblock);
      }
      if (row % stride == 0) matrix.AddRow(numbers);
    }
  }

  void AddTo(QuantizedGroupReport* group, GroupSums* sums, const MatrixNumbers& matrix, bool is_table) {
    sums->squares += matrix.squares;
    sums->elements += matrix.elements;
    group->largest = std::max(group->largest, matrix.largest);
    group->dead_rows += matrix.dead_rows;
    group->zero_scales += matrix.zero_scales;
    if (matrix.least_scale > 0) {
      group->least_scale =
          group->least_scale == 0 ? matrix.least_scale : std::min(group->least_scale, matrix.least_scale);
      group->most_scale = std::max(group->most_scale, matrix.most_scale);
    }
    matrices_.push_back(matrix);
    WarnOfSigns(matrix);
    if (is_table) return;
    if (matrix.dead_rows > 0) {
      dead_.Add(matrix, absl::StrCat(matrix.dead_rows, " outputs have weights of zero alone"));
    }
    // Those of other formats were found when they were read, with their places in tensors.
    if (matrix.encoding->format->superblock > 0 && matrix.zero_scales > 0) {
      zeros_.Add(matrix,
                 absl::StrCat(matrix.zero_scales, " of ", matrix.scales, " blocks have a scale of zero, as block ",
                              matrix.first_zero, ": their weights are all the same"));
    }
  }

  // A scale that is the largest magnitude over the largest code is positive. One that makes the number of the largest
  // magnitude, with its sign, the lowest code (-8 of int4) is negative about every other time: those of GGUF's Q4_0,
  // Q5_0, Q3_K, Q6_K and IQ4, of AutoRound's symmetric integers, whichever program's format they are stored in, and of
  // MLX. Of many of these not all are.
  void WarnOfSigns(const MatrixNumbers& matrix) {
    constexpr int64_t kMany = 32;
    const EncodingFormat& format = *matrix.encoding->format;
    const bool may_be_negative = format.superblock > 0 || (options_.has_signed_scales && format.is_integer());
    const int64_t least = may_be_negative ? std::max(kMany, matrix.scales) : 1;
    if (matrix.negative_scales < least) return;
    signs_.Add(matrix, absl::StrCat(matrix.negative_scales, " of ", matrix.scales,
                                    " scales are negative, which those that were made of largest magnitudes are not: "
                                    "the weights have perhaps the wrong signs"));
  }

  // The sizes of matrices whose scales alone were looked at follow from those of others in the same form.
  void EstimateSizes() {
    std::map<std::pair<std::string, const Encoding*>, double> of_scale;
    for (MatrixNumbers& matrix : matrices_) {
      if (matrix.elements == 0) continue;
      matrix.deviation = std::sqrt(matrix.squares / static_cast<double>(matrix.elements));
      if (matrix.ScaleSize() > 0) {
        of_scale.try_emplace({matrix.kind, matrix.encoding}, matrix.deviation / matrix.ScaleSize());
      }
    }
    for (MatrixNumbers& matrix : matrices_) {
      if (matrix.elements > 0) continue;
      const auto known = of_scale.find({matrix.kind, matrix.encoding});
      matrix.deviation = known == of_scale.end() ? kUsualDeviation : matrix.ScaleSize() * known->second;
    }
  }

  void WarnOfSizes(std::vector<std::string>* warnings) {
    EstimateSizes();
    std::map<std::string, std::vector<double>> of_kind;
    std::vector<double> all;
    for (const MatrixNumbers& matrix : matrices_) {
      of_kind[matrix.kind].push_back(matrix.deviation);
      all.push_back(matrix.deviation);
    }
    if (all.empty()) return;
    const double usual = MiddleOf(std::move(all), kUsualDeviation);
    std::map<std::string, double> middle_of;
    for (auto& [kind, sizes] : of_kind) middle_of[kind] = MiddleOf(std::move(sizes), usual);
    Warnings sizes;
    for (const MatrixNumbers& matrix : matrices_) {
      const double middle = middle_of[matrix.kind];
      std::string than;
      if (!(matrix.deviation >= kLeastDeviation && matrix.deviation <= kMostDeviation)) {
        than = "those of trained layers are about 0.02";
      } else if (matrix.deviation > kMostRatio * middle || matrix.deviation < middle / kMostRatio) {
        than = absl::StrFormat("those of other layers about %.3g", middle);
      }
      if (than.empty()) continue;
      const std::string largest = matrix.elements > 0 ? absl::StrFormat(", up to %.3g", matrix.largest) : "";
      sizes.Add(matrix, absl::StrFormat("weights are of size %.3g%s, and %s: the scales are perhaps the reciprocals of "
                                        "what the file means, or not those of these codes",
                                        matrix.deviation, largest, than));
    }
    sizes.MoveTo(warnings);
  }

  PreparedValues values_;
  const QuantizationReportOptions options_;
  absl::flat_hash_map<const Value*, const Node*> parts_;  // by their codes
  std::map<std::pair<std::string, std::string>, QuantizedGroupReport> groups_;
  std::map<std::pair<std::string, std::string>, GroupSums> sums_;
  std::vector<MatrixNumbers> matrices_;
  Warnings signs_, zeros_, dead_;
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

absl::StatusOr<QuantizationReport> ReportQuantization(const Model& model, const QuantizationReportOptions& options) {
  Reporter reporter(model, options);
  std::vector<const Block*> blocks = {&model.prepare};
  for (const auto& step : model.steps) blocks.push_back(&step->block);
  for (const Block* block : blocks) {
    for (const auto& node : block->nodes) {
      if (!Is<Encode>(node.get())) continue;
      const Value* value = node->results[0];
      if (value->users.empty()) {
        reporter.AddPart(*node);
      } else {
        RETURN_IF_ERROR(reporter.Add(*node));
      }
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
      absl::StrAppendFormat(&text, ", scales %.3g to %.3g", g.least_scale, g.most_scale);
      if (g.has_ends) absl::StrAppendFormat(&text, ", %.1f %% of codes at their ends", 100 * g.saturation);
      absl::StrAppendFormat(&text, ", weights of size %.3g", g.deviation);
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
                    {"zero_scales", g.zero_scales},
                    {"dead_outputs", g.dead_rows},
                    {"deviation", g.deviation}});
    if (g.has_ends) json.back()["saturation"] = g.saturation;
  }
  return json;
}

}  // namespace llmc
