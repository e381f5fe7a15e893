// Arithmetic on elements, a group of nodes as one kernel, and copies.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "codegen/tasks/element_code.h"
#include "codegen/tasks/select_internal.h"
#include "codegen/tasks/strided.h"
#include "ir/ops.h"
#include "kernels/layout/movement.h"

namespace llmc {

namespace {

constexpr size_t kMaxNodes = 32;  // of a kernel: keeps it short and its parameters few

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
    packed = packed || (IsPacked(operand.value) && operand.type == DeviceType(operand.value));
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

// The same move of elements of 4 bits as one of bytes, if two that share a byte stay together.
std::optional<Space> InPairs(const Space& space) {
  Space pairs = space;
  const auto halve = [](Size* size) {
    if (!size->IsMultipleOf(2)) return false;
    *size = Size::FloorDiv(*size, 2);
    return true;
  };
  if (space.sizes.empty() || !halve(&pairs.sizes.back())) return std::nullopt;
  for (Place& place : pairs.places) {
    if (!place.strides.back().Is(1) || !halve(&place.offset)) return std::nullopt;
    for (size_t i = 0; i + 1 < place.strides.size(); ++i) {
      if (!halve(&place.strides[i])) return std::nullopt;
    }
  }
  return pairs;
}

}  // namespace

// The last node gives the only result; all have its shape.
Calls SelectElementwise(const KernelBody& kernel, const ProgramScope&) {
  if (kernel.nodes.size() > kMaxNodes) return Misfit{"more nodes", absl::StrCat("at most ", kMaxNodes)};
  if (kernel.nodes.back()->results.empty()) return Misfit{"a node without a result", "elementwise ops"};
  const Value* out = kernel.nodes.back()->results[0];
  ElementCode code;
  code.Begin("Apply");
  for (const Node* node : kernel.nodes) {
    const bool is_read =
        Is<Slice>(node) && node != kernel.nodes.back() && !IsPacked(out) && !IsPacked(node->operands[0]);
    if (!node->op->info.computes_elements() && !is_read) {
      return Misfit{std::string(node->op->info.name), "elementwise ops"};
    }
    if (node->results[0]->type.shape != out->type.shape) {
      return Misfit{node->results[0]->type.ToString(), out->type.ToString()};
    }
    code.Add(*node);
  }
  if (kernel.results.size() > 1) return Misfit{absl::StrCat(kernel.results.size(), " results"), "one"};
  code.End(out);
  const SizeList sizes = ToSizes(out->type.shape);
  Space space{.sizes = sizes, .places = {{.strides = ContiguousStrides(sizes)}}};
  std::vector<Operand> operands = {Typed(out)};
  for (const ElementCode::Operand& operand : code.operands()) {
    operands.push_back(Typed(operand.value));
    space.places.push_back(PlaceUnder(operand, out->type.shape));
  }
  KernelCall call = ElementwiseCall(operands, space, code.device_errors());
  code.Write(&call);
  return std::vector<DeviceCall>{call};
}

Calls SelectCopy(const Node& node, const Value* out, const Value* from, const SizeList& sizes, const Place& to,
                 const Place& at) {
  Space space{.sizes = sizes, .places = {to, at}};
  const Space collapsed = Collapse(space);
  std::string type = MovedType(out->type.dtype);
  if (IsPacked(out)) {
    const bool flat = collapsed.sizes.size() == 1 && collapsed.places[0].strides[0].Is(1) &&
                      collapsed.places[0].offset.Is(0) && collapsed.places[1].offset.Is(0);
    const std::optional<Space> pairs = flat ? std::nullopt : InPairs(collapsed);
    if (!flat && !pairs.has_value()) return NoKernel(node, "on elements of 4 bits");
    if (pairs.has_value()) {
      space = *pairs;
      type = "llmc::u8";
    }
  } else if (const std::optional<KernelCall> transpose = TransposeCall(out, from, collapsed)) {
    return std::vector<DeviceCall>{*transpose};
  }
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
