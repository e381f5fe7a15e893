// Slices, gathers and positions.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

// The place that a bound of a forward slice names in an axis of `size`, if that is certain before the run.
std::optional<Dim> ClampedBound(const Dim& bound, const Dim& size) {
  if (bound == size || bound == Dim(0)) return bound;
  if (!bound.is_constant()) return std::nullopt;
  const int64_t value = bound.value();
  if (size.is_constant()) return Dim(std::clamp<int64_t>(value < 0 ? value + size.value() : value, 0, size.value()));
  // Larger than any size: the idiom for "to the end".
  if (value >= std::numeric_limits<int32_t>::max()) return size;
  return std::nullopt;
}

// The slice as `slice` ops, if all bounds are certain; nullptr otherwise.
Value* StaticSlice(OnnxNode& n, Value* x, const Dims& starts, const Dims& ends, const std::vector<int64_t>& axes) {
  std::vector<std::pair<Dim, Dim>> bounds;
  for (size_t i = 0; i < axes.size(); ++i) {
    const Dim& size = x->type.shape[static_cast<size_t>(axes[i])];
    auto start = ClampedBound(starts[i], size);
    auto end = ClampedBound(ends[i], size);
    if (!start.has_value() || !end.has_value()) return nullptr;
    if (start->is_constant() && end->is_constant() && end->value() < start->value()) end = start;
    if (!end->is_constant() && *start != Dim(0) && *start != *end) return nullptr;
    bounds.emplace_back(*start, *end);
  }
  for (size_t i = 0; i < axes.size(); ++i) x = n.SliceOf(x, axes[i], bounds[i].first, bounds[i].second);
  return x;
}

// As it was before opset 10.
void SliceByAttributes(OnnxNode& n) {
  const std::vector<int64_t> starts = n.Ints("starts"), ends = n.Ints("ends");
  std::vector<int64_t> axes = n.Ints("axes");
  if (axes.empty()) axes = CountTo(static_cast<int64_t>(starts.size()));
  if (starts.size() != ends.size() || starts.size() != axes.size()) {
    return n.Invalid("starts, ends and axes differ in length");
  }
  n.Set(0, n.Emit(SliceBy{.x = n.in(0), .starts = n.Ints64(starts), .ends = n.Ints64(ends), .axes = n.Ints64(axes)}));
}

void ImportSlice(OnnxNode& n) {
  Value* x = n.in(0);
  if (n.opset() < 10) return SliceByAttributes(n);
  if (!n.has(1) || !n.has(2)) return n.Invalid("starts or ends are missing");
  Value* starts = n.AsI64(1);
  Value* ends = n.AsI64(2);
  Value* axes = n.AsI64(3);
  Value* steps = n.AsI64(4);
  if (!n.ok()) return;
  const bool forward =
      !n.has(4) || (steps->contents.has_value() && std::all_of(steps->contents->begin(), steps->contents->end(),
                                                               [](const Dim& step) { return step == Dim(1); }));
  const bool axes_known = !n.has(3) || axes->contents.has_value();
  if (forward && axes_known && starts->contents.has_value() && ends->contents.has_value()) {
    std::vector<int64_t> chosen;
    if (n.has(3)) {
      for (int64_t axis : n.StaticInts(3, "axes")) chosen.push_back(n.NormalizeAxis(axis, RankOf(x)));
    } else {
      for (size_t i = 0; i < starts->contents->size(); ++i) {
        chosen.push_back(n.NormalizeAxis(static_cast<int64_t>(i), RankOf(x)));
      }
    }
    if (!n.ok()) return;
    if (chosen.size() != starts->contents->size() || chosen.size() != ends->contents->size()) {
      return n.Invalid("starts, ends and axes differ in length");
    }
    if (auto seen = n.NormalizeAxes(chosen, RankOf(x)); !n.ok()) return;
    Value* result = StaticSlice(n, x, *starts->contents, *ends->contents, chosen);
    if (result != nullptr || !n.ok()) return n.Set(0, result);
  }
  n.Set(0, n.Emit(SliceBy{.x = x, .starts = starts, .ends = ends, .axes = axes, .steps = steps}));
}

void ImportGather(OnnxNode& n) {
  n.Set(0, n.Emit(Gather{.x = n.in(0), .indices = n.in(1), .axis = n.Axis("axis", 0, RankOf(n.in(0)))}));
}

void ImportGatherElements(OnnxNode& n) {
  n.Set(0, n.Emit(GatherElements{.x = n.in(0), .indices = n.in(1), .axis = n.Axis("axis", 0, RankOf(n.in(0)))}));
}

// How many indices name an element must be known.
bool TupleIsKnown(OnnxNode& n) {
  const Dims shape = DimsOfValue(n.in(1));
  if (shape.empty() || shape.back().is_constant()) return true;
  n.Unsupported("the last dim of indices must be known before the run");
  return false;
}

void ImportGatherNd(OnnxNode& n) {
  if (!TupleIsKnown(n)) return;
  n.Set(0, n.Emit(GatherNd{.x = n.in(0), .indices = n.in(1), .batch_dims = n.Int("batch_dims", 0)}));
}

void ImportScatterNd(OnnxNode& n) {
  const std::string reduction = n.String("reduction", "none");
  if (!TupleIsKnown(n)) return;
  n.Set(0, n.Emit(ScatterNd{.x = n.in(0), .indices = n.in(1), .updates = n.in(2), .reduction = reduction}));
}

// Bounds of one element count as numbers, whatever their rank.
void ImportRange(OnnxNode& n) {
  const auto number = [&](size_t i) {
    const bool one = RankOf(n.in(i)) == 1 && n.in(i)->type.shape[0] == Dim(1);
    return one ? n.ReshapeTo(n.in(i), {}) : n.in(i);
  };
  n.Set(0, n.Emit(Range{.start = number(0), .limit = number(1), .delta = number(2)}));
}

void ImportTrilu(OnnxNode& n) {
  const bool upper = n.Int("upper", 1) != 0;
  if (n.has(1) && !n.IsKnown(1)) {
    Value* x = n.in(0);
    const int rank = RankOf(x);
    if (rank < 2) return n.Invalid("the input must have rank 2 or more");
    const Dims shape = DimsOfValue(x);
    Value* row = PositionsAlong(n, shape[shape.size() - 2], rank - 2, rank);
    Value* column = PositionsAlong(n, shape.back(), rank - 1, rank);
    Value* diagonal = Map<Add>(n, row, n.ReshapeTo(n.AsI64(1), {}));
    Value* kept = upper ? Map<GreaterEqual>(n, column, diagonal) : Map<LessEqual>(n, column, diagonal);
    return n.Set(0, Select(n, kept, x, n.Scalar(DTypeOf(x), 0)));
  }
  const int64_t diagonal = n.has(1) ? n.StaticInt(1, "k") : 0;
  n.Set(0, n.Emit(Triangle{.x = n.in(0), .upper = upper, .diagonal = diagonal}));
}

// ---- padding ----------------------------------------------------------------------

// One axis with `before` and `after` (i64[]) elements more, or less where they are negative: read at positions that the
// mode makes of those in the result. In mode "constant" a position outside reads an element that is put after the last.
Value* PadAxis(OnnxNode& n, Value* x, int64_t axis, Value* before, Value* after, const std::string& mode,
               Value* value) {
  if (!n.ok()) return nullptr;
  const Dim size = x->type.shape[static_cast<size_t>(axis)];
  Value* length = SizeAsScalar(n, size);
  Value* at = n.Emit(
      Range{.start = Map<Neg>(n, before), .limit = Map<Add>(n, length, after), .delta = n.Scalar(DType::kI64, 1)});
  if (mode == "edge") {
    at = Map<Max>(n, Map<Min>(n, at, Map<Sub>(n, length, 1)), 0);
  } else if (mode == "wrap") {
    at = Map<Mod>(n, at, length);
  } else if (mode == "reflect") {
    // There and back without the ends twice: positions repeat after 2 * (size - 1).
    Value* last = Map<Sub>(n, length, 1);
    Value* period = Map<Max>(n, Map<Mul>(n, last, 2), 1);
    at = Map<Sub>(n, last, Map<Abs>(n, Map<Sub>(n, Map<Mod>(n, at, period), last)));
  } else {
    Dims one = x->type.shape;
    one[static_cast<size_t>(axis)] = Dim(1);
    x = n.Emit(Concat{.parts = {x, n.Emit(Expand{.x = value, .shape = one})}, .axis = axis});
    Value* inside = Map<And>(n, Map<GreaterEqual>(n, at, 0), Map<Less>(n, at, length));
    at = Select(n, inside, at, length);
  }
  return GatherAlong(n, x, at, axis);
}

struct Pads {
  std::vector<int64_t> axes;
  std::vector<int64_t> known;  // before each axis, then after each
  Value* computed = nullptr;   // the same, if only a run tells
};

Pads ReadPads(OnnxNode& n) {
  Pads pads{.axes = CountTo(RankOf(n.in(0)))};
  if (n.opset() < 11) {
    pads.known = n.Ints("pads");
    return pads;
  }
  if (!n.has(1)) {
    n.Invalid("pads are missing");
    return pads;
  }
  if (n.HasSince(3, 18)) {
    pads.axes.clear();
    for (int64_t axis : n.StaticInts(3, "axes")) pads.axes.push_back(n.NormalizeAxis(axis, RankOf(n.in(0))));
  }
  if (n.IsKnown(1)) {
    pads.known = n.StaticInts(1, "pads");
  } else {
    pads.computed = n.AsI64(1);
  }
  return pads;
}

void ImportPad(OnnxNode& n) {
  Value* x = n.in(0);
  const std::string mode = n.String("mode", "constant");
  if (mode != "constant" && mode != "edge" && mode != "reflect" && mode != "wrap") {
    return n.Invalid(absl::StrCat("mode \"", mode, "\" is unknown"));
  }
  const Pads pads = ReadPads(n);
  if (!n.ok()) return;
  const size_t count = pads.axes.size();
  const auto given = pads.computed == nullptr ? std::optional<int64_t>(pads.known.size()) : ListLength(pads.computed);
  if (given.has_value() && *given != static_cast<int64_t>(2 * count)) {
    return n.Invalid("pads must hold two numbers for each axis");
  }
  const Tensor* literal = n.has(2) ? n.Literal(2) : nullptr;
  const bool negative = std::any_of(pads.known.begin(), pads.known.end(), [](int64_t pad) { return pad < 0; });
  if (mode == "constant" && pads.computed == nullptr && !negative && (!n.has(2) || literal != nullptr)) {
    if (literal != nullptr && literal->size() != 1) return n.Invalid("the value of the padding must be one number");
    std::vector<int64_t> before(DimsOfValue(x).size(), 0), after = before;
    for (size_t i = 0; i < count; ++i) {
      before[static_cast<size_t>(pads.axes[i])] = pads.known[i];
      after[static_cast<size_t>(pads.axes[i])] = pads.known[i + count];
    }
    const double value = literal != nullptr ? literal->GetFloat(0) : n.opset() < 11 ? n.Float("value", 0) : 0;
    return n.Set(0, n.Emit(Pad{.x = x, .before = std::move(before), .after = std::move(after), .value = value}));
  }
  Value* value = n.has(2) ? n.ReshapeTo(n.in(2), {}) : n.Scalar(DTypeOf(x), n.opset() < 11 ? n.Float("value", 0) : 0);
  for (size_t i = 0; i < count && n.ok(); ++i) {
    const auto amount = [&](size_t k) {
      if (pads.computed == nullptr) return n.Scalar(DType::kI64, static_cast<double>(pads.known[k]));
      return n.ReshapeTo(n.SliceOf(pads.computed, 0, Dim(static_cast<int64_t>(k)), Dim(static_cast<int64_t>(k) + 1)),
                         {});
    };
    if (pads.computed == nullptr && pads.known[i] == 0 && pads.known[i + count] == 0) continue;
    x = PadAxis(n, x, pads.axes[i], amount(i), amount(i + count), mode, value);
  }
  n.Set(0, x);
}

constexpr OnnxOp kIndexingOps[] = {
    {"Slice", 1, 1, 5, ImportSlice},
    {"Gather", 1, 2, 2, ImportGather},
    {"GatherElements", 11, 2, 2, ImportGatherElements},
    {"GatherND", 11, 2, 2, ImportGatherNd},
    {"ScatterND", 11, 3, 3, ImportScatterNd},
    {"Range", 11, 3, 3, ImportRange},
    {"Trilu", 14, 1, 2, ImportTrilu},
    {"Pad", 2, 1, 4, ImportPad},
};

}  // namespace

absl::Span<const OnnxOp> OnnxIndexingOps() { return kIndexingOps; }

}  // namespace llmc
