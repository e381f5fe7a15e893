// Slices, gathers and positions.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "frontend/onnx_ops.h"

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

void ImportSlice(OnnxNode& n) {
  Value* x = n.in(0);
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
  if (const std::string how = n.String("reduction", "none"); how != "none") {
    return n.Unsupported(absl::StrCat("reduction \"", how, "\" is not supported"));
  }
  if (!TupleIsKnown(n)) return;
  n.Set(0, n.Emit(ScatterNd{.x = n.in(0), .indices = n.in(1), .updates = n.in(2)}));
}

void ImportRange(OnnxNode& n) { n.Set(0, n.Emit(Range{.start = n.in(0), .limit = n.in(1), .delta = n.in(2)})); }

void ImportCumSum(OnnxNode& n) {
  const int64_t axis = n.NormalizeAxis(n.StaticInt(1, "axis"), RankOf(n.in(0)));
  n.Set(0,
        n.Emit(CumSum{
            .x = n.in(0), .axis = axis, .exclusive = n.Int("exclusive", 0) != 0, .reverse = n.Int("reverse", 0) != 0}));
}

void ImportTrilu(OnnxNode& n) {
  const int64_t diagonal = n.has(1) ? n.StaticInt(1, "k") : 0;
  n.Set(0, n.Emit(Triangle{.x = n.in(0), .upper = n.Int("upper", 1) != 0, .diagonal = diagonal}));
}

void ImportPad(OnnxNode& n) {
  if (const std::string mode = n.String("mode", "constant"); mode != "constant") {
    return n.Unsupported(absl::StrCat("mode \"", mode, "\" is not supported"));
  }
  const std::vector<int64_t> pads = n.StaticInts(1, "pads");
  double value = 0;
  if (n.has(2)) {
    const Tensor* literal = n.Literal(2);
    if (literal == nullptr || literal->size() != 1) return n.Unsupported("the value of the padding must be a constant");
    value = literal->GetFloat(0);
  }
  const size_t rank = static_cast<size_t>(RankOf(n.in(0)));
  std::vector<int64_t> axes;
  if (n.HasSince(3, 18)) {
    for (int64_t axis : n.StaticInts(3, "axes")) axes.push_back(n.NormalizeAxis(axis, static_cast<int>(rank)));
  } else {
    for (size_t i = 0; i < rank; ++i) axes.push_back(static_cast<int64_t>(i));
  }
  if (!n.ok()) return;
  if (pads.size() != 2 * axes.size()) return n.Invalid("pads must hold two numbers for each axis");
  std::vector<int64_t> before(rank, 0), after(rank, 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    before[static_cast<size_t>(axes[i])] = pads[i];
    after[static_cast<size_t>(axes[i])] = pads[i + axes.size()];
  }
  if (std::any_of(pads.begin(), pads.end(), [](int64_t pad) { return pad < 0; })) {
    return n.Unsupported("negative padding is not supported");
  }
  n.Set(0, n.Emit(Pad{.x = n.in(0), .before = std::move(before), .after = std::move(after), .value = value}));
}

void ArgMaxOf(OnnxNode& n, Value* x) {
  if (n.Int("select_last_index", 0) != 0) return n.Unsupported("select_last_index is not supported");
  const int64_t axis = n.Axis("axis", 0, RankOf(x));
  n.Set(0, n.Emit(ArgMax{.x = x, .axis = axis, .keep_dims = n.Int("keepdims", 1) != 0}));
}

void ImportArgMax(OnnxNode& n) { ArgMaxOf(n, n.in(0)); }

// The order of integers turns around without overflow by the complement: -1 - x, or largest - x.
void ImportArgMin(OnnxNode& n) {
  Value* x = n.in(0);
  const DType dtype = DTypeOf(x);
  if (!IsInteger(dtype)) return ArgMaxOf(n, n.Emit(Neg{.x = x}));
  ArgMaxOf(n, n.Emit(Sub{.lhs = n.Scalar(dtype, dtype == DType::kU8 ? 255 : -1), .rhs = x}));
}

constexpr OnnxOp kOps[] = {
    {"Slice", 10, 3, 5, ImportSlice},
    {"Gather", 1, 2, 2, ImportGather},
    {"GatherElements", 11, 2, 2, ImportGatherElements},
    {"GatherND", 11, 2, 2, ImportGatherNd},
    {"ScatterND", 11, 3, 3, ImportScatterNd},
    {"Range", 11, 3, 3, ImportRange},
    {"CumSum", 11, 2, 2, ImportCumSum},
    {"Trilu", 14, 1, 2, ImportTrilu},
    {"Pad", 11, 2, 4, ImportPad},
    {"ArgMax", 1, 1, 1, ImportArgMax},
    {"ArgMin", 1, 1, 1, ImportArgMin},
};

}  // namespace

absl::Span<const OnnxOp> OnnxIndexingOps() { return kOps; }

}  // namespace llmc
