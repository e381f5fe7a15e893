// Tensors made from numbers, random ones among them, or from a tensor and the places of its elements.
#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/random_numbers.h"

namespace llmc {
namespace {

constexpr size_t kMaxSizes = 64;  // parameters of a kernel

}  // namespace

Calls SelectSizes(const Node& node, const ProgramScope&) {
  const Value* out = node.results[0];
  const Dims sizes = Is<ShapeOf>(&node) ? node.operands[0]->type.shape : View<DimsOf>(node).values;
  if (sizes.empty()) return std::vector<DeviceCall>();
  if (sizes.size() > kMaxSizes) return NoKernel(node, "with so many sizes");
  KernelCall call{.header = "movement/fill", .function = "FillSizes"};
  call.params = {Out(out, "out")};
  call.arguments = absl::StrCat("out, ", AxesText(ToSizes(sizes), &call));
  call.threads = 32;
  return std::vector<DeviceCall>{call};
}

Calls SelectRange(const Node& node, const ProgramScope&) {
  const auto op = View<Range>(node);
  const Value* out = node.results[0];
  if (DTypeBits(out->type.dtype) < 8) return NoKernel(node, "of elements of 4 bits");
  const Dim n = out->type.shape[0];
  KernelCall call{.header = "movement/fill", .function = "Range", .types = {{"T", DeviceType(out)}}};
  call.params = {Out(out, "out"), In(op.start, "start"), In(op.delta, "delta"), Count(n, "n")};
  call.grid[0] = Blocks(n, call.threads);
  return std::vector<DeviceCall>{call};
}

Calls SelectTriangle(const Node& node, const ProgramScope&) {
  const auto op = View<Triangle>(node);
  const Value* out = node.results[0];
  if (DTypeBits(out->type.dtype) < 8) return NoKernel(node, "on elements of 4 bits");
  const Dims& shape = out->type.shape;
  const Size n = ElementsOf(shape);
  const std::string type = absl::StrCat("llmc::u", DTypeBits(out->type.dtype));
  KernelCall call{.header = "movement/fill", .function = "Triangle", .types = {{"T", type}}};
  call.constants = {{"kUpper", op.upper}};
  call.params = {Out(out, "out", type),
                 In(op.x, "x", type),
                 Count(n, "n"),
                 Count(shape[shape.size() - 2], "rows"),
                 Count(shape.back(), "columns"),
                 Count(Dim(op.diagonal), "diagonal")};
  call.grid[0] = Blocks(n, call.threads);
  return std::vector<DeviceCall>{call};
}

Calls SelectPad(const Node& node, const ProgramScope&) {
  const auto op = View<Pad>(node);
  const Value* out = node.results[0];
  if (DTypeBits(out->type.dtype) < 8) return NoKernel(node, "on elements of 4 bits");
  if (out->type.rank() == 0) {
    return std::vector<DeviceCall>{CopyCall{.to = out, .from = op.x, .bytes = out->type.Bytes()}};
  }
  const Size n = ElementsOf(out->type.shape);
  const std::string type = DeviceType(out);
  KernelCall call{.header = "movement/fill", .function = "Pad", .types = {{"T", type}}};
  call.params = {Out(out, "out"), In(op.x, "x"), Count(n, "n")};
  call.apply = absl::StrCat("  static __device__ __forceinline__ ", type, " Value() {\n    return llmc::Narrow<", type,
                            ">(llmc::Cast<", type, ">(", FloatLiteral(op.value, true), "));\n  }\n");
  const auto axes = [&](const SizeList& sizes) { return AxesText(sizes, &call); };
  const Place at = ContiguousPlace(op.x->type.shape);
  call.arguments =
      absl::StrCat("out, n, ", axes(ToSizes(out->type.shape)), ",\n      ",
                   StridedText(absl::StrCat("const ", type), "x", at, &call), ",\n      ",
                   axes(ToSizes(op.x->type.shape)), ", ", axes(SizeList(op.before.begin(), op.before.end())));
  call.grid[0] = Blocks(n, call.threads);
  return std::vector<DeviceCall>{call};
}

KernelCall RandomWeightsCall(const Value* weight, const RandomNumbers& random) {
  KernelCall call{.header = "common/random_weights", .function = "RandomWeights"};
  // Those of which all bits are drawn are bytes.
  const std::string type = random.bits ? "llmc::u8" : DeviceType(weight);
  const int bits = random.bits ? 8 : DTypeBits(weight->type.dtype);
  const Dim size = random.bits ? Dim(weight->type.Bytes().number()) : Product(weight->type.shape);
  const int64_t per_block = call.threads * (8 * kRandomVectorBytes / bits);
  call.types = {{"T", type}};
  call.constants = {{"kAllBits", random.bits}};
  call.params = {Out(weight, "out", type), Count(size, "size"),
                 Count(Dim(static_cast<int64_t>(RandomKey(weight->source))), "key"), Float(random.mean, "mean"),
                 Float(random.width, "width")};
  call.grid[0] = Dim((size.value() + per_block - 1) / per_block);
  return call;
}

}  // namespace llmc
