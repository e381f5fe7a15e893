#include "ir/ops_shape.h"

#include "base/status_macros.h"
#include "ir/ops_elementwise.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

using ops::Fail;
using ops::IsIndexType;
using ops::IsNumber;
using ops::Str;
using ops::TypeOf;

// The number of elements of a rank-1 index tensor, which its type must tell.
absl::StatusOr<int64_t> IndexCount(absl::string_view label, absl::string_view name, const Value* value) {
  const TensorType& type = TypeOf(value);
  if (!IsIndexType(type.dtype) || type.rank() != 1 || !type.shape[0].is_constant()) {
    return Fail(label, ": ", name, " ", Str(value), " is not i64[n] with n a number");
  }
  return type.shape[0].value();
}

}  // namespace

// ---- constants and sizes -----------------------------------------------------------
absl::StatusOr<Types> Constant::Infer() const {
  return Types{{value.dtype(), Dims(value.shape().begin(), value.shape().end())}};
}

absl::StatusOr<Tensors> Constant::Eval(const EvalArgs&) const { return Tensors{value}; }

std::optional<Dims> Constant::Contents() const {
  if (IsFloat(value.dtype()) || value.rank() > 1 || value.size() > static_cast<int64_t>(ops::kMaxContents)) {
    return std::nullopt;
  }
  Dims out;
  for (int64_t i = 0; i < value.size(); ++i) out.push_back(Dim(value.GetInt(i)));
  return out;
}

absl::StatusOr<Types> ShapeOf::Infer() const { return Types{{DType::kI64, {Dim(TypeOf(x).rank())}}}; }

absl::StatusOr<Tensors> ShapeOf::Eval(const EvalArgs& args) const {
  return Tensors{Tensor::FromValues(DType::kI64, {args[0].rank()}, args[0].shape())};
}

std::optional<Dims> ShapeOf::Contents() const {
  return ops::MakeContents({DType::kI64, {Dim(TypeOf(x).rank())}}, TypeOf(x).shape);
}

OpCost ShapeOf::Cost() const { return {.operand_bytes = {0}}; }

absl::StatusOr<Types> DimsOf::Infer() const {
  if (scalar && values.size() != 1) return Fail("dims_c1: a scalar takes one dim, not ", values.size());
  for (const Dim& dim : values) {
    if (dim.is_unknown()) return Fail("dims_c2: a dim is unknown");
  }
  return Types{{DType::kI64, scalar ? Dims{} : Dims{Dim(static_cast<int64_t>(values.size()))}}};
}

absl::StatusOr<Tensors> DimsOf::Eval(const EvalArgs& args) const {
  ASSIGN_OR_RETURN(Shape sizes, ops::EvaluateDims("dims", values, args));
  const Shape shape = scalar ? Shape{} : Shape{static_cast<int64_t>(values.size())};
  return Tensors{Tensor::FromValues(DType::kI64, shape, sizes)};
}

std::optional<Dims> DimsOf::Contents() const {
  return ops::MakeContents({DType::kI64, scalar ? Dims{} : Dims{Dim(static_cast<int64_t>(values.size()))}}, values);
}

// ---- reshape -----------------------------------------------------------------------
absl::StatusOr<Types> Reshape::Infer(SizeCollector& sizes) const {
  for (const Dim& dim : shape) {
    if (dim.is_unknown() || (dim.is_constant() && dim.value() < 0)) {
      return Fail("reshape_c1: a dim of [", DimsToString(shape), "] is not a size");
    }
  }
  const Dim from = Product(TypeOf(x).shape), to = Product(shape);
  if (!ops::MayBeEqual(from, to)) {
    return Fail("reshape_c2: ", Str(x), " has other elements than [", DimsToString(shape), "]");
  }
  sizes.Equate(ElementsOf(TypeOf(x).shape), ElementsOf(shape));
  return Types{{TypeOf(x).dtype, shape}};
}

namespace {

absl::StatusOr<Tensors> ReshapeTensor(absl::string_view op, const Tensor& x, const Shape& shape) {
  absl::StatusOr<int64_t> elements = CheckedElements(x.dtype(), shape);
  if (!elements.ok()) return Fail(op, ": ", elements.status().message());
  if (*elements != x.size()) {
    return Fail(op, ": ", Str(x), " has ", x.size(), " elements, ", ShapeToString(shape), " has ", *elements);
  }
  return Tensors{x.Reshaped(shape)};
}

}  // namespace

absl::StatusOr<Tensors> Reshape::Eval(const EvalArgs& args) const {
  ASSIGN_OR_RETURN(Shape sizes, ops::EvaluateDims("reshape", shape, args));
  return ReshapeTensor("reshape", args[0], sizes);
}

std::optional<Dims> Reshape::Contents() const {
  if (!x->contents.has_value()) return std::nullopt;
  return ops::MakeContents({TypeOf(x).dtype, shape}, *x->contents);
}

namespace {

// What a run makes of the shape, where its elements and not the dims of the result tell it.
void CollectReshape(const ReshapeTo& op, const SizeList& shape, SizeCollector& sizes) {
  const Dims &from = TypeOf(op.x).shape, &to = *sizes.result();
  const auto copied = [&](size_t i) { return !op.allow_zero && i < from.size() ? Size(from[i]) : Size(0); };
  Size rest = 1;  // of the sizes that are given
  for (size_t i = 0; i < shape.size(); ++i) rest = rest * Size::Call("select", {shape[i], copied(i), Size(1)});
  const Size inferred =
      Size::Text(absl::StrCat("(", ElementsOf(from).ToString(), ")/", Size::Call("max", {rest, Size(1)}).ToString()));
  for (size_t i = 0; i < shape.size(); ++i) {
    sizes.Equate(Size::Call("select", {shape[i], copied(i), inferred}), to[i]);
  }
}

void CollectReshape(const ReshapeTo& op, SizeCollector& sizes) {
  const std::optional<SizeList> shape = sizes.ElementsOf({op.shape})[0];
  if (sizes.result() == nullptr) return;
  const bool is_told = op.shape->contents.has_value() && sizes.KnowsResult();
  if (!is_told && !shape.has_value()) return;
  if (!is_told) CollectReshape(op, *shape, sizes);
  sizes.Equate(ElementsOf(TypeOf(op.x).shape), ElementsOf(*sizes.result()));
}

}  // namespace

absl::StatusOr<Types> ReshapeTo::Infer(SizeCollector& sizes) const {
  ASSIGN_OR_RETURN(int64_t rank, IndexCount("reshape_to_c1", "shape", shape));
  if (rank > static_cast<int64_t>(ops::kMaxContents)) return Fail("reshape_to_c1: rank ", rank, " is above 64");
  CollectReshape(*this, sizes);
  Dims out(rank, Dim::Unknown());
  const Dims& from = TypeOf(x).shape;
  if (!shape->contents.has_value()) return Types{{TypeOf(x).dtype, out}};
  Dim rest(1);
  int inferred = -1;
  for (int i = 0; i < rank; ++i) {
    const Dim& dim = (*shape->contents)[i];
    if (IsNumber(dim, -1)) {
      if (inferred >= 0) return Fail("reshape_to_c2: [", DimsToString(*shape->contents), "] has -1 twice");
      inferred = i;
      continue;
    }
    if (dim.is_constant() && dim.value() < 0) return Fail("reshape_to_c2: ", dim.ToString(), " is not a size");
    if (IsNumber(dim, 0) && !allow_zero) {
      if (i >= static_cast<int>(from.size())) return Fail("reshape_to_c3: ", Str(x), " has no dim ", i, " to copy");
      out[i] = from[i];
    } else {
      out[i] = dim;
    }
    rest = rest * out[i];
  }
  const Dim all = Product(from);
  if (inferred >= 0) {
    out[inferred] = Dim::FloorDiv(all, rest);
  } else if (!ops::MayBeEqual(all, rest)) {
    return Fail("reshape_to_c4: ", Str(x), " has other elements than [", DimsToString(out), "]");
  }
  return Types{{TypeOf(x).dtype, out}};
}

absl::StatusOr<Tensors> ReshapeTo::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  Shape sizes = args[1].ToInts();
  int inferred = -1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0 && !allow_zero) {
      if (i >= in.shape().size()) return Fail("reshape_to: ", Str(in), " has no dim ", i, " to copy");
      sizes[i] = in.shape()[i];
    } else if (sizes[i] == -1) {
      if (inferred >= 0) return Fail("reshape_to: the shape ", ShapeToString(sizes), " has -1 twice");
      inferred = static_cast<int>(i);
    }
  }
  if (inferred >= 0) {
    sizes[inferred] = 1;
    absl::StatusOr<int64_t> rest = CheckedElements(in.dtype(), sizes);
    if (!rest.ok()) return Fail("reshape_to: ", rest.status().message());
    if (*rest == 0 || in.size() % *rest != 0) {
      return Fail("reshape_to: ", Str(in), " does not divide into a multiple of ", *rest, " elements");
    }
    sizes[inferred] = in.size() / *rest;
  }
  return ReshapeTensor("reshape_to", in, sizes);
}

std::optional<Dims> ReshapeTo::Contents() const {
  if (!x->contents.has_value() || TypeOf(shape).shape.size() != 1) return std::nullopt;
  return ops::MakeContents({TypeOf(x).dtype, Dims(TypeOf(shape).shape[0].value())}, *x->contents);
}

// ---- transpose -----------------------------------------------------------------------
absl::StatusOr<Types> Transpose::Infer() const {
  std::vector<int64_t> sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  bool valid = static_cast<int>(perm.size()) == TypeOf(x).rank();
  for (size_t i = 0; valid && i < sorted.size(); ++i) valid = sorted[i] == static_cast<int64_t>(i);
  if (!valid) return Fail("transpose_c1: perm is no permutation of the axes of ", Str(x));
  Dims out;
  for (int64_t axis : perm) out.push_back(TypeOf(x).shape[axis]);
  return Types{{TypeOf(x).dtype, out}};
}

namespace {

absl::StatusOr<Tensors> One(absl::StatusOr<Tensor> tensor) {
  if (!tensor.ok()) return tensor.status();
  return Tensors{*std::move(tensor)};
}

}  // namespace

absl::StatusOr<Tensors> Transpose::Eval(const EvalArgs& args) const {
  const Shape own = ops::StridesOf(args[0].shape());
  Shape shape, strides;
  for (int64_t axis : perm) {
    shape.push_back(args[0].shape()[axis]);
    strides.push_back(own[axis]);
  }
  return One(ops::CopyStrided("transpose", args[0], shape, strides));
}

// ---- expand ----------------------------------------------------------------------------
namespace {

absl::StatusOr<Types> InferExpand(absl::string_view label, const Value* x, const Dims& shape) {
  for (const Dim& dim : shape) {
    if (dim.is_constant() && dim.value() < 0) return Fail(label, ": ", dim.ToString(), " is not a size");
  }
  absl::StatusOr<Dims> out = BroadcastDims(TypeOf(x).shape, shape);
  if (!out.ok()) return Fail(label, ": ", out.status().message());
  return Types{{TypeOf(x).dtype, *std::move(out)}};
}

absl::StatusOr<Tensors> ExpandTensor(absl::string_view op, const Tensor& x, const Shape& shape) {
  ASSIGN_OR_RETURN(Shape out, ops::BroadcastShapes(op, x.shape(), shape));
  if (out == x.shape()) return Tensors{x};
  return One(ops::CopyStrided(op, x, out, ops::BroadcastStrides(x.shape(), out)));
}

std::optional<Dims> ExpandContents(const Value* x, const Dims& shape) {
  if (!x->contents.has_value() || shape.size() > 1 || TypeOf(x).rank() > 1) return std::nullopt;
  if (shape.empty() || IsNumber(shape[0], 1)) return x->contents;
  if (!shape[0].is_constant() || shape[0].value() < 0 || shape[0].value() > static_cast<int64_t>(ops::kMaxContents)) {
    return std::nullopt;
  }
  if (x->contents->size() != 1) return x->contents;
  return ops::MakeContents({TypeOf(x).dtype, shape}, Dims(shape[0].value(), (*x->contents)[0]));
}

}  // namespace

absl::StatusOr<Types> Expand::Infer(SizeCollector& sizes) const {
  sizes.BroadcastToResult({TypeOf(x).shape, shape});
  return InferExpand("expand_c1", x, shape);
}

absl::StatusOr<Tensors> Expand::Eval(const EvalArgs& args) const {
  ASSIGN_OR_RETURN(Shape sizes, ops::EvaluateDims("expand", shape, args));
  return ExpandTensor("expand", args[0], sizes);
}

std::optional<Dims> Expand::Contents() const { return ExpandContents(x, shape); }

namespace {

void CollectExpand(const ExpandTo& op, SizeCollector& sizes) {
  const std::optional<SizeList> shape = sizes.ElementsOf({op.shape})[0];
  if (sizes.result() == nullptr || !shape.has_value()) return;
  const Dims &from = TypeOf(op.x).shape, &to = *sizes.result();
  for (size_t i = 0; i < to.size(); ++i) {  // from the last axis
    const Size a = i < from.size() ? Size(from[from.size() - 1 - i]) : Size(1);
    const Size b = i < shape->size() ? (*shape)[shape->size() - 1 - i] : Size(1);
    const Size size = a == b || b.Is(1) ? a : a.Is(1) ? b : Size::Call("broadcast", {a, b});
    sizes.Equate(size, to[to.size() - 1 - i]);
  }
}

}  // namespace

absl::StatusOr<Types> ExpandTo::Infer(SizeCollector& sizes) const {
  ASSIGN_OR_RETURN(int64_t rank, IndexCount("expand_to_c1", "shape", shape));
  if (rank > static_cast<int64_t>(ops::kMaxContents)) return Fail("expand_to_c1: rank ", rank, " is above 64");
  CollectExpand(*this, sizes);
  return InferExpand("expand_to_c2", x, shape->contents.value_or(Dims(rank, Dim::Unknown())));
}

absl::StatusOr<Tensors> ExpandTo::Eval(const EvalArgs& args) const {
  return ExpandTensor("expand_to", args[0], args[1].ToInts());
}

std::optional<Dims> ExpandTo::Contents() const {
  return shape->contents.has_value() ? ExpandContents(x, *shape->contents) : std::nullopt;
}

// ---- concat ------------------------------------------------------------------------------
absl::StatusOr<Types> Concat::Infer(SizeCollector& sizes) const {
  const TensorType& first = TypeOf(parts[0]);
  RETURN_IF_ERROR(ops::CheckAxis("concat_c1", axis, first.rank()));
  TensorType out = first;
  for (size_t i = 1; i < parts.size(); ++i) {
    const TensorType& type = TypeOf(parts[i]);
    bool fits = type.dtype == out.dtype && type.rank() == out.rank();
    for (int d = 0; fits && d < out.rank(); ++d) {
      if (d == axis) {
        out.shape[d] = out.shape[d] + type.shape[d];
        continue;
      }
      fits = ops::MayBeEqual(out.shape[d], type.shape[d]);
      if (type.shape[d].is_constant() || out.shape[d].is_unknown()) out.shape[d] = type.shape[d];
    }
    if (!fits) return Fail("concat_c2: ", Str(parts[i]), " does not join ", first.ToString(), " along axis ", axis);
  }
  for (const Value* part : parts) {
    for (int d = 0; sizes.result() != nullptr && d < out.rank(); ++d) {
      if (d != axis) sizes.Equate(TypeOf(part).shape[d], (*sizes.result())[d]);
    }
  }
  RETURN_IF_ERROR(ops::JoinEncodings(parts, axis, &out));
  return Types{out};
}

absl::StatusOr<Tensors> Concat::Eval(const EvalArgs& args) const {
  if (args[0].encoding() != nullptr) return ops::ConcatEncoded(args, axis, (*args.result_types)[0].encoding);
  Shape shape = args[0].shape();
  for (size_t i = 1; i < args.size(); ++i) {
    const Shape& other = args[i].shape();
    bool fits = other.size() == shape.size() && args[i].dtype() == args[0].dtype();
    for (size_t d = 0; fits && d < shape.size(); ++d) fits = static_cast<int64_t>(d) == axis || shape[d] == other[d];
    if (!fits || __builtin_add_overflow(shape[axis], other[axis], &shape[axis])) {
      return Fail("concat: ", Str(args[i]), " does not join ", Str(args[0]), " along axis ", axis);
    }
  }
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("concat", args[0].dtype(), shape));
  const int64_t outer = ops::SizeOf(absl::MakeSpan(shape).first(axis));
  const int64_t inner = ops::SizeOf(absl::MakeSpan(shape).subspan(axis + 1));
  int64_t begin = 0;  // along the axis
  for (size_t i = 0; i < args.size(); ++i) {
    const int64_t run = args[i].shape()[axis] * inner;
    for (int64_t o = 0; o < outer; ++o) {
      ops::CopyElements(args[i], o * run, run, &out, (o * shape[axis] + begin) * inner);
    }
    begin += args[i].shape()[axis];
  }
  return Tensors{std::move(out)};
}

std::optional<Dims> Concat::Contents() const {
  Dims out;
  for (const Value* part : parts) {
    if (!part->contents.has_value() || TypeOf(part).rank() != 1) return std::nullopt;
    out.insert(out.end(), part->contents->begin(), part->contents->end());
    if (out.size() > ops::kMaxContents) return std::nullopt;
  }
  return ops::MakeContents({TypeOf(parts[0]).dtype, Dims(1)}, std::move(out));
}

}  // namespace llmc
