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

// What operand types an op takes, and whether its result is bool.
template <class F>
inline constexpr bool kIsLogical = kIsOneOf<F, NotFn, AndFn, OrFn, XorFn>;
template <class F>
inline constexpr bool kTakesBool = kIsLogical<F> || kIsOneOf<F, IdentityFn, EqualFn>;
template <class F>
inline constexpr bool kTakesInteger =
    kIsLogical<F> || kIsOneOf<F, IdentityFn, NegFn, AbsFn, SignFn, ReluFn, AddFn, SubFn, MulFn, DivFn, ModFn, FmodFn,
                              PowFn, MaxFn, MinFn, EqualFn, LessFn, LessEqualFn, GreaterFn, GreaterEqualFn>;
template <class F>
inline constexpr bool kGivesBool =
    kIsOneOf<F, IsNanFn, IsInfFn, EqualFn, LessFn, LessEqualFn, GreaterFn, GreaterEqualFn>;

template <class F>
bool Takes(DType dtype) {
  if (dtype == DType::kBool) return kTakesBool<F>;
  if (IsInteger(dtype)) return kTakesInteger<F>;
  return !kIsLogical<F>;
}

template <class F>
absl::string_view Name() {
  return F::kInfo.name;
}

// ---- single elements ----------------------------------------------------------
template <class F, class T>
T ApplyFloat(T x) {
  if constexpr (std::is_same_v<F, FloorFn>) return std::floor(x);
  if constexpr (std::is_same_v<F, CeilFn>) return std::ceil(x);
  if constexpr (std::is_same_v<F, RoundFn>) return std::nearbyint(x);
  if constexpr (std::is_same_v<F, ExpFn>) return std::exp(x);
  if constexpr (std::is_same_v<F, LogFn>) return std::log(x);
  if constexpr (std::is_same_v<F, SqrtFn>) return std::sqrt(x);
  if constexpr (std::is_same_v<F, RsqrtFn>) return T(1) / std::sqrt(x);
  if constexpr (std::is_same_v<F, ReciprocalFn>) return T(1) / x;
  if constexpr (std::is_same_v<F, SinFn>) return std::sin(x);
  if constexpr (std::is_same_v<F, CosFn>) return std::cos(x);
  if constexpr (std::is_same_v<F, TanFn>) return std::tan(x);
  if constexpr (std::is_same_v<F, AtanFn>) return std::atan(x);
  if constexpr (std::is_same_v<F, TanhFn>) return std::tanh(x);
  if constexpr (std::is_same_v<F, SigmoidFn>) return T(1) / (T(1) + std::exp(-x));
  if constexpr (std::is_same_v<F, SiluFn>) return x / (T(1) + std::exp(-x));
  if constexpr (std::is_same_v<F, GeluFn>) return x * (T(1) + std::erf(x * T(0.70710678118654752440))) / T(2);
  if constexpr (std::is_same_v<F, GeluTanhFn>) {
    return x * (T(1) + std::tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x))) / T(2);
  }
  if constexpr (std::is_same_v<F, ErfFn>) return std::erf(x);
  if constexpr (std::is_same_v<F, SoftplusFn>) return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x)));
  return x;
}

// Wraps around, where int64_t would be undefined.
int64_t Negate(int64_t x) { return static_cast<int64_t>(0 - static_cast<uint64_t>(x)); }

template <class F, class T>
auto ApplyUnary(T x) {
  constexpr bool kInt = std::is_integral_v<T>;
  if constexpr (std::is_same_v<F, IdentityFn>) {
    return x;
  } else if constexpr (std::is_same_v<F, NegFn>) {
    if constexpr (kInt) return Negate(x);
    return static_cast<T>(-x);
  } else if constexpr (std::is_same_v<F, AbsFn>) {
    if constexpr (kInt) return x < 0 ? Negate(x) : x;
    return static_cast<T>(std::abs(x));
  } else if constexpr (std::is_same_v<F, SignFn>) {
    return x > 0 ? T(1) : x < 0 ? T(-1) : x;  // NaN stays, and so does the sign of zero
  } else if constexpr (std::is_same_v<F, ReluFn>) {
    return x < 0 ? T(0) : x;  // NaN stays
  } else if constexpr (std::is_same_v<F, IsNanFn>) {
    return static_cast<uint8_t>(x != x);
  } else if constexpr (std::is_same_v<F, IsInfFn>) {
    if constexpr (kInt) return uint8_t{0};
    return static_cast<uint8_t>(std::isinf(static_cast<double>(x)));
  } else if constexpr (kInt && std::is_same_v<F, NotFn>) {
    return ~x;
  } else if constexpr (kInt || std::is_same_v<F, NotFn>) {
    return x;  // Infer lets none of these come here.
  } else {
    return ApplyFloat<F, T>(x);
  }
}

int64_t IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  uint64_t power = 1, square = static_cast<uint64_t>(base);
  for (; exponent > 0; exponent >>= 1, square *= square) {
    if (exponent & 1) power *= square;
  }
  return static_cast<int64_t>(power);
}

template <class F>
int64_t ApplyInteger(int64_t a, int64_t b) {
  const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  if constexpr (std::is_same_v<F, AndFn>) return a & b;
  if constexpr (std::is_same_v<F, OrFn>) return a | b;
  if constexpr (std::is_same_v<F, XorFn>) return a ^ b;
  if constexpr (std::is_same_v<F, AddFn>) return static_cast<int64_t>(x + y);
  if constexpr (std::is_same_v<F, SubFn>) return static_cast<int64_t>(x - y);
  if constexpr (std::is_same_v<F, MulFn>) return static_cast<int64_t>(x * y);
  if constexpr (std::is_same_v<F, DivFn>) return b == -1 ? Negate(a) : a / b;
  if constexpr (std::is_same_v<F, FmodFn>) return b == -1 ? 0 : a % b;
  if constexpr (std::is_same_v<F, ModFn>) {
    const int64_t rest = b == -1 ? 0 : a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
  if constexpr (std::is_same_v<F, PowFn>) return IntegerPower(a, b);
  return a;
}

template <class F, class T>
T ApplyReal(T a, T b) {
  if constexpr (std::is_same_v<F, AddFn>) return a + b;
  if constexpr (std::is_same_v<F, SubFn>) return a - b;
  if constexpr (std::is_same_v<F, MulFn>) return a * b;
  if constexpr (std::is_same_v<F, DivFn>) return a / b;
  if constexpr (std::is_same_v<F, FmodFn>) return std::fmod(a, b);
  if constexpr (std::is_same_v<F, ModFn>) {
    const T rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
  if constexpr (std::is_same_v<F, PowFn>) return std::pow(a, b);
  return a;
}

template <class F, class T>
auto ApplyBinary(T a, T b) {
  if constexpr (std::is_same_v<F, MaxFn>) {
    return a > b || a != a ? a : b;
  } else if constexpr (std::is_same_v<F, MinFn>) {
    return a < b || a != a ? a : b;
  } else if constexpr (std::is_same_v<F, EqualFn>) {
    return static_cast<uint8_t>(a == b);
  } else if constexpr (std::is_same_v<F, LessFn>) {
    return static_cast<uint8_t>(a < b);
  } else if constexpr (std::is_same_v<F, LessEqualFn>) {
    return static_cast<uint8_t>(a <= b);
  } else if constexpr (std::is_same_v<F, GreaterFn>) {
    return static_cast<uint8_t>(a > b);
  } else if constexpr (std::is_same_v<F, GreaterEqualFn>) {
    return static_cast<uint8_t>(a >= b);
  } else if constexpr (std::is_integral_v<T>) {
    return ApplyInteger<F>(a, b);
  } else {
    return ApplyReal<F, T>(a, b);
  }
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
      for (int64_t i = 0; i < n; ++i) out[i] = ApplyBinary<F, T>(x[i], y[i]);
    } else if (step[0] == 1 && step[1] == 0) {
      for (int64_t i = 0; i < n; ++i) out[i] = ApplyBinary<F, T>(x[i], *y);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = ApplyBinary<F, T>(x[i * step[0]], y[i * step[1]]);
    }
    out += n;
  });
}

// Integers that have no value: a zero divisor, or zero to a negative power.
template <class F>
absl::Status CheckIntegers(const Tensor& lhs, const Tensor& rhs) {
  constexpr bool kPower = std::is_same_v<F, PowFn>;
  if (!kIsOneOf<F, DivFn, ModFn, FmodFn, PowFn> || lhs.size() == 0) return absl::OkStatus();
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
    return b.value() == 0 ? Dim::Unknown() : Dim(b.value() == -1 ? Negate(a.value()) : a.value() / b.value());
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
  return Dim(static_cast<int64_t>(ApplyBinary<F, int64_t>(a.value(), b.value())));
}

}  // namespace

template <class F>
absl::StatusOr<Types> Unary<F>::Infer() const {
  if (!Takes<F>(TypeOf(x).dtype)) return Fail(Name<F>(), "_c1: does not take ", Str(x));
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
      for (int64_t i = 0; i < in.size(); ++i) bools[i] = ApplyUnary<F, T>(x[i]);
      return Tensors{std::move(out)};
    } else {
      Result<T> result(std::move(out));
      T* to = result.data();
      if (std::is_same_v<F, NotFn> && in.dtype() == DType::kBool) {
        for (int64_t i = 0; i < in.size(); ++i) to[i] = x[i] == 0;
      } else {
        for (int64_t i = 0; i < in.size(); ++i) to[i] = ApplyUnary<F, T>(x[i]);
      }
      return Tensors{result.Finish()};
    }
  });
}

template <class F>
std::optional<Dims> Unary<F>::Contents() const {
  if (!x->contents.has_value() || !kIsOneOf<F, IdentityFn, NegFn, AbsFn, ReluFn, SignFn, NotFn>) return std::nullopt;
  Dims out;
  for (const Dim& dim : *x->contents) {
    if (std::is_same_v<F, IdentityFn> || (kIsOneOf<F, AbsFn, ReluFn> && ops::ProvablyNonNegative(dim))) {
      out.push_back(dim);
    } else if (std::is_same_v<F, NegFn>) {
      out.push_back(Dim(0) - dim);
    } else if (dim.is_constant() && std::is_same_v<F, NotFn> && TypeOf(x).dtype == DType::kBool) {
      out.push_back(Dim(dim.value() == 0));
    } else if (dim.is_constant()) {
      out.push_back(Dim(static_cast<int64_t>(ApplyUnary<F, int64_t>(dim.value()))));
    } else {
      return std::nullopt;
    }
  }
  return ops::MakeContents(TypeOf(x), std::move(out));
}

template <class F>
absl::StatusOr<Types> Binary<F>::Infer(SizeCollector& sizes) const {
  const DType dtype = TypeOf(lhs).dtype;
  const bool any_rhs = std::is_same_v<F, PowFn> && Takes<F>(TypeOf(rhs).dtype);
  if (!Takes<F>(dtype) || (dtype != TypeOf(rhs).dtype && !any_rhs)) {
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

// The members of every alias in the header.
template struct Unary<IdentityFn>;
template struct Unary<NegFn>;
template struct Unary<AbsFn>;
template struct Unary<SignFn>;
template struct Unary<ReluFn>;
template struct Unary<FloorFn>;
template struct Unary<CeilFn>;
template struct Unary<RoundFn>;
template struct Unary<ExpFn>;
template struct Unary<LogFn>;
template struct Unary<SqrtFn>;
template struct Unary<RsqrtFn>;
template struct Unary<ReciprocalFn>;
template struct Unary<SinFn>;
template struct Unary<CosFn>;
template struct Unary<TanFn>;
template struct Unary<AtanFn>;
template struct Unary<TanhFn>;
template struct Unary<SigmoidFn>;
template struct Unary<SiluFn>;
template struct Unary<GeluFn>;
template struct Unary<GeluTanhFn>;
template struct Unary<ErfFn>;
template struct Unary<SoftplusFn>;
template struct Unary<NotFn>;
template struct Unary<IsNanFn>;
template struct Unary<IsInfFn>;
template struct Binary<AddFn>;
template struct Binary<SubFn>;
template struct Binary<MulFn>;
template struct Binary<DivFn>;
template struct Binary<ModFn>;
template struct Binary<FmodFn>;
template struct Binary<PowFn>;
template struct Binary<MaxFn>;
template struct Binary<MinFn>;
template struct Binary<EqualFn>;
template struct Binary<LessFn>;
template struct Binary<LessEqualFn>;
template struct Binary<GreaterFn>;
template struct Binary<GreaterEqualFn>;
template struct Binary<AndFn>;
template struct Binary<OrFn>;
template struct Binary<XorFn>;

}  // namespace llmc
