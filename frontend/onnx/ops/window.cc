#include "frontend/onnx/ops/window.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

// SAME_UPPER and SAME_LOWER: as many outputs as strides fit in the input.
void SetSamePads(OnnxNode& n, const Dims& x, bool upper, OnnxWindow* window) {
  for (size_t i = 0; i < window->spatial(); ++i) {
    const Dim& size = x[i + 2];
    const int64_t stride = window->strides[i], reach = window->reach(i);
    int64_t total = reach - 1;
    if (stride != 1) {
      if (!size.is_constant()) return n.Unsupported("auto_pad with strides needs known sizes; give pads");
      const int64_t outputs = (size.value() + stride - 1) / stride;
      total = std::max<int64_t>(0, (outputs - 1) * stride + reach - size.value());
    }
    const int64_t less = total / 2, more = total - less;
    window->pads[i] = upper ? less : more;
    window->pads[window->spatial() + i] = upper ? more : less;
  }
}

}  // namespace

std::vector<int64_t> SpatialAttr(OnnxNode& n, absl::string_view name, size_t count, int64_t fallback) {
  std::vector<int64_t> values = n.Ints(name);
  if (values.empty()) values.assign(count, fallback);
  constexpr int64_t kMax = 1 << 20;
  const bool in_range =
      std::all_of(values.begin(), values.end(), [&](int64_t v) { return v >= fallback && v <= kMax; });
  if (values.size() != count || !in_range) {
    n.Invalid(absl::StrCat(name, " is out of range"));
    values.assign(count, fallback);
  }
  return values;
}

OnnxWindow ReadWindow(OnnxNode& n, const Value* x, std::vector<int64_t> kernel) {
  const Dims shape = DimsOfValue(x);
  const size_t spatial = kernel.size();
  OnnxWindow window{.kernel = std::move(kernel),
                    .strides = SpatialAttr(n, "strides", spatial, 1),
                    .dilations = SpatialAttr(n, "dilations", spatial, 1),
                    .pads = SpatialAttr(n, "pads", 2 * spatial, 0),
                    .ceil = n.Int("ceil_mode", 0) != 0};
  if (shape.size() != spatial + 2) n.Invalid("the windows have another number of axes than the input");
  const std::string auto_pad = n.String("auto_pad", "NOTSET");
  if (!n.ok() || auto_pad == "NOTSET") return window;
  if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
    window.same = true;
    SetSamePads(n, shape, auto_pad == "SAME_UPPER", &window);
  } else if (auto_pad == "VALID") {
    window.pads.assign(2 * spatial, 0);
  } else {
    n.Invalid(absl::StrCat("auto_pad \"", auto_pad, "\" is unknown"));
  }
  return window;
}

Dim WindowCount(OnnxNode& n, const OnnxWindow& window, size_t i, const Dim& size) {
  const int64_t stride = window.strides[i], pads = window.before(i) + window.after(i), reach = window.reach(i);
  if (size.is_constant()) {
    const int64_t free = size.value() + pads - reach;
    if (free < 0) {
      n.Invalid(absl::StrCat("a window of ", reach, " does not fit in an axis of ", size.value()));
      return Dim(0);
    }
    int64_t count = (free + (window.ceil ? stride - 1 : 0)) / stride + 1;
    // No window starts in the padding after the axis.
    if (window.ceil && (count - 1) * stride >= size.value() + window.before(i)) --count;
    return Dim(count);
  }
  if (window.ceil && window.after(i) + stride > reach) {
    n.Unsupported("ceil_mode with windows that may start in the padding needs known sizes");
  }
  const Dim free = size + Dim(pads - reach + (window.ceil ? stride - 1 : 0));
  return Dim::FloorDiv(free, Dim(stride)) + Dim(1);
}

Value* WindowPositions(OnnxNode& n, const OnnxWindow& window, size_t i, const Dim& size) {
  const int64_t kernel = window.kernel[i];
  Value* starts = Along(n, Positions(n, WindowCount(n, window, i, size)), 0, 2);
  if (window.strides[i] != 1) starts = Map<Mul>(n, starts, static_cast<double>(window.strides[i]));
  std::vector<int64_t> steps = CountTo(kernel);
  for (int64_t& step : steps) step *= window.dilations[i];
  return Map<Add>(n, starts, n.ReshapeTo(n.Ints64(steps), {Dim(1), Dim(kernel)}));
}

Value* ConvByAttributes(OnnxNode& n, Value* x, Value* weight, Value* bias) {
  const size_t rank = DimsOfValue(x).size();
  if (rank < 3 || DimsOfValue(weight).size() != rank) {
    n.Invalid("input and weight must have equal ranks of 3 or more");
    return nullptr;
  }
  if (rank > 5) {
    n.Unsupported("more than 3 spatial axes are not supported");
    return nullptr;
  }
  const std::vector<int64_t> given = n.Ints("kernel_shape");
  if (!given.empty() && given.size() != rank - 2) n.Invalid("kernel_shape is not the weight's");
  Dims shape = DimsOfValue(weight);
  std::vector<int64_t> kernel;
  for (size_t i = 0; i + 2 < rank && n.ok(); ++i) {
    Dim& size = shape[i + 2];
    if (!given.empty() && size.is_constant() && size != Dim(given[i])) n.Invalid("kernel_shape is not the weight's");
    if (!given.empty()) size = Dim(given[i]);
    kernel.push_back(size.is_constant() ? size.value() : 1);
    // Padding by size is the only thing that the kernel is needed for.
    if (!size.is_constant() && n.String("auto_pad", "NOTSET").rfind("SAME", 0) == 0) {
      n.Unsupported("auto_pad needs a weight of known size");
    }
  }
  const OnnxWindow window = ReadWindow(n, x, std::move(kernel));
  weight = n.ReshapeTo(weight, std::move(shape));
  return n.Emit(Conv{.x = x,
                     .weight = weight,
                     .bias = bias,
                     .strides = window.strides,
                     .dilations = window.dilations,
                     .pads = window.pads,
                     .groups = n.Int("group", 1)});
}

Value* ChannelsFirst(OnnxNode& n, Value* x) {
  if (RankOf(x) < 3) n.Invalid("the input must have rank 3 or more");
  std::vector<int64_t> perm = CountTo(RankOf(x));
  if (!n.ok()) return nullptr;
  perm.insert(perm.begin() + 1, perm.back());
  perm.pop_back();
  return n.TransposeBy(x, std::move(perm));
}

Value* ChannelsLast(OnnxNode& n, Value* x) {
  if (!n.ok()) return nullptr;
  std::vector<int64_t> perm = CountTo(RankOf(x));
  perm.erase(perm.begin() + 1);
  perm.push_back(1);
  return n.TransposeBy(x, std::move(perm));
}

}  // namespace llmc
