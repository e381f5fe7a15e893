#include "ir/ops_elementwise.h"

#include <cmath>

#include "base/status_macros.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

using ops::Elements;
using ops::Fail;
using ops::Result;
using ops::Str;
using ops::TypeOf;

template <class F, class... Fs>
inline constexpr bool kIsOneOf = (std::is_same_v<F, Fs> || ...);

template <class F>
inline constexpr bool kTakesFloats = F::kTakes != Takes::kLogical;
template <class F>
inline constexpr bool kTakesIntegers = F::kTakes != Takes::kFloats;
template <class F>
inline constexpr bool kGivesBool = F::kGives == Gives::kBool;

template <class F>
bool TakesType(DType dtype) {
  if (dtype == DType::kBool) return F::kTakes == Takes::kLogical || F::kTakes == Takes::kAny;
  return IsInteger(dtype) ? kTakesIntegers<F> : kTakesFloats<F>;
}

template <class F>
absl::string_view Name() {
  return F::kInfo.name;
}

// ---- single elements: the functions that elementwise.def names; integers wrap around, where int64_t would be
// undefined
template <class T>
T Negated(T x) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(0 - static_cast<uint64_t>(x));
  return -x;
}
template <class T>
T Magnitude(T x) {
  if constexpr (std::is_integral_v<T>) return x < 0 ? Negated(x) : x;
  return std::abs(x);
}

// What wraps around is computed without a sign.
template <class T>
using Wrapping = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
template <class T>
T Sum(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}
template <class T>
T Difference(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
}
template <class T>
T Multiplied(T a, T b) {
  return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}
template <class T>
T Divided(T a, T b) {
  if constexpr (std::is_integral_v<T>) return b == -1 ? Negated(a) : a / b;
  return a / b;
}
template <class T>
T Remainder(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return b == -1 ? 0 : a % b;
  } else {
    return std::fmod(a, b);
  }
}
template <class T>
T Modulo(T a, T b) {
  const T rest = Remainder(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

int64_t Power(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  uint64_t power = 1, square = static_cast<uint64_t>(base);
  for (; exponent > 0; exponent >>= 1, square *= square) {
    if (exponent & 1) power *= square;
  }
  return static_cast<int64_t>(power);
}
float Power(float a, float b) { return std::pow(a, b); }
double Power(double a, double b) { return std::pow(a, b); }

// The values of ops, by elementwise.def.
template <class F>
struct Value1;
template <class F>
struct Value2;
#define UNARY(NAME, TEXT, TAKES, GIVES, TRAITS, SUMMARY, ...) \
  template <>                                                 \
  struct Value1<NAME##Fn> {                                   \
    template <class T>                                        \
    static auto Of(T x) {                                     \
      return __VA_ARGS__;                                     \
    }                                                         \
  };
#define BINARY(NAME, TEXT, TAKES, GIVES, TRAITS, SUMMARY, ...) \
  template <>                                                  \
  struct Value2<NAME##Fn> {                                    \
    template <class T>                                         \
    static auto Of(T a, T b) {                                 \
      return __VA_ARGS__;                                      \
    }                                                          \
  };
#include "ir/elementwise.def"

template <class F, class T>
inline constexpr bool kComputesWith = std::is_integral_v<T> ? kTakesIntegers<F> : kTakesFloats<F>;
template <class F, class T>
using ResultOf = std::conditional_t<kGivesBool<F>, uint8_t, T>;

// Infer lets no type come here that an op does not take.
template <class F, class T>
ResultOf<F, T> Apply([[maybe_unused]] T x) {
  if constexpr (kComputesWith<F, T>) return static_cast<ResultOf<F, T>>(Value1<F>::Of(x));
  return {};
}
template <class F, class T>
ResultOf<F, T> Apply([[maybe_unused]] T a, [[maybe_unused]] T b) {
  if constexpr (kComputesWith<F, T>) return static_cast<ResultOf<F, T>>(Value2<F>::Of(a, b));
  return {};
}

// ---- whole tensors --------------------------------------------------------------
template <class F, class T, class Out>
void RunBinary(const Tensor& lhs, const Tensor& rhs, const Shape& shape, Out* out) {
  const Elements<T> a(lhs), b(rhs);
  const ops::StridedLoop<2> loop(
      shape, {ops::BroadcastStrides(lhs.shape(), shape), ops::BroadcastStrides(rhs.shape(), shape)});
  loop.Run([&](const std::array<int64_t, 2>& at, int64_t n, const std::array<int64_t, 2>& step) {
    const T* x = a.data() + at[0];
    const T* y = b.data() + at[1];
    if (step[0] == 1 && step[1] == 1) {
      for (int64_t i = 0; i < n; ++i) out[i] = Apply<F, T>(x[i], y[i]);
    } else if (step[0] == 1 && step[1] == 0) {
      for (int64_t i = 0; i < n; ++i) out[i] = Apply<F, T>(x[i], *y);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = Apply<F, T>(x[i * step[0]], y[i * step[1]]);
    }
    out += n;
  });
}

// Integers that have no value: a zero divisor, or zero to a negative power.
template <class F>
absl::Status CheckIntegers(const Tensor& lhs, const Tensor& rhs) {
  constexpr bool kPower = std::is_same_v<F, PowFn>;
  if ((!kPower && !F::kInfo.Has(kDivides)) || lhs.size() == 0) return absl::OkStatus();
  bool zero_base = false;
  if (kPower) {
    for (int64_t i = 0; i < lhs.size(); ++i) zero_base |= lhs.GetInt(i) == 0;
    if (!zero_base) return absl::OkStatus();
  }
  for (int64_t i = 0; i < rhs.size(); ++i) {
    const int64_t value = rhs.GetInt(i);
    if (kPower ? value < 0 : value == 0) {
      return Fail(Name<F>(), kPower ? ": zero to a negative power" : ": division of an integer by zero", ", element ",
                  i, " of rhs");
    }
  }
  return absl::OkStatus();
}

// An integer to a power of floating-point type: computed in f64, truncated.
absl::StatusOr<Tensors> MixedPower(const Tensor& lhs, const Tensor& rhs, const Shape& shape, Tensor out) {
  std::vector<double> values(out.size());
  RunBinary<PowFn, double>(lhs, rhs, shape, values.data());
  for (int64_t i = 0; i < out.size(); ++i) {
    const double value = std::trunc(values[i]);
    if (!(value >= -9.2233720368547758e18 && value < 9.2233720368547758e18)) {
      return Fail("pow: element ", i, " is ", value, ", out of the range of ", DTypeName(out.dtype()));
    }
    out.SetInt(i, static_cast<int64_t>(value));
  }
  return Tensors{std::move(out)};
}

// ---- contents ----------------------------------------------------------------------
// Quotient truncated toward zero, where the floor of Dim::FloorDiv is known to be the same.
Dim TruncatedQuotient(const Dim& a, const Dim& b) {
  if (a.is_constant() && b.is_constant()) {
    return b.value() == 0 ? Dim::Unknown() : Dim(b.value() == -1 ? Negated(a.value()) : a.value() / b.value());
  }
  const Dim quotient = Dim::FloorDiv(a, b);
  const bool same_signs = ops::ProvablyNonNegative(a) && ops::ProvablyNonNegative(b);
  return same_signs || quotient * b == a ? quotient : Dim::Unknown();
}

template <class F>
Dim CombineDims(const Dim& a, const Dim& b) {
  if constexpr (std::is_same_v<F, AddFn>) return a + b;
  if constexpr (std::is_same_v<F, SubFn>) return a - b;
  if constexpr (std::is_same_v<F, MulFn>) return a * b;
  if constexpr (std::is_same_v<F, DivFn>) return TruncatedQuotient(a, b);
  if constexpr (kIsOneOf<F, MaxFn, MinFn>) {
    constexpr bool kMax = std::is_same_v<F, MaxFn>;
    if (ops::ProvablyAtMost(a, b)) return kMax ? b : a;
    if (ops::ProvablyAtMost(b, a)) return kMax ? a : b;
    return Dim::Unknown();
  }
  if constexpr (std::is_same_v<F, EqualFn>) {
    const std::optional<bool> equal = ops::DecideEqual(a, b);
    return equal.has_value() ? Dim(*equal) : Dim::Unknown();
  }
  if (!a.is_constant() || !b.is_constant()) return Dim::Unknown();
  const bool no_value = kIsOneOf<F, ModFn, FmodFn> ? b.value() == 0 : std::is_same_v<F, PowFn> && b.value() < 0;
  if (no_value) return Dim::Unknown();
  return Dim(static_cast<int64_t>(Apply<F, int64_t>(a.value(), b.value())));
}

}  // namespace

template <class F>
absl::StatusOr<Types> Unary<F>::Infer() const {
  if (!TakesType<F>(TypeOf(x).dtype)) return Fail(Name<F>(), "_c1: does not take ", Str(x));
  return Types{{kGivesBool<F> ? DType::kBool : TypeOf(x).dtype, TypeOf(x).shape}};
}

template <class F>
absl::StatusOr<Tensors> Unary<F>::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  if constexpr (std::is_same_v<F, IdentityFn>) return Tensors{in};
  return ops::WithArithmetic(in.dtype(), [&]<class T>(T) -> absl::StatusOr<Tensors> {
    const Elements<T> x(in);
    ASSIGN_OR_RETURN(Tensor out, ops::NewTensor(Name<F>(), kGivesBool<F> ? DType::kBool : in.dtype(), in.shape()));
    if constexpr (kGivesBool<F>) {
      uint8_t* bools = out.template mutable_data<uint8_t>();
      for (int64_t i = 0; i < in.size(); ++i) bools[i] = Apply<F, T>(x[i]);
      return Tensors{std::move(out)};
    } else {
      Result<T> result(std::move(out));
      T* to = result.data();
      if (std::is_same_v<F, NotFn> && in.dtype() == DType::kBool) {
        for (int64_t i = 0; i < in.size(); ++i) to[i] = x[i] == 0;
      } else {
        for (int64_t i = 0; i < in.size(); ++i) to[i] = Apply<F, T>(x[i]);
      }
      return Tensors{result.Finish()};
    }
  });
}

template <class F>
std::optional<Dims> Unary<F>::Contents() const {
  if (!x->contents.has_value() || !kTakesIntegers<F>) return std::nullopt;
  Dims out;
  for (const Dim& dim : *x->contents) {
    if (std::is_same_v<F, IdentityFn> || (kIsOneOf<F, AbsFn, ReluFn> && ops::ProvablyNonNegative(dim))) {
      out.push_back(dim);
    } else if (std::is_same_v<F, NegFn>) {
      out.push_back(Dim(0) - dim);
    } else if (dim.is_constant() && std::is_same_v<F, NotFn> && TypeOf(x).dtype == DType::kBool) {
      out.push_back(Dim(dim.value() == 0));
    } else if (dim.is_constant()) {
      out.push_back(Dim(static_cast<int64_t>(Apply<F, int64_t>(dim.value()))));
    } else {
      return std::nullopt;
    }
  }
  return ops::MakeContents(TypeOf(x), std::move(out));
}

template <class F>
absl::StatusOr<Types> Binary<F>::Infer(SizeCollector& sizes) const {
  const DType dtype = TypeOf(lhs).dtype;
  const bool any_rhs = std::is_same_v<F, PowFn> && TakesType<F>(TypeOf(rhs).dtype);
  if (!TakesType<F>(dtype) || (dtype != TypeOf(rhs).dtype && !any_rhs)) {
    return Fail(Name<F>(), "_c1: does not take ", Str(lhs), " and ", Str(rhs));
  }
  absl::StatusOr<Dims> shape = BroadcastDims(TypeOf(lhs).shape, TypeOf(rhs).shape);
  if (!shape.ok()) return Fail(Name<F>(), "_c2: ", shape.status().message());
  sizes.BroadcastToResult({TypeOf(lhs).shape, TypeOf(rhs).shape});
  return Types{{kGivesBool<F> ? DType::kBool : dtype, *std::move(shape)}};
}

template <class F>
absl::StatusOr<Tensors> Binary<F>::Eval(const EvalArgs& args) const {
  const Tensor& a = args[0];
  const Tensor& b = args[1];
  ASSIGN_OR_RETURN(Shape shape, ops::BroadcastShapes(Name<F>(), a.shape(), b.shape()));
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor(Name<F>(), kGivesBool<F> ? DType::kBool : a.dtype(), shape));
  if (std::is_same_v<F, PowFn> && !IsFloat(a.dtype()) && IsFloat(b.dtype())) {
    return MixedPower(a, b, shape, std::move(out));
  }
  if (!IsFloat(a.dtype())) {
    RETURN_IF_ERROR(CheckIntegers<F>(a, b));
  }
  return ops::WithArithmetic(a.dtype(), [&]<class T>(T) -> absl::StatusOr<Tensors> {
    if constexpr (kGivesBool<F>) {
      RunBinary<F, T>(a, b, shape, out.template mutable_data<uint8_t>());
      return Tensors{std::move(out)};
    } else {
      Result<T> result(std::move(out));
      RunBinary<F, T>(a, b, shape, result.data());
      return Tensors{result.Finish()};
    }
  });
}

template <class F>
std::optional<Dims> Binary<F>::Contents() const {
  const size_t n = ops::SpreadSize({lhs, rhs});
  const std::optional<Dims> a = ops::Spread(lhs, n), b = ops::Spread(rhs, n);
  if (!a.has_value() || !b.has_value() || ops::MaxRank({lhs, rhs}) > 1) return std::nullopt;
  Dims out;
  for (size_t i = 0; i < n; ++i) out.push_back(CombineDims<F>((*a)[i], (*b)[i]));
  return ops::MakeContents({kGivesBool<F> ? DType::kBool : TypeOf(lhs).dtype, Dims(ops::MaxRank({lhs, rhs}))},
                           std::move(out));
}

// The members of every op.
#define UNARY(NAME, ...) template struct Unary<NAME##Fn>;
#define BINARY(NAME, ...) template struct Binary<NAME##Fn>;
#include "ir/elementwise.def"

}  // namespace llmc
