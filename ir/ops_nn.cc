// Reductions, softmax and normalizations.
#include "ir/ops_nn.h"

#include <cmath>
#include <limits>

#include "base/status_macros.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

using ops::Elements;
using ops::Fail;
using ops::Result;
using ops::Str;
using ops::TypeOf;

template <class F>
inline constexpr bool kIsMax = std::is_same_v<F, ReduceMaxFn>;
template <class F>
inline constexpr bool kIsMin = std::is_same_v<F, ReduceMinFn>;

template <class F>
std::string Label(absl::string_view suffix) {
  return absl::StrCat(F::kInfo.name, suffix);
}

template <class Dimension>
std::vector<Dimension> ReducedShape(const std::vector<Dimension>& shape, const std::vector<int64_t>& axes, bool keep) {
  std::vector<Dimension> out;
  size_t next = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (next < axes.size() && axes[next] == static_cast<int64_t>(d)) {
      ++next;
      if (keep) out.push_back(Dimension(1));
    } else {
      out.push_back(shape[d]);
    }
  }
  return out;
}

// x with the axes to reduce moved to the end: rows of n elements.
absl::StatusOr<Tensor> MoveToEnd(absl::string_view op, const Tensor& x, const std::vector<int64_t>& axes, int64_t* n) {
  const Shape own = ops::StridesOf(x.shape());
  Shape shape = ReducedShape(x.shape(), axes, false), strides = ReducedShape(own, axes, false);
  *n = 1;
  for (int64_t axis : axes) {
    shape.push_back(x.shape()[axis]);
    strides.push_back(own[axis]);
    *n *= x.shape()[axis];
  }
  if (shape == x.shape() && strides == own) return x;
  return ops::CopyStrided(op, x, shape, strides);
}

// f32 sums are kept in f64, integer ones wrap around.
template <class F, class T>
T ReduceRow(const T* x, int64_t n) {
  if constexpr (kIsMax<F> || kIsMin<F>) {
    using Limits = std::numeric_limits<T>;
    const T low = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    const T high = Limits::has_infinity ? Limits::infinity() : Limits::max();
    T best = kIsMax<F> ? low : high;
    for (int64_t i = 0; i < n; ++i) {
      if (x[i] != x[i] || (kIsMax<F> ? x[i] > best : x[i] < best)) best = x[i];
    }
    return best;
  } else {
    using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;
    constexpr bool kProduct = std::is_same_v<F, ReduceProdFn>;
    Sum sum = kProduct ? 1 : 0;
    for (int64_t i = 0; i < n; ++i) {
      if (kProduct) {
        sum *= static_cast<Sum>(x[i]);
      } else {
        sum += static_cast<Sum>(x[i]);
      }
    }
    if constexpr (std::is_same_v<F, ReduceMeanFn>) {
      if constexpr (std::is_integral_v<T>) return n == 0 ? 0 : static_cast<T>(sum) / n;
      return static_cast<T>(sum / static_cast<double>(n));
    }
    return static_cast<T>(sum);
  }
}

}  // namespace

template <class F>
absl::StatusOr<Types> Reduce<F>::Infer() const {
  const TensorType& type = TypeOf(x);
  if (type.dtype == DType::kBool && !kIsMax<F> && !kIsMin<F>) return Fail(Label<F>("_c1"), ": does not take ", Str(x));
  for (size_t i = 0; i < axes.size(); ++i) {
    RETURN_IF_ERROR(ops::CheckAxis(Label<F>("_c2"), axes[i], type.rank()));
    if (i > 0 && axes[i] <= axes[i - 1]) return Fail(Label<F>("_c3"), ": the axes are not in order");
  }
  return Types{{type.dtype, ReducedShape(type.shape, axes, keep_dims)}};
}

template <class F>
absl::StatusOr<Tensors> Reduce<F>::Eval(const EvalArgs& args) const {
  int64_t n = 1;
  ASSIGN_OR_RETURN(Tensor moved, MoveToEnd(F::kInfo.name, args[0], axes, &n));
  ASSIGN_OR_RETURN(Tensor out,
                   ops::NewTensor(F::kInfo.name, args[0].dtype(), ReducedShape(args[0].shape(), axes, keep_dims)));
  return ops::WithArithmetic(moved.dtype(), [&]<class T>(T) -> absl::StatusOr<Tensors> {
    const Elements<T> from(moved);
    const int64_t rows = out.size();
    Result<T> to(std::move(out));
    for (int64_t r = 0; r < rows; ++r) to[r] = ReduceRow<F, T>(from.data() + r * n, n);
    return Tensors{to.Finish()};
  });
}

template <class F>
std::optional<Dims> Reduce<F>::Contents() const {
  if (!x->contents.has_value() || axes.size() != 1 || x->contents->empty()) return std::nullopt;
  Dim all = (*x->contents)[0];
  for (size_t i = 1; i < x->contents->size(); ++i) {
    const Dim& dim = (*x->contents)[i];
    if (std::is_same_v<F, ReduceProdFn>) {
      all = all * dim;
    } else if (std::is_same_v<F, ReduceSumFn>) {
      all = all + dim;
    } else if ((kIsMax<F> && ops::ProvablyAtMost(all, dim)) || (kIsMin<F> && ops::ProvablyAtMost(dim, all))) {
      all = dim;
    } else if (!(kIsMax<F> && ops::ProvablyAtMost(dim, all)) && !(kIsMin<F> && ops::ProvablyAtMost(all, dim))) {
      return std::nullopt;
    }
  }
  return ops::MakeContents({TypeOf(x).dtype, Dims(keep_dims ? 1 : 0, Dim(1))}, {all});
}

template struct Reduce<ReduceSumFn>;
template struct Reduce<ReduceMeanFn>;
template struct Reduce<ReduceMaxFn>;
template struct Reduce<ReduceMinFn>;
template struct Reduce<ReduceProdFn>;

// ---- argmax ---------------------------------------------------------------------------
absl::StatusOr<Types> ArgMax::Infer() const {
  RETURN_IF_ERROR(ops::CheckAxis("argmax_c1", axis, TypeOf(x).rank()));
  if (TypeOf(x).dtype == DType::kBool) return Fail("argmax_c2: does not take ", Str(x));
  return Types{{DType::kI64, ReducedShape(TypeOf(x).shape, {axis}, keep_dims)}};
}

absl::StatusOr<Tensors> ArgMax::Eval(const EvalArgs& args) const {
  int64_t n = 1;
  ASSIGN_OR_RETURN(Tensor moved, MoveToEnd("argmax", args[0], {axis}, &n));
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("argmax", DType::kI64, ReducedShape(args[0].shape(), {axis}, keep_dims)));
  if (n == 0 && out.size() > 0) return Fail("argmax: axis ", axis, " of ", Str(args[0]), " is empty");
  ops::WithArithmetic(moved.dtype(), [&]<class T>(T) {
    const Elements<T> from(moved);
    for (int64_t r = 0; r < out.size(); ++r) {
      const T* row = from.data() + r * n;
      int64_t best = 0;  // The first NaN is larger than all numbers, as numpy has it.
      for (int64_t i = 1; i < n && row[best] == row[best]; ++i) {
        if (row[i] > row[best] || row[i] != row[i]) best = i;
      }
      out.mutable_data<int64_t>()[r] = best;
    }
  });
  return Tensors{std::move(out)};
}

absl::StatusOr<Types> ArgSort::Infer() const {
  RETURN_IF_ERROR(ops::CheckAxis("argsort_c1", axis, TypeOf(x).rank()));
  return Types{{DType::kI64, TypeOf(x).shape}};
}

absl::StatusOr<Tensors> ArgSort::Eval(const EvalArgs& args) const {
  const auto shape = absl::MakeConstSpan(args[0].shape());
  const int64_t n = shape[axis], inner = ops::SizeOf(shape.subspan(axis + 1)), outer = ops::SizeOf(shape.first(axis));
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("argsort", DType::kI64, args[0].shape()));
  std::vector<int64_t> order(static_cast<size_t>(n));
  ops::WithArithmetic(args[0].dtype(), [&]<class T>(T) {
    const Elements<T> from(args[0]);
    for (int64_t row = 0; row < outer * inner; ++row) {
      const int64_t begin = row / inner * n * inner + row % inner;
      const auto less = [&](int64_t i, int64_t k) {
        const T a = from[begin + i * inner], b = from[begin + k * inner];
        return b != b ? a == a : a < b;
      };
      for (int64_t i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t i, int64_t k) { return descending ? less(k, i) : less(i, k); });
      for (int64_t i = 0; i < n; ++i) out.mutable_data<int64_t>()[begin + i * inner] = order[static_cast<size_t>(i)];
    }
  });
  return Tensors{std::move(out)};
}

// ---- softmax --------------------------------------------------------------------------
absl::StatusOr<Types> Softmax::Infer() const {
  RETURN_IF_ERROR(ops::CheckAxis("softmax_c1", axis, TypeOf(x).rank()));
  if (!IsFloat(TypeOf(x).dtype)) return Fail("softmax_c2: does not take ", Str(x));
  return Types{TypeOf(x)};
}

namespace {

// One row of n elements `step` apart.
template <class T>
void SoftmaxRow(const T* x, int64_t n, int64_t step, bool log, T* out) {
  T top = -std::numeric_limits<T>::infinity();
  for (int64_t i = 0; i < n; ++i) top = std::max(top, x[i * step]);
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T power = std::exp(x[i * step] - top);
    sum += power;
    out[i * step] = log ? x[i * step] - top : power;
  }
  const T log_sum = std::log(sum);
  for (int64_t i = 0; i < n; ++i) {
    if (log) {
      out[i * step] -= log_sum;
    } else {
      out[i * step] /= sum;
    }
  }
}

}  // namespace

absl::StatusOr<Tensors> Softmax::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  const auto shape = absl::MakeConstSpan(in.shape());
  const int64_t n = shape[axis], inner = ops::SizeOf(shape.subspan(axis + 1)), outer = ops::SizeOf(shape.first(axis));
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("softmax", in.dtype(), in.shape()));
  return ops::WithArithmetic(in.dtype(), [&]<class T>(T) -> absl::StatusOr<Tensors> {
    if constexpr (std::is_integral_v<T>) {
      return Fail("softmax: does not take ", Str(in));
    } else {
      const Elements<T> from(in);
      Result<T> to(std::move(out));
      T* result = to.data();
      ops::ParallelFor(outer * inner, 16.0 * static_cast<double>(in.size()), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const int64_t at = row / inner * n * inner + row % inner;
          SoftmaxRow<T>(from.data() + at, n, inner, log, result + at);
        }
      });
      return Tensors{to.Finish()};
    }
  });
}

// ---- normalizations ---------------------------------------------------------------------
absl::StatusOr<Types> LayerNorm::Infer(SizeCollector& sizes) const {
  const TensorType& type = TypeOf(x);
  RETURN_IF_ERROR(ops::CheckAxis("layer_norm_c1", axis, type.rank()));
  if (!IsFloat(type.dtype)) return Fail("layer_norm_c2: does not take ", Str(x));
  for (const Value* value : {weight, bias}) {
    if (value == nullptr) continue;
    const TensorType& given = TypeOf(value);
    if (!IsFloat(given.dtype) || !sizes.Same(given.shape, Dims(type.shape.begin() + axis, type.shape.end()))) {
      return Fail("layer_norm_c3: ", value == weight ? "weight " : "bias ", Str(value),
                  " does not match the axes of x ", Str(x), " from ", axis);
    }
  }
  return Types{type};
}

namespace {

template <class T>
void LayerNormRow(const T* x, int64_t n, double eps, const T* weight, const T* bias, T* out) {
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < n; ++i) mean += static_cast<double>(x[i]);
  mean /= static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) variance += (static_cast<double>(x[i]) - mean) * (static_cast<double>(x[i]) - mean);
  const T factor = static_cast<T>(1.0 / std::sqrt(variance / static_cast<double>(n) + eps));
  const T center = static_cast<T>(mean);
  for (int64_t i = 0; i < n; ++i) out[i] = (x[i] - center) * factor * weight[i] + (bias == nullptr ? T(0) : bias[i]);
}

// The sum of squares is the one of an inner product, so that it does not depend on other rows.
void RmsNormRow(const float* x, int64_t n, double eps, const float* weight, float* out) {
  const float mean = ops::Dot(x, x, n) / static_cast<float>(n);
  const float factor = 1.0f / std::sqrt(mean + static_cast<float>(eps));
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}
void RmsNormRow(const double* x, int64_t n, double eps, const double* weight, double* out) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  const double factor = 1.0 / std::sqrt(sum / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

absl::Status CheckRmsNorm(absl::string_view label, const Value* x, const Value* weight, SizeCollector& sizes) {
  const TensorType& type = TypeOf(x);
  if (!IsFloat(type.dtype) || type.rank() == 0) return Fail(label, ": does not take ", Str(x));
  const TensorType& given = TypeOf(weight);
  if (IsFloat(given.dtype) && sizes.Same(given.shape, {type.shape.back()})) {
    return absl::OkStatus();
  }
  return Fail(label, ": weight ", Str(weight), " does not match the last axis of x ", Str(x));
}

}  // namespace

absl::StatusOr<Tensors> LayerNorm::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  const Shape tail(in.shape().begin() + axis, in.shape().end());
  const int64_t n = ops::SizeOf(tail);
  for (size_t i : {1, 2}) {
    if (args.has(i) && args[i].shape() != tail) return Fail("layer_norm: ", Str(args[i]), " for x ", Str(in));
  }
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("layer_norm", in.dtype(), in.shape()));
  if (in.size() == 0) return Tensors{std::move(out)};
  const auto run = [&]<class T>(T) {
    const Elements<T> from(in), factors(args[1]), shifts(args.has(2) ? args[2] : Tensor(DType::kF32, {0}));
    Result<T> to(std::move(out));
    for (int64_t at = 0; at < in.size(); at += n) {
      LayerNormRow<T>(from.data() + at, n, eps, factors.data(), args.has(2) ? shifts.data() : nullptr, to.data() + at);
    }
    return Tensors{to.Finish()};
  };
  return in.dtype() == DType::kF64 ? run(double{}) : run(float{});
}

absl::StatusOr<Tensor> ops::RmsNormTensor(absl::string_view op, const Tensor& x, const Tensor& weight, double eps) {
  const int64_t n = x.shape().back();
  if (weight.shape() != Shape{n}) return Fail(op, ": weight ", Str(weight), " for x ", Str(x));
  absl::StatusOr<Tensor> out = ops::NewTensor(op, x.dtype(), x.shape());
  if (!out.ok() || x.size() == 0) return out;
  const auto run = [&]<class T>(T) {
    const Elements<T> from(x), factors(weight);
    Result<T> to(*std::move(out));
    for (int64_t at = 0; at < x.size(); at += n) RmsNormRow(from.data() + at, n, eps, factors.data(), to.data() + at);
    return to.Finish();
  };
  return x.dtype() == DType::kF64 ? run(double{}) : run(float{});
}

absl::StatusOr<Types> RmsNorm::Infer(SizeCollector& sizes) const {
  RETURN_IF_ERROR(CheckRmsNorm("rms_norm_c1", x, weight, sizes));
  return Types{TypeOf(x)};
}

absl::StatusOr<Tensors> RmsNorm::Eval(const EvalArgs& args) const {
  ASSIGN_OR_RETURN(Tensor out, ops::RmsNormTensor("rms_norm", args[0], args[1], eps));
  return Tensors{std::move(out)};
}

}  // namespace llmc
