// Ops that read or write elements at indices.
#include "base/status_macros.h"
#include "ir/ops_internal.h"
#include "ir/ops_shape.h"

namespace llmc {
namespace {

using ops::Fail;
using ops::IsIndexType;
using ops::Str;
using ops::TypeOf;

// An index into an axis of `size`, negative ones from the end.
absl::StatusOr<int64_t> Resolve(absl::string_view op, int64_t index, int64_t size) {
  const int64_t at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) return Fail(op, ": index ", index, " is not in an axis of ", size);
  return at;
}

// The flat offset of the slice that an index tuple names, over axes [first, first + n) of a tensor.
absl::StatusOr<int64_t> ResolveTuple(absl::string_view op, const int64_t* tuple, int64_t n, const Shape& shape,
                                     const Shape& strides, int64_t first) {
  int64_t offset = 0;
  for (int64_t i = 0; i < n; ++i) {
    absl::StatusOr<int64_t> at = Resolve(op, tuple[i], shape[first + i]);
    if (!at.ok()) return at;
    offset += *at * strides[first + i];
  }
  return offset;
}

Dims Joined(absl::Span<const Dim> a, absl::Span<const Dim> b) {
  Dims out(a.begin(), a.end());
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

Shape Joined(absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
  Shape out(a.begin(), a.end());
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

}  // namespace

absl::StatusOr<Types> Gather::Infer() const {
  const TensorType& type = TypeOf(x);
  RETURN_IF_ERROR(ops::CheckAxis("gather_c1", axis, type.rank()));
  if (!IsIndexType(TypeOf(indices).dtype)) return Fail("gather_c2: indices ", Str(indices), " are not i64 or i32");
  const auto dims = absl::MakeConstSpan(type.shape);
  ASSIGN_OR_RETURN(const Encoding* encoding, ops::EncodingOfRows(x, axis));
  return Types{{type.dtype, Joined(Joined(dims.first(axis), TypeOf(indices).shape), dims.subspan(axis + 1)), encoding}};
}

absl::StatusOr<Tensors> Gather::Eval(const EvalArgs& args) const {
  if (args[0].encoding() != nullptr) return ops::GatherEncoded(args, (*args.result_types)[0].encoding);
  const Tensor& in = args[0];
  const auto dims = absl::MakeConstSpan(in.shape());
  const int64_t outer = ops::SizeOf(dims.first(axis)), inner = ops::SizeOf(dims.subspan(axis + 1));
  ASSIGN_OR_RETURN(
      Tensor out,
      ops::NewTensor("gather", in.dtype(), Joined(Joined(dims.first(axis), args[1].shape()), dims.subspan(axis + 1))));
  std::vector<int64_t> at = args[1].ToInts();
  for (int64_t& index : at) {
    ASSIGN_OR_RETURN(int64_t resolved, Resolve("gather", index, dims[axis]));
    index = resolved;
  }
  int64_t to = 0;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t index : at) {
      ops::CopyElements(in, (o * dims[axis] + index) * inner, inner, &out, to);
      to += inner;
    }
  }
  return Tensors{std::move(out)};
}

std::optional<Dims> Gather::Contents() const {
  const auto at = ops::ConstantContents(indices);
  if (!x->contents.has_value() || TypeOf(x).rank() != 1 || !at.has_value()) return std::nullopt;
  const int64_t size = static_cast<int64_t>(x->contents->size());
  Dims out;
  for (int64_t index : *at) {
    absl::StatusOr<int64_t> resolved = Resolve("gather", index, size);
    if (!resolved.ok()) return std::nullopt;
    out.push_back((*x->contents)[*resolved]);
  }
  return ops::MakeContents({TypeOf(x).dtype, TypeOf(indices).shape}, std::move(out));
}

OpCost Gather::Cost(const Types& results) const { return ops::Picking(x, results[0]); }

absl::StatusOr<Types> GatherElements::Infer(SizeCollector& sizes) const {
  const TensorType& type = TypeOf(x);
  RETURN_IF_ERROR(ops::CheckAxis("gather_elements_c1", axis, type.rank()));
  if (!IsIndexType(TypeOf(indices).dtype) || TypeOf(indices).rank() != type.rank()) {
    return Fail("gather_elements_c2: indices ", Str(indices), " are no index tensor of the rank of ", Str(x));
  }
  for (int d = 0; d < type.rank(); ++d) {
    const Dim &size = type.shape[d], &index = TypeOf(indices).shape[d];
    if (d != axis && !(index == size)) sizes.Within(0, index, size, index);
  }
  return Types{{type.dtype, TypeOf(indices).shape}};
}

absl::StatusOr<Tensors> GatherElements::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  const Shape& shape = args[1].shape();
  for (size_t d = 0; d < shape.size(); ++d) {
    if (static_cast<int64_t>(d) != axis && shape[d] > in.shape()[d]) {
      return Fail("gather_elements: indices ", Str(args[1]), " are larger than ", Str(in), " in axis ", d);
    }
  }
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("gather_elements", in.dtype(), shape));
  const std::vector<int64_t> at = args[1].ToInts();
  Shape strides = ops::StridesOf(in.shape());
  const int64_t stride = strides[axis];
  strides[axis] = 0;
  absl::Status status;
  int64_t to = 0;
  ops::StridedLoop<1>(shape, {strides}).Run([&](const auto& offset, int64_t n, const auto& step) {
    for (int64_t i = 0; i < n && status.ok(); ++i, ++to) {
      absl::StatusOr<int64_t> index = Resolve("gather_elements", at[to], in.shape()[axis]);
      status = index.status();
      if (index.ok()) ops::CopyElements(in, offset[0] + i * step[0] + *index * stride, 1, &out, to);
    }
  });
  if (!status.ok()) return status;
  return Tensors{std::move(out)};
}

OpCost GatherElements::Cost(const Types& results) const { return ops::Picking(x, results[0]); }

absl::StatusOr<Types> GatherNd::Infer(SizeCollector& sizes) const {
  const TensorType& type = TypeOf(x);
  const TensorType& list = TypeOf(indices);
  if (!IsIndexType(list.dtype) || list.rank() == 0 || !list.shape.back().is_constant()) {
    return Fail("gather_nd_c1: indices ", Str(indices), " do not end in an axis of tuples of a known length");
  }
  const int64_t tuple = list.shape.back().value();
  if (batch_dims < 0 || batch_dims >= list.rank() || batch_dims > type.rank() || tuple > type.rank() - batch_dims) {
    return Fail("gather_nd_c2: batch_dims ", batch_dims, " and indices ", Str(indices), " do not fit ", Str(x));
  }
  for (int64_t d = 0; d < batch_dims; ++d) {
    if (!sizes.Same(list.shape[d], type.shape[d])) {
      return Fail("gather_nd_c3: batch dim ", d, " of ", Str(indices), " and of ", Str(x), " differ");
    }
  }
  return Types{{type.dtype, Joined(absl::MakeConstSpan(list.shape).first(list.rank() - 1),
                                   absl::MakeConstSpan(type.shape).subspan(batch_dims + tuple))}};
}

absl::StatusOr<Tensors> GatherNd::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  const auto list = absl::MakeConstSpan(args[1].shape()), dims = absl::MakeConstSpan(in.shape());
  if (list.first(batch_dims) != dims.first(batch_dims)) {
    return Fail("gather_nd: batch dims of ", Str(args[1]), " and ", Str(in), " differ");
  }
  const int64_t tuple = list.back();
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("gather_nd", in.dtype(),
                                              Joined(list.first(list.size() - 1), dims.subspan(batch_dims + tuple))));
  const std::vector<int64_t> at = args[1].ToInts();
  const Shape strides = ops::StridesOf(in.shape());
  const int64_t batches = ops::SizeOf(list.first(batch_dims));
  const int64_t tuples = ops::SizeOf(list.subspan(batch_dims, list.size() - 1 - batch_dims));
  const int64_t batch_size = ops::SizeOf(dims.subspan(batch_dims));
  const int64_t inner = ops::SizeOf(dims.subspan(batch_dims + tuple));
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t i = b * tuples; i < (b + 1) * tuples; ++i) {
      ASSIGN_OR_RETURN(int64_t offset,
                       ResolveTuple("gather_nd", at.data() + i * tuple, tuple, in.shape(), strides, batch_dims));
      ops::CopyElements(in, b * batch_size + offset, inner, &out, i * inner);
    }
  }
  return Tensors{std::move(out)};
}

OpCost GatherNd::Cost(const Types& results) const { return ops::Picking(x, results[0]); }

namespace {

// Joins n elements with what is at `to_begin`, in the arithmetic of the type.
void JoinElements(absl::string_view how, const Tensor& from, int64_t from_begin, int64_t n, Tensor* to,
                  int64_t to_begin) {
  ops::WithArithmetic(from.dtype(), [&]<class T>(T) {
    std::vector<T> a(static_cast<size_t>(n)), b(static_cast<size_t>(n));
    ops::Load<T>(*to, to_begin, n, a.data());
    ops::Load<T>(from, from_begin, n, b.data());
    // Unsigned for integers: sums and products wrap around.
    using Wide = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
    for (size_t i = 0; i < a.size(); ++i) {
      if (how == "add") a[i] = static_cast<T>(static_cast<Wide>(a[i]) + static_cast<Wide>(b[i]));
      if (how == "mul") a[i] = static_cast<T>(static_cast<Wide>(a[i]) * static_cast<Wide>(b[i]));
      if (how == "max") a[i] = b[i] > a[i] || b[i] != b[i] ? b[i] : a[i];
      if (how == "min") a[i] = b[i] < a[i] || b[i] != b[i] ? b[i] : a[i];
    }
    ops::Store<T>(a.data(), to_begin, n, to);
  });
}

}  // namespace

absl::StatusOr<Types> ScatterNd::Infer(SizeCollector& sizes) const {
  const TensorType& type = TypeOf(x);
  const TensorType& list = TypeOf(indices);
  if (!IsIndexType(list.dtype) || list.rank() == 0 || !list.shape.back().is_constant() ||
      list.shape.back().value() > type.rank()) {
    return Fail("scatter_nd_c1: indices ", Str(indices), " do not end in an axis of tuples into ", Str(x));
  }
  const int64_t tuple = list.shape.back().value();
  const Dims want =
      Joined(absl::MakeConstSpan(list.shape).first(list.rank() - 1), absl::MakeConstSpan(type.shape).subspan(tuple));
  const TensorType& given = TypeOf(updates);
  const bool fits = given.dtype == type.dtype && sizes.Same(given.shape, want);
  const bool known =
      reduction == "none" || reduction == "add" || reduction == "mul" || reduction == "max" || reduction == "min";
  if (!known || (reduction != "none" && type.dtype == DType::kBool)) {
    return Fail("scatter_nd_c3: cannot reduce ", Str(x), " by \"", reduction, "\"");
  }
  if (!fits) return Fail("scatter_nd_c2: updates ", Str(updates), " are not [", DimsToString(want), "]");
  return Types{type};
}

absl::StatusOr<Tensors> ScatterNd::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  const auto list = absl::MakeConstSpan(args[1].shape()), dims = absl::MakeConstSpan(in.shape());
  const int64_t tuple = list.back();
  if (args[2].shape() != Joined(list.first(list.size() - 1), dims.subspan(tuple))) {
    return Fail("scatter_nd: updates ", Str(args[2]), " do not fit ", Str(in), " and indices ", Str(args[1]));
  }
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("scatter_nd", in.dtype(), in.shape()));
  ops::CopyElements(in, 0, in.size(), &out, 0);
  const std::vector<int64_t> at = args[1].ToInts();
  const Shape strides = ops::StridesOf(in.shape());
  const int64_t inner = ops::SizeOf(dims.subspan(tuple)), tuples = ops::SizeOf(list.first(list.size() - 1));
  for (int64_t i = 0; i < tuples; ++i) {
    ASSIGN_OR_RETURN(int64_t offset, ResolveTuple("scatter_nd", at.data() + i * tuple, tuple, in.shape(), strides, 0));
    if (reduction == "none") {
      ops::CopyElements(args[2], i * inner, inner, &out, offset);
    } else {
      JoinElements(reduction, args[2], i * inner, inner, &out, offset);
    }
  }
  return Tensors{std::move(out)};
}

}  // namespace llmc
