// Elementwise ops. Binary and ternary ones broadcast as numpy does; arithmetic is in f32 (f64 for f64, 64-bit integers
// for integers) and rounded to the result's type.
#pragma once

#include "ir/op.h"

namespace llmc {

// Adds Infer and Eval declarations' common shape: one operand, result of the same shape. F gives the name and meaning.
template <class F>
struct Unary {
  static constexpr OpInfo kInfo = F::kInfo;
  Value* x = nullptr;
  static constexpr auto Fields() { return std::tuple(In("x", &Unary::x)); }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};
template <class F>
struct Binary {
  static constexpr OpInfo kInfo = F::kInfo;
  Value* lhs = nullptr;
  Value* rhs = nullptr;
  static constexpr auto Fields() { return std::tuple(In("lhs", &Binary::lhs), In("rhs", &Binary::rhs)); }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

// clang-format off
// Any numeric type:
struct IdentityFn { static constexpr OpInfo kInfo{"identity", "x"}; };
struct NegFn { static constexpr OpInfo kInfo{"neg", "-x"}; };
struct AbsFn { static constexpr OpInfo kInfo{"abs", "|x|"}; };
struct SignFn { static constexpr OpInfo kInfo{"sign", "-1, 0 or 1"}; };
struct ReluFn { static constexpr OpInfo kInfo{"relu", "max(x, 0)"}; };
// Floating point only:
struct FloorFn { static constexpr OpInfo kInfo{"floor", "largest integer not above x"}; };
struct CeilFn { static constexpr OpInfo kInfo{"ceil", "smallest integer not below x"}; };
struct RoundFn { static constexpr OpInfo kInfo{"round", "nearest integer, halves to even"}; };
struct ExpFn { static constexpr OpInfo kInfo{"exp", "e^x"}; };
struct LogFn { static constexpr OpInfo kInfo{"log", "natural logarithm"}; };
struct SqrtFn { static constexpr OpInfo kInfo{"sqrt", "square root"}; };
struct RsqrtFn { static constexpr OpInfo kInfo{"rsqrt", "1 / sqrt(x)"}; };
struct ReciprocalFn { static constexpr OpInfo kInfo{"reciprocal", "1 / x"}; };
struct SinFn { static constexpr OpInfo kInfo{"sin", "sine"}; };
struct CosFn { static constexpr OpInfo kInfo{"cos", "cosine"}; };
struct TanFn { static constexpr OpInfo kInfo{"tan", "tangent"}; };
struct AtanFn { static constexpr OpInfo kInfo{"atan", "arc tangent"}; };
struct TanhFn { static constexpr OpInfo kInfo{"tanh", "hyperbolic tangent"}; };
struct SigmoidFn { static constexpr OpInfo kInfo{"sigmoid", "1 / (1 + e^-x)"}; };
struct SiluFn { static constexpr OpInfo kInfo{"silu", "x * sigmoid(x)"}; };
struct GeluFn { static constexpr OpInfo kInfo{"gelu", "x * (1 + erf(x / sqrt(2))) / 2"}; };
struct GeluTanhFn { static constexpr OpInfo kInfo{"gelu_tanh", "x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2"}; };
struct ErfFn { static constexpr OpInfo kInfo{"erf", "error function"}; };
struct SoftplusFn { static constexpr OpInfo kInfo{"softplus", "log(1 + e^x)"}; };
// Bool or integer:
struct NotFn { static constexpr OpInfo kInfo{"not", "not of a bool, or of every bit of an integer"}; };
// Result bool:
struct IsNanFn { static constexpr OpInfo kInfo{"is_nan", "whether x is not a number"}; };
struct IsInfFn { static constexpr OpInfo kInfo{"is_inf", "whether x is infinite"}; };

struct AddFn { static constexpr OpInfo kInfo{"add", "lhs + rhs", 1, kCommutative}; };
struct SubFn { static constexpr OpInfo kInfo{"sub", "lhs - rhs"}; };
struct MulFn { static constexpr OpInfo kInfo{"mul", "lhs * rhs", 1, kCommutative}; };
struct DivFn { static constexpr OpInfo kInfo{"div", "lhs / rhs; integers truncate toward zero, an integer zero divisor is an error"}; };
struct ModFn { static constexpr OpInfo kInfo{"mod", "remainder with the sign of rhs"}; };
struct FmodFn { static constexpr OpInfo kInfo{"fmod", "remainder with the sign of lhs"}; };
struct PowFn { static constexpr OpInfo kInfo{"pow", "lhs ^ rhs; rhs may have another type"}; };
struct MaxFn { static constexpr OpInfo kInfo{"max", "the larger; NaN if either is", 1, kCommutative}; };
struct MinFn { static constexpr OpInfo kInfo{"min", "the smaller; NaN if either is", 1, kCommutative}; };
struct EqualFn { static constexpr OpInfo kInfo{"equal", "lhs == rhs", 1, kCommutative}; };
struct LessFn { static constexpr OpInfo kInfo{"less", "lhs < rhs"}; };
struct LessEqualFn { static constexpr OpInfo kInfo{"less_equal", "lhs <= rhs"}; };
struct GreaterFn { static constexpr OpInfo kInfo{"greater", "lhs > rhs"}; };
struct GreaterEqualFn { static constexpr OpInfo kInfo{"greater_equal", "lhs >= rhs"}; };
struct AndFn { static constexpr OpInfo kInfo{"and", "and of bools, or of the bits of integers", 1, kCommutative}; };
struct OrFn { static constexpr OpInfo kInfo{"or", "or of bools, or of the bits of integers", 1, kCommutative}; };
struct XorFn { static constexpr OpInfo kInfo{"xor", "exclusive or of bools, or of the bits of integers", 1, kCommutative}; };
// clang-format on

using Identity = Unary<IdentityFn>;
using Neg = Unary<NegFn>;
using Abs = Unary<AbsFn>;
using Sign = Unary<SignFn>;
using Relu = Unary<ReluFn>;
using Floor = Unary<FloorFn>;
using Ceil = Unary<CeilFn>;
using Round = Unary<RoundFn>;
using Exp = Unary<ExpFn>;
using Log = Unary<LogFn>;
using Sqrt = Unary<SqrtFn>;
using Rsqrt = Unary<RsqrtFn>;
using Reciprocal = Unary<ReciprocalFn>;
using Sin = Unary<SinFn>;
using Cos = Unary<CosFn>;
using Tan = Unary<TanFn>;
using Atan = Unary<AtanFn>;
using Tanh = Unary<TanhFn>;
using Sigmoid = Unary<SigmoidFn>;
using Silu = Unary<SiluFn>;
using Gelu = Unary<GeluFn>;
using GeluTanh = Unary<GeluTanhFn>;
using Erf = Unary<ErfFn>;
using Softplus = Unary<SoftplusFn>;
using Not = Unary<NotFn>;
using IsNan = Unary<IsNanFn>;
using IsInf = Unary<IsInfFn>;
using Add = Binary<AddFn>;
using Sub = Binary<SubFn>;
using Mul = Binary<MulFn>;
using Div = Binary<DivFn>;
using Mod = Binary<ModFn>;
using Fmod = Binary<FmodFn>;
using Pow = Binary<PowFn>;
using Max = Binary<MaxFn>;
using Min = Binary<MinFn>;
using Equal = Binary<EqualFn>;
using Less = Binary<LessFn>;
using LessEqual = Binary<LessEqualFn>;
using Greater = Binary<GreaterFn>;
using GreaterEqual = Binary<GreaterEqualFn>;
using And = Binary<AndFn>;
using Or = Binary<OrFn>;
using Xor = Binary<XorFn>;

struct Where {
  static constexpr OpInfo kInfo{"where", "condition ? x : y, elementwise"};
  Value* condition = nullptr;
  Value* x = nullptr;
  Value* y = nullptr;
  static constexpr auto Fields() {
    return std::tuple(In("condition", &Where::condition), In("x", &Where::x), In("y", &Where::y));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

struct Choose {
  static constexpr OpInfo kInfo{"choose",
                                "x if the one condition holds, else y; a host computes nothing for the other alone"};
  Value* condition = nullptr;  // bool[]
  Value* x = nullptr;
  Value* y = nullptr;
  static constexpr auto Fields() {
    return std::tuple(In("condition", &Choose::condition), In("x", &Choose::x), In("y", &Choose::y));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

struct Cast {
  static constexpr OpInfo kInfo{"cast", "x converted to another type; floats to integers truncate and saturate"};
  Value* x = nullptr;
  DType to = DType::kF32;
  static constexpr auto Fields() { return std::tuple(In("x", &Cast::x), At("to", &Cast::to)); }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

// The result type of broadcasting two types' shapes; an error says which dims do not fit. Two different symbols give an
// unknown dim.
absl::StatusOr<Dims> BroadcastDims(const Dims& a, const Dims& b);

}  // namespace llmc
