// Constants, movement and indexing ops. Axes in attributes are non-negative.
#pragma once

#include "ir/op.h"

namespace llmc {

struct Constant {
  static constexpr OpInfo kInfo{"constant", "a literal; one number fills the whole written type"};
  Tensor value;
  static constexpr auto Fields() { return std::tuple(At("value", &Constant::value)); }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

struct ShapeOf {
  static constexpr OpInfo kInfo{"shape_of", "the sizes of x as i64[rank]"};
  Value* x = nullptr;
  static constexpr auto Fields() { return std::tuple(In("x", &ShapeOf::x)); }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
  OpCost Cost() const;
};

// An i64 tensor of dims known by symbol: what chains of shape_of, gather, concat and arithmetic fold to.
struct DimsOf {
  static constexpr OpInfo kInfo{"dims", "the sizes of dim expressions: i64[] if scalar, else i64[number of dims]"};
  Dims values;
  bool scalar = false;
  static constexpr auto Fields() { return std::tuple(At("values", &DimsOf::values), At("scalar", &DimsOf::scalar)); }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

struct Reshape {
  static constexpr OpInfo kInfo{
      .name = "reshape", .summary = "x under another shape of as many elements", .flags = kView | kMoves};
  Value* x = nullptr;
  Dims shape;
  static constexpr auto Fields() { return std::tuple(In("x", &Reshape::x), At("shape", &Reshape::shape)); }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

// The form before the shape is known: -1 once is inferred, 0 copies x's dim unless allow_zero. `rank` is the number of
// elements of `shape`, which must be a number.
struct ReshapeTo {
  static constexpr OpInfo kInfo{
      .name = "reshape_to", .summary = "x under the shape that an i64 tensor holds", .flags = kView | kMoves};
  Value* x = nullptr;
  Value* shape = nullptr;
  bool allow_zero = false;
  static constexpr auto Fields() {
    return std::tuple(In("x", &ReshapeTo::x), In("shape", &ReshapeTo::shape, Use::kPlaces),
                      At("allow_zero", &ReshapeTo::allow_zero));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

struct Transpose {
  static constexpr OpInfo kInfo{.name = "transpose", .summary = "result dim i is dim perm[i] of x", .flags = kMoves};
  Value* x = nullptr;
  std::vector<int64_t> perm;
  static constexpr auto Fields() { return std::tuple(In("x", &Transpose::x), At("perm", &Transpose::perm)); }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

struct Expand {
  static constexpr OpInfo kInfo{
      .name = "expand", .summary = "x broadcast with the given shape (both ways, as numpy)", .flags = kMoves};
  Value* x = nullptr;
  Dims shape;
  static constexpr auto Fields() { return std::tuple(In("x", &Expand::x), At("shape", &Expand::shape)); }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

struct ExpandTo {
  static constexpr OpInfo kInfo{.name = "expand_to",
                                .summary = "x broadcast with the shape that an i64 tensor holds (both ways)",
                                .flags = kMoves};
  Value* x = nullptr;
  Value* shape = nullptr;
  static constexpr auto Fields() {
    return std::tuple(In("x", &ExpandTo::x), In("shape", &ExpandTo::shape, Use::kPlaces));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

struct Concat {
  static constexpr OpInfo kInfo{.name = "concat",
                                .summary = "joins tensors along an axis",
                                .flags = kMoves | kTakesEncoded,
                                .mixes = Mixes::kAxis};
  std::vector<Value*> parts;
  int64_t axis = 0;
  static constexpr auto Fields() { return std::tuple(In("parts", &Concat::parts), At("axis", &Concat::axis)); }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

// Bounds are dims: 0 <= start <= end <= size at run time; checked there.
struct Slice {
  static constexpr OpInfo kInfo{
      .name = "slice", .summary = "elements [start, end) of one axis", .flags = kMoves, .mixes = Mixes::kAxis};
  Value* x = nullptr;
  int64_t axis = 0;
  Dims start;  // one dim
  Dims end;    // one dim
  static constexpr auto Fields() {
    return std::tuple(In("x", &Slice::x), At("axis", &Slice::axis), At("start", &Slice::start), At("end", &Slice::end));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
  OpCost Cost(const Types& results) const;
};

// ONNX Slice: negative indices count from the end, bounds are clamped, steps may be negative.
// The elements [start, end) of an axis of `size` that slice_by takes with step 1, where they can be told.
struct SliceBounds {
  Dim start, end;
};
std::optional<SliceBounds> ResolveSlice(const Dim& start, const Dim& end, const Dim& size);

struct SliceBy {
  static constexpr OpInfo kInfo{
      .name = "slice_by", .summary = "elements by starts, ends, axes and steps held by i64 tensors", .flags = kMoves};
  Value* x = nullptr;
  Value* starts = nullptr;
  Value* ends = nullptr;
  Value* axes = nullptr;
  Value* steps = nullptr;
  static constexpr auto Fields() {
    return std::tuple(In("x", &SliceBy::x), In("starts", &SliceBy::starts, Use::kPlaces),
                      In("ends", &SliceBy::ends, Use::kPlaces), OptionalIn("axes", &SliceBy::axes, Use::kPlaces),
                      OptionalIn("steps", &SliceBy::steps, Use::kPlaces));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
  OpCost Cost(const Types& results) const;
};

struct Gather {
  static constexpr OpInfo kInfo{.name = "gather",
                                .summary = "slices of x along an axis by index; negative ones count from the end",
                                .flags = kMoves | kTakesEncoded};
  Value* x = nullptr;
  Value* indices = nullptr;
  int64_t axis = 0;
  static constexpr auto Fields() {
    return std::tuple(In("x", &Gather::x), In("indices", &Gather::indices, Use::kPlaces), At("axis", &Gather::axis));
  }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
  OpCost Cost(const Types& results) const;
};

struct GatherElements {
  static constexpr OpInfo kInfo{
      .name = "gather_elements", .summary = "out[i][j] = x[indices[i][j]][j], for axis 0", .flags = kMoves};
  Value* x = nullptr;
  Value* indices = nullptr;
  int64_t axis = 0;
  static constexpr auto Fields() {
    return std::tuple(In("x", &GatherElements::x), In("indices", &GatherElements::indices, Use::kPlaces),
                      At("axis", &GatherElements::axis));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost(const Types& results) const;
};

struct GatherNd {
  static constexpr OpInfo kInfo{
      .name = "gather_nd", .summary = "slices of x by index tuples (the last axis of indices)", .flags = kMoves};
  Value* x = nullptr;
  Value* indices = nullptr;
  int64_t batch_dims = 0;
  static constexpr auto Fields() {
    return std::tuple(In("x", &GatherNd::x), In("indices", &GatherNd::indices, Use::kPlaces),
                      At("batch_dims", &GatherNd::batch_dims));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost(const Types& results) const;
};

struct ScatterNd {
  static constexpr OpInfo kInfo{"scatter_nd",
                                "x with the slices at index tuples replaced by updates, or joined with them"};
  Value* x = nullptr;
  Value* indices = nullptr;
  Value* updates = nullptr;
  std::string reduction = "none";  // "add", "mul", "max" or "min": how an update joins what is there
  static constexpr auto Fields() {
    return std::tuple(In("x", &ScatterNd::x), In("indices", &ScatterNd::indices, Use::kPlaces),
                      In("updates", &ScatterNd::updates), At("reduction", &ScatterNd::reduction));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

struct Range {
  static constexpr OpInfo kInfo{"range", "start, start + delta, … below limit"};
  Value* start = nullptr;
  Value* limit = nullptr;
  Value* delta = nullptr;
  static constexpr auto Fields() {
    return std::tuple(In("start", &Range::start, Use::kPlaces), In("limit", &Range::limit, Use::kPlaces),
                      In("delta", &Range::delta, Use::kPlaces));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

struct CumSum {
  static constexpr OpInfo kInfo{
      .name = "cumsum", .summary = "running sum along an axis", .flags = kNeedsWholeNumbers, .mixes = Mixes::kAxis};
  Value* x = nullptr;
  int64_t axis = 0;
  bool exclusive = false;
  bool reverse = false;
  static constexpr auto Fields() {
    return std::tuple(In("x", &CumSum::x), At("axis", &CumSum::axis), At("exclusive", &CumSum::exclusive),
                      At("reverse", &CumSum::reverse));
  }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

struct Triangle {
  static constexpr OpInfo kInfo{"triangle", "the upper or lower triangle of the last two axes; zero elsewhere"};
  Value* x = nullptr;
  bool upper = true;
  int64_t diagonal = 0;
  static constexpr auto Fields() {
    return std::tuple(In("x", &Triangle::x), At("upper", &Triangle::upper), At("diagonal", &Triangle::diagonal));
  }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

struct Pad {
  static constexpr OpInfo kInfo{"pad", "x with a constant value before and after each axis"};
  Value* x = nullptr;
  std::vector<int64_t> before;
  std::vector<int64_t> after;
  double value = 0;
  static constexpr auto Fields() {
    return std::tuple(In("x", &Pad::x), At("before", &Pad::before), At("after", &Pad::after), At("value", &Pad::value));
  }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

}  // namespace llmc
