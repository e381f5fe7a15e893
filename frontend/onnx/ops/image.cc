// Sampling and rearranging of images: GridSample, AffineGrid, CenterCropPad and Col2Im. Sizes may be known to the run
// alone.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/interpolation.h"
#include "frontend/onnx/ops/math.h"
#include "frontend/onnx/ops/window.h"

namespace llmc {
namespace {

Value* FloatOf(OnnxNode& n, const Dim& size, DType dtype) { return n.CastTo(SizeAsScalar(n, size), dtype); }

// Element i of a list of integers, as i64[].
Value* IntegerOf(OnnxNode& n, Value* list, size_t i) {
  const int64_t at = static_cast<int64_t>(i);
  return n.CastTo(n.ReshapeTo(n.SliceOf(list, 0, Dim(at), Dim(at + 1)), {}), DType::kI64);
}

// The number of sizes in a list, which must be known.
size_t CountSizes(OnnxNode& n, size_t input, absl::string_view what) {
  const std::optional<int64_t> count = ListLength(n.in(input));
  if (!IsInteger(DTypeOf(n.in(input))) || RankOf(n.in(input)) != 1) {
    n.Invalid(absl::StrCat(what, " must be a row of integers"));
  } else if (!count.has_value()) {
    n.Unsupported(absl::StrCat("the length of ", what, " must be known before the run"));
  }
  return n.ok() ? static_cast<size_t>(*count) : 0;
}

Value* ProductOf(OnnxNode& n, const std::vector<Value*>& sizes) {
  Value* product = n.Scalar(DType::kI64, 1);
  for (Value* size : sizes) product = Map<Mul>(n, product, size);
  return product;
}

// i64[number of sizes]
Value* Shape1(OnnxNode& n, const std::vector<Value*>& sizes) {
  std::vector<Value*> parts;
  for (Value* size : sizes) parts.push_back(n.ReshapeTo(size, {Dim(1)}));
  return n.Emit(Concat{.parts = std::move(parts), .axis = 0});
}

// ---- crop and pad -------------------------------------------------------------------

// Around the middle: each element of the result is one of the input, or zero beside it.
void ImportCenterCropPad(OnnxNode& n) {
  Value* x = n.in(0);
  const int rank = RankOf(x);
  std::vector<int64_t> axes = n.Ints("axes");
  if (axes.empty()) axes = CountTo(rank);
  if (ListLength(n.in(1)).value_or(axes.size()) != static_cast<int64_t>(axes.size()) || RankOf(n.in(1)) != 1 ||
      !IsInteger(DTypeOf(n.in(1)))) {
    return n.Invalid(absl::StrCat("shape must be ", axes.size(), " integers, not ", n.in(1)->type.ToString()));
  }
  std::vector<int64_t> seen;
  for (size_t i = 0; i < axes.size() && n.ok(); ++i) {
    const int64_t axis = n.NormalizeAxis(axes[i], rank);
    if (!n.ok()) return;
    if (std::find(seen.begin(), seen.end(), axis) != seen.end()) return n.Invalid("an axis is given twice");
    seen.push_back(axis);
    const Dim from = x->type.shape[static_cast<size_t>(axis)];
    Value *size = SizeAsScalar(n, from), *target = IntegerOf(n, n.in(1), i);
    if (n.ok() && target->contents.has_value() && (*target->contents)[0] == from) continue;
    const auto half = [&](Value* more, Value* less) { return Map<Div>(n, Map<Max>(n, Map<Sub>(n, more, less), 0), 2); };
    Value* at = Map<Add>(n, PositionsBelow(n, target), Map<Sub>(n, half(size, target), half(target, size)));
    Value* last = Map<Sub>(n, size, 1);
    Value* inside = Map<And>(n, Map<LessEqual>(n, n.Scalar(DType::kI64, 0), at), Map<LessEqual>(n, at, last));
    x = GatherAlong(n, x, Map<Max>(n, Map<Min>(n, at, last), 0), axis);
    x = Select(n, Along(n, inside, axis, rank), x, n.Scalar(DTypeOf(x), 0));
  }
  n.Set(0, x);
}

// ---- grids --------------------------------------------------------------------------

// theta[N, k, k + 1] applied to the places, from -1 to 1, of every element of an image: [N, image…, k], x first.
void ImportAffineGrid(OnnxNode& n) {
  const bool corners = n.Int("align_corners", 0) != 0;
  const size_t sizes = CountSizes(n, 1, "size");
  if (!n.ok()) return;
  if (sizes != 4 && sizes != 5) return n.Invalid(absl::StrCat("size must be 4 or 5 numbers, not ", sizes));
  const size_t spatial = sizes - 2;
  const int rank = static_cast<int>(spatial) + 2;
  const DType dtype = DTypeOf(n.in(0));
  if (RankOf(n.in(0)) != 3 || !IsFloat(dtype)) return n.Invalid("theta must be floating-point of rank 3");
  const DType inner = dtype == DType::kF64 ? dtype : DType::kF32;
  Value* theta = n.CastTo(n.in(0), inner);
  const auto column = [&](size_t i) {  // [N, 1…, k]
    const int64_t at = static_cast<int64_t>(i);
    Dims shape(static_cast<size_t>(rank), Dim(1));
    shape.front() = DimsOfValue(theta)[0];
    shape.back() = Dim(static_cast<int64_t>(spatial));
    return n.ReshapeTo(n.SliceOf(theta, 2, Dim(at), Dim(at + 1)), std::move(shape));
  };
  Value* grid = column(spatial);
  for (size_t i = 0; i < spatial && n.ok(); ++i) {
    const size_t axis = spatial - i;  // of the result
    Value* size = IntegerOf(n, n.in(1), axis + 1);
    Value* at = n.CastTo(PositionsBelow(n, size), inner);
    Value* wide = n.CastTo(size, inner);
    if (corners) {
      at = Map<Sub>(n, Map<Div>(n, Map<Mul>(n, at, 2), Map<Max>(n, Map<Sub>(n, wide, 1), 1)), 1);
      at = Select(n, Map<Equal>(n, size, 1), n.Scalar(inner, 0), at);
    } else {
      at = Map<Sub>(n, Map<Div>(n, Map<Add>(n, Map<Mul>(n, at, 2), 1), wide), 1);
    }
    grid = Map<Add>(n, grid, Map<Mul>(n, column(i), Along(n, at, static_cast<int64_t>(axis), rank)));
  }
  n.Set(0, n.CastTo(grid, dtype));
}

struct Sampling {
  int taps = 2;  // elements of each axis that count for a place
  std::string padding;
  bool corners = false;
};

// One of the elements that count for a place, along one axis: f32[N, P].
struct Tap {
  Value* at = nullptr;      // its position
  Value* weight = nullptr;  // nullptr for 1
};

// Folded at the borders of the image, as often as needed.
Value* Reflected(OnnxNode& n, const Sampling& s, Value* x, Value* size) {
  const double low = s.corners ? 0 : -0.5;
  Value* range = s.corners ? Map<Sub>(n, size, 1) : size;
  Value* period = Map<Mul>(n, Map<Max>(n, range, 1e-6), 2);
  Value* from = Map<Fmod>(n, Map<Abs>(n, Map<Sub>(n, x, low)), period);
  Value* folded = Select(n, Map<Greater>(n, from, range), Map<Sub>(n, period, from), from);
  return Map<Add>(n, folded, low);
}

Value* Clamped(OnnxNode& n, Value* x, Value* size) { return Map<Max>(n, Map<Min>(n, x, Map<Sub>(n, size, 1)), 0); }

std::vector<Tap> TapsOf(OnnxNode& n, const Sampling& s, Value* place, Value* size) {
  place = Map<Add>(n, place, 1);
  Value* x = s.corners ? Map<Mul>(n, Map<Mul>(n, place, 0.5), Map<Sub>(n, size, 1))
                       : Map<Mul>(n, Map<Sub>(n, Map<Mul>(n, place, size), 1), 0.5);
  if (s.taps == 1) x = Map<Round>(n, x);
  // Of cubic ones each element is brought inside by itself, as in PyTorch.
  if (s.padding == "border" && s.taps < 4) x = Clamped(n, x, size);
  if (s.padding == "reflection") x = Reflected(n, s, x, size);
  if (s.taps == 1) return {{.at = Map<Round>(n, x)}};
  std::vector<Tap> taps;
  Value* floor = Map<Floor>(n, x);
  for (int k = 0; k < s.taps; ++k) {
    Value* at = Map<Add>(n, floor, static_cast<double>(k - s.taps / 2 + 1));
    Value* weight = InterpolationWeight(n, s.taps == 4, -0.75, Map<Sub>(n, x, at));
    taps.push_back({.at = at, .weight = weight});
  }
  return taps;
}

// x[N, image, C] at flat positions f32[N, P]: [N, P, C].
Value* Sampled(OnnxNode& n, Value* x, Value* flat) {
  if (!n.ok()) return nullptr;
  Dims shape = flat->type.shape;
  shape.push_back(Dim(1));
  return n.Emit(GatherNd{.x = x, .indices = n.ReshapeTo(flat, std::move(shape)), .batch_dims = 1});
}

// How the node samples; reports what is wrong or not supported, after which n.ok() is false.
Sampling SamplingOf(OnnxNode& n) {
  const std::string mode = n.String("mode", "linear");
  Sampling s{.padding = n.String("padding_mode", "zeros"), .corners = n.Int("align_corners", 0) != 0};
  const auto check = [&] {
    if (mode == "nearest") {
      s.taps = 1;
    } else if (mode == "cubic" || mode == "bicubic") {
      s.taps = 4;
    } else if (mode != "linear" && mode != "bilinear") {
      return n.Invalid(absl::StrCat("mode \"", mode, "\" is unknown"));
    }
    if (s.padding != "zeros" && s.padding != "border" && s.padding != "reflection") {
      return n.Invalid(absl::StrCat("padding_mode \"", s.padding, "\" is unknown"));
    }
    const int rank = RankOf(n.in(0));
    if (rank < 3 || RankOf(n.in(1)) != rank) return n.Invalid("image and grid must have equal ranks of 3 or more");
    if (!IsFloat(DTypeOf(n.in(1)))) return n.Invalid("the grid must be floating-point");
    if (rank > (s.taps == 4 ? 4 : 5)) {
      return n.Unsupported("more than 3 spatial axes, or 2 of mode cubic, are not supported");
    }
    if (s.taps > 1 && !IsFloat(DTypeOf(n.in(0)))) {
      return n.Unsupported(absl::StrCat("mode \"", mode, "\" of integers is not supported"));
    }
    if (const Dim& last = n.in(1)->type.shape.back(); last.is_constant() && last.value() != rank - 2) {
      n.Invalid(absl::StrCat("the grid has ", last.value(), " coordinates for ", rank - 2, " axes"));
    }
  };
  check();
  return s;
}

void ImportGridSample(OnnxNode& n) {
  const Sampling s = SamplingOf(n);
  if (!n.ok()) return;
  const DType dtype = DTypeOf(n.in(0));
  const int rank = RankOf(n.in(0));
  const Dims image = n.in(0)->type.shape, grid = n.in(1)->type.shape;
  const Dim places = Product(Dims(grid.begin() + 1, grid.end() - 1));
  const size_t spatial = static_cast<size_t>(rank) - 2;
  const DType inner = dtype == DType::kF64 ? dtype : DType::kF32;
  Value* coordinates = n.CastTo(n.in(1), inner);
  // Combinations of the taps of all axes: flat position, weight and whether it is inside of the image.
  struct Point {
    Value *flat, *weight, *inside;
  };
  std::vector<Point> points = {{nullptr, nullptr, nullptr}};
  const auto product = [&]<class Op>(Op, Value* a, Value* b) {
    return a == nullptr || b == nullptr ? (a == nullptr ? b : a) : Map<Op>(n, a, b);
  };
  for (size_t i = 0; i < spatial && n.ok(); ++i) {
    const int64_t from_end = static_cast<int64_t>(spatial - 1 - i);  // the grid has the last axis first
    Value* place = n.ReshapeTo(n.SliceOf(coordinates, rank - 1, Dim(from_end), Dim(from_end + 1)), {grid[0], places});
    Value* size = FloatOf(n, image[i + 2], inner);
    std::vector<Point> more;
    for (const Tap& tap : TapsOf(n, s, place, size)) {
      Value* at = tap.at;
      Value* inside = nullptr;
      if (s.padding == "zeros") {
        inside = Map<Equal>(n, at, Clamped(n, at, size));
      } else if (s.padding == "reflection") {
        at = Map<Round>(n, Reflected(n, s, at, size));
      }
      at = n.CastTo(Clamped(n, at, size), DType::kI64);
      for (const Point& point : points) {
        Value* flat = at;
        if (point.flat != nullptr) flat = Map<Add>(n, Map<Mul>(n, point.flat, SizeAsScalar(n, image[i + 2])), at);
        more.push_back({flat, product(Mul{}, point.weight, tap.weight), product(And{}, point.inside, inside)});
      }
    }
    points = std::move(more);
  }
  if (!n.ok()) return;
  Value* x = s.taps == 1 ? n.in(0) : n.CastTo(n.in(0), inner);
  x = n.ReshapeTo(x, {image[0], image[1], Product(Dims(image.begin() + 2, image.end()))});
  x = n.TransposeBy(x, {0, 2, 1});
  Value* sum = nullptr;
  for (const Point& point : points) {
    const auto column = [&](Value* value) { return n.ReshapeTo(value, {grid[0], places, Dim(1)}); };
    Value* y = Sampled(n, x, point.flat);
    if (point.inside != nullptr) y = Select(n, column(point.inside), y, n.Scalar(DTypeOf(x), 0));
    if (point.weight != nullptr) y = Map<Mul>(n, y, column(point.weight));
    sum = sum == nullptr ? y : Map<Add>(n, sum, y);
  }
  Dims shape = {image[0], image[1]};
  shape.insert(shape.end(), grid.begin() + 1, grid.end() - 1);
  n.Set(0, n.CastTo(n.ReshapeTo(n.TransposeBy(sum, {0, 2, 1}), std::move(shape)), dtype));
}

// ---- blocks to an image -------------------------------------------------------------

// The blocks x[N, C * block, blocks] of an image, added where they overlap: [N, C, image…].
void ImportCol2Im(OnnxNode& n) {
  Value* x = n.in(0);
  const size_t spatial = CountSizes(n, 1, "image_shape");
  if (CountSizes(n, 2, "block_shape") != spatial) return n.Invalid("image_shape and block_shape differ in length");
  if (!n.ok()) return;
  if (RankOf(x) != 3 || spatial == 0 || spatial > 3)
    return n.Unsupported("only rank 3 and 1 to 3 spatial axes are supported");
  if (!IsFloat(DTypeOf(x)) && !IsInteger(DTypeOf(x))) return n.Unsupported("bool is not supported");
  const std::vector<int64_t> strides = SpatialAttr(n, "strides", spatial, 1);
  const std::vector<int64_t> dilations = SpatialAttr(n, "dilations", spatial, 1);
  const std::vector<int64_t> pads = SpatialAttr(n, "pads", 2 * spatial, 0);
  const int rank = static_cast<int>(2 * spatial);
  std::vector<Value*> image, block;
  Value *flat = nullptr, *inside = nullptr;
  for (size_t i = 0; i < spatial && n.ok(); ++i) {
    image.push_back(IntegerOf(n, n.in(1), i));
    block.push_back(IntegerOf(n, n.in(2), i));
    const double stride = static_cast<double>(strides[i]), dilation = static_cast<double>(dilations[i]);
    Value* reach = Map<Add>(n, Map<Mul>(n, Map<Sub>(n, block[i], 1), dilation), 1);
    Value* room = Map<Add>(n, image[i], static_cast<double>(pads[i] + pads[spatial + i]));
    Value* count = Map<Add>(n, Map<Div>(n, Map<Sub>(n, room, reach), stride), 1);
    // Axis i of the block, and of the blocks.
    const int64_t axis = static_cast<int64_t>(i);
    Value* in_block = Along(n, Map<Mul>(n, PositionsBelow(n, block[i]), dilation), axis, rank);
    Value* begin = Along(n, Map<Mul>(n, PositionsBelow(n, count), stride), axis + static_cast<int64_t>(spatial), rank);
    Value* at = Map<Sub>(n, Map<Add>(n, in_block, begin), static_cast<double>(pads[i]));
    Value* here = Map<And>(n, Map<GreaterEqual>(n, at, 0), Map<Less>(n, at, image[i]));
    flat = flat == nullptr ? at : Map<Add>(n, Map<Mul>(n, flat, image[i]), at);
    inside = inside == nullptr ? here : Map<And>(n, inside, here);
  }
  if (!n.ok()) return;
  Value *elements = ProductOf(n, image), *minus = n.Scalar(DType::kI64, -1);
  // What falls into the padding goes to an element that is cut off.
  Value* to = n.Emit(ReshapeTo{.x = Select(n, inside, flat, elements), .shape = n.Ints64({-1, 1})});
  Value* batch = SizeAsScalar(n, x->type.shape[0]);
  Value* channels = Map<Div>(n, SizeAsScalar(n, x->type.shape[1]), ProductOf(n, block));
  Value* rows = n.Emit(ReshapeTo{.x = x, .shape = Shape1(n, {Map<Mul>(n, batch, channels), minus})});
  rows = n.TransposeBy(rows, {1, 0});
  Value* room = Shape1(n, {Map<Add>(n, elements, 1), Map<Mul>(n, batch, channels)});
  Value* zeros = n.Emit(ExpandTo{.x = n.Scalar(DTypeOf(x), 0), .shape = room});
  Value* y = n.Emit(ScatterNd{.x = zeros, .indices = to, .updates = rows, .reduction = "add"});
  y = n.Emit(SliceBy{.x = y, .starts = n.Ints64({0}), .ends = n.ReshapeTo(elements, {Dim(1)}), .axes = n.Ints64({0})});
  std::vector<Value*> shape = {batch, channels};
  shape.insert(shape.end(), image.begin(), image.end());
  n.Set(0, n.Emit(ReshapeTo{.x = n.TransposeBy(y, {1, 0}), .shape = Shape1(n, shape)}));
}

constexpr OnnxOp kImageOps[] = {
    {"GridSample", 16, 2, 2, ImportGridSample,
     "1 to 3 spatial axes, 1 or 2 in mode cubic; integers in mode nearest only"},
    {"AffineGrid", 20, 2, 2, ImportAffineGrid},
    {"CenterCropPad", 18, 2, 2, ImportCenterCropPad},
    {"Col2Im", 18, 3, 3, ImportCol2Im, "1 to 3 spatial axes"},
};

}  // namespace

absl::Span<const OnnxOp> OnnxImageOps() { return kImageOps; }

}  // namespace llmc
