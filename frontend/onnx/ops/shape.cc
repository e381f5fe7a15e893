// Constants and changes of shape. Shapes that are known at import become attributes.
#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

// ---- constants ----------------------------------------------------------------

void ImportConstant(OnnxNode& n) {
  if (const onnx::TensorProto* proto = n.TensorAttr("value"); proto != nullptr) {
    auto tensor = n.Load(*proto);
    if (!tensor.ok()) return n.Fail(tensor.status());
    return n.Set(0, n.NamedConstant(*std::move(tensor)));
  }
  if (n.HasAttr("value_int")) {
    return n.Set(0, n.Literal(Tensor::FromValues(DType::kI64, {}, std::vector<int64_t>{n.Int("value_int", 0)})));
  }
  if (n.HasAttr("value_ints")) return n.Set(0, n.Ints64(n.Ints("value_ints")));
  if (n.HasAttr("value_float")) return n.Set(0, n.Scalar(DType::kF32, n.Float("value_float", 0)));
  if (n.HasAttr("value_floats")) {
    const std::vector<double> values = n.Floats("value_floats");
    return n.Set(0, n.NamedConstant(Tensor::FromValues(DType::kF32, {static_cast<int64_t>(values.size())}, values)));
  }
  n.Unsupported("only tensors, integers and floats are supported as constants");
}

// The elements of a shape input, if they are known.
std::optional<Dims> KnownDims(const Value* shape) {
  if (shape == nullptr || !shape->contents.has_value()) return std::nullopt;
  for (const Dim& dim : *shape->contents) {
    if (dim.is_unknown()) return std::nullopt;
  }
  return shape->contents;
}

// The rank of a result must be known: the length of the input that holds its shape.
bool RankIsKnown(OnnxNode& n, const Value* shape) {
  if (shape == nullptr || shape->type.rank() != 1 || shape->type.shape[0].is_constant()) return true;
  n.Unsupported("the length of the shape must be known before the run");
  return false;
}

Value* ExpandBy(OnnxNode& n, Value* x, Value* shape) {
  if (!RankIsKnown(n, shape)) return nullptr;
  if (auto dims = KnownDims(shape); dims.has_value()) {
    if (*dims == DimsOfValue(x)) return x;
    return n.Emit(Expand{.x = x, .shape = *std::move(dims)});
  }
  return n.Emit(ExpandTo{.x = x, .shape = shape});
}

void ImportConstantOfShape(OnnxNode& n) {
  Tensor value = Tensor::FromValues(DType::kF32, {}, std::vector<double>{0});
  if (const onnx::TensorProto* proto = n.TensorAttr("value"); proto != nullptr) {
    auto tensor = n.Load(*proto);
    if (!tensor.ok()) return n.Fail(tensor.status());
    if (tensor->size() != 1) return n.Invalid("value must be one number");
    value = tensor->Reshaped({});
  }
  n.Set(0, ExpandBy(n, n.Literal(std::move(value)), n.AsI64(0)));
}

void ImportExpand(OnnxNode& n) { n.Set(0, ExpandBy(n, n.in(0), n.AsI64(1))); }

void ImportShape(OnnxNode& n) {
  const int64_t rank = RankOf(n.in(0));
  auto clamp = [&](int64_t axis) { return std::clamp<int64_t>(axis < 0 ? axis + rank : axis, 0, rank); };
  const int64_t start = clamp(n.Int("start", 0));
  const int64_t end = std::max(start, clamp(n.Int("end", rank)));
  n.Set(0, n.SliceOf(n.Emit(ShapeOf{.x = n.in(0)}), 0, start, end));
}

void ImportSize(OnnxNode& n) { n.Set(0, n.Emit(DimsOf{.values = {Product(DimsOfValue(n.in(0)))}, .scalar = true})); }

// ---- reshape ------------------------------------------------------------------

// The shape that `target` asks for, with 0 and -1 resolved; nullopt if that needs a run.
std::optional<Dims> ResolveShape(OnnxNode& n, const Dims& from, Dims target, bool allow_zero) {
  std::optional<size_t> inferred;
  Dim known(1);
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] == Dim(0) && !allow_zero) {
      if (i >= from.size()) {
        n.Invalid(absl::StrCat("shape copies dim ", i, " of an input of rank ", from.size()));
        return std::nullopt;
      }
      target[i] = from[i];
    }
    if (target[i] == Dim(-1)) {
      if (inferred.has_value()) {
        n.Invalid("shape has -1 twice");
        return std::nullopt;
      }
      inferred = i;
    } else if (target[i].is_constant() && target[i].value() < 0) {
      n.Invalid(absl::StrCat("shape has the dim ", target[i].value()));
      return std::nullopt;
    } else {
      known = known * target[i];
    }
  }
  if (!inferred.has_value()) return target;
  // Equal dims on both sides cancel even where one may be zero.
  if (known == Dim(0) || known.is_unknown()) return std::nullopt;
  const Dim total = Product(from);
  Dim rest = Dim::FloorDiv(total, known);
  if (total.is_unknown() || rest.is_unknown()) return std::nullopt;
  if (total.is_constant() && known.is_constant() && rest * known != total) {
    n.Invalid(absl::StrCat("[", DimsToString(from), "] cannot take the shape [", DimsToString(target), "]"));
    return std::nullopt;
  }
  target[*inferred] = std::move(rest);
  return target;
}

void ImportReshape(OnnxNode& n) {
  const bool allow_zero = n.Int("allowzero", 0) != 0;
  Value* shape = n.AsI64(1);
  if (!n.ok()) return;
  if (auto dims = KnownDims(shape); dims.has_value()) {
    auto resolved = ResolveShape(n, DimsOfValue(n.in(0)), *std::move(dims), allow_zero);
    if (!n.ok()) return;
    if (resolved.has_value()) return n.Set(0, n.ReshapeTo(n.in(0), *std::move(resolved)));
  }
  if (!RankIsKnown(n, shape)) return;
  n.Set(0, n.Emit(ReshapeTo{.x = n.in(0), .shape = shape, .allow_zero = allow_zero}));
}

// Axes: an attribute before opset 13, an input since. Nullopt: not given.
std::optional<std::vector<int64_t>> AxesOf(OnnxNode& n) {
  const bool as_input = n.HasSince(1, 13);
  if (n.opset() >= 13) return as_input ? std::optional(n.StaticInts(1, "axes")) : std::nullopt;
  return n.HasAttr("axes") ? std::optional(n.Ints("axes")) : std::nullopt;
}

// Whether the axes are an input that only a run tells.
bool AxesAreComputed(OnnxNode& n) { return n.HasSince(1, 13) && !n.IsKnown(1) && ListLength(n.in(1)) != 0; }

// The number of axes in that input.
int64_t NumberOfAxes(OnnxNode& n) {
  const auto count = ListLength(n.in(1));
  if (!count.has_value()) n.Unsupported("the number of axes must be known before the run");
  if (count.value_or(0) > kMaxOnnxRank) n.Invalid(absl::StrCat("axes has ", *count, " elements"));
  return n.ok() ? count.value_or(0) : 0;
}

void ImportUnsqueeze(OnnxNode& n) {
  if (AxesAreComputed(n)) {
    const int64_t rank = RankOf(n.in(0)) + NumberOfAxes(n);
    return n.Set(0, InsertAxes(n, n.in(0), AxisFlags(n, n.AsI64(1), static_cast<int>(rank)), rank));
  }
  const auto given = AxesOf(n);
  if (!given.has_value()) return n.Invalid("axes are missing");
  std::vector<int64_t> axes = *given;
  const Dims from = DimsOfValue(n.in(0));
  axes = n.NormalizeAxes(std::move(axes), static_cast<int>(from.size() + axes.size()));
  if (!n.ok()) return;
  Dims shape = from;
  for (int64_t axis : axes) shape.insert(shape.begin() + axis, Dim(1));
  n.Set(0, n.ReshapeTo(n.in(0), std::move(shape)));
}

void ImportSqueeze(OnnxNode& n) {
  if (AxesAreComputed(n)) {
    const int64_t count = NumberOfAxes(n);
    return n.Set(0, DropAxes(n, n.in(0), AxisFlags(n, n.AsI64(1), RankOf(n.in(0))), count));
  }
  const Dims from = DimsOfValue(n.in(0));
  const auto given = AxesOf(n);
  const std::vector<int64_t> axes = n.NormalizeAxes(given.value_or(std::vector<int64_t>{}), RankOf(n.in(0)));
  const bool all = !given.has_value();
  Dims shape;
  for (size_t i = 0; i < from.size(); ++i) {
    const bool named = std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(i));
    if (all && !from[i].is_constant()) {
      return n.Unsupported(absl::StrCat("whether dim ", i, " is 1 is not known before the run; name the axes"));
    }
    if (named && from[i].is_constant() && from[i] != Dim(1)) {
      return n.Invalid(absl::StrCat("axis ", i, " has size ", from[i].ToString(), ", not 1"));
    }
    if (!(named || (all && from[i] == Dim(1)))) shape.push_back(from[i]);
  }
  n.Set(0, n.ReshapeTo(n.in(0), std::move(shape)));
}

void ImportFlatten(OnnxNode& n) {
  const Dims from = DimsOfValue(n.in(0));
  const int64_t axis = n.Axis("axis", 1, static_cast<int>(from.size()), /*inclusive=*/true);
  const Dims outer(from.begin(), from.begin() + axis), inner(from.begin() + axis, from.end());
  n.Set(0, n.ReshapeTo(n.in(0), {Product(outer), Product(inner)}));
}

void ImportTranspose(OnnxNode& n) {
  std::vector<int64_t> perm = n.Ints("perm");
  const size_t rank = static_cast<size_t>(RankOf(n.in(0)));
  if (!n.HasAttr("perm")) {
    perm.resize(rank);
    std::iota(perm.rbegin(), perm.rend(), 0);
  }
  std::vector<int64_t> sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != static_cast<int64_t>(i)) return n.Invalid("perm is not a permutation");
  }
  if (perm.size() != rank) return n.Invalid(absl::StrCat("perm has ", perm.size(), " axes, the input ", rank));
  n.Set(0, n.TransposeBy(n.in(0), std::move(perm)));
}

// ---- joining and splitting ----------------------------------------------------

void ImportConcat(OnnxNode& n) {
  if (!n.HasAttr("axis")) return n.Invalid("axis is missing");
  std::vector<Value*> parts = n.AllInputs();
  const int64_t axis = n.Axis("axis", 0, RankOf(parts[0]));
  n.Set(0, parts.size() == 1 ? parts[0] : n.Emit(Concat{.parts = std::move(parts), .axis = axis}));
}

// The size of each part of a Split.
std::vector<Dim> SplitSizes(OnnxNode& n, const Dim& size) {
  const int64_t parts = n.num_outputs();
  const bool as_input = n.HasSince(1, 13);
  if (n.opset() < 13 ? n.HasAttr("split") : as_input) {
    std::vector<int64_t> sizes;
    if (n.opset() < 13) {
      sizes = n.Ints("split");
    } else if (auto dims = KnownDims(n.in(1)); dims.has_value()) {
      return *dims;
    } else {
      sizes = n.StaticInts(1, "split");
    }
    return std::vector<Dim>(sizes.begin(), sizes.end());
  }
  if (n.opset() >= 18) {
    if (n.Int("num_outputs", parts) != parts) n.Invalid("num_outputs is not the number of outputs");
  } else if (size.is_constant() && size.value() % parts != 0) {
    n.Invalid(absl::StrCat("cannot split size ", size.value(), " in ", parts, " equal parts"));
  }
  const Dim chunk = Dim::FloorDiv(size + Dim(parts - 1), Dim(parts));
  std::vector<Dim> sizes;
  Dim left = size;
  for (int64_t i = 0; i < parts; ++i) {
    const bool last = i + 1 == parts;
    const Dim part = size.is_constant() ? Dim(std::min(chunk.value(), left.value())) : last ? left : chunk;
    sizes.push_back(part);
    left = left - part;
  }
  return sizes;
}

// Sizes that only a run tells: each part is from the sum of the sizes before it to its own end.
void SplitByInput(OnnxNode& n, Value* x, int64_t axis) {
  Value* sizes = n.AsI64(1);
  const int64_t parts = n.num_outputs();
  if (n.ok() && RankOf(sizes) != 1) return n.Invalid("split is not a list of sizes");
  if (const auto length = ListLength(sizes); length.has_value() && *length != parts) {
    return n.Invalid(absl::StrCat("split has ", *length, " sizes for ", parts, " outputs"));
  }
  Value* ends = n.Emit(CumSum{.x = sizes, .axis = 0});
  for (int64_t i = 0; i < parts; ++i) {
    Value* end = n.SliceOf(ends, 0, Dim(i), Dim(i + 1));
    n.Set(static_cast<int>(i), n.Emit(SliceBy{.x = x,
                                              .starts = Map<Sub>(n, end, n.SliceOf(sizes, 0, Dim(i), Dim(i + 1))),
                                              .ends = end,
                                              .axes = n.Ints64({axis})}));
  }
}

void ImportSplit(OnnxNode& n) {
  Value* x = n.in(0);
  const int64_t axis = n.Axis("axis", 0, RankOf(x));
  if (!n.ok()) return;
  if (RankOf(x) == 0) return n.Invalid("cannot split a scalar");
  if (n.HasSince(1, 13) && !KnownDims(n.in(1)).has_value() && !n.IsKnown(1)) return SplitByInput(n, x, axis);
  const Dim size = x->type.shape[static_cast<size_t>(axis)];
  const std::vector<Dim> sizes = SplitSizes(n, size);
  if (!n.ok()) return;
  if (sizes.size() != static_cast<size_t>(n.num_outputs())) {
    return n.Invalid(absl::StrCat("split has ", sizes.size(), " sizes for ", n.num_outputs(), " outputs"));
  }
  Dim start(0);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].is_constant() && sizes[i].value() < 0) return n.Invalid("split has a negative size");
    const Dim end = start + sizes[i];
    n.Set(static_cast<int>(i), n.SliceOf(x, axis, start, end));
    start = end;
  }
  if (start.is_constant() && size.is_constant() && start != size) {
    n.Invalid(absl::StrCat("split sizes add up to ", start.value(), ", not ", size.value()));
  }
}

// Repeats that only a run tells.
void TileByInput(OnnxNode& n) {
  const Dims from = DimsOfValue(n.in(0));
  const int64_t rank = static_cast<int64_t>(from.size());
  Value* repeats = n.AsI64(1);
  if (const auto length = ListLength(repeats); length.has_value() && *length != rank) {
    return n.Invalid(absl::StrCat("has ", *length, " repeats for rank ", rank));
  }
  repeats = n.ReshapeTo(repeats, {Dim(rank), Dim(1)});
  Dims split;
  for (const Dim& size : from) split.insert(split.end(), {Dim(1), size});
  Value* sizes = n.Emit(ShapeOf{.x = n.in(0)});
  Value* wide = n.Emit(Concat{.parts = {repeats, n.ReshapeTo(sizes, {Dim(rank), Dim(1)})}, .axis = 1});
  Value* x = n.Emit(ExpandTo{.x = n.ReshapeTo(n.in(0), std::move(split)), .shape = n.ReshapeTo(wide, {Dim(2 * rank)})});
  Value* shape = Map<Mul>(n, n.ReshapeTo(repeats, {Dim(rank)}), sizes);
  n.Set(0, n.Emit(ReshapeTo{.x = x, .shape = shape, .allow_zero = true}));
}

// Each axis that is repeated becomes [repeats, size], and is joined again; an axis of 1 just grows.
void ImportTile(OnnxNode& n) {
  const Dims from = DimsOfValue(n.in(0));
  auto repeats = KnownDims(n.in(1));
  if (!repeats.has_value()) return TileByInput(n);
  if (repeats->size() != from.size()) {
    return n.Invalid(absl::StrCat("has ", repeats->size(), " repeats for rank ", from.size()));
  }
  Dims split, wide, joined;
  for (size_t i = 0; i < from.size(); ++i) {
    if ((*repeats)[i].is_constant() && (*repeats)[i].value() < 0) return n.Invalid("a repeat is negative");
    const Dim size = from[i] * (*repeats)[i];
    if (size.is_unknown()) return n.Invalid("the result is too large");
    joined.push_back(size);
    const bool stays = (*repeats)[i] == Dim(1) || from[i] == Dim(1);
    if (!stays) {
      split.push_back(Dim(1));
      wide.push_back((*repeats)[i]);
    }
    split.push_back(from[i]);
    wide.push_back(stays ? size : from[i]);
  }
  if (joined == from) return n.Set(0, n.in(0));
  Value* x = split == from ? n.in(0) : n.ReshapeTo(n.in(0), std::move(split));
  x = n.Emit(Expand{.x = x, .shape = wide});
  n.Set(0, wide == joined ? x : n.ReshapeTo(x, std::move(joined)));
}

constexpr OnnxOp kShapeOps[] = {
    {"Constant", 1, 0, 0, ImportConstant},   {"ConstantOfShape", 9, 1, 1, ImportConstantOfShape},
    {"Expand", 8, 2, 2, ImportExpand},       {"Shape", 1, 1, 1, ImportShape},
    {"Size", 1, 1, 1, ImportSize},           {"Reshape", 5, 2, 2, ImportReshape},
    {"Unsqueeze", 1, 1, 2, ImportUnsqueeze}, {"Squeeze", 1, 1, 2, ImportSqueeze},
    {"Flatten", 1, 1, 1, ImportFlatten},     {"Transpose", 1, 1, 1, ImportTranspose},
    {"Concat", 4, 1, -1, ImportConcat},      {"Split", 2, 1, 2, ImportSplit},
    {"Tile", 6, 2, 2, ImportTile},
};

}  // namespace

absl::Span<const OnnxOp> OnnxShapeOps() { return kShapeOps; }

}  // namespace llmc
