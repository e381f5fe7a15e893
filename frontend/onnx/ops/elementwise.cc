// Elementwise ops of ONNX.
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

template <class Op>
void ImportUnary(OnnxNode& n) {
  n.Set(0, n.Emit(Op{.x = n.in(0)}));
}

template <class Op>
void ImportBinary(OnnxNode& n) {
  n.Set(0, n.Emit(Op{.lhs = n.in(0), .rhs = n.in(1)}));
}

// Max and Min of any number of inputs.
template <class Op>
void ImportVariadic(OnnxNode& n) {
  const std::vector<Value*> inputs = n.AllInputs();
  Value* result = inputs[0];
  for (size_t i = 1; i < inputs.size(); ++i) result = n.Emit(Op{.lhs = result, .rhs = inputs[i]});
  n.Set(0, result);
}

void ImportSum(OnnxNode& n) { ImportVariadic<Add>(n); }

void ImportMean(OnnxNode& n) {
  const std::vector<Value*> inputs = n.AllInputs();
  Value* sum = inputs[0];
  for (size_t i = 1; i < inputs.size(); ++i) sum = n.Emit(Add{.lhs = sum, .rhs = inputs[i]});
  Value* count = n.Scalar(DTypeOf(sum), static_cast<double>(inputs.size()));
  n.Set(0, n.Emit(Div{.lhs = sum, .rhs = count}));
}

void ImportIdentity(OnnxNode& n) { n.Set(0, n.in(0)); }

void ImportMod(OnnxNode& n) {
  if (n.Int("fmod", 0) != 0) return ImportBinary<Fmod>(n);
  if (IsFloat(DTypeOf(n.in(0)))) return n.Invalid("floating-point Mod needs fmod = 1");
  ImportBinary<Mod>(n);
}

void ImportIsInf(OnnxNode& n) {
  const bool negative = n.Int("detect_negative", 1) != 0;
  const bool positive = n.Int("detect_positive", 1) != 0;
  Value* x = n.in(0);
  Value* result = n.Emit(IsInf{.x = x});
  Value* zero = negative && positive ? nullptr : n.Scalar(DTypeOf(x), 0);
  if (!negative) result = n.Emit(And{.lhs = result, .rhs = n.Emit(Greater{.lhs = x, .rhs = zero})});
  if (!positive) result = n.Emit(And{.lhs = result, .rhs = n.Emit(Less{.lhs = x, .rhs = zero})});
  n.Set(0, result);
}

void ImportWhere(OnnxNode& n) { n.Set(0, n.Emit(Where{.condition = n.in(0), .x = n.in(1), .y = n.in(2)})); }

// Beyond 4 bits an integer keeps its low bits, as in C; the language's cast of floats saturates.
void CastTo(OnnxNode& n, DType to) {
  const bool saturate = n.Int("saturate", 1) != 0;
  n.String("round_mode", "up");  // Of the type float8e8m0 only.
  Value* x = n.in(0);
  if (DTypeBits(to) < 8 && IsFloat(DTypeOf(x)) && !IsFloat(to)) x = n.CastTo(x, DType::kI64);
  n.Set(0, saturate ? SaturatingCast(n, x, to) : n.CastTo(x, to));
}

void ImportCast(OnnxNode& n) {
  auto to = DTypeOfOnnx(n.Int("to", 0));
  if (!to.ok()) return n.Fail(to.status());
  CastTo(n, *to);
}

void ImportCastLike(OnnxNode& n) { CastTo(n, DTypeOf(n.in(1))); }

// Bounds are attributes before opset 11.
void ImportClip(OnnxNode& n) {
  Value* result = n.in(0);
  if (n.opset() < 11) {
    if (n.HasAttr("min")) result = Map<Max>(n, result, n.Float("min", 0));
    if (n.HasAttr("max")) result = Map<Min>(n, result, n.Float("max", 0));
    return n.Set(0, result);
  }
  if (n.has(1)) result = n.Emit(Max{.lhs = result, .rhs = n.in(1)});
  if (n.has(2)) result = n.Emit(Min{.lhs = result, .rhs = n.in(2)});
  n.Set(0, result);
}

// ---- from other functions ---------------------------------------------------------

Value* Root(OnnxNode& n, Value* x, double plus) { return Map<Sqrt>(n, Map<Add>(n, Map<Mul>(n, x, x), plus)); }

// atan(x / sqrt(1 - x^2))
Value* ArcSine(OnnxNode& n, Value* x) {
  return Map<Atan>(n, Map<Div>(n, x, Map<Sqrt>(n, Map<Sub>(n, 1, Map<Mul>(n, x, x)))));
}

void ImportAsin(OnnxNode& n) { n.Set(0, ArcSine(n, n.in(0))); }
void ImportAcos(OnnxNode& n) { n.Set(0, Map<Sub>(n, M_PI / 2, ArcSine(n, n.in(0)))); }

void ImportSinh(OnnxNode& n) {
  Value* x = n.in(0);
  n.Set(0, Map<Mul>(n, Map<Sub>(n, Map<Exp>(n, x), Map<Exp>(n, Map<Neg>(n, x))), 0.5));
}
void ImportCosh(OnnxNode& n) {
  Value* x = n.in(0);
  n.Set(0, Map<Mul>(n, Map<Add>(n, Map<Exp>(n, x), Map<Exp>(n, Map<Neg>(n, x))), 0.5));
}

// log(|x| + sqrt(x^2 + 1)) with the sign of x: that of -x would cancel.
void ImportAsinh(OnnxNode& n) {
  Value* size = Map<Abs>(n, n.in(0));
  n.Set(0, Map<Mul>(n, Map<Sign>(n, n.in(0)), Map<Log>(n, Map<Add>(n, size, Root(n, size, 1)))));
}
void ImportAcosh(OnnxNode& n) { n.Set(0, Map<Log>(n, Map<Add>(n, n.in(0), Root(n, n.in(0), -1)))); }
void ImportAtanh(OnnxNode& n) {
  Value* ratio = Map<Div>(n, Map<Add>(n, n.in(0), 1), Map<Sub>(n, 1, n.in(0)));
  n.Set(0, Map<Mul>(n, Map<Log>(n, ratio), 0.5));
}

// ---- bits -------------------------------------------------------------------------

void ImportBitwiseNot(OnnxNode& n) { n.Set(0, Map<Not>(n, n.in(0))); }

// x * 2^y and x / 2^y: shifts are of unsigned numbers.
void ImportBitShift(OnnxNode& n) {
  const std::string direction = n.String("direction", "");
  if (direction != "LEFT" && direction != "RIGHT") return n.Invalid("direction must be \"LEFT\" or \"RIGHT\"");
  Value *x = n.in(0), *power = Map<Pow>(n, n.Scalar(DType::kI64, 2), n.AsI64(1));
  if (DTypeOf(x) != DType::kU8) return n.Unsupported("only uint8 is supported");
  Value* wide = n.CastTo(x, DType::kI64);
  n.Set(0, n.CastTo(direction == "LEFT" ? Map<Mul>(n, wide, power) : Map<Div>(n, wide, power), DTypeOf(x)));
}

constexpr OnnxOp kElementwiseOps[] = {
    {"Identity", 1, 1, 1, ImportIdentity},
    {"Neg", 6, 1, 1, ImportUnary<Neg>},
    {"Abs", 6, 1, 1, ImportUnary<Abs>},
    {"Sign", 9, 1, 1, ImportUnary<Sign>},
    {"Relu", 6, 1, 1, ImportUnary<Relu>},
    {"Floor", 6, 1, 1, ImportUnary<Floor>},
    {"Ceil", 6, 1, 1, ImportUnary<Ceil>},
    {"Round", 11, 1, 1, ImportUnary<Round>},
    {"Exp", 6, 1, 1, ImportUnary<Exp>},
    {"Log", 6, 1, 1, ImportUnary<Log>},
    {"Sqrt", 6, 1, 1, ImportUnary<Sqrt>},
    {"Reciprocal", 6, 1, 1, ImportUnary<Reciprocal>},
    {"Sin", 7, 1, 1, ImportUnary<Sin>},
    {"Cos", 7, 1, 1, ImportUnary<Cos>},
    {"Tan", 7, 1, 1, ImportUnary<Tan>},
    {"Asin", 7, 1, 1, ImportAsin},
    {"Acos", 7, 1, 1, ImportAcos},
    {"Atan", 7, 1, 1, ImportUnary<Atan>},
    {"Sinh", 9, 1, 1, ImportSinh},
    {"Cosh", 9, 1, 1, ImportCosh},
    {"Asinh", 9, 1, 1, ImportAsinh},
    {"Acosh", 9, 1, 1, ImportAcosh},
    {"Atanh", 9, 1, 1, ImportAtanh},
    {"BitwiseAnd", 18, 2, 2, ImportBinary<And>},
    {"BitwiseOr", 18, 2, 2, ImportBinary<Or>},
    {"BitwiseXor", 18, 2, 2, ImportBinary<Xor>},
    {"BitwiseNot", 18, 1, 1, ImportBitwiseNot},
    {"BitShift", 11, 2, 2, ImportBitShift, "uint8"},
    {"Tanh", 6, 1, 1, ImportUnary<Tanh>},
    {"Sigmoid", 6, 1, 1, ImportUnary<Sigmoid>},
    {"Erf", 9, 1, 1, ImportUnary<Erf>},
    {"Softplus", 1, 1, 1, ImportUnary<Softplus>},
    {"Not", 1, 1, 1, ImportUnary<Not>},
    {"IsNaN", 9, 1, 1, ImportUnary<IsNan>},
    {"IsInf", 10, 1, 1, ImportIsInf},
    {"Add", 7, 2, 2, ImportBinary<Add>},
    {"Sub", 7, 2, 2, ImportBinary<Sub>},
    {"Mul", 7, 2, 2, ImportBinary<Mul>},
    {"Div", 7, 2, 2, ImportBinary<Div>},
    {"Pow", 7, 2, 2, ImportBinary<Pow>},
    {"Mod", 10, 2, 2, ImportMod},
    {"Max", 8, 1, -1, ImportVariadic<Max>},
    {"Min", 8, 1, -1, ImportVariadic<Min>},
    {"Sum", 8, 1, -1, ImportSum},
    {"Mean", 8, 1, -1, ImportMean},
    {"Equal", 7, 2, 2, ImportBinary<Equal>},
    {"Less", 7, 2, 2, ImportBinary<Less>},
    {"LessOrEqual", 12, 2, 2, ImportBinary<LessEqual>},
    {"Greater", 7, 2, 2, ImportBinary<Greater>},
    {"GreaterOrEqual", 12, 2, 2, ImportBinary<GreaterEqual>},
    {"And", 7, 2, 2, ImportBinary<And>},
    {"Or", 7, 2, 2, ImportBinary<Or>},
    {"Xor", 7, 2, 2, ImportBinary<Xor>},
    {"Where", 9, 3, 3, ImportWhere},
    {"Cast", 6, 1, 1, ImportCast},
    {"CastLike", 15, 2, 2, ImportCastLike},
    {"Clip", 6, 1, 3, ImportClip},
};

}  // namespace

absl::Span<const OnnxOp> OnnxElementwiseOps() { return kElementwiseOps; }

}  // namespace llmc
