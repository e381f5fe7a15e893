#include "frontend/onnx/ops/math.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace llmc {

Value* SaturatingCast(OnnxNode& n, Value* x, DType to) {
  if (!IsFloat(DTypeOf(x)) || (to != DType::kF8E4M3 && to != DType::kF8E5M2)) return n.CastTo(x, to);
  const double largest = to == DType::kF8E4M3 ? 448 : 57344;
  return n.CastTo(Map<Max>(n, Map<Min>(n, x, largest), -largest), to);
}

std::vector<int64_t> CountTo(int64_t n) {
  std::vector<int64_t> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

Value* SizeAsScalar(OnnxNode& n, Dim size) {
  // What a formula makes of an empty axis may be less than 0, and is no dim then.
  if (size.is_constant() && size.value() < 0) return n.Scalar(DType::kI64, static_cast<double>(size.value()));
  return n.Emit(DimsOf{.values = {std::move(size)}, .scalar = true});
}
Value* SizesAsRow(OnnxNode& n, Dims sizes) { return n.Emit(DimsOf{.values = std::move(sizes)}); }

Value* Positions(OnnxNode& n, Dim size) { return PositionsBelow(n, SizeAsScalar(n, std::move(size))); }

Value* PositionsBelow(OnnxNode& n, Value* size) {
  return n.Emit(Range{.start = n.Scalar(DType::kI64, 0), .limit = size, .delta = n.Scalar(DType::kI64, 1)});
}

Value* Along(OnnxNode& n, Value* x, int64_t axis, int rank) {
  if (!n.ok()) return nullptr;
  if (axis < 0 || axis >= rank) {
    n.Invalid(absl::StrCat("what ", x->type.ToString(), " belongs to has only ", rank, " axes"));
    return nullptr;
  }
  Dims shape(static_cast<size_t>(rank), Dim(1));
  shape[static_cast<size_t>(axis)] = Product(x->type.shape);
  return n.ReshapeTo(x, std::move(shape));
}

Value* PositionsAlong(OnnxNode& n, Dim size, int64_t axis, int rank) {
  return Along(n, Positions(n, std::move(size)), axis, rank);
}

Value* AsMatrix(OnnxNode& n, Value* x, int64_t axis) {
  const Dims shape = DimsOfValue(x);
  return n.ReshapeTo(
      x, {Product(Dims(shape.begin(), shape.begin() + axis)), Product(Dims(shape.begin() + axis, shape.end()))});
}

Value* GatherAlong(OnnxNode& n, Value* x, Value* positions, int64_t axis) {
  return n.Emit(Gather{.x = x, .indices = positions, .axis = axis});
}

Value* ProductAlong(OnnxNode& n, Value* matrix, Value* x, int64_t axis) {
  if (!n.ok()) return nullptr;
  const Dims shape = x->type.shape;
  const auto at = shape.begin() + axis;
  const Dim outer = Product(Dims(shape.begin(), at)), inner = Product(Dims(at + 1, shape.end()));
  Dims result = shape;
  result[static_cast<size_t>(axis)] = matrix->type.shape[0];
  Value* y = axis + 1 == RankOf(x)
                 ? n.Emit(MatMul{.lhs = n.ReshapeTo(x, {outer, *at}), .rhs = matrix, .transpose_rhs = true})
                 : n.Emit(MatMul{.lhs = matrix, .rhs = n.ReshapeTo(x, {outer, *at, inner})});
  return n.ReshapeTo(y, std::move(result));
}

Value* Reversed(OnnxNode& n, Value* x, int64_t axis) {
  return n.Emit(SliceBy{.x = x,
                        .starts = n.Ints64({-1}),
                        .ends = n.Ints64({std::numeric_limits<int64_t>::min()}),
                        .axes = n.Ints64({axis}),
                        .steps = n.Ints64({-1})});
}

double LowestOf(DType dtype) {
  if (IsFloat(dtype)) return -INFINITY;
  if (dtype == DType::kBool || dtype == DType::kU8 || dtype == DType::kU4) return 0;
  return -std::ldexp(1.0, DTypeBits(dtype) - 1);
}

std::optional<int64_t> ListLength(const Value* list) {
  if (list == nullptr || list->type.rank() > 1) return std::nullopt;
  if (list->type.rank() == 0) return 1;
  return list->type.shape[0].is_constant() ? std::optional(list->type.shape[0].value()) : std::nullopt;
}

Value* AxisFlags(OnnxNode& n, Value* axes, int rank) {
  if (!n.ok()) return nullptr;
  Value* all = n.Ints64(CountTo(rank));
  // The gather makes negative axes positive, and checks them.
  Value* named = GatherAlong(n, all, n.ReshapeTo(axes, {Dim(1), Product(axes->type.shape)}), 0);
  Value* hits = n.CastTo(Map<Equal>(n, n.ReshapeTo(all, {Dim(rank), Dim(1)}), named), DType::kI64);
  return Map<Min>(n, ReduceOver<ReduceSum>(n, hits, {1}, false), 1);
}

Value* FlagOf(OnnxNode& n, Value* flags, int64_t axis) { return n.SliceOf(flags, 0, Dim(axis), Dim(axis + 1)); }

namespace {

// One row for each of `count` kept axes, with a 1 in the column of the axis that it is.
Value* KeptAxes(OnnxNode& n, Value* flags, int64_t count) {
  Value* kept = Map<Sub>(n, 1, flags);
  Value* rank = n.Emit(CumSum{.x = kept, .axis = 0, .exclusive = true});
  Value* hit = Map<Equal>(n, n.ReshapeTo(n.Ints64(CountTo(count)), {Dim(count), Dim(1)}), rank);
  return Map<Mul>(n, n.CastTo(hit, DType::kI64), kept);
}

}  // namespace

Value* DropAxes(OnnxNode& n, Value* x, Value* flags, int64_t count) {
  if (!n.ok()) return nullptr;
  const int64_t rank = x->type.rank() - count;
  if (rank < 0) {
    n.Invalid(absl::StrCat("axes has ", count, " elements for an input of rank ", x->type.rank()));
    return nullptr;
  }
  if (rank == 0) return n.ReshapeTo(x, {});
  Value* sizes = Map<Mul>(n, KeptAxes(n, flags, rank), n.Emit(ShapeOf{.x = x}));
  Value* shape = ReduceOver<ReduceSum>(n, sizes, {1}, false);
  return n.Emit(ReshapeTo{.x = x, .shape = shape, .allow_zero = true});
}

Value* InsertAxes(OnnxNode& n, Value* x, Value* flags, int64_t rank) {
  if (!n.ok()) return nullptr;
  const int64_t own = x->type.rank();
  Value* column = n.ReshapeTo(n.Emit(ShapeOf{.x = x}), {Dim(own), Dim(1)});
  Value* sizes = ReduceOver<ReduceSum>(n, Map<Mul>(n, KeptAxes(n, flags, own), column), {0}, false);
  if (own == 0) return n.ReshapeTo(x, Dims(static_cast<size_t>(rank), Dim(1)));
  return n.Emit(ReshapeTo{.x = x, .shape = Map<Add>(n, sizes, flags), .allow_zero = true});
}

}  // namespace llmc
