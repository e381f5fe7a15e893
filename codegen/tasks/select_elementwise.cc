// Arithmetic on elements: the one place that makes up code. A group of nodes becomes a kernel whose body has a line for
// each node.
#include <cmath>
#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "codegen/tasks/select_internal.h"
#include "codegen/tasks/strided.h"
#include "ir/ops.h"
#include "kernels/layout/movement.h"

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

constexpr size_t kMaxNodes = 32;  // of a kernel: keeps it short and its parameters few

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
  if (Is<Div>(&node) || Is<Mod>(&node) || Is<Fmod>(&node)) {
    return zero ? absl::StrCat(op, ": division of an integer by zero") : "";
  }
  if (!Is<Pow>(&node)) return "";
  if (is_integer) return negative ? absl::StrCat(op, ": zero to a negative power") : "";
  return absl::StrCat(op, ": an element is out of the range of ", DTypeName(node.results[0]->type.dtype));
}

// The body of a kernel: what its operands are, and a line for each node.
class Body {
 public:
  void Add(const Node& node) {
    const Value* result = node.results[0];
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
    if (!exact && !Is<Cast>(&node))
      expression = absl::StrCat("llmc::Stored<", DeviceType(dtype), ">(", expression, ")");
    const std::string name = absl::StrCat("v", lines_.size());
    names_[result] = name;
    const std::string names =
        absl::StrJoin(node.operands, ", ", [](std::string* out, const Value* v) { out->append(v->name); });
    lines_.emplace_back(absl::StrCat("    const ", ArithmeticType(dtype), " ", name, " = ", expression, ";\n"),
                        absl::StrCat(result->name, " = ", node.op->info.name, " ", names));
  }

  const std::vector<const Value*>& operands() const { return operands_; }
  const std::vector<KernelDeviceError>& device_errors() const { return device_errors_; }

  // Gives the call the whole function, and what its lines are in the language.
  void Write(const Value* result, KernelCall* call) const {
    const std::string type = DeviceType(result);
    std::string params, code;
    std::vector<std::string>& notes = call->apply_notes;
    const bool is_static = device_errors_.empty();
    notes.resize(is_static ? 1 : 3);  // the lines before the body
    for (size_t i = 0; i < operands_.size(); ++i) {
      absl::StrAppend(&params, i == 0 ? "" : ", ", DeviceType(operands_[i]->type.dtype), " in", i);
      absl::StrAppend(&code, "    const ", ArithmeticType(operands_[i]->type.dtype), " x", i, " = llmc::Widen(in", i,
                      ");\n");
      notes.push_back(operands_[i]->name);
    }
    for (const auto& [line, note] : lines_) {
      code += line;
      notes.push_back(note);
    }
    call->apply =
        absl::StrCat(is_static ? "  static " : "  llmc::DeviceErrorSite device_error;\n\n  ",
                     "__device__ __forceinline__ ", type, " Apply(", params, is_static ? ") {\n" : ") const {\n", code,
                     "    return llmc::Narrow<", type, ">(", names_.at(result), ");\n  }\n");
  }

 private:
  static bool IsSquare(const Node& node) {
    const Tensor* exponent = ConstantNumber(node.operands[1]);
    return exponent != nullptr && exponent->GetFloat(0) == 2 &&
           (IsFloat(node.operands[0]->type.dtype) || !IsFloat(exponent->dtype()));
  }

  std::string NameOf(const Value* value) {
    if (const auto it = names_.find(value); it != names_.end()) return it->second;
    if (const Tensor* number = ConstantNumber(value)) return Literal(*number);
    std::string name = absl::StrCat("x", operands_.size());
    operands_.push_back(value);
    names_[value] = name;
    return name;
  }

  std::vector<const Value*> operands_;
  std::vector<std::pair<std::string, std::string>> lines_;  // and what they are in the language
  std::vector<KernelDeviceError> device_errors_;
  absl::flat_hash_map<const Value*, std::string> names_;
};

bool IsPacked(const Value* value) { return DTypeBits(value->type.dtype) < 8; }

// A value and the type of its elements in the kernel.
struct Operand {
  const Value* value;
  std::string type;
};
Operand Typed(const Value* value) { return {value, DeviceType(value)}; }

// The kernel for a result, the first of `operands`, and what it is made from. `whole` gives their places.
KernelCall ElementwiseCall(const std::vector<Operand>& operands, const Space& whole,
                           const std::vector<KernelDeviceError>& device_errors = {}) {
  const Space space = Collapse(whole);
  const Size n = ProductOf(whole.sizes);
  KernelCall call{.header = "elementwise/elementwise", .function = "Elementwise", .pdl = true};
  int widest = 8;
  bool packed = false;
  for (const Operand& operand : operands) {
    widest = std::max(widest, DTypeBits(operand.value->type.dtype));
    packed = packed || IsPacked(operand.value);
  }
  const int64_t vec = packed ? 2 : WholeVector(space, 128 / widest);
  call.constants = {{"kVec", vec}, {"kWhole", !packed && vec > 1}};
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto& [value, type] = operands[i];
    call.params.push_back(i == 0 ? Out(value, "out", type) : In(value, absl::StrCat("in", i - 1), type));
  }
  call.params.push_back(Count(n, "n"));
  if (!device_errors.empty()) AddDeviceErrors(device_errors, &call);
  std::vector<std::string> arguments = {
      device_errors.empty() ? "Config()" : "Config{{device_error, first_device_error}}", "n",
      AxesText(space.sizes, &call)};
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::string type = absl::StrCat(i == 0 ? "" : "const ", operands[i].type), name = call.params[i].name;
    arguments.push_back(StridedText(type, name, space.places[i], &call));
  }
  call.arguments = absl::StrJoin(arguments, ",\n      ");
  call.grid[0] = Blocks(n, vec * call.threads);
  return call;
}

// The kernel for an expression of elements of two operands, both of the type of the result.
KernelCall OfTwo(const Value* out, const Value* a, const Place& at_a, const Value* b, const Place& at_b,
                 const std::string& expression) {
  const Space space{.sizes = ToSizes(out->type.shape), .places = {ContiguousPlace(out->type.shape), at_a, at_b}};
  KernelCall call = ElementwiseCall({Typed(out), Typed(a), Typed(b)}, space);
  const std::string type = DeviceType(out);
  call.apply = absl::StrCat("  static __device__ __forceinline__ ", type, " Apply(", type, " in0, ", type,
                            " in1) {\n    return llmc::Narrow<", type, ">(", expression, ");\n  }\n");
  return call;
}

// The unsigned integer of as many bits: what is only moved need not be known.
std::string MovedType(DType dtype) {
  return DTypeBits(dtype) < 8 ? DeviceType(dtype) : absl::StrCat("llmc::u", DTypeBits(dtype));
}

int64_t AxisOfStrideOne(const Place& place) {
  for (size_t i = 0; i < place.strides.size(); ++i) {
    if (place.strides[i].Is(1)) return static_cast<int64_t>(i);
  }
  return -1;
}

// Nothing where tiles do not pay: where an axis is short, or both tensors lie alike.
std::optional<KernelCall> TransposeCall(const Value* out, const Value* from, const Space& space) {
  constexpr int64_t kShort = 8;
  const auto is_short = [](const Size& size) { return size.is_number() && size.number() < kShort; };
  const int64_t fast = AxisOfStrideOne(space.places[1]), last = static_cast<int64_t>(space.sizes.size()) - 1;
  const bool pays = fast >= 0 && fast < last && !is_short(space.sizes[static_cast<size_t>(fast)]) &&
                    !is_short(space.sizes.back()) && space.places[0].offset.Is(0) &&
                    space.places[0].strides == ContiguousStrides(space.sizes);
  if (!pays) return std::nullopt;
  const std::string type = MovedType(out->type.dtype);
  KernelCall call{.header = "movement/transpose", .function = "Transpose", .types = {{"T", type}}};
  call.constants = {{"kFast", fast}};
  call.params = {Out(out, "out", type), In(from, "x", type)};
  call.arguments = absl::StrCat("out, ", AxesText(space.sizes, &call), ",\n      ",
                                StridedText(absl::StrCat("const ", type), "x", space.places[1], &call));
  for (int64_t axis = 0; axis <= last; ++axis) {
    const Size& size = space.sizes[static_cast<size_t>(axis)];
    call.grid[0] = call.grid[0] * (axis == fast || axis == last ? Blocks(size, kTransposeTile) : size);
  }
  return call;
}

}  // namespace

// The last node gives the only result; all have its shape.
Calls SelectElementwise(const KernelBody& kernel, const ProgramScope&) {
  if (kernel.nodes.size() > kMaxNodes) return Misfit{"more nodes", absl::StrCat("at most ", kMaxNodes)};
  const Value* out = kernel.nodes.back()->results[0];
  for (const Node* node : kernel.nodes) {
    if (!node->op->info.computes_elements()) return Misfit{std::string(node->op->info.name), "elementwise ops"};
    if (node->results[0]->type.shape != out->type.shape) {
      return Misfit{node->results[0]->type.ToString(), out->type.ToString()};
    }
  }
  if (kernel.results.size() > 1) return Misfit{absl::StrCat(kernel.results.size(), " results"), "one"};
  Body body;
  for (const Node* node : kernel.nodes) body.Add(*node);
  const SizeList sizes = ToSizes(out->type.shape);
  Space space{.sizes = sizes, .places = {{.strides = ContiguousStrides(sizes)}}};
  std::vector<Operand> operands = {Typed(out)};
  for (const Value* operand : body.operands()) {
    operands.push_back(Typed(operand));
    space.places.push_back(BroadcastPlace(operand->type.shape, out->type.shape));
  }
  KernelCall call = ElementwiseCall(operands, space, body.device_errors());
  body.Write(out, &call);
  return std::vector<DeviceCall>{call};
}

Calls SelectCopy(const Node& node, const Value* out, const Value* from, const SizeList& sizes, const Place& to,
                 const Place& at) {
  const Space space{.sizes = sizes, .places = {to, at}};
  const Space collapsed = Collapse(space);
  if (IsPacked(out)) {
    const bool flat = collapsed.sizes.size() == 1 && collapsed.places[0].strides[0].Is(1) &&
                      collapsed.places[0].offset.Is(0) && collapsed.places[1].offset.Is(0);
    if (!flat) return NoKernel(node, "on elements of 4 bits");
  } else if (const std::optional<KernelCall> transpose = TransposeCall(out, from, collapsed)) {
    return std::vector<DeviceCall>{*transpose};
  }
  const std::string type = MovedType(out->type.dtype);
  KernelCall call = ElementwiseCall({{out, type}, {from, type}}, space);
  call.apply = absl::StrCat("  static __device__ __forceinline__ ", type, " Apply(", type, " in0) { return in0; }\n");
  return std::vector<DeviceCall>{call};
}

// Both sides are computed.
Calls SelectChoose(const Node& node, const ProgramScope&) {
  const auto op = View<Choose>(node);
  const Value* out = node.results[0];
  if (op.x->type.shape != out->type.shape) return NoKernel(node, "of sides whose shapes differ");
  if (IsPacked(out)) return NoKernel(node, "on elements of 4 bits");
  const Place place = ContiguousPlace(out->type.shape);
  const Space space{.sizes = ToSizes(out->type.shape),
                    .places = {place, {.strides = SizeList(out->type.shape.size(), Size(0))}, place, place}};
  const std::string type = MovedType(out->type.dtype);
  KernelCall call = ElementwiseCall({{out, type}, Typed(op.condition), {op.x, type}, {op.y, type}}, space);
  call.apply = absl::StrCat("  static __device__ __forceinline__ ", type, " Apply(bool in0, ", type, " in1, ", type,
                            " in2) { return in0 ? in1 : in2; }\n");
  return std::vector<DeviceCall>{call};
}

KernelCall AddCall(const Value* sum, const Value* a, const Value* b) {
  const Place place = ContiguousPlace(sum->type.shape);
  return OfTwo(sum, a, place, b, place, "llmc::op::Add(llmc::Widen(in0), llmc::Widen(in1))");
}

Calls SelectSiluMul(const Node& node, const ProgramScope&) {
  const auto op = View<SiluMul>(node);
  const Value* out = node.results[0];
  if (!ConstantLast(out) || !Is16BitOrF32(out->type.dtype)) {
    const Place gate = ContiguousPlace(op.gate_up->type.shape);
    const Place up = {.strides = gate.strides, .offset = Size(out->type.shape.back())};
    return std::vector<DeviceCall>{OfTwo(out, op.gate_up, gate, op.gate_up, up,
                                         "llmc::op::Mul(llmc::op::Silu(llmc::Widen(in0)), llmc::Widen(in1))")};
  }
  const int64_t dim = out->type.shape.back().value();
  const Size rows = RowsOf(out->type);
  KernelCall call{.header = "elementwise/silu_mul", .function = "SiluMul", .pdl = true};
  call.types = {{"T", DeviceType(out)}};
  call.constants = {{"kDim", dim}};
  call.params = {Out(out, "out"), In(op.gate_up, "gate_up"), Count(rows, "rows")};
  call.grid[0] = Blocks(rows * Dim(dim / VectorOf(dim, out->type.dtype)), call.threads);
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
