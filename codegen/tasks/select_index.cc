// Elements and slices by index.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/movement.h"

namespace llmc {
namespace {

bool IsIndex(const Value* value) { return value->type.dtype == DType::kI32 || value->type.dtype == DType::kI64; }

// Pairs of elements of 4 bits are moved as bytes.
std::string MovedType(const Value* value) {
  return absl::StrCat("llmc::u", std::max<int64_t>(DTypeBits(value->type.dtype), 8));
}

std::optional<Misfit> IndexMisfit(const Node& node, const Value* x, const Value* indices) {
  if (!IsIndex(indices)) return NoKernel(node, "with indices of this type");
  if (DTypeBits(x->type.dtype) < 8) return NoKernel(node, "on elements of 4 bits");
  return std::nullopt;
}

void AddIndexDeviceError(const Node& node, KernelCall* call) {
  AddDeviceErrors({{absl::StrCat(node.op->info.name, ": index $0 is not in an axis of $1"), &node}}, call);
}

// Of the axes that a tuple of indices addresses.
SizeList Part(const SizeList& sizes, size_t begin, size_t count) {
  const auto first = sizes.begin() + static_cast<ptrdiff_t>(begin);
  return SizeList(first, first + static_cast<ptrdiff_t>(count));
}

// kTuple and the axes of tuples of `count` indices from axis `begin` of a tensor of `shape`.
std::string TupleArguments(const Dims& shape, size_t begin, size_t count, KernelCall* call) {
  call->constants = {{"kTuple", static_cast<int64_t>(count)}};
  const SizeList sizes = ToSizes(shape);
  return absl::StrCat(AxesText(Part(sizes, begin, count), call), ", ",
                      AxesText(Part(ContiguousStrides(sizes), begin, count), call));
}

ScatterJoin JoinOf(absl::string_view reduction) {
  if (reduction == "none") return kReplace;
  if (reduction == "add") return kAdd;
  if (reduction == "mul") return kMultiply;
  return reduction == "max" ? kMost : kLeast;
}

Size ProductFrom(const Dims& shape, size_t begin) {
  return ElementsOf(Dims(shape.begin() + static_cast<ptrdiff_t>(begin), shape.end()));
}

// Of one row of numbers of 16 bits in a step of one sequence, which a persistent launch can have: how many columns a
// block gets. 0: not such a row.
int64_t ColumnsOfBlock(const ProgramScope& scope, DType moved, const Size& rows, const Size& columns) {
  if (scope.decode != 1 || !scope.target.bulk_copies || DTypeBits(moved) != 16) return 0;
  if (!rows.has_dim() || !columns.is_number()) return 0;
  const absl::StatusOr<DimRange> range = rows.dim().Range(scope.bounds);
  if (!range.ok() || range->high != 1) return 0;
  constexpr int64_t kMostThreads = 1024;
  const int64_t of_block = (columns.number() + scope.target.sms - 1) / scope.target.sms;
  return of_block <= kMostThreads ? of_block : 0;
}

}  // namespace

Calls SelectGather(const Node& node, const ProgramScope& scope) {
  const auto op = View<Gather>(node);
  const Dims& shape = op.x->type.shape;
  if (!IsIndex(op.indices)) return NoKernel(node, "with indices of this type");
  const Size outer = ElementsOf(Dims(shape.begin(), shape.begin() + op.axis));
  Size inner = ProductFrom(shape, static_cast<size_t>(op.axis) + 1);
  const bool pairs = DTypeBits(op.x->type.dtype) == 4;
  if (pairs && !inner.IsMultipleOf(2)) return NoKernel(node, "on odd numbers of elements of 4 bits");
  if (pairs) inner = Size::FloorDiv(inner, 2);
  const DType moved = pairs ? DType::kU8 : op.x->type.dtype;
  int64_t vec = inner.is_number() && inner.number() > 0 ? VectorOf(inner.number(), moved) : 1;
  const Size count = ElementsOf(op.indices->type.shape);
  KernelCall call{.header = "movement/gather", .function = "Gather", .pdl = true};
  const std::string type = MovedType(op.x);
  call.types = {{"T", type}, {"Index", DeviceType(op.indices->type.dtype)}};
  // In a persistent launch each block has the columns of one row that products give it of theirs.
  const int64_t columns = ColumnsOfBlock(scope, moved, outer * count, inner);
  const bool is_row = columns > 0;
  int64_t vectors = call.threads;
  if (is_row) {
    vec = 1;
    vectors = columns;
    call.threads = static_cast<int>((vectors + 31) / 32 * 32);
  }
  call.constants = {{"kVec", vec}, {"kVectors", vectors}};
  call.params = {Out(node.results[0], "out", type),
                 In(op.x, "x", type),
                 In(op.indices, "indices"),
                 Count(outer, "outer"),
                 Count(count, "count"),
                 Count(shape[static_cast<size_t>(op.axis)], "axis"),
                 Count(inner, "inner")};
  AddIndexDeviceError(node, &call);
  call.arguments = "out, x, indices, outer, count, axis, inner, {device_error, first_device_error}";
  call.task = AsTask(call);
  if (is_row) {
    call.task->gives = {node.results[0]};
    call.task->columns = call.task->given_numbers = inner.number();
    call.task->block_columns = vectors;
  }
  call.grid[0] = Blocks(outer * count * Size::FloorDiv(inner, vec), vectors);
  return std::vector<DeviceCall>{call};
}

Calls SelectGatherElements(const Node& node, const ProgramScope&) {
  const auto op = View<GatherElements>(node);
  const Value* out = node.results[0];
  if (std::optional<Misfit> misfit = IndexMisfit(node, op.x, op.indices)) return *misfit;
  Place at = ContiguousPlace(op.x->type.shape);
  const Size stride = at.strides[static_cast<size_t>(op.axis)];
  at.strides[static_cast<size_t>(op.axis)] = Size(0);
  const Space space = Collapse({.sizes = ToSizes(out->type.shape), .places = {at}});
  KernelCall call{.header = "movement/index", .function = "GatherElements"};
  const std::string type = MovedType(op.x);
  call.types = {{"T", type}};
  call.params = {Out(out, "out", type), In(op.x, "x", type), In(op.indices, "indices"),
                 Count(ElementsOf(out->type.shape), "n")};
  AddIndexDeviceError(node, &call);
  const std::string axes = AxesText(space.sizes, &call);
  const std::string x = StridedText(absl::StrCat("const ", type), "x", space.places[0], &call);
  const std::string size = call.SizeText(Size(op.x->type.shape[static_cast<size_t>(op.axis)]));
  call.arguments = absl::StrCat("out, indices, n, ", axes, ",\n      ", x, ", ", size, ", ", call.SizeText(stride),
                                ", {device_error, first_device_error}");
  call.grid[0] = Blocks(ElementsOf(out->type.shape), call.threads);
  return std::vector<DeviceCall>{call};
}

Calls SelectGatherNd(const Node& node, const ProgramScope&) {
  const auto op = View<GatherNd>(node);
  const Value* out = node.results[0];
  const Dims &shape = node.operands[0]->type.shape, &list = node.operands[1]->type.shape;
  if (std::optional<Misfit> misfit = IndexMisfit(node, op.x, op.indices)) return *misfit;
  const size_t batch_dims = static_cast<size_t>(op.batch_dims), tuple = static_cast<size_t>(list.back().value());
  KernelCall call{.header = "movement/index", .function = "GatherNd"};
  const Size tuples = ElementsOf(Dims(list.begin() + op.batch_dims, list.end() - 1));
  const std::string type = MovedType(op.x);
  call.types = {{"T", type}};
  call.params = {Out(out, "out", type),
                 In(op.x, "x", type),
                 In(op.indices, "indices"),
                 Count(ElementsOf(out->type.shape), "n"),
                 Count(tuples, "tuples"),
                 Count(ProductFrom(shape, batch_dims + tuple), "inner"),
                 Count(ProductFrom(shape, batch_dims), "batch")};
  if (tuple == 0) return NoKernel(node, "with empty tuples");
  AddIndexDeviceError(node, &call);
  const std::string axes = TupleArguments(shape, batch_dims, tuple, &call);
  call.arguments =
      absl::StrCat("out, x, indices, n, tuples, inner, batch, ", axes, ", {device_error, first_device_error}");
  call.grid[0] = Blocks(ElementsOf(out->type.shape), call.threads);
  return std::vector<DeviceCall>{call};
}

Calls SelectScatterNd(const Node& node, const ProgramScope&) {
  const auto op = View<ScatterNd>(node);
  const Value* out = node.results[0];
  const Dims &shape = node.operands[0]->type.shape, &list = node.operands[1]->type.shape;
  if (std::optional<Misfit> misfit = IndexMisfit(node, op.x, op.indices)) return *misfit;
  const size_t tuple = static_cast<size_t>(list.back().value());
  if (tuple == 0) return NoKernel(node, "with empty tuples");
  const std::string type = op.reduction == "none" ? MovedType(op.x) : DeviceType(op.x->type.dtype);
  KernelCall call{.header = "movement/index", .function = "ScatterNd"};
  const Size inner = ProductFrom(shape, tuple);
  call.types = {{"T", type}};
  call.params = {Out(out, "out", type), In(op.updates, "updates", type), In(op.indices, "indices"),
                 Count(ElementsOf(Dims(list.begin(), list.end() - 1)), "tuples"), Count(inner, "inner")};
  AddIndexDeviceError(node, &call);
  const std::string axes = TupleArguments(shape, 0, tuple, &call);
  call.constants.emplace_back("kJoin", JoinOf(op.reduction));
  call.arguments = absl::StrCat("out, updates, indices, tuples, inner, ", axes, ", {device_error, first_device_error}");
  call.grid[0] = Blocks(inner, call.threads);
  return std::vector<DeviceCall>{CopyCall{.to = out, .from = op.x, .bytes = out->type.Bytes()}, call};
}

}  // namespace llmc
