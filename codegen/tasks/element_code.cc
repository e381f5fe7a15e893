#include "codegen/tasks/element_code.h"

#include <cmath>
#include <cstring>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"

namespace llmc {

std::string FloatLiteral(double value, bool wide) {
  if (!std::isfinite(value)) {
    const float narrow = static_cast<float>(value);
    uint32_t bits = 0;
    std::memcpy(&bits, &narrow, sizeof(bits));
    return absl::StrCat(wide ? "double(" : "", "__uint_as_float(", bits, "u)", wide ? ")" : "");
  }
  std::string text = wide ? absl::StrFormat("%.17g", value) : absl::StrFormat("%.9g", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return absl::StrCat(text, wide ? "" : "f");
}

namespace {

// What elements of a type are computed with: `Wide` of kernels/common/arithmetic.cuh.
std::string ArithmeticType(DType dtype) {
  if (dtype == DType::kF64) return "double";
  if (dtype == DType::kBool) return "bool";
  return IsFloat(dtype) ? "float" : "llmc::i64";
}

// "gelu_tanh" -> "llmc::op::GeluTanh"
std::string FunctionOf(absl::string_view op) {
  std::string name = "llmc::op::";
  bool upper = true;
  for (const char c : op) {
    if (c != '_') name.push_back(upper ? absl::ascii_toupper(static_cast<unsigned char>(c)) : c);
    upper = c == '_';
  }
  return name;
}

std::string Literal(const Tensor& value) {
  const DType dtype = value.dtype();
  if (IsFloat(dtype)) return FloatLiteral(value.GetFloat(0), dtype == DType::kF64);
  if (dtype == DType::kBool) return value.GetInt(0) != 0 ? "true" : "false";
  if (value.GetInt(0) == INT64_MIN) return "(-9223372036854775807ll - 1)";
  return absl::StrCat("llmc::i64{", value.GetInt(0), "}");
}

// The one number that a value is, if it is a constant.
const Tensor* ConstantNumber(const Value* value) {
  if (!Is<Constant>(value->def)) return nullptr;
  const Tensor& tensor = std::get<Tensor>(value->def->attrs.at("value"));
  return tensor.size() == 1 && DTypeBits(tensor.dtype()) >= 8 ? &tensor : nullptr;
}

// What values a node of integers has no result for, if there are any.
std::string DeviceErrorOf(const Node& node) {
  if (node.operands.size() != 2 || IsFloat(node.results[0]->type.dtype)) return "";
  const Value& rhs = *node.operands[1];
  const Tensor* known = Is<Constant>(rhs.def) ? &std::get<Tensor>(rhs.def->attrs.at("value")) : nullptr;
  const bool is_integer = !IsFloat(rhs.type.dtype);
  bool zero = known == nullptr, negative = known == nullptr;
  for (int64_t i = 0; known != nullptr && is_integer && i < known->size(); ++i) {
    zero = zero || known->GetInt(i) == 0;
    negative = negative || known->GetInt(i) < 0;
  }
  const absl::string_view op = node.op->info.name;
  if (node.op->info.Has(kDivides)) {
    return zero ? absl::StrCat(op, ": division of an integer by zero") : "";
  }
  if (!Is<Pow>(&node)) return "";
  if (is_integer) return negative ? absl::StrCat(op, ": zero to a negative power") : "";
  return absl::StrCat(op, ": an element is out of the range of ", DTypeName(node.results[0]->type.dtype));
}

bool IsSquare(const Node& node) {
  const Tensor* exponent = ConstantNumber(node.operands[1]);
  return exponent != nullptr && exponent->GetFloat(0) == 2 &&
         (IsFloat(node.operands[0]->type.dtype) || !IsFloat(exponent->dtype()));
}

}  // namespace

void ElementCode::Begin(std::string name, const Value* first) {
  functions_.push_back({.name = std::move(name), .first = first});
  names_.clear();
  if (first != nullptr) names_[first] = "first";
}

void ElementCode::Add(const Node& node) {
  const Value* result = node.results[0];
  if (Is<Slice>(&node)) {
    slices_[result] = &node;
    return;
  }
  std::vector<std::string> operands;
  for (const Value* operand : node.operands) operands.push_back(NameOf(operand));
  std::string expression =
      Is<Cast>(&node) ? absl::StrCat("llmc::Cast<", DeviceType(result), ">") : FunctionOf(node.op->info.name);
  if (Is<Pow>(&node) && IsSquare(node)) {
    expression = FunctionOf("mul");
    operands[1] = operands[0];
  } else if (const std::string device_error = DeviceErrorOf(node); !device_error.empty()) {
    operands.push_back(absl::StrCat("device_error + ", device_errors_.size()));
    device_errors_.push_back({device_error, &node});
  }
  absl::StrAppend(&expression, "(", absl::StrJoin(operands, ", "), ")");
  const DType dtype = result->type.dtype;
  const bool exact = dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kI64 || dtype == DType::kBool;
  if (!exact && !Is<Cast>(&node)) expression = absl::StrCat("llmc::Stored<", DeviceType(dtype), ">(", expression, ")");
  auto& lines = functions_.back().lines;
  const std::string name = absl::StrCat("v", lines.size());
  names_[result] = name;
  const std::string names =
      absl::StrJoin(node.operands, ", ", [](std::string* out, const Value* v) { out->append(v->name); });
  lines.emplace_back(absl::StrCat("    const ", ArithmeticType(dtype), " ", name, " = ", expression, ";\n"),
                     absl::StrCat(result->name, " = ", node.op->info.name, " ", names));
}

void ElementCode::End(const Value* result) {
  functions_.back().result = result;
  functions_.back().returned = NameOf(result);
}

std::string ElementCode::NameOf(const Value* value) {
  if (const auto it = names_.find(value); it != names_.end()) return it->second;
  if (const Tensor* number = ConstantNumber(value)) return Literal(*number);
  const auto [it, added] = index_.try_emplace(value, operands_.size());
  if (added) {
    const auto slice = slices_.find(value);
    operands_.push_back(slice == slices_.end() ? Operand{value} : Operand{slice->second->operands[0], slice->second});
  }
  functions_.back().reads.push_back(it->second);
  return names_[value] = absl::StrCat("x", it->second);
}

void ElementCode::Write(KernelCall* call) const {
  const bool is_static = device_errors_.empty();
  std::vector<std::string>& notes = call->apply_notes;
  if (!is_static) call->apply = "  llmc::DeviceErrorSite device_error;\n\n";
  notes.resize(is_static ? 0 : 2);
  for (const Function& function : functions_) {
    std::vector<std::string> params;
    std::string code;
    notes.push_back("");
    const auto widen = [&](const Value* value, const std::string& name, const std::string& from) {
      absl::StrAppend(&code, "    const ", ArithmeticType(value->type.dtype), " ", name, " = llmc::Widen(", from,
                      ");\n");
      notes.push_back(value->name);
    };
    if (function.first != nullptr) {
      params.push_back(absl::StrCat(DeviceType(function.first), " in"));
      widen(function.first, "first", "in");
    }
    for (size_t i = 0; i < operands_.size(); ++i) {
      const Operand& operand = operands_[i];
      params.push_back(DeviceType(operand.value->type.dtype));
      if (!absl::c_linear_search(function.reads, i)) continue;
      const std::string in = absl::StrCat("in", i);
      params.back() += " " + in;
      widen(operand.slice == nullptr ? operand.value : operand.slice->results[0], absl::StrCat("x", i), in);
    }
    for (const auto& [line, note] : function.lines) {
      code += line;
      notes.push_back(note);
    }
    const std::string type = DeviceType(function.result);
    absl::StrAppend(&call->apply, is_static ? "  static " : "  ", "__device__ __forceinline__ ", type, " ",
                    function.name, "(", absl::StrJoin(params, ", "), is_static ? ") {\n" : ") const {\n", code,
                    "    return llmc::Narrow<", type, ">(", function.returned, ");\n  }\n");
    notes.resize(notes.size() + 2);  // the last two lines
  }
}

Place PlaceUnder(const ElementCode::Operand& operand, const Dims& under) {
  if (operand.slice == nullptr) return BroadcastPlace(operand.value->type.shape, under);
  const auto op = View<Slice>(*operand.slice);
  Place at = ContiguousPlace(operand.value->type.shape);
  at.offset = Size(op.start[0]) * at.strides[static_cast<size_t>(op.axis)];
  return at;
}

}  // namespace llmc
