// slice and slice_by.
#include <limits>

#include "base/status_macros.h"
#include "ir/ops_internal.h"
#include "ir/ops_shape.h"

namespace llmc {
namespace {

using ops::Fail;
using ops::IsNumber;
using ops::Str;
using ops::TypeOf;

constexpr int64_t kFarEnd = INT32_MAX;  // what exporters write for "to the end" is this or more

// One axis of slice_by in one run: bounds clamped as ONNX does; `count` elements from `start` by `step`.
struct Bounds {
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 0;
};

Bounds Clamp(int64_t start, int64_t end, int64_t step, int64_t size) {
  const auto clamp = [size](int64_t bound, int64_t low, int64_t high) {
    return std::clamp(bound < 0 ? bound + size : bound, low, high);
  };
  Bounds bounds{.step = step};
  if (step > 0) {
    bounds.start = clamp(start, 0, size);
    const int64_t stop = clamp(end, 0, size);
    if (stop > bounds.start) bounds.count = (stop - bounds.start - 1) / step + 1;
  } else {
    bounds.start = clamp(start, -1, size - 1);
    const int64_t stop = clamp(end, -1, size - 1);
    // -(step + 1) + 1 would overflow for the smallest step, so the division is done on negative numbers.
    if (stop < bounds.start) bounds.count = (stop - bounds.start + 1) / step + 1;
  }
  return bounds;
}

// A bound as a dim between 0 and `size`, if that can be proven.
Dim ResolveBound(const Dim& bound, const Dim& size, bool is_end) {
  if (bound.is_constant() && size.is_constant()) return Dim(Clamp(bound.value(), 0, 1, size.value()).start);
  if (bound.is_constant() && bound.value() >= kFarEnd) return is_end ? size : Dim::Unknown();
  if (bound.is_constant() && bound.value() < 0) {
    const Dim from_end = size + bound;
    return ops::ProvablyNonNegative(from_end) ? from_end : Dim::Unknown();
  }
  return ops::ProvablyNonNegative(bound) && ops::ProvablyAtMost(bound, size) ? bound : Dim::Unknown();
}

Dim SlicedDim(const Dim& start, const Dim& end, int64_t step, const Dim& size) {
  if (start.is_constant() && end.is_constant() && size.is_constant()) {
    return Dim(Clamp(start.value(), end.value(), step, size.value()).count);
  }
  if (step < 0) {  // Only the reversal of a whole axis can be told.
    const bool whole = IsNumber(start, -1) && end.is_constant() && end.value() <= -kFarEnd;
    return whole && step == -1 ? size : Dim::Unknown();
  }
  const std::optional<SliceBounds> bounds = ResolveSlice(start, end, size);
  if (!bounds.has_value()) return Dim::Unknown();
  const Dim length = bounds->end - bounds->start;
  return step == 1 ? length : Dim::FloorDiv(length + Dim(step - 1), Dim(step));
}

// The axes of slice_by, if known: all leading ones without `axes`. An error if they are no axes of x.
absl::StatusOr<std::vector<int64_t>> CheckedAxes(absl::string_view label, std::vector<int64_t> axes, int rank) {
  std::vector<bool> seen(rank, false);
  for (int64_t& axis : axes) {
    const int64_t given = axis;
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank || seen[axis])
      return Fail(label, ": axis ", given, " of ", rank, " is out of range or twice");
    seen[axis] = true;
  }
  return axes;
}

std::vector<int64_t> FirstAxes(int64_t n) {
  std::vector<int64_t> axes(n);
  for (int64_t i = 0; i < n; ++i) axes[i] = i;
  return axes;
}

}  // namespace

std::optional<SliceBounds> ResolveSlice(const Dim& start, const Dim& end, const Dim& size) {
  if (start.is_constant() && end.is_constant() && size.is_constant()) {
    const Bounds bounds = Clamp(start.value(), end.value(), 1, size.value());
    return SliceBounds{Dim(bounds.start), Dim(bounds.start + bounds.count)};
  }
  const Dim low = ResolveBound(start, size, false), high = ResolveBound(end, size, true);
  if (!ops::ProvablyAtMost(low, high)) return std::nullopt;
  return SliceBounds{low, high};
}

absl::StatusOr<Types> Slice::Infer(SizeCollector& sizes) const {
  RETURN_IF_ERROR(ops::CheckAxis("slice_c1", axis, TypeOf(x).rank()));
  if (start.size() != 1 || end.size() != 1) return Fail("slice_c2: start and end take one dim each");
  TensorType out = TypeOf(x);
  const Dim& size = out.shape[axis];
  const Dim length = end[0] - start[0];
  const auto negative = [](const Dim& dim) { return dim.is_constant() && dim.value() < 0; };
  if (negative(start[0]) || negative(length) || negative(size - end[0])) {
    return Fail("slice_c3: [", start[0].ToString(), ", ", end[0].ToString(), ") is not in axis ", axis, " of ", Str(x));
  }
  const bool numbers = start[0].is_constant() && end[0].is_constant() && size.is_constant();
  const bool whole = IsNumber(start[0], 0) && end[0] == size;
  if (sizes.result() != nullptr && !numbers && !whole) sizes.Within(start[0], end[0], size, (*sizes.result())[axis]);
  out.shape[axis] = length;
  return Types{out};
}

absl::StatusOr<Tensors> Slice::Eval(const EvalArgs& args) const {
  ASSIGN_OR_RETURN(Shape bounds, ops::EvaluateDims("slice", {start[0], end[0]}, args));
  const int64_t low = bounds[0], high = bounds[1];
  Shape shape = args[0].shape();
  if (low < 0 || high < low || high > shape[axis]) {
    return Fail("slice: [", low, ", ", high, ") is not in axis ", axis, " of ", Str(args[0]));
  }
  const Shape strides = ops::StridesOf(shape);
  shape[axis] = high - low;
  ASSIGN_OR_RETURN(Tensor out, ops::CopyStrided("slice", args[0], shape, strides, low * strides[axis]));
  return Tensors{std::move(out)};
}

std::optional<Dims> Slice::Contents() const {
  if (!x->contents.has_value() || TypeOf(x).rank() != 1 || !start[0].is_constant() || !end[0].is_constant()) {
    return std::nullopt;
  }
  const int64_t low = start[0].value(), high = end[0].value();
  if (low < 0 || high < low || high > static_cast<int64_t>(x->contents->size())) return std::nullopt;
  return ops::MakeContents(TypeOf(x), Dims(x->contents->begin() + low, x->contents->begin() + high));
}

OpCost Slice::Cost(const Types& results) const { return {.operand_bytes = {results[0].Bytes()}}; }

namespace {

void CollectSlices(const SliceBy& op, SizeCollector& sizes) {
  const std::vector<std::optional<SizeList>> lists = sizes.ElementsOf({op.starts, op.ends, op.axes, op.steps});
  const std::optional<SizeList>&starts = lists[0], &ends = lists[1], &axes = lists[2], &steps = lists[3];
  const bool told = starts.has_value() && ends.has_value() && (op.axes == nullptr || axes.has_value()) &&
                    (op.steps == nullptr || steps.has_value());
  if (sizes.result() == nullptr || !told) return;
  SizeList all = ToSizes(TypeOf(op.x).shape);
  for (size_t i = 0; i < starts->size(); ++i) {
    const Size axis = axes.has_value() ? (*axes)[i] : Size(static_cast<int64_t>(i));
    if (!axis.is_number()) return;
    const int64_t from_front = axis.number() < 0 ? axis.number() + static_cast<int64_t>(all.size()) : axis.number();
    Size& size = all[static_cast<size_t>(from_front)];
    const Size step = steps.has_value() ? (*steps)[i] : Size(1);
    const bool numbers = (*starts)[i].is_number() && (*ends)[i].is_number() && step.is_number() && size.is_number();
    size = numbers ? Size(0) : Size::Call("slice_size", {(*starts)[i], (*ends)[i], step, size});
  }
  const Dims& to = *sizes.result();
  for (size_t d = 0; d < all.size(); ++d) {
    if (!to[d].is_constant() || !all[d].is_number()) sizes.Equate(all[d], to[d]);
  }
}

}  // namespace

absl::StatusOr<Types> SliceBy::Infer(SizeCollector& sizes) const {
  TensorType out = TypeOf(x);
  int64_t n = -1;  // how many axes; -1: unknown
  for (const Value* list : {starts, ends, axes, steps}) {
    if (list == nullptr) continue;
    const TensorType& type = TypeOf(list);
    if (!ops::IsIndexType(type.dtype) || type.rank() != 1) {
      return Fail("slice_by_c1: ", Str(list), " is not i64[n]");
    }
    if (!type.shape[0].is_constant()) continue;
    if (n >= 0 && type.shape[0].value() != n)
      return Fail("slice_by_c2: lists of ", n, " and of ", type.shape[0].value());
    n = type.shape[0].value();
  }
  if (n > out.rank()) return Fail("slice_by_c2: lists of ", n, " for the axes of ", Str(x));
  CollectSlices(*this, sizes);
  std::optional<std::vector<int64_t>> known_axes, known_steps;
  if (n >= 0) known_axes = axes == nullptr ? FirstAxes(n) : ops::ConstantContents(axes);
  if (!known_axes.has_value()) {
    out.shape.assign(out.rank(), Dim::Unknown());
    return Types{out};
  }
  known_steps = steps == nullptr ? std::vector<int64_t>(n, 1) : ops::ConstantContents(steps);
  ASSIGN_OR_RETURN(std::vector<int64_t> checked, CheckedAxes("slice_by_c3", *known_axes, out.rank()));
  for (int64_t i = 0; i < n; ++i) {
    Dim& dim = out.shape[checked[i]];
    if (known_steps.has_value() && (*known_steps)[i] == 0) return Fail("slice_by_c4: step ", i, " is 0");
    const bool known = known_steps.has_value() && starts->contents.has_value() && ends->contents.has_value();
    dim = known ? SlicedDim((*starts->contents)[i], (*ends->contents)[i], (*known_steps)[i], dim) : Dim::Unknown();
  }
  return Types{out};
}

absl::StatusOr<Tensors> SliceBy::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  const std::vector<int64_t> low = args[1].ToInts(), high = args[2].ToInts();
  const int64_t n = static_cast<int64_t>(low.size());
  const std::vector<int64_t> step = args.has(4) ? args[4].ToInts() : std::vector<int64_t>(n, 1);
  ASSIGN_OR_RETURN(std::vector<int64_t> list,
                   CheckedAxes("slice_by", args.has(3) ? args[3].ToInts() : FirstAxes(n), in.rank()));
  if (high.size() != low.size() || step.size() != low.size() || list.size() != low.size()) {
    return Fail("slice_by: starts, ends, axes and steps have ", low.size(), ", ", high.size(), ", ", list.size(),
                " and ", step.size(), " elements");
  }
  Shape shape = in.shape(), strides = ops::StridesOf(shape);
  int64_t offset = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (step[i] == 0) return Fail("slice_by: step ", i, " is 0");
    const int64_t axis = list[i];
    const Bounds bounds = Clamp(low[i], high[i], step[i], shape[axis]);
    shape[axis] = bounds.count;
    if (bounds.count > 0) offset += bounds.start * strides[axis];
    strides[axis] = bounds.count > 1 ? strides[axis] * bounds.step : 0;
  }
  if (shape == in.shape() && strides == ops::StridesOf(shape)) return Tensors{in};
  ASSIGN_OR_RETURN(Tensor out, ops::CopyStrided("slice_by", in, shape, strides, offset));
  return Tensors{std::move(out)};
}

std::optional<Dims> SliceBy::Contents() const {
  const auto low = ops::ConstantContents(starts), high = ops::ConstantContents(ends);
  const auto step = steps == nullptr ? std::vector<int64_t>{1} : ops::ConstantContents(steps);
  if (!x->contents.has_value() || TypeOf(x).rank() != 1 || !low.has_value() || !high.has_value() || !step.has_value() ||
      low->size() != 1 || high->size() != 1 || step->size() != 1 || (*step)[0] == 0) {
    return std::nullopt;
  }
  const Bounds bounds = Clamp((*low)[0], (*high)[0], (*step)[0], static_cast<int64_t>(x->contents->size()));
  Dims out;
  for (int64_t i = 0; i < bounds.count; ++i) out.push_back((*x->contents)[bounds.start + i * bounds.step]);
  return ops::MakeContents(TypeOf(x), std::move(out));
}

OpCost SliceBy::Cost(const Types& results) const { return {.operand_bytes = {results[0].Bytes()}}; }

}  // namespace llmc
