// Convolution: patches of x as rows of a matrix, times the weight.
#include "base/status_macros.h"
#include "ir/ops_internal.h"
#include "ir/ops_nn.h"

namespace llmc {
namespace {

using ops::Fail;
using ops::Str;
using ops::TypeOf;

// Attributes with their defaults filled in for `axes` spatial axes.
struct Window {
  std::vector<int64_t> strides, dilations, before, after;
};

absl::StatusOr<Window> MakeWindow(const Conv& conv, size_t axes) {
  Window window{conv.strides, conv.dilations, {}, {}};
  if (window.strides.empty()) window.strides.assign(axes, 1);
  if (window.dilations.empty()) window.dilations.assign(axes, 1);
  std::vector<int64_t> pads = conv.pads;
  if (pads.empty()) pads.assign(2 * axes, 0);
  if (window.strides.size() != axes || window.dilations.size() != axes || pads.size() != 2 * axes) {
    return Fail("conv_c4: strides, dilations or pads do not fit ", axes, " spatial axes");
  }
  constexpr int64_t kLimit = int64_t{1} << 31;
  const auto in_range = [](const std::vector<int64_t>& values, int64_t low) {
    return std::all_of(values.begin(), values.end(), [low](int64_t v) { return v >= low && v < kLimit; });
  };
  if (!in_range(window.strides, 1) || !in_range(window.dilations, 1) || !in_range(pads, 0)) {
    return Fail("conv_c4: a stride or dilation is below 1, a padding is negative, or one is 2^31 or more");
  }
  window.before.assign(pads.begin(), pads.begin() + axes);
  window.after.assign(pads.begin() + axes, pads.end());
  return window;
}

// The output positions along one axis.
Dim OutputDim(const Dim& size, const Dim& kernel, const Window& window, size_t axis) {
  const Dim span = Dim(window.dilations[axis]) * (kernel - Dim(1));  // the kernel's extent less 1
  const Dim room = size + Dim(window.before[axis]) + Dim(window.after[axis]) - span - Dim(1);
  return Dim::FloorDiv(room, Dim(window.strides[axis])) + Dim(1);
}

// x[channels, spatial…] of one image and group as rows [positions, channels * kernel], 0 where padded.
template <class T>
void FillPatches(const T* x, const Shape& spatial, const Shape& kernel, const Shape& positions, int64_t channels,
                 const Window& window, T* rows) {
  const size_t axes = spatial.size();
  const int64_t image = ops::SizeOf(spatial), taps = ops::SizeOf(kernel), count = ops::SizeOf(positions);
  std::vector<int64_t> at(axes), tap(axes);
  for (int64_t p = 0; p < count; ++p) {
    for (int64_t d = static_cast<int64_t>(axes) - 1, rest = p; d >= 0; rest /= positions[d], --d)
      at[d] = rest % positions[d];
    for (int64_t t = 0; t < taps; ++t) {
      for (int64_t d = static_cast<int64_t>(axes) - 1, rest = t; d >= 0; rest /= kernel[d], --d)
        tap[d] = rest % kernel[d];
      int64_t offset = 0;
      bool inside = true;
      for (size_t d = 0; d < axes; ++d) {
        const int64_t i = at[d] * window.strides[d] + tap[d] * window.dilations[d] - window.before[d];
        inside = inside && i >= 0 && i < spatial[d];
        offset = offset * spatial[d] + i;
      }
      for (int64_t c = 0; c < channels; ++c) {
        rows[(p * channels + c) * taps + t] = inside ? x[c * image + offset] : T(0);
      }
    }
  }
}

}  // namespace

absl::StatusOr<Types> Conv::Infer(SizeCollector& sizes) const {
  const TensorType &a = TypeOf(x), &w = TypeOf(weight);
  if (!IsFloat(a.dtype) || a.dtype != w.dtype || a.rank() < 3 || a.rank() > 5 || a.rank() != w.rank()) {
    return Fail("conv_c1: does not take x ", Str(x), " and weight ", Str(weight));
  }
  if (groups < 1 || !sizes.Same(a.shape[1], w.shape[1] * Dim(groups)) ||
      (w.shape[0].is_constant() && w.shape[0].value() % groups != 0)) {
    return Fail("conv_c2: the channels of x ", Str(x), " and weight ", Str(weight), " do not fit ", groups, " groups");
  }
  if (bias != nullptr) {
    const TensorType& b = TypeOf(bias);
    if (b.dtype != a.dtype || b.rank() != 1 || !sizes.Same(b.shape[0], w.shape[0])) {
      return Fail("conv_c3: bias ", Str(bias), " does not match weight ", Str(weight));
    }
  }
  const size_t axes = a.rank() - 2;
  ASSIGN_OR_RETURN(Window window, MakeWindow(*this, axes));
  TensorType out{a.dtype, {a.shape[0], w.shape[0]}};
  for (size_t d = 0; d < axes; ++d) {
    const Dim& kernel = w.shape[2 + d];
    if (kernel.is_constant() && kernel.value() < 1)
      return Fail("conv_c5: weight ", Str(weight), " has an empty kernel");
    out.shape.push_back(OutputDim(a.shape[2 + d], kernel, window, d));
    const Dim& size = out.shape.back();
    if (size.is_constant() && size.value() < 0)
      return Fail("conv_c6: the kernel of ", Str(weight), " is larger than x ", Str(x));
  }
  for (size_t d = 2; sizes.result() != nullptr && d < sizes.result()->size(); ++d) {
    const Dim& size = (*sizes.result())[d];
    if (!size.is_constant()) sizes.Within(0, size, size, size);
  }
  return Types{out};
}

// Products with what pads x are among them.
OpCost Conv::Cost(const Types& results) const {
  const Dims& kernel = TypeOf(weight).shape;
  return ops::SumsOfProducts(results[0], ElementsOf(Dims(kernel.begin() + 1, kernel.end())));
}

absl::StatusOr<Tensors> Conv::Eval(const EvalArgs& args) const {
  const Shape &a = args[0].shape(), &w = args[1].shape();
  const size_t axes = a.size() - 2;
  ASSIGN_OR_RETURN(Window window, MakeWindow(*this, axes));
  if (a[1] != w[1] * groups || w[0] % groups != 0 || (args.has(2) && args[2].shape() != Shape{w[0]})) {
    return Fail("conv: x ", Str(args[0]), " and weight ", Str(args[1]), " do not fit ", groups, " groups");
  }
  const Shape spatial(a.begin() + 2, a.end()), kernel(w.begin() + 2, w.end());
  Shape positions, shape = {a[0], w[0]};
  for (size_t d = 0; d < axes; ++d) {
    const Dim size = OutputDim(Dim(spatial[d]), Dim(kernel[d]), window, d);
    if (kernel[d] < 1 || !size.is_constant() || size.value() < 0) {
      return Fail("conv: the kernel of ", Str(args[1]), " does not fit x ", Str(args[0]));
    }
    positions.push_back(size.value());
    shape.push_back(size.value());
  }
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("conv", args[0].dtype(), shape));
  const int64_t count = ops::SizeOf(positions), channels = w[1], features = w[0] / groups;
  const int64_t depth = channels * ops::SizeOf(kernel), image = ops::SizeOf(spatial);
  const auto run = [&]<class T>(T) -> absl::StatusOr<Tensors> {
    ASSIGN_OR_RETURN(Tensor patches, ops::NewTensor("conv", ops::kNativeType<T>, {count, depth}));
    const ops::Elements<T> from(args[0]), factors(args[1]), shifts(args.has(2) ? args[2] : Tensor(DType::kF32, {0}));
    ops::Result<T> to(std::move(out));
    for (int64_t part = 0; part < a[0] * groups; ++part) {
      const int64_t group = part % groups;
      FillPatches<T>(from.data() + part * channels * image, spatial, kernel, positions, channels, window,
                     patches.template mutable_data<T>());
      T* result = to.data() + part * features * count;
      ops::MultiplyTransposed(factors.data() + group * features * depth, features, patches.template data<T>(), count,
                              depth, result);
      for (int64_t i = 0; args.has(2) && i < features * count; ++i) result[i] += shifts[group * features + i / count];
    }
    return Tensors{to.Finish()};
  };
  return args[0].dtype() == DType::kF64 ? run(double{}) : run(float{});
}

}  // namespace llmc
