// Convolutions.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"
#include "frontend/onnx/ops/window.h"

namespace llmc {
namespace {

void ImportConv(OnnxNode& n) { n.Set(0, ConvByAttributes(n, n.in(0), n.in(1), n.in(2))); }

// ---- transposed convolution ---------------------------------------------------------

// The window and the pads of the transposed convolution; what pads cut off the full result.
struct TransposedWindow {
  OnnxWindow window;
  std::vector<int64_t> output_padding;
};

// Pads for an output of `wanted` elements: the full result has `full`.
void PadsFor(int64_t full, int64_t wanted, bool upper, size_t i, OnnxWindow* window) {
  // Rounded down: a total below zero, which makes the result larger, is split as one above it.
  const int64_t total = full - wanted, half = (total - (total % 2 != 0 && total < 0)) / 2;
  window->pads[i] = upper ? half : total - half;
  window->pads[window->spatial() + i] = upper ? total - half : half;
}

TransposedWindow ReadTransposed(OnnxNode& n, const Value* x, const Value* weight) {
  const size_t spatial = DimsOfValue(x).size() - 2;
  std::vector<int64_t> kernel = n.Ints("kernel_shape");
  const bool given = !kernel.empty();
  if (given && kernel.size() != spatial) n.Invalid("kernel_shape is not the weight's");
  for (size_t i = 0; i < spatial && n.ok(); ++i) {
    const Dim& size = weight->type.shape[i + 2];
    if (given && size.is_constant() && size.value() != kernel[i]) n.Invalid("kernel_shape is not the weight's");
    if (!given && !size.is_constant()) n.Unsupported("the size of the weight must be known; give kernel_shape");
    if (!given) kernel.push_back(size.value());
  }
  kernel.resize(spatial, 1);
  TransposedWindow t{.window = {.kernel = kernel,
                                .strides = SpatialAttr(n, "strides", spatial, 1),
                                .dilations = SpatialAttr(n, "dilations", spatial, 1),
                                .pads = SpatialAttr(n, "pads", 2 * spatial, 0)},
                     .output_padding = SpatialAttr(n, "output_padding", spatial, 0)};
  const std::string auto_pad = n.String("auto_pad", "NOTSET");
  const std::vector<int64_t> wanted = n.Ints("output_shape");
  if (!wanted.empty() && wanted.size() < spatial) n.Invalid("output_shape is too short");
  for (size_t i = 0; i < spatial && n.ok(); ++i) {
    const Dim& size = x->type.shape[i + 2];
    const int64_t stride = t.window.strides[i];
    const int64_t last = t.output_padding[i] + t.window.reach(i);  // the full result is stride * (size - 1) + last
    const bool upper = auto_pad == "SAME_UPPER";
    if (!wanted.empty()) {
      if (!size.is_constant()) return n.Unsupported("output_shape needs known sizes; give pads"), t;
      PadsFor(stride * (size.value() - 1) + last, wanted[wanted.size() - spatial + i], upper, i, &t.window);
    } else if (upper || auto_pad == "SAME_LOWER") {
      PadsFor(last, stride, upper, i, &t.window);  // stride * size elements
    } else if (auto_pad == "VALID") {
      t.window.pads[i] = t.window.pads[spatial + i] = 0;
    } else if (auto_pad != "NOTSET") {
      n.Invalid(absl::StrCat("auto_pad \"", auto_pad, "\" is unknown"));
    }
  }
  return t;
}

// stride - 1 zeros between the elements of an axis.
Value* Spaced(OnnxNode& n, Value* x, int64_t axis, int64_t stride) {
  if (stride == 1 || !n.ok()) return x;
  const size_t at = static_cast<size_t>(axis);
  Dims apart = x->type.shape, joined = x->type.shape;
  const Dim length = apart[at] * Dim(stride);
  apart.insert(apart.begin() + axis + 1, Dim(1));
  joined[at] = length;
  std::vector<int64_t> before(apart.size(), 0), after = before;
  after[at + 1] = stride - 1;
  x = n.Emit(Pad{.x = n.ReshapeTo(x, std::move(apart)), .before = before, .after = after});
  return n.SliceOf(n.ReshapeTo(x, std::move(joined)), axis, Dim(0), length - Dim(stride - 1));
}

// Zeros around an axis; negative numbers cut.
Value* Padded(OnnxNode& n, Value* x, int64_t axis, int64_t before, int64_t after) {
  if (!n.ok()) return nullptr;
  std::vector<int64_t> low(x->type.shape.size(), 0), high = low;
  low[static_cast<size_t>(axis)] = std::max<int64_t>(before, 0);
  high[static_cast<size_t>(axis)] = std::max<int64_t>(after, 0);
  if (before > 0 || after > 0) x = n.Emit(Pad{.x = x, .before = low, .after = high});
  if (!n.ok()) return nullptr;
  const Dim size = x->type.shape[static_cast<size_t>(axis)];
  return n.SliceOf(x, axis, Dim(std::max<int64_t>(-before, 0)), size - Dim(std::max<int64_t>(-after, 0)));
}

// The gradient of a convolution: a convolution of the spaced input with the flipped weight, inputs and outputs
// exchanged in each group.
void ImportConvTranspose(OnnxNode& n) {
  Value *x = n.in(0), *weight = n.in(1);
  const size_t rank = DimsOfValue(x).size();
  if (rank < 3 || DimsOfValue(weight).size() != rank) {
    return n.Invalid("input and weight must have equal ranks of 3 or more");
  }
  if (rank > 5) return n.Unsupported("more than 3 spatial axes are not supported");
  const int64_t groups = n.Int("group", 1);
  const TransposedWindow t = ReadTransposed(n, x, weight);
  if (groups < 1) return n.Invalid("group must be positive");
  if (!n.ok()) return;
  for (size_t i = 0; i < t.window.spatial(); ++i) {
    const int64_t axis = static_cast<int64_t>(i) + 2, edge = t.window.reach(i) - 1;
    x = Spaced(n, x, axis, t.window.strides[i]);
    x = Padded(n, x, axis, edge - t.window.before(i), edge - t.window.after(i) + t.output_padding[i]);
    weight = Reversed(n, weight, axis);
  }
  if (!n.ok()) return;
  const Dims shape = n.in(1)->type.shape;
  const Dim in = Dim::FloorDiv(shape[0], Dim(groups));
  Dims split = {Dim(groups), in, shape[1]}, joined = {shape[1] * Dim(groups), in};
  std::vector<int64_t> perm = {0, 2, 1};
  for (size_t i = 0; i < t.window.spatial(); ++i) {
    split.push_back(Dim(t.window.kernel[i]));
    joined.push_back(Dim(t.window.kernel[i]));
    perm.push_back(static_cast<int64_t>(i) + 3);
  }
  weight = n.TransposeBy(n.ReshapeTo(weight, std::move(split)), std::move(perm));
  n.Set(0, n.Emit(Conv{.x = x,
                       .weight = n.ReshapeTo(weight, std::move(joined)),
                       .bias = n.in(2),
                       .strides = std::vector<int64_t>(t.window.spatial(), 1),
                       .dilations = t.window.dilations,
                       .pads = std::vector<int64_t>(2 * t.window.spatial(), 0),
                       .groups = groups}));
}

constexpr OnnxOp kConvOps[] = {
    {"Conv", 1, 2, 3, ImportConv, "1 to 3 spatial axes"},
    {"ConvTranspose", 1, 2, 3, ImportConvTranspose, "1 to 3 spatial axes; output_shape needs known sizes"},
};

}  // namespace

absl::Span<const OnnxOp> OnnxConvOps() { return kConvOps; }

}  // namespace llmc
