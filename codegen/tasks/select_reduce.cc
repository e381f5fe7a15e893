// What looks at whole rows: reductions, softmax, running sums, norms.
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"

namespace llmc {
namespace {

// Threads of a row of n elements: neighbouring threads should read neighbouring elements, so one if the elements of a
// row are apart.
int64_t LanesFor(const Size& n, bool contiguous, int threads) {
  constexpr int64_t kFewElements = 16, kWarpElements = 2048;
  if (!contiguous || (n.is_number() && n.number() <= kFewElements)) return 1;
  return n.is_number() && n.number() <= kWarpElements ? 32 : threads;
}

Size BlocksForRows(const Size& rows, int64_t lanes, int threads) { return Blocks(rows, threads / lanes); }

// The axes that stay and those that go, as two spaces of one tensor.
struct Split {
  Space kept, reduced;
};
Split SplitAxes(const TensorType& type, const std::vector<int64_t>& axes) {
  const Place at = ContiguousPlace(type.shape);
  Split split{.kept = {.places = {{}}}, .reduced = {.places = {{}}}};
  for (size_t axis = 0; axis < type.shape.size(); ++axis) {
    Space& space = absl::c_linear_search(axes, static_cast<int64_t>(axis)) ? split.reduced : split.kept;
    space.sizes.push_back(Size(type.shape[axis]));
    space.places[0].strides.push_back(at.strides[axis]);
  }
  return {Collapse(split.kept), Collapse(split.reduced)};
}

// The struct of kernels/elementwise/reduce.cuh that computes the op.
absl::string_view ReductionOf(const Node& node) {
  if (Is<ReduceSum>(&node)) return "SumOf";
  if (Is<ReduceMean>(&node)) return "MeanOf";
  if (Is<ReduceMax>(&node)) return "MaxOf";
  if (Is<ReduceMin>(&node)) return "MinOf";
  return Is<ReduceProd>(&node) ? "ProductOf" : "ArgMaxOf";
}

// x[outer, n, inner] around an axis.
struct Rows {
  Size rows, n, inner;
};
Rows RowsAlong(const TensorType& type, int64_t axis) {
  const Size inner = ElementsOf(Dims(type.shape.begin() + axis + 1, type.shape.end()));
  return {ElementsOf(Dims(type.shape.begin(), type.shape.begin() + axis)) * inner,
          type.shape[static_cast<size_t>(axis)], inner};
}

KernelCall RowNorm(const Value* out, const Value* x, const Value* weight, const Value* bias, bool center, const Size& n,
                   const Size& rows, double eps) {
  KernelCall call{.header = "norm/row_norm", .function = "RowNorm"};
  const int64_t lanes = std::max<int64_t>(LanesFor(n, true, call.threads), 32);
  const Value* shift = bias == nullptr ? weight : bias;
  call.types = {{"T", DeviceType(x)}, {"Weight", DeviceType(weight)}, {"Bias", DeviceType(shift)}};
  call.constants = {{"kCenter", center}, {"kBias", bias != nullptr}, {"kLanes", lanes}};
  call.params = {Out(out, "out"),   In(x, "x"),          In(weight, "weight"),
                 In(shift, "bias"), Count(rows, "rows"), Count(n, "n")};
  call.arguments = absl::StrCat("out, x, weight, bias, rows, n, ", NumberText(eps, "eps", x->type.dtype, &call));
  call.grid[0] = BlocksForRows(rows, lanes, call.threads);
  return call;
}

}  // namespace

Calls SelectReduction(const Node& node, const ProgramScope&) {
  const Value *out = node.results[0], *x = node.operands[0];
  const std::vector<int64_t> axes = Is<ArgMax>(&node) ? std::vector<int64_t>{View<ArgMax>(node).axis}
                                                      : std::get<std::vector<int64_t>>(node.attrs.at("axes"));
  if (DTypeBits(x->type.dtype) < 8) return NoKernel(node, "on elements of 4 bits");
  const Split split = SplitAxes(x->type, axes);
  const Size rows = ElementsOf(out->type.shape);
  Size n = 1;
  for (const int64_t axis : axes) n = n * Size(x->type.shape[static_cast<size_t>(axis)]);
  KernelCall call{.header = "elementwise/reduce", .function = "Reduce"};
  const int64_t lanes = LanesFor(n, split.reduced.places[0].strides.back().Is(1), call.threads);
  const std::string type = DeviceType(x);
  call.types = {{"Op", absl::StrCat("llmc::", ReductionOf(node), "<", type, ">")}};
  call.constants = {{"kLanes", lanes}};
  call.params = {Out(out, "out"), In(x, "x"), Count(rows, "rows")};
  call.arguments = "out, rows";
  for (const Space* space : {&split.kept, &split.reduced}) {
    absl::StrAppend(&call.arguments, ",\n      ", AxesText(space->sizes, &call), ", ",
                    StridedText(absl::StrCat("const ", type), "x", space->places[0], &call));
  }
  call.grid[0] = BlocksForRows(rows, lanes, call.threads);
  return std::vector<DeviceCall>{call};
}

Calls SelectSoftmax(const Node& node, const ProgramScope&) {
  const auto op = View<Softmax>(node);
  const Value* out = node.results[0];
  const Rows rows = RowsAlong(out->type, op.axis);
  KernelCall call{.header = "norm/softmax", .function = "Softmax"};
  const int64_t lanes = LanesFor(rows.n, rows.inner.Is(1), call.threads);
  call.types = {{"T", DeviceType(out)}};
  call.constants = {{"kLog", op.log}, {"kLanes", lanes}};
  call.params = {Out(out, "out"), In(op.x, "x"), Count(rows.rows, "rows"), Count(rows.n, "n"),
                 Count(rows.inner, "inner")};
  call.grid[0] = BlocksForRows(rows.rows, lanes, call.threads);
  return std::vector<DeviceCall>{call};
}

Calls SelectCumSum(const Node& node, const ProgramScope&) {
  const auto op = View<CumSum>(node);
  const Value* out = node.results[0];
  if (DTypeBits(out->type.dtype) < 8) return NoKernel(node, "on elements of 4 bits");
  const Rows rows = RowsAlong(out->type, op.axis);
  KernelCall call{.header = "elementwise/cumsum", .function = "CumSum", .types = {{"T", DeviceType(out)}}};
  call.constants = {{"kExclusive", op.exclusive}, {"kReverse", op.reverse}};
  call.params = {Out(out, "out"), In(op.x, "x"), Count(rows.rows, "rows"), Count(rows.n, "n"),
                 Count(rows.inner, "inner")};
  call.grid[0] = BlocksForRows(rows.rows, 32, call.threads);
  return std::vector<DeviceCall>{call};
}

Calls SelectArgSort(const Node& node, const ProgramScope&) {
  const auto op = View<ArgSort>(node);
  if (DTypeBits(op.x->type.dtype) < 8) return NoKernel(node, "on elements of 4 bits");
  const Rows rows = RowsAlong(op.x->type, op.axis);
  KernelCall call{.header = "elementwise/argsort", .function = "ArgSort", .types = {{"T", DeviceType(op.x)}}};
  call.constants = {{"kDescending", op.descending}};
  const Size bytes = ElementsOf(op.x->type.shape) * Size(DTypeBits(DType::kI64) / 8);
  call.params = {Out(node.results[0], "out"),
                 In(op.x, "x"),
                 {"llmc::i64*", "sorted", KernelArg::OfScratch(bytes)},
                 Count(rows.n, "n"),
                 Count(rows.inner, "inner")};
  call.grid[0] = rows.rows;
  return std::vector<DeviceCall>{call};
}

Calls SelectLayerNorm(const Node& node, const ProgramScope&) {
  const auto op = View<LayerNorm>(node);
  const Dims& shape = op.x->type.shape;
  const Size rows = ElementsOf(Dims(shape.begin(), shape.begin() + op.axis));
  const Size n = ElementsOf(Dims(shape.begin() + op.axis, shape.end()));
  return std::vector<DeviceCall>{RowNorm(node.results[0], op.x, op.weight, op.bias, true, n, rows, op.eps)};
}

KernelCall AnyRmsNorm(const Value* out, const Value* x, const Value* weight, double eps) {
  return RowNorm(out, x, weight, nullptr, false, x->type.shape.back(), RowsOf(x->type), eps);
}

}  // namespace llmc
