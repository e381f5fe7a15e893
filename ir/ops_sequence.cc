// range, cumsum, triangle and pad.
#include <cmath>

#include "base/status_macros.h"
#include "ir/ops_internal.h"
#include "ir/ops_shape.h"

namespace llmc {
namespace {

using ops::Elements;
using ops::Fail;
using ops::Result;
using ops::Str;
using ops::TypeOf;

bool IsNumeric(DType dtype) { return dtype != DType::kBool; }

}  // namespace

// ---- range -----------------------------------------------------------------------------
namespace {

void CollectRange(const Range& op, SizeCollector& sizes) {
  const std::vector<std::optional<SizeList>> ends = sizes.ElementsOf({op.start, op.limit, op.delta});
  if (sizes.result() == nullptr || !ends[0].has_value() || !ends[1].has_value() || !ends[2].has_value()) return;
  const Size start = (*ends[0])[0], limit = (*ends[1])[0], delta = (*ends[2])[0], out = (*sizes.result())[0];
  const bool is_real = IsFloat(TypeOf(op.start).dtype);
  if (out.is_number() || (!is_real && delta.Is(1) && limit - start == out)) return;
  sizes.Equate(Size::Call(is_real ? "real_range_size" : "range_size", {start, limit, delta}), out);
}

}  // namespace

absl::StatusOr<Types> Range::Infer(SizeCollector& sizes) const {
  const DType dtype = TypeOf(start).dtype;
  for (const Value* value : {start, limit, delta}) {
    if (TypeOf(value).rank() != 0 || TypeOf(value).dtype != dtype || !IsNumeric(dtype)) {
      return Fail("range_c1: ", Str(start), ", ", Str(limit), " and ", Str(delta), " are not numbers of one type");
    }
  }
  CollectRange(*this, sizes);
  const auto known = [](const Value* value) { return value->contents.has_value() && value->contents->size() == 1; };
  if (!known(start) || !known(limit) || !known(delta) || !(*delta->contents)[0].is_constant()) {
    return Types{{dtype, {Dim::Unknown()}}};
  }
  const int64_t step = (*delta->contents)[0].value();
  if (step == 0) return Fail("range_c2: delta is 0");
  const Dim length =
      step > 0 ? (*limit->contents)[0] - (*start->contents)[0] : (*start->contents)[0] - (*limit->contents)[0];
  if (length.is_constant() && length.value() <= 0) return Types{{dtype, {Dim(0)}}};
  if (!ops::ProvablyNonNegative(length) || step == std::numeric_limits<int64_t>::min()) {
    return Types{{dtype, {Dim::Unknown()}}};
  }
  const int64_t size = step > 0 ? step : -step;
  return Types{{dtype, {size == 1 ? length : Dim::FloorDiv(length + Dim(size - 1), Dim(size))}}};
}

absl::StatusOr<Tensors> Range::Eval(const EvalArgs& args) const {
  const DType dtype = args[0].dtype();
  if (!IsFloat(dtype)) {
    const int64_t from = args[0].GetInt(0), to = args[1].GetInt(0), step = args[2].GetInt(0);
    if (step == 0) return Fail("range: delta is 0");
    // In 128 bits: the distance of two int64_t may need 65.
    const __int128 distance = step > 0 ? static_cast<__int128>(to) - from : static_cast<__int128>(from) - to;
    const __int128 size = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
    const __int128 n = distance <= 0 ? 0 : (distance + size - 1) / size;
    ASSIGN_OR_RETURN(Tensor out,
                     ops::NewTensor("range", dtype, {static_cast<int64_t>(std::min<__int128>(n, INT64_MAX))}));
    for (int64_t i = 0; i < out.size(); ++i) {
      // The product may overflow where the sum does not.
      out.SetInt(i, static_cast<int64_t>(static_cast<uint64_t>(from) +
                                         static_cast<uint64_t>(i) * static_cast<uint64_t>(step)));
    }
    return Tensors{std::move(out)};
  }
  const double from = args[0].GetFloat(0), to = args[1].GetFloat(0), step = args[2].GetFloat(0);
  const double n = std::max(0.0, std::ceil((to - from) / step));
  if (step == 0 || !std::isfinite(from) || !std::isfinite(n) || n > 9e18) {
    return Fail("range: from ", from, " to ", to, " by ", step, " has no length");
  }
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("range", dtype, {static_cast<int64_t>(n)}));
  for (int64_t i = 0; i < out.size(); ++i) out.SetFloat(i, from + static_cast<double>(i) * step);
  return Tensors{std::move(out)};
}

// ---- cumsum -----------------------------------------------------------------------------
absl::StatusOr<Types> CumSum::Infer() const {
  RETURN_IF_ERROR(ops::CheckAxis("cumsum_c1", axis, TypeOf(x).rank()));
  if (!IsNumeric(TypeOf(x).dtype)) return Fail("cumsum_c2: does not take ", Str(x));
  return Types{TypeOf(x)};
}

absl::StatusOr<Tensors> CumSum::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  const auto shape = absl::MakeConstSpan(in.shape());
  const int64_t n = shape[axis], inner = ops::SizeOf(shape.subspan(axis + 1)), outer = ops::SizeOf(shape.first(axis));
  ASSIGN_OR_RETURN(Tensor tensor, ops::NewTensor("cumsum", in.dtype(), in.shape()));
  return ops::WithArithmetic(in.dtype(), [&]<class T>(T) -> absl::StatusOr<Tensors> {
    // Unsigned for integers: sums wrap around.
    using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
    const Elements<T> from(in);
    Result<T> to(std::move(tensor));
    T* out = to.data();
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < inner; ++i) {
        Sum sum = 0;
        for (int64_t k = 0; k < n; ++k) {
          const int64_t at = (o * n + (reverse ? n - 1 - k : k)) * inner + i;
          if (exclusive) out[at] = static_cast<T>(sum);
          sum += static_cast<Sum>(from[at]);
          if (!exclusive) out[at] = static_cast<T>(sum);
        }
      }
    }
    return Tensors{to.Finish()};
  });
}

// ---- triangle -----------------------------------------------------------------------------
absl::StatusOr<Types> Triangle::Infer() const {
  if (TypeOf(x).rank() < 2) return Fail("triangle_c1: ", Str(x), " has fewer than two axes");
  return Types{TypeOf(x)};
}

absl::StatusOr<Tensors> Triangle::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("triangle", in.dtype(), in.shape()));
  const int64_t rows = in.shape()[in.rank() - 2], columns = in.shape()[in.rank() - 1];
  const int64_t matrices = ops::SizeOf(absl::MakeConstSpan(in.shape()).first(in.rank() - 2));
  // Larger diagonals mean the same, and do not overflow below.
  const int64_t shift = std::clamp(diagonal, -rows - 1, columns + 1);
  for (int64_t m = 0; m < matrices; ++m) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t begin = upper ? std::clamp<int64_t>(r + shift, 0, columns) : 0;
      const int64_t end = upper ? columns : std::clamp<int64_t>(r + shift + 1, 0, columns);
      const int64_t at = (m * rows + r) * columns + begin;
      ops::CopyElements(in, at, end - begin, &out, at);
    }
  }
  return Tensors{std::move(out)};
}

// ---- pad -------------------------------------------------------------------------------------
absl::StatusOr<Types> Pad::Infer() const {
  TensorType out = TypeOf(x);
  const size_t rank = out.shape.size();
  if (before.size() != rank || after.size() != rank) {
    return Fail("pad_c1: ", before.size(), " and ", after.size(), " paddings for ", Str(x));
  }
  for (size_t d = 0; d < rank; ++d) {
    if (before[d] < 0 || after[d] < 0) return Fail("pad_c2: a padding of axis ", d, " is negative");
    out.shape[d] = out.shape[d] + Dim(before[d]) + Dim(after[d]);
  }
  return Types{out};
}

absl::StatusOr<Tensors> Pad::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  Shape shape = in.shape();
  for (size_t d = 0; d < shape.size(); ++d) {
    if (__builtin_add_overflow(shape[d], before[d], &shape[d]) ||
        __builtin_add_overflow(shape[d], after[d], &shape[d])) {
      return Fail("pad: the size of axis ", d, " overflows");
    }
  }
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("pad", in.dtype(), shape));
  if (value != 0) {
    for (int64_t i = 0; i < out.size(); ++i) out.SetFloat(i, value);
  }
  if (in.rank() == 0) return Tensors{in};
  const Shape strides = ops::StridesOf(shape);
  int64_t corner = 0;
  for (size_t d = 0; d < shape.size(); ++d) corner += before[d] * strides[d];
  const int64_t columns = in.shape().back();
  Shape rows = in.shape();
  rows.back() = 1;
  int64_t from = 0;
  ops::StridedLoop<1>(rows, {strides}).Run([&](const auto& offset, int64_t n, const auto& step) {
    for (int64_t i = 0; i < n; ++i, from += columns) {
      ops::CopyElements(in, from, columns, &out, corner + offset[0] + i * step[0]);
    }
  });
  return Tensors{std::move(out)};
}

}  // namespace llmc
