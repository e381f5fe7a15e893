// What looks at whole rows: reductions, softmax, running sums, norms.
#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/element_code.h"
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

// The axes that stay and those that go, as two spaces, in which tensors lie.
struct Split {
  Space kept, reduced;
};
Split SplitAxes(const Dims& shape, const std::vector<int64_t>& axes, const std::vector<Place>& places) {
  Split split;
  split.kept.places.resize(places.size());
  split.reduced.places.resize(places.size());
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    Space& space = absl::c_linear_search(axes, static_cast<int64_t>(axis)) ? split.reduced : split.kept;
    space.sizes.push_back(Size(shape[axis]));
    for (size_t i = 0; i < places.size(); ++i) space.places[i].strides.push_back(places[i].strides[axis]);
  }
  for (size_t i = 0; i < places.size(); ++i) split.kept.places[i].offset = places[i].offset;
  return {Collapse(split.kept), Collapse(split.reduced)};
}

// A place under the result of a reduction, as one under what is reduced: it stays along the axes that go.
Place PlaceOfKept(const Place& place, size_t rank, const std::vector<int64_t>& axes) {
  Place under = {.offset = place.offset};
  size_t next = 0;
  for (size_t axis = 0; axis < rank; ++axis) {
    const bool goes = absl::c_linear_search(axes, static_cast<int64_t>(axis));
    under.strides.push_back(goes ? Size(0) : place.strides[next++]);
  }
  return under;
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
struct ReducedRows {
  Size rows, n, inner;
};
ReducedRows RowsAlong(const TensorType& type, int64_t axis) {
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

namespace {

bool IsReduction(const Node* node) {
  return Is<ReduceSum>(node) || Is<ReduceMean>(node) || Is<ReduceMax>(node) || Is<ReduceMin>(node) ||
         Is<ReduceProd>(node) || Is<ArgMax>(node);
}

// A reduction with what makes its elements and what is done with its results.
struct ReductionParts {
  const Node* node = nullptr;
  const Value *x = nullptr, *out = nullptr;
  std::vector<int64_t> axes;
  ElementCode code;           // Element and Finish
  std::vector<Place> places;  // of its operands, under x
};

std::optional<Misfit> ReadReduction(const KernelBody& body, ReductionParts* parts) {
  for (const Node* node : body.nodes) {
    if (!IsReduction(node)) continue;
    if (parts->node != nullptr) return Misfit{"two reductions", "one"};
    parts->node = node;
  }
  if (parts->node == nullptr) return Misfit{"no reduction", "one"};
  if (body.results.size() != 1) return Misfit{absl::StrCat(body.results.size(), " results"), "one"};
  const Node& node = *parts->node;
  parts->x = node.operands[0];
  parts->out = body.results[0];
  parts->axes = Is<ArgMax>(&node) ? std::vector<int64_t>{View<ArgMax>(node).axis}
                                  : std::get<std::vector<int64_t>>(node.attrs.at("axes"));
  absl::flat_hash_set<const Value*> leads = {parts->x};
  for (auto it = body.nodes.rbegin(); it != body.nodes.rend(); ++it) {
    if (*it != &node && leads.contains((*it)->results[0])) leads.insert((*it)->operands.begin(), (*it)->operands.end());
  }
  const TensorType& whole = parts->x->type;
  const TensorType& reduced = node.results[0]->type;
  const auto add = [&](bool before, const Dims& under) -> std::optional<Misfit> {
    for (const Node* other : body.nodes) {
      if (other == &node || leads.contains(other->results[0]) != before) continue;
      const Dims& shape = other->results[0]->type.shape;
      const bool is_read = before && Is<Slice>(other) && shape == under;
      if (!other->op->info.computes_elements() && !is_read) {
        return Misfit{std::string(other->op->info.name), "elementwise ops"};
      }
      if (shape.size() > under.size() || (!before && shape != under)) {
        return Misfit{other->results[0]->type.ToString(), "the shape of what is reduced, or of the result"};
      }
      parts->code.Add(*other);
    }
    return std::nullopt;
  };
  parts->code.Begin("Element");
  if (std::optional<Misfit> misfit = add(true, whole.shape)) return misfit;
  parts->code.End(parts->x);
  const size_t before = parts->code.operands().size();
  parts->code.Begin("Finish", node.results[0]);
  if (std::optional<Misfit> misfit = add(false, reduced.shape)) return misfit;
  parts->code.End(parts->out);
  if (!parts->code.device_errors().empty())
    return Misfit{"integers that may have no result", "arithmetic that has one"};
  for (size_t i = 0; i < parts->code.operands().size(); ++i) {
    const ElementCode::Operand& operand = parts->code.operands()[i];
    if (absl::c_linear_search(body.nodes, operand.value->def)) {
      return Misfit{absl::StrCat(operand.value->name, " before and after the reduction"), "values of one side"};
    }
    if (DTypeBits(operand.value->type.dtype) < 8) return NoKernel(node, "on elements of 4 bits");
    parts->places.push_back(i < before
                                ? PlaceUnder(operand, whole.shape)
                                : PlaceOfKept(PlaceUnder(operand, reduced.shape), whole.shape.size(), parts->axes));
  }
  return std::nullopt;
}

}  // namespace

Calls SelectReduction(const KernelBody& body, const ProgramScope&) {
  ReductionParts parts;
  if (std::optional<Misfit> misfit = ReadReduction(body, &parts)) return *misfit;
  const Dims& shape = parts.x->type.shape;
  const Split split = SplitAxes(shape, parts.axes, parts.places);
  const Size rows = ElementsOf(parts.out->type.shape);
  Size n = 1;
  for (const int64_t axis : parts.axes) n = n * Size(shape[static_cast<size_t>(axis)]);
  KernelCall call{.header = "elementwise/reduce", .function = "Reduce", .pdl = true};
  const Split own = SplitAxes(shape, parts.axes, {ContiguousPlace(shape)});
  const int64_t lanes = LanesFor(n, own.reduced.places[0].strides.back().Is(1), call.threads);
  call.types = {{"Op", absl::StrCat("llmc::", ReductionOf(*parts.node), "<", DeviceType(parts.x), ">")}};
  call.constants = {{"kLanes", lanes}};
  call.params = {Out(parts.out, "out")};
  call.arguments = "Config(), out, rows";
  for (const Space* space : {&split.kept, &split.reduced}) {
    absl::StrAppend(&call.arguments, ", ", AxesText(space->sizes, &call));
  }
  for (size_t i = 0; i < parts.places.size(); ++i) {
    const Value* value = parts.code.operands()[i].value;
    const std::string name = absl::StrCat("in", i);
    call.params.push_back(In(value, name));
    const Place& kept = split.kept.places[i];
    absl::StrAppend(&call.arguments, ",\n      llmc::RowOperand<const ", DeviceType(value), ", ",
                    split.kept.sizes.size(), ", ", split.reduced.sizes.size(), ">{", name);
    if (!kept.offset.Is(0)) absl::StrAppend(&call.arguments, " + ", call.SizeText(kept.offset));
    absl::StrAppend(&call.arguments, ", {", call.SizesText(kept.strides), "}");
    absl::StrAppend(&call.arguments, ", {", call.SizesText(split.reduced.places[i].strides), "}}");
  }
  call.params.push_back(Count(rows, "rows"));
  parts.code.Write(&call);
  call.grid[0] = BlocksForRows(rows, lanes, call.threads);
  return std::vector<DeviceCall>{call};
}

Calls SelectSoftmax(const Node& node, const ProgramScope&) {
  const auto op = View<Softmax>(node);
  const Value* out = node.results[0];
  const ReducedRows rows = RowsAlong(out->type, op.axis);
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
  const ReducedRows rows = RowsAlong(out->type, op.axis);
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
  const ReducedRows rows = RowsAlong(op.x->type, op.axis);
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
