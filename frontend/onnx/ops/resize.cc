// Resize and Upsample. Each axis is interpolated by itself: nearest is a gather, and the others are products with a
// matrix [result, input] of weights. Both are computed in the graph from the scales, so that a run may give those.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/interpolation.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

struct ResizeMode {
  std::string mode, coordinates, nearest;
  double cubic_a = -0.75, extrapolation = 0;
  bool antialias = false, exclude_outside = false;

  bool crops() const { return coordinates == "tf_crop_and_resize"; }
};

// Numbers are f32[], but for `out`.
struct ResizeAxis {
  int64_t axis = 0;
  Dim in;  // the input's size
  Value* scale = nullptr;
  Value* out = nullptr;    // i64[]: the result's size
  Value* width = nullptr;  // the same before it was rounded
  Value* from = nullptr;   // of the region of interest, as parts of the input
  Value* to = nullptr;
  bool same = false;  // nothing to do
};

Value* FloatOf(OnnxNode& n, const Dim& size) { return n.CastTo(SizeAsScalar(n, size), DType::kF32); }

// Element i of a list.
Value* ElementOf(OnnxNode& n, Value* list, size_t i) {
  const int64_t at = static_cast<int64_t>(i);
  return n.ReshapeTo(n.SliceOf(list, 0, Dim(at), Dim(at + 1)), {});
}

// ---- sizes ------------------------------------------------------------------------

constexpr float kMostSize = static_cast<float>(int64_t{1} << 40);

// size * scale rounded down, if that is a dim.
std::optional<Dim> Scaled(OnnxNode& n, const Dim& size, float scale) {
  constexpr float kLargest = 1 << 20;
  if (size.is_constant()) {
    const float scaled = static_cast<float>(size.value()) * scale;
    if (!(scaled < kMostSize)) n.Invalid("the result is too large");
    return n.ok() ? Dim(static_cast<int64_t>(scaled)) : Dim(0);
  }
  const float inverse = std::round(1 / scale);
  if (scale == std::floor(scale) && scale <= kLargest) return size * Dim(static_cast<int64_t>(scale));
  if (1 / inverse == scale && inverse <= kLargest) return Dim::FloorDiv(size, Dim(static_cast<int64_t>(inverse)));
  return std::nullopt;
}

// Known scales are in `known`, others elements of `list`.
void SizeByScales(OnnxNode& n, const std::vector<double>& known, Value* list, std::vector<ResizeAxis>* axes) {
  for (size_t i = 0; i < axes->size() && n.ok(); ++i) {
    ResizeAxis& a = (*axes)[i];
    std::optional<Dim> out;
    if (list == nullptr) {
      const float scale = static_cast<float>(known[i]);
      if (!(scale > 0) || !std::isfinite(scale)) return n.Invalid(absl::StrCat("a scale is ", known[i]));
      a.scale = n.Scalar(DType::kF32, scale);
      a.same = scale == 1;
      out = Scaled(n, a.in, scale);
    } else {
      a.scale = n.CastTo(ElementOf(n, list, i), DType::kF32);
    }
    a.width = Map<Mul>(n, FloatOf(n, a.in), a.scale);
    a.out = out.has_value() ? SizeAsScalar(n, *out) : n.CastTo(Map<Floor>(n, a.width), DType::kI64);
  }
}

void SizeBySizes(OnnxNode& n, size_t input, std::vector<ResizeAxis>* axes) {
  Value* list = n.in(input);
  for (size_t i = 0; i < axes->size() && n.ok(); ++i) {
    ResizeAxis& a = (*axes)[i];
    if (list->contents.has_value()) {
      const Dim& out = (*list->contents)[i];
      if (out.is_constant() && out.value() < 0) return n.Invalid(absl::StrCat("a size is ", out.value()));
      a.out = SizeAsScalar(n, out);
      a.same = out == a.in;
    } else {
      a.out = n.CastTo(ElementOf(n, list, i), DType::kI64);
    }
    a.width = n.CastTo(a.out, DType::kF32);
    a.scale = Map<Div>(n, a.width, FloatOf(n, a.in));
  }
}

// The least or largest scale for all axes.
void KeepAspectRatio(OnnxNode& n, bool larger, size_t input, std::vector<ResizeAxis>* axes) {
  Value* scale = (*axes)[0].scale;
  for (const ResizeAxis& a : *axes) scale = larger ? Map<Max>(n, scale, a.scale) : Map<Min>(n, scale, a.scale);
  // The same in numbers, if all are known.
  const Value* list = n.in(input);
  float known = larger ? 0 : INFINITY;
  for (size_t i = 0; i < axes->size(); ++i) {
    const Dim out = list->contents.has_value() ? (*list->contents)[i] : Dim::Unknown();
    const Dim& in = (*axes)[i].in;
    const bool both = out.is_constant() && in.is_constant() && in.value() > 0;
    const float own = both ? static_cast<float>(out.value()) / static_cast<float>(in.value()) : NAN;
    known = std::isnan(known) || std::isnan(own) ? NAN : larger ? std::max(known, own) : std::min(known, own);
  }
  for (ResizeAxis& a : *axes) {
    a.scale = scale;
    a.width = Map<Mul>(n, FloatOf(n, a.in), scale);
    a.same = known == 1;
    if (std::isnan(known)) {
      a.out = n.CastTo(Map<Floor>(n, Map<Add>(n, a.width, 0.5)), DType::kI64);
    } else {
      const float size = std::floor(static_cast<float>(a.in.value()) * known + 0.5F);
      if (!(size < kMostSize)) return n.Invalid("the result is too large");
      a.out = SizeAsScalar(n, Dim(static_cast<int64_t>(size)));
    }
  }
}

// ---- places -----------------------------------------------------------------------

// Where the elements of the result lie in the input: f32[result].
Value* ResizePlaces(OnnxNode& n, const ResizeMode& m, const ResizeAxis& a) {
  Value* x = n.CastTo(PositionsBelow(n, a.out), DType::kF32);
  Value* last = Map<Sub>(n, FloatOf(n, a.in), 1);
  Value* is_one = Map<Equal>(n, a.out, 1);
  const auto centered = [&] { return Map<Sub>(n, Map<Div>(n, Map<Add>(n, x, 0.5), a.scale), 0.5); };
  const auto stretched = [&](Value* length) {  // the first and last elements meet those of `length`
    Value* steps = Select(n, is_one, n.Scalar(DType::kF32, 1), Map<Sub>(n, a.width, 1));
    return Map<Div>(n, Map<Mul>(n, x, length), steps);
  };
  if (m.coordinates == "half_pixel") return centered();
  if (m.coordinates == "pytorch_half_pixel") return Select(n, is_one, n.Scalar(DType::kF32, 0), centered());
  if (m.coordinates == "asymmetric") return Map<Div>(n, x, a.scale);
  if (m.coordinates == "align_corners") return stretched(last);
  if (m.coordinates == "tf_half_pixel_for_nn") return Map<Div>(n, Map<Add>(n, x, 0.5), a.scale);
  if (m.coordinates == "half_pixel_symmetric") {
    Value* adjustment = Map<Div>(n, n.CastTo(a.out, DType::kF32), a.width);
    Value* offset = Map<Mul>(n, Map<Mul>(n, FloatOf(n, a.in), 0.5), Map<Sub>(n, 1, adjustment));
    return Map<Add>(n, offset, centered());
  }
  if (m.crops()) {
    Value* length = Map<Mul>(n, Map<Sub>(n, a.to, a.from), last);
    Value* inside = Select(n, is_one, Map<Mul>(n, length, 0.5), stretched(length));
    return Map<Add>(n, Map<Mul>(n, a.from, last), inside);
  }
  n.Invalid(absl::StrCat("coordinate_transformation_mode \"", m.coordinates, "\" is unknown"));
  return nullptr;
}

Value* Nearest(OnnxNode& n, const ResizeMode& m, const ResizeAxis& a, Value* x, Value* places) {
  Value* at = nullptr;
  if (m.nearest == "round_prefer_floor") {
    at = Map<Ceil>(n, Map<Sub>(n, places, 0.5));
  } else if (m.nearest == "round_prefer_ceil") {
    // A tie stays one where the rounding of the scale moves it down by 1e-6, as in ONNX Runtime.
    at = Map<Floor>(n, Map<Add>(n, places, 0.500001));
  } else if (m.nearest == "floor") {
    at = Map<Floor>(n, places);
  } else if (m.nearest == "ceil") {
    at = Map<Ceil>(n, places);
  } else if (m.nearest == "simple") {
    at = Select(n, Map<Less>(n, a.scale, 1), Map<Ceil>(n, places), Map<Floor>(n, places));
  } else {
    n.Invalid(absl::StrCat("nearest_mode \"", m.nearest, "\" is unknown"));
  }
  at = Map<Max>(n, Map<Min>(n, at, Map<Sub>(n, FloatOf(n, a.in), 1)), 0);
  return GatherAlong(n, x, n.CastTo(at, DType::kI64), a.axis);
}

// ---- weights ----------------------------------------------------------------------

// f32[result, input]. What lies outside of the input counts for the element at its edge, or not at all.
Value* Weights(OnnxNode& n, const ResizeMode& m, const ResizeAxis& a, Value* places) {
  const auto numbers = [&](const Dim& size) { return n.CastTo(PositionsAlong(n, size, 1, 2), DType::kF32); };
  const Dim zero(0);
  Value* x = Along(n, places, 0, 2);
  Value* columns = numbers(a.in);
  Value* last = Map<Sub>(n, FloatOf(n, a.in), 1);
  // The kernel becomes wider than its 2 or 4 elements where it must not skip any.
  Value* scale = m.antialias ? Map<Min>(n, a.scale, 1) : nullptr;
  const auto kernel = [&](Value* at) {
    Value* distance = Map<Sub>(n, at, x);
    if (scale != nullptr) distance = Map<Mul>(n, distance, scale);
    return InterpolationWeight(n, m.mode == "cubic", m.cubic_a, distance);
  };
  Value* weights = kernel(columns);
  if (!m.exclude_outside) {
    // No kernel reaches further than 2 / scale elements, and there are scale * in results.
    const Dim reach = m.antialias ? a.in * Dim(2) + Dim(4) : Dim(4);
    Value* below = kernel(Map<Sub>(n, numbers(reach), FloatOf(n, reach)));
    Value* above = kernel(Map<Add>(n, numbers(reach), FloatOf(n, a.in)));
    const auto at_edge = [&](Value* outside, Value* edge) {
      Value* sum = ReduceOver<ReduceSum>(n, outside, {1});
      return Select(n, Map<Equal>(n, columns, edge), sum, n.Scalar(DType::kF32, 0));
    };
    weights = Map<Add>(n, weights, at_edge(below, n.Scalar(DType::kF32, 0)));
    weights = Map<Add>(n, weights, at_edge(above, last));
  }
  return Map<Div>(n, weights, ReduceOver<ReduceSum>(n, weights, {1}));
}

void ResizeAxes(OnnxNode& n, const ResizeMode& m, const std::vector<ResizeAxis>& axes) {
  const DType dtype = DTypeOf(n.in(0));
  const int rank = RankOf(n.in(0));
  const bool nearest = m.mode == "nearest";
  if (!nearest && m.mode != "linear" && m.mode != "cubic")
    return n.Invalid(absl::StrCat("mode \"", m.mode, "\" is unknown"));
  if (!nearest && !IsFloat(dtype))
    return n.Unsupported(absl::StrCat("mode \"", m.mode, "\" of integers is not supported"));
  if (nearest && m.antialias) return n.Invalid("antialias is of the modes linear and cubic");
  Value* x = nearest || dtype == DType::kF64 ? n.in(0) : n.CastTo(n.in(0), DType::kF32);
  Value* outside = nullptr;
  for (const ResizeAxis& a : axes) {
    if (a.same || !n.ok()) continue;
    Value* places = ResizePlaces(n, m, a);
    x = nearest ? Nearest(n, m, a, x, places)
                : ProductAlong(n, n.CastTo(Weights(n, m, a, places), DTypeOf(x)), x, a.axis);
    if (!m.crops()) continue;
    Value* last = Map<Sub>(n, FloatOf(n, a.in), 1);
    Value* beyond = Along(n, Map<Or>(n, Map<Less>(n, places, 0), Map<Greater>(n, places, last)), a.axis, rank);
    outside = outside == nullptr ? beyond : Map<Or>(n, outside, beyond);
  }
  x = n.CastTo(x, dtype);
  n.Set(0, outside == nullptr ? x : Select(n, outside, n.Scalar(dtype, m.extrapolation), x));
}

// ---- the operators ----------------------------------------------------------------

std::vector<ResizeAxis> ResizeAxesOf(OnnxNode& n) {
  const int rank = RankOf(n.in(0));
  std::vector<int64_t> numbers = n.Ints("axes");
  if (numbers.empty()) numbers = CountTo(rank);
  std::vector<ResizeAxis> axes;
  for (int64_t number : numbers) {
    ResizeAxis a{.axis = n.NormalizeAxis(number, rank)};
    const bool twice = std::any_of(axes.begin(), axes.end(), [&](const ResizeAxis& b) { return a.axis == b.axis; });
    if (twice) n.Invalid("an axis is given twice");
    if (!n.ok()) return {};
    a.in = n.in(0)->type.shape[static_cast<size_t>(a.axis)];
    axes.push_back(a);
  }
  return axes;
}

// Whether an input is a list of `count` numbers; an empty one counts as absent.
bool HasList(OnnxNode& n, size_t i, size_t count, absl::string_view what) {
  if (!n.has(i)) return false;
  const std::optional<int64_t> length = ListLength(n.in(i));
  if (RankOf(n.in(i)) == 1 && length == 0) return false;
  if (RankOf(n.in(i)) != 1 || length.value_or(static_cast<int64_t>(count)) != static_cast<int64_t>(count)) {
    n.Invalid(absl::StrCat(what, " must be ", count, " numbers, not ", n.in(i)->type.ToString()));
  }
  return n.ok();
}

// Scales that an input holds.
void ReadScales(OnnxNode& n, size_t i, std::vector<ResizeAxis>* axes) {
  if (!IsFloat(DTypeOf(n.in(i)))) return n.Invalid("scales must be floating-point numbers");
  const Tensor* literal = n.Literal(i);
  std::vector<double> known;
  for (int64_t k = 0; literal != nullptr && k < literal->size(); ++k) known.push_back(literal->GetFloat(k));
  SizeByScales(n, known, literal == nullptr ? n.in(i) : nullptr, axes);
}

void ReadRegion(OnnxNode& n, std::vector<ResizeAxis>* axes) {
  if (!HasList(n, 1, 2 * axes->size(), "roi")) return n.Invalid("tf_crop_and_resize needs roi");
  const Tensor* literal = n.Literal(1);
  for (size_t i = 0; i < axes->size(); ++i) {
    const size_t end = axes->size() + i;
    ResizeAxis& a = (*axes)[i];
    a.from = n.CastTo(ElementOf(n, n.in(1), i), DType::kF32);
    a.to = n.CastTo(ElementOf(n, n.in(1), end), DType::kF32);
    a.same &= literal != nullptr && literal->GetFloat(static_cast<int64_t>(i)) == 0 &&
              literal->GetFloat(static_cast<int64_t>(end)) == 1;
  }
}

void ImportResize(OnnxNode& n) {
  ResizeMode m{.mode = n.String("mode", "nearest"), .coordinates = "asymmetric", .nearest = "simple"};
  std::vector<ResizeAxis> axes = ResizeAxesOf(n);
  if (!n.ok()) return;
  if (axes.empty()) return n.Set(0, n.in(0));
  if (n.opset() < 11) {
    if (!HasList(n, 1, axes.size(), "scales")) return n.Invalid("scales are missing");
    ReadScales(n, 1, &axes);
    return ResizeAxes(n, m, axes);
  }
  m.coordinates = n.String("coordinate_transformation_mode", "half_pixel");
  m.nearest = n.String("nearest_mode", "round_prefer_floor");
  m.cubic_a = n.Float("cubic_coeff_a", -0.75);
  m.extrapolation = n.Float("extrapolation_value", 0);
  m.antialias = n.Int("antialias", 0) != 0;
  m.exclude_outside = n.Int("exclude_outside", 0) != 0;
  const std::string policy = n.String("keep_aspect_ratio_policy", "stretch");
  const bool by_sizes = HasList(n, 3, axes.size(), "sizes");
  if (by_sizes) {
    if (!IsInteger(DTypeOf(n.in(3)))) return n.Invalid("sizes must be integers");
    SizeBySizes(n, 3, &axes);
    if (policy == "not_larger" || policy == "not_smaller") {
      KeepAspectRatio(n, policy == "not_smaller", 3, &axes);
    } else if (policy != "stretch") {
      return n.Invalid(absl::StrCat("keep_aspect_ratio_policy \"", policy, "\" is unknown"));
    }
  } else if (HasList(n, 2, axes.size(), "scales")) {
    ReadScales(n, 2, &axes);
  } else {
    return n.Invalid("has neither scales nor sizes");
  }
  if (m.crops()) ReadRegion(n, &axes);
  for (ResizeAxis& a : axes) a.same &= m.coordinates != "tf_half_pixel_for_nn";  // moves by half an element
  ResizeAxes(n, m, axes);
}

void ImportUpsample(OnnxNode& n) {
  const std::string mode = n.String("mode", "nearest");
  const ResizeMode m{.mode = mode == "bilinear" ? "linear" : mode, .coordinates = "asymmetric", .nearest = "floor"};
  std::vector<ResizeAxis> axes = ResizeAxesOf(n);
  if (!n.ok()) return;
  if (n.opset() < 9) {
    const std::vector<double> scales = n.Floats("scales");
    if (scales.size() != axes.size()) return n.Invalid(absl::StrCat("scales must be ", axes.size(), " numbers"));
    SizeByScales(n, scales, nullptr, &axes);
  } else {
    if (!HasList(n, 1, axes.size(), "scales")) return n.Invalid("scales are missing");
    ReadScales(n, 1, &axes);
  }
  ResizeAxes(n, m, axes);
}

constexpr OnnxOp kResizeOps[] = {
    {"Resize", 10, 1, 4, ImportResize, "integers in mode nearest only"},
    {"Upsample", 7, 1, 2, ImportUpsample, "integers in mode nearest only"},
};

}  // namespace

Value* InterpolationWeight(OnnxNode& n, bool cubic, double a, Value* distance) {
  Value* d = Map<Abs>(n, distance);
  if (!cubic) return Map<Max>(n, Map<Sub>(n, 1, d), 0);
  const auto polynomial = [&](double c3, double c2, double c1, double c0) {
    Value* sum = Map<Add>(n, Map<Mul>(n, d, c3), c2);
    return Map<Add>(n, Map<Mul>(n, Map<Add>(n, Map<Mul>(n, sum, d), c1), d), c0);
  };
  Value* zero = n.Scalar(DTypeOf(d), 0);
  Value* outer = Select(n, Map<Less>(n, d, 2), polynomial(a, -5 * a, 8 * a, -4 * a), zero);
  return Select(n, Map<LessEqual>(n, d, 1), polynomial(a + 2, -(a + 3), 0, 1), outer);
}

absl::Span<const OnnxOp> OnnxResizeOps() { return kResizeOps; }

}  // namespace llmc
