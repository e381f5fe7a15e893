// Reductions, running sums, and what is chosen by size.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

// ---- axes ---------------------------------------------------------------------

// What a node reduces over: axes known at import, or an input that holds them.
struct Axes {
  std::vector<int64_t> known;
  Value* flags = nullptr;  // i64[rank]: 1 where an axis is reduced, if only a run tells
  std::optional<int64_t> count;
  bool keep_dims = true;
};

// Axes are an attribute first, an input since `input_since`.
Axes ReadAxes(OnnxNode& n, int input_since) {
  const int rank = RankOf(n.in(0));
  Axes axes{.keep_dims = n.Int("keepdims", 1) != 0};
  const bool none_is_all = n.opset() < input_since || n.Int("noop_with_empty_axes", 0) == 0;
  if (n.HasSince(1, input_since) && ListLength(n.in(1)) != 0 && !n.IsKnown(1)) {
    Value* list = n.AsI64(1);
    axes.count = ListLength(list);
    axes.flags = AxisFlags(n, list, rank);
    if (!n.ok() || axes.count.has_value()) return axes;
    if (!axes.keep_dims) n.Unsupported("keepdims = 0 needs axes whose number is known before the run");
    if (!none_is_all) return axes;
    // No axes mean all of them.
    Value* none = Map<Equal>(n, SizeAsScalar(n, Product(list->type.shape)), 0);
    axes.flags = Map<Max>(n, axes.flags, n.CastTo(none, DType::kI64));
    return axes;
  }
  if (n.has(1) && ListLength(n.in(1)) != 0) axes.known = n.StaticInts(1, "axes");
  if (n.opset() < input_since) axes.known = n.Ints("axes");
  axes.known = n.NormalizeAxes(std::move(axes.known), rank);
  if (axes.known.empty() && none_is_all) axes.known = CountTo(rank);
  return axes;
}

// Reduces the axes that the flags name, one after the other, and keeps them with size 1: an axis is followed by its
// reduction, and one of both is cut out.
template <class Op>
Value* ReduceFlagged(OnnxNode& n, Value* x, Value* flags) {
  for (int64_t d = 0; d < RankOf(x) && n.ok(); ++d) {
    const Dim size = x->type.shape[static_cast<size_t>(d)];
    Value* both = n.Emit(Concat{.parts = {x, ReduceOver<Op>(n, x, {d})}, .axis = d});
    Value* flag = FlagOf(n, flags, d);
    Value* length = SizesAsRow(n, {size});
    x = n.Emit(SliceBy{
        .x = both, .starts = Map<Mul>(n, flag, length), .ends = Map<Add>(n, flag, length), .axes = n.Ints64({d})});
  }
  return x;
}

// With the reduced axes kept.
template <class Op>
Value* ReduceKeeping(OnnxNode& n, Value* x, const Axes& axes) {
  return axes.flags != nullptr ? ReduceFlagged<Op>(n, x, axes.flags) : ReduceOver<Op>(n, x, axes.known);
}

Value* WithoutReduced(OnnxNode& n, Value* x, const Axes& axes) {
  if (axes.keep_dims || !n.ok()) return x;
  if (axes.flags != nullptr) return DropAxes(n, x, axes.flags, axes.count.value_or(0));
  Dims shape = x->type.shape;
  for (size_t i = axes.known.size(); i-- > 0;) shape.erase(shape.begin() + axes.known[i]);
  return n.ReshapeTo(x, std::move(shape));
}

template <class Op>
Value* ReduceBy(OnnxNode& n, Value* x, const Axes& axes) {
  if (axes.flags == nullptr) return ReduceOver<Op>(n, x, axes.known, axes.keep_dims);
  return WithoutReduced(n, ReduceKeeping<Op>(n, x, axes), axes);
}

template <class Op, int input_since = 18>
void ImportReduce(OnnxNode& n) {
  n.Set(0, ReduceBy<Op>(n, n.in(0), ReadAxes(n, input_since)));
}

void ImportReduceSumSquare(OnnxNode& n) {
  n.Set(0, ReduceBy<ReduceSum>(n, Map<Mul>(n, n.in(0), n.in(0)), ReadAxes(n, 18)));
}

void ImportReduceL1(OnnxNode& n) { n.Set(0, ReduceBy<ReduceSum>(n, Map<Abs>(n, n.in(0)), ReadAxes(n, 18))); }

void ImportReduceL2(OnnxNode& n) {
  if (!IsFloat(DTypeOf(n.in(0)))) return n.Unsupported("integers are not supported");
  n.Set(0, Map<Sqrt>(n, ReduceBy<ReduceSum>(n, Map<Mul>(n, n.in(0), n.in(0)), ReadAxes(n, 18))));
}

void ImportReduceLogSum(OnnxNode& n) {
  if (!IsFloat(DTypeOf(n.in(0)))) return n.Unsupported("integers are not supported");
  n.Set(0, Map<Log>(n, ReduceBy<ReduceSum>(n, n.in(0), ReadAxes(n, 18))));
}

// log(sum(e^x)) with the largest x taken out, so that nothing overflows.
void ImportReduceLogSumExp(OnnxNode& n) {
  Value* x = n.in(0);
  if (!IsFloat(DTypeOf(x))) return n.Unsupported("integers are not supported");
  const Axes axes = ReadAxes(n, 18);
  Value* largest = ReduceKeeping<ReduceMax>(n, x, axes);
  largest = Select(n, Map<IsInf>(n, largest), n.Scalar(DTypeOf(x), 0), largest);
  Value* sum = ReduceKeeping<ReduceSum>(n, Map<Exp>(n, Map<Sub>(n, x, largest)), axes);
  n.Set(0, WithoutReduced(n, Map<Add>(n, Map<Log>(n, sum), largest), axes));
}

// ---- norms along an axis ----------------------------------------------------------

// A norm of zero leaves zeros.
void ImportLpNormalization(OnnxNode& n) {
  Value* x = n.in(0);
  const int64_t axis = n.Axis("axis", -1, RankOf(x));
  const int64_t p = n.Int("p", 2);
  if (p != 1 && p != 2) return n.Invalid("p must be 1 or 2");
  Value* norm = ReduceOver<ReduceSum>(n, p == 1 ? Map<Abs>(n, x) : Map<Mul>(n, x, x), {axis});
  if (p == 2) norm = Map<Sqrt>(n, norm);
  Value* zero = Map<Equal>(n, norm, 0);
  n.Set(0, Select(n, zero, n.Scalar(DTypeOf(x), 0), Map<Div>(n, x, norm)));
}

// (x - mean) / standard deviation
void ImportMeanVarianceNormalization(OnnxNode& n) {
  Value* x = n.in(0);
  std::vector<int64_t> axes = n.HasAttr("axes") ? n.Ints("axes") : std::vector<int64_t>{0, 2, 3};
  axes = n.NormalizeAxes(std::move(axes), RankOf(x));
  if (!n.ok()) return;
  Value* centered = Map<Sub>(n, x, ReduceOver<ReduceMean>(n, x, axes));
  Value* variance = ReduceOver<ReduceMean>(n, Map<Mul>(n, centered, centered), axes);
  // The format's own definition adds this to the deviation.
  n.Set(0, Map<Div>(n, centered, Map<Add>(n, Map<Sqrt>(n, variance), 1e-9)));
}

// ---- running sums -------------------------------------------------------------------

void ImportCumSum(OnnxNode& n) {
  Value* x = n.in(0);
  const bool exclusive = n.Int("exclusive", 0) != 0, reverse = n.Int("reverse", 0) != 0;
  const auto along = [&](int64_t axis) {
    return n.Emit(CumSum{.x = x, .axis = axis, .exclusive = exclusive, .reverse = reverse});
  };
  if (n.IsKnown(1)) return n.Set(0, along(n.NormalizeAxis(n.StaticInt(1, "axis"), RankOf(x))));
  if (RankOf(x) == 0) return n.Invalid("the input is a scalar");
  Value* flags = AxisFlags(n, n.AsI64(1), RankOf(x));
  Value* y = along(0);
  for (int64_t d = 1; d < RankOf(x); ++d) y = Select(n, Map<Equal>(n, FlagOf(n, flags, d), 1), along(d), y);
  if (n.ok() && y->type.shape != x->type.shape) y = n.ReshapeTo(y, x->type.shape);
  n.Set(0, y);
}

// ---- the largest ----------------------------------------------------------------------

// The order of integers turns around without overflow by the complement: -1 - x, or largest - x.
Value* OrderReversed(OnnxNode& n, Value* x) {
  const DType dtype = DTypeOf(x);
  if (IsFloat(dtype)) return Map<Neg>(n, x);
  return Map<Sub>(n, dtype == DType::kU8 ? 255 : -1, x);
}

void ArgMaxOf(OnnxNode& n, Value* x) {
  const bool last = n.Int("select_last_index", 0) != 0, keep_dims = n.Int("keepdims", 1) != 0;
  const int64_t axis = n.Axis("axis", 0, RankOf(x));
  if (!n.ok()) return;
  Value* at = n.Emit(ArgMax{.x = last ? Reversed(n, x, axis) : x, .axis = axis, .keep_dims = keep_dims});
  if (last && n.ok()) {
    Value* end = SizeAsScalar(n, x->type.shape[static_cast<size_t>(axis)] - Dim(1));
    at = Map<Sub>(n, end, at);
  }
  n.Set(0, at);
}

void ImportArgMax(OnnxNode& n) { ArgMaxOf(n, n.in(0)); }
void ImportArgMin(OnnxNode& n) { ArgMaxOf(n, OrderReversed(n, n.in(0))); }

// 1 at the first largest element, 0 elsewhere. Before opset 13 the axes from `axis` on were one.
void ImportHardmax(OnnxNode& n) {
  Value* x = n.in(0);
  const bool joined = n.opset() < 13;
  const int64_t axis = n.Axis("axis", joined ? 1 : -1, RankOf(x), joined);
  if (!n.ok()) return;
  const Dims shape = x->type.shape;
  const Dims before(shape.begin(), shape.begin() + axis), after(shape.begin() + axis, shape.end());
  if (joined) x = n.ReshapeTo(x, {Product(before), Product(after)});
  const int64_t along = joined ? 1 : axis;
  Value* at = n.Emit(ArgMax{.x = x, .axis = along, .keep_dims = true});
  Value* hit = Map<Equal>(n, at, PositionsAlong(n, DimsOfValue(x)[static_cast<size_t>(along)], along, RankOf(x)));
  n.Set(0, n.ReshapeTo(n.CastTo(hit, DTypeOf(x)), shape));
}

constexpr OnnxOp kReduceOps[] = {
    {"ReduceSum", 1, 1, 2, ImportReduce<ReduceSum, 13>},
    {"ReduceMean", 1, 1, 2, ImportReduce<ReduceMean>},
    {"ReduceMax", 1, 1, 2, ImportReduce<ReduceMax>},
    {"ReduceMin", 1, 1, 2, ImportReduce<ReduceMin>},
    {"ReduceProd", 1, 1, 2, ImportReduce<ReduceProd>},
    {"ReduceSumSquare", 1, 1, 2, ImportReduceSumSquare},
    {"ReduceL1", 1, 1, 2, ImportReduceL1},
    {"ReduceL2", 1, 1, 2, ImportReduceL2, "floating point"},
    {"ReduceLogSum", 1, 1, 2, ImportReduceLogSum, "floating point"},
    {"ReduceLogSumExp", 1, 1, 2, ImportReduceLogSumExp, "floating point"},
    {"LpNormalization", 1, 1, 1, ImportLpNormalization},
    {"MeanVarianceNormalization", 9, 1, 1, ImportMeanVarianceNormalization},
    {"CumSum", 11, 2, 2, ImportCumSum},
    {"ArgMax", 1, 1, 1, ImportArgMax},
    {"ArgMin", 1, 1, 1, ImportArgMin},
    {"Hardmax", 1, 1, 1, ImportHardmax},
};

}  // namespace

absl::Span<const OnnxOp> OnnxReduceOps() { return kReduceOps; }

}  // namespace llmc
