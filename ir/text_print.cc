#include <cmath>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ir/op.h"
#include "ir/state_type.h"
#include "ir/text.h"
#include "ir/text_lexer.h"

namespace llmc {
namespace {

using text_internal::ValueText;

constexpr size_t kTypeColumn = 68;

// The shortest form that reads back as the same number.
std::string NumberToString(double value, bool single) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  for (int digits = 6; digits < 17; ++digits) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    const double back = std::strtod(text.c_str(), nullptr);
    if (single ? static_cast<float>(back) == static_cast<float>(value) : back == value) return text;
  }
  return absl::StrFormat("%.17g", value);
}

std::string LiteralElement(const Tensor& tensor, int64_t i) {
  if (tensor.dtype() == DType::kBool) return tensor.GetInt(i) != 0 ? "true" : "false";
  if (!IsFloat(tensor.dtype())) return absl::StrCat(tensor.GetInt(i));
  return NumberToString(tensor.GetFloat(i), tensor.dtype() != DType::kF64);
}

std::string LiteralToString(const Tensor& tensor) {
  std::vector<std::string> elements;
  for (int64_t i = 0; i < tensor.size(); ++i) elements.push_back(LiteralElement(tensor, i));
  const bool same = !elements.empty() && std::equal(elements.begin() + 1, elements.end(), elements.begin());
  if (same) return elements[0];
  return absl::StrCat("[", absl::StrJoin(elements, ", "), "]");
}

struct AttrPrinter {
  std::string operator()(bool v) const { return v ? "true" : "false"; }
  std::string operator()(int64_t v) const { return absl::StrCat(v); }
  std::string operator()(double v) const { return NumberToString(v, false); }
  std::string operator()(const std::string& v) const { return text_internal::QuoteString(v); }
  std::string operator()(DType v) const { return std::string(DTypeName(v)); }
  std::string operator()(const std::vector<int64_t>& v) const { return absl::StrCat("[", absl::StrJoin(v, ", "), "]"); }
  std::string operator()(const std::vector<double>& v) const {
    return absl::StrCat(
        "[", absl::StrJoin(v, ", ", [](std::string* out, double x) { out->append(NumberToString(x, false)); }), "]");
  }
  std::string operator()(const Dims& v) const { return absl::StrCat("[", DimsToString(v), "]"); }
  std::string operator()(const Tensor& v) const { return LiteralToString(v); }
};

void CollectSymbols(const Dims& dims, std::set<std::string>* symbols) {
  for (const Dim& dim : dims) {
    for (std::string& symbol : dim.Symbols()) symbols->insert(std::move(symbol));
  }
}

void CollectSymbols(const Block& block, std::set<std::string>* symbols) {
  for (const auto& node : block.nodes) {
    for (const Value* result : node->results) CollectSymbols(result->type.shape, symbols);
    for (const auto& [key, attr] : node->attrs) {
      if (const Dims* dims = std::get_if<Dims>(&attr)) CollectSymbols(*dims, symbols);
    }
  }
}

std::set<std::string> UsedSymbols(const Model& model) {
  std::set<std::string> symbols;
  for (const Value* value : model.weights) CollectSymbols(value->type.shape, &symbols);
  for (const Value* value : model.states) CollectSymbols(value->type.shape, &symbols);
  CollectSymbols(model.prepare, &symbols);
  for (const auto& step : model.steps) {
    for (const Value* param : step->params) CollectSymbols(param->type.shape, &symbols);
    CollectSymbols(step->block, &symbols);
  }
  return symbols;
}

std::string PrintStep(const Step& step) {
  std::string out = absl::StrCat("\nstep ", step.name, "(");
  for (size_t i = 0; i < step.params.size(); ++i) {
    absl::StrAppend(&out, i == 0 ? "\n  " : ",\n  ", ValueText(step.params[i]->name), ": ",
                    step.params[i]->type.ToString());
    if (step.params[i]->role.role != StepRole::kNone) absl::StrAppend(&out, " = ", step.params[i]->role.ToString());
  }
  absl::StrAppend(&out, ") {\n", PrintBlock(step.block), "  return");
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    absl::StrAppend(&out, i == 0 ? "\n    " : ",\n    ", text_internal::QuoteString(step.outputs[i].name), " = ",
                    ValueText(step.outputs[i].value->name));
  }
  absl::StrAppend(&out, "\n}\n");
  return out;
}

}  // namespace

std::string TypeText(const Value& value) {
  return value.state != nullptr ? value.state->ToString() : value.type.ToString();
}

std::string AttrToString(const Attr& attr) { return std::visit(AttrPrinter{}, attr); }

std::string PrintNode(const Node& node) {
  std::string out;
  auto append_names = [&](const std::vector<Value*>& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      absl::StrAppend(&out, i == 0 ? "" : ", ", values[i] == nullptr ? "_" : ValueText(values[i]->name));
    }
  };
  append_names(node.results);
  if (!node.results.empty()) absl::StrAppend(&out, " = ");
  absl::StrAppend(&out, node.op->info.name, node.operands.empty() ? "" : " ");
  append_names(node.operands);
  bool first = true;
  for (const absl::string_view key : node.op->attrs) {
    auto it = node.attrs.find(key);
    if (it == node.attrs.end()) continue;
    absl::StrAppend(&out, first ? " {" : ", ", key, " = ", AttrToString(it->second));
    first = false;
  }
  if (!first) absl::StrAppend(&out, "}");
  if (!node.results.empty()) {
    if (out.size() < kTypeColumn) out.resize(kTypeColumn, ' ');
    absl::StrAppend(&out, " : ");
    for (size_t i = 0; i < node.results.size(); ++i) {
      absl::StrAppend(&out, i == 0 ? "" : ", ", node.results[i]->type.ToString());
    }
  }
  if (!node.loc.empty()) absl::StrAppend(&out, "  loc ", text_internal::QuoteString(node.loc));
  return out;
}

std::string PrintBlock(const Block& block) {
  std::string out;
  const Kernel* kernel = nullptr;
  for (const auto& node : block.nodes) {
    if (node->kernel != kernel) {
      if (kernel != nullptr) absl::StrAppend(&out, "  }\n");
      if (node->kernel != nullptr) absl::StrAppend(&out, "  kernel ", node->kernel->backend, " {\n");
      kernel = node->kernel;
    }
    absl::StrAppend(&out, kernel == nullptr ? "  " : "    ", PrintNode(*node), "\n");
  }
  if (kernel != nullptr) absl::StrAppend(&out, "  }\n");
  return out;
}

std::string PrintModel(const Model& model) {
  std::string out = absl::StrCat("model ", text_internal::QuoteString(model.name), "\n\n");
  for (const std::string& symbol : UsedSymbols(model)) {
    auto it = model.dims.find(symbol);
    if (it != model.dims.end()) absl::StrAppend(&out, "dim ", symbol, " <= ", it->second, "\n");
  }
  for (const Value* weight : model.weights) {
    absl::StrAppend(&out, "weight ", ValueText(weight->name), ": ", weight->type.ToString());
    if (!weight->source.empty()) absl::StrAppend(&out, " = ", text_internal::QuoteString(weight->source));
    absl::StrAppend(&out, "\n");
  }
  for (const Value* state : model.states) {
    absl::StrAppend(&out, "state ", ValueText(state->name), ": ", TypeText(*state), "\n");
  }
  if (!model.prepare.nodes.empty()) absl::StrAppend(&out, "\nprepare {\n", PrintBlock(model.prepare), "}\n");
  for (const auto& step : model.steps) absl::StrAppend(&out, PrintStep(*step));
  return out;
}

}  // namespace llmc
