// Pooling: every window becomes axes of its own, which are then reduced.
#include <algorithm>
#include <cmath>

#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"
#include "frontend/onnx/ops/window.h"

namespace llmc {
namespace {

std::vector<int64_t> SpatialAxes(OnnxNode& n, const Value* x) {
  std::vector<int64_t> axes = CountTo(RankOf(x));
  if (axes.size() < 3) {
    n.Invalid("the input must have rank 3 or more");
    return axes;
  }
  axes.erase(axes.begin(), axes.begin() + 2);
  return axes;
}

OnnxWindow PoolWindow(OnnxNode& n, const Value* x) {
  const std::vector<int64_t> kernel = n.Ints("kernel_shape");
  if (kernel.empty()) n.Invalid("kernel_shape is missing");
  return ReadWindow(n, x, SpatialAttr(n, "kernel_shape", SpatialAxes(n, x).size(), 1));
}

// x[N, C, spatial…] as [N, C, windows, kernel, windows, kernel, …], `value` outside of x.
struct Windows {
  Value* x = nullptr;
  std::vector<Value*> positions;  // of each axis: i64[windows, kernel], in the padded axis
  std::vector<int64_t> kernel_axes;
};

Windows CutWindows(OnnxNode& n, const OnnxWindow& window, Value* x, double value) {
  Windows cut;
  if (!n.ok()) return cut;
  std::vector<int64_t> before(2, 0), after(2, 0);
  bool padded = false;
  for (size_t i = 0; i < window.spatial(); ++i) {
    // Rounded up, the last window may reach beyond the padding.
    before.push_back(window.before(i));
    after.push_back(window.after(i) + (window.ceil ? window.strides[i] - 1 : 0));
    padded |= before.back() > 0 || after.back() > 0;
    cut.positions.push_back(WindowPositions(n, window, i, x->type.shape[i + 2]));
    cut.kernel_axes.push_back(2 * static_cast<int64_t>(i) + 3);
  }
  cut.x = padded ? n.Emit(Pad{.x = x, .before = before, .after = after, .value = value}) : x;
  for (size_t i = 0; i < window.spatial(); ++i) {
    cut.x = GatherAlong(n, cut.x, cut.positions[i], 2 * static_cast<int64_t>(i) + 2);
  }
  return cut;
}

// How many elements each window has: of x, or of x with its pads.
Value* WindowSizes(OnnxNode& n, const Dims& shape, const OnnxWindow& window, const Windows& cut, bool with_pads,
                   DType dtype) {
  Value* sizes = nullptr;
  for (size_t i = 0; i < window.spatial() && n.ok(); ++i) {
    const int64_t low = with_pads ? 0 : window.before(i);
    const Dim high = shape[i + 2] + Dim(window.before(i) + (with_pads ? window.after(i) : 0));
    Value* inside = Map<Less>(n, cut.positions[i], SizeAsScalar(n, high));
    inside = Map<And>(n, inside, Map<GreaterEqual>(n, cut.positions[i], static_cast<double>(low)));
    Value* count = ReduceOver<ReduceSum>(n, n.CastTo(inside, dtype), {1}, false);
    count = Along(n, count, static_cast<int64_t>(i), static_cast<int>(window.spatial()));
    sizes = sizes == nullptr ? count : Map<Mul>(n, sizes, count);
  }
  return sizes;
}

}  // namespace

Value* AveragePoolByAttributes(OnnxNode& n, Value* x) {
  const bool with_pads = n.Int("count_include_pad", 0) != 0;
  const OnnxWindow window = PoolWindow(n, x);
  const Windows cut = CutWindows(n, window, x, 0);
  if (!n.ok()) return nullptr;
  const bool whole = !window.ceil && (with_pads || std::all_of(window.pads.begin(), window.pads.end(),
                                                               [](int64_t pad) { return pad == 0; }));
  if (whole) return ReduceOver<ReduceMean>(n, cut.x, cut.kernel_axes, false);
  Value* sum = ReduceOver<ReduceSum>(n, cut.x, cut.kernel_axes, false);
  return Map<Div>(n, sum, WindowSizes(n, DimsOfValue(x), window, cut, with_pads, DTypeOf(sum)));
}

namespace {

void ImportAveragePool(OnnxNode& n) { n.Set(0, AveragePoolByAttributes(n, n.in(0))); }

// The flat position in x of each window's largest element.
Value* IndexOfLargest(OnnxNode& n, const OnnxWindow& window, const Windows& cut, bool column_major) {
  const size_t spatial = window.spatial();
  std::vector<int64_t> perm = {0, 1};
  for (size_t i = 0; i < spatial; ++i) perm.push_back(2 * static_cast<int64_t>(i) + 2);
  perm.insert(perm.end(), cut.kernel_axes.begin(), cut.kernel_axes.end());
  Value* rows = n.TransposeBy(cut.x, std::move(perm));
  if (!n.ok()) return nullptr;
  Dims shape(rows->type.shape.begin(), rows->type.shape.begin() + static_cast<int64_t>(spatial) + 2);
  int64_t elements = 1;
  for (int64_t size : window.kernel) elements *= size;
  shape.push_back(Dim(elements));
  Value* largest = n.Emit(ArgMax{.x = n.ReshapeTo(rows, shape), .axis = static_cast<int64_t>(spatial) + 2});
  const Dims x = n.in(0)->type.shape;
  const int rank = static_cast<int>(spatial) + 2;
  Dim plane(1);
  for (size_t i = 0; i < spatial; ++i) plane = plane * x[i + 2];
  Value* image = Map<Add>(n, Map<Mul>(n, PositionsAlong(n, x[0], 0, rank), SizeAsScalar(n, x[1])),
                          PositionsAlong(n, x[1], 1, rank));
  Value* index = Map<Mul>(n, image, SizeAsScalar(n, plane));
  int64_t inner = elements;
  for (size_t i = 0; i < spatial && n.ok(); ++i) {
    inner /= window.kernel[i];
    // The place in the window along this axis, then in x.
    Value* place = Map<Mod>(n, Map<Div>(n, largest, static_cast<double>(inner)), static_cast<double>(window.kernel[i]));
    place = Map<Mul>(n, place, static_cast<double>(window.dilations[i]));
    Value* starts = n.SliceOf(cut.positions[i], 1, Dim(0), Dim(1));
    starts = Map<Sub>(n, starts, static_cast<double>(window.before(i)));
    place = Map<Add>(n, place, Along(n, starts, static_cast<int64_t>(i) + 2, rank));
    Dim stride(1);
    for (size_t k = column_major ? 0 : i + 1; k < (column_major ? i : spatial); ++k) stride = stride * x[k + 2];
    index = Map<Add>(n, index, Map<Mul>(n, place, SizeAsScalar(n, stride)));
  }
  return index;
}

void ImportMaxPool(OnnxNode& n) {
  const bool column_major = n.Int("storage_order", 0) != 0;
  const OnnxWindow window = PoolWindow(n, n.in(0));
  const Windows cut = CutWindows(n, window, n.in(0), LowestOf(DTypeOf(n.in(0))));
  n.Set(0, ReduceOver<ReduceMax>(n, cut.x, cut.kernel_axes, false));
  if (n.wants(1)) n.Set(1, IndexOfLargest(n, window, cut, column_major));
}

// (sum |x|^p)^(1/p)
Value* Norm(OnnxNode& n, Value* x, int64_t p, std::vector<int64_t> axes, bool keep_dims) {
  if (p == 1) return ReduceOver<ReduceSum>(n, Map<Abs>(n, x), std::move(axes), keep_dims);
  if (p == 2) return Map<Sqrt>(n, ReduceOver<ReduceSum>(n, Map<Mul>(n, x, x), std::move(axes), keep_dims));
  const double power = static_cast<double>(p);
  Value* sum = ReduceOver<ReduceSum>(n, Map<Pow>(n, Map<Abs>(n, x), power), std::move(axes), keep_dims);
  return Map<Pow>(n, sum, 1 / power);
}

void ImportLpPool(OnnxNode& n) {
  const OnnxWindow window = PoolWindow(n, n.in(0));
  const Windows cut = CutWindows(n, window, n.in(0), 0);
  n.Set(0, Norm(n, cut.x, n.Int("p", 2), cut.kernel_axes, false));
}

void ImportGlobalAveragePool(OnnxNode& n) { n.Set(0, ReduceOver<ReduceMean>(n, n.in(0), SpatialAxes(n, n.in(0)))); }
void ImportGlobalMaxPool(OnnxNode& n) { n.Set(0, ReduceOver<ReduceMax>(n, n.in(0), SpatialAxes(n, n.in(0)))); }
void ImportGlobalLpPool(OnnxNode& n) { n.Set(0, Norm(n, n.in(0), n.Int("p", 2), SpatialAxes(n, n.in(0)), true)); }

// x / (bias + alpha / size * sum of squares of `size` channels around)^beta
void ImportLrn(OnnxNode& n) {
  Value* x = n.in(0);
  const int64_t size = n.Int("size", 0);
  const double alpha = n.Float("alpha", 1e-4f), beta = n.Float("beta", 0.75), bias = n.Float("bias", 1);
  constexpr int64_t kMaxSize = 1 << 12;
  if (RankOf(x) < 2 || size < 1 || size > kMaxSize) return n.Invalid("the input or the attribute size is out of range");
  std::vector<int64_t> before(DimsOfValue(x).size(), 0), after = before;
  before[1] = (size - 1) / 2;
  after[1] = size - 1 - before[1];
  Value* squares = n.Emit(Pad{.x = Map<Mul>(n, x, x), .before = before, .after = after});
  Value* windows = Map<Add>(n, Along(n, Positions(n, DimsOfValue(x)[1]), 0, 2),
                            n.ReshapeTo(n.Ints64(CountTo(size)), {Dim(1), Dim(size)}));
  Value* sum = ReduceOver<ReduceSum>(n, GatherAlong(n, squares, windows, 1), {2}, false);
  Value* scale = Map<Add>(n, Map<Mul>(n, sum, alpha / static_cast<double>(size)), bias);
  n.Set(0, Map<Div>(n, x, Map<Pow>(n, scale, beta)));
}

constexpr absl::string_view kCeil = "ceil_mode with padding needs known sizes";

constexpr OnnxOp kPoolOps[] = {
    {"AveragePool", 7, 1, 1, ImportAveragePool, kCeil},
    {"MaxPool", 1, 1, 1, ImportMaxPool, kCeil},
    {"LpPool", 2, 1, 1, ImportLpPool, kCeil},
    {"GlobalAveragePool", 1, 1, 1, ImportGlobalAveragePool},
    {"GlobalMaxPool", 1, 1, 1, ImportGlobalMaxPool},
    {"GlobalLpPool", 2, 1, 1, ImportGlobalLpPool},
    {"LRN", 1, 1, 1, ImportLrn},
};

}  // namespace

absl::Span<const OnnxOp> OnnxPoolOps() { return kPoolOps; }

}  // namespace llmc
