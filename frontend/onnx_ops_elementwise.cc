// Elementwise ops of ONNX.
#include <limits>

#include "absl/strings/str_cat.h"
#include "frontend/onnx_ops.h"

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

// To the 8-bit floats ONNX saturates, infinities included, unless told not to; the language's cast overflows.
Value* Saturated(OnnxNode& n, Value* x, DType to) {
  const bool saturate = n.Int("saturate", 1) != 0;
  n.String("round_mode", "up");  // Of the type float8e8m0 only.
  if (!saturate || !IsFloat(DTypeOf(x)) || (to != DType::kF8E4M3 && to != DType::kF8E5M2)) return x;
  const double largest = to == DType::kF8E4M3 ? 448 : 57344;
  Value* below = n.Emit(Min{.lhs = x, .rhs = n.Scalar(DTypeOf(x), largest)});
  return n.Emit(Max{.lhs = below, .rhs = n.Scalar(DTypeOf(x), -largest)});
}

void ImportCast(OnnxNode& n) {
  auto to = DTypeOfOnnx(n.Int("to", 0));
  if (!to.ok()) return n.Fail(to.status());
  n.Set(0, n.CastTo(Saturated(n, n.in(0), *to), *to));
}

void ImportCastLike(OnnxNode& n) {
  const DType to = DTypeOf(n.in(1));
  n.Set(0, n.CastTo(Saturated(n, n.in(0), to), to));
}

void ImportClip(OnnxNode& n) {
  Value* result = n.in(0);
  if (n.has(1)) result = n.Emit(Max{.lhs = result, .rhs = n.in(1)});
  if (n.has(2)) result = n.Emit(Min{.lhs = result, .rhs = n.in(2)});
  n.Set(0, result);
}

void ImportGelu(OnnxNode& n) {
  const std::string approximate = n.String("approximate", "none");
  if (approximate == "none") return ImportUnary<Gelu>(n);
  if (approximate == "tanh") return ImportUnary<GeluTanh>(n);
  n.Invalid("approximate must be \"none\" or \"tanh\"");
}

// x * sigmoid(alpha * x)
void ImportSwish(OnnxNode& n) {
  const double alpha = n.Float("alpha", 1);
  if (alpha == 1) return ImportUnary<Silu>(n);
  Value* scaled = n.Emit(Mul{.lhs = n.in(0), .rhs = n.Scalar(DTypeOf(n.in(0)), alpha)});
  n.Set(0, n.Emit(Mul{.lhs = n.in(0), .rhs = n.Emit(Sigmoid{.x = scaled})}));
}

// max(0, min(1, alpha * x + beta))
Value* HardSigmoid(OnnxNode& n, Value* x, double alpha, double beta) {
  const DType dtype = DTypeOf(x);
  Value* line = n.Emit(Mul{.lhs = x, .rhs = n.Scalar(dtype, alpha)});
  line = n.Emit(Add{.lhs = line, .rhs = n.Scalar(dtype, beta)});
  line = n.Emit(Min{.lhs = line, .rhs = n.Scalar(dtype, 1)});
  return n.Emit(Max{.lhs = line, .rhs = n.Scalar(dtype, 0)});
}

void ImportHardSigmoid(OnnxNode& n) { n.Set(0, HardSigmoid(n, n.in(0), n.Float("alpha", 0.2f), n.Float("beta", 0.5))); }

void ImportHardSwish(OnnxNode& n) {
  n.Set(0, n.Emit(Mul{.lhs = n.in(0), .rhs = HardSigmoid(n, n.in(0), 1.0 / 6, 0.5)}));
}

Value* PositiveOr(OnnxNode& n, Value* x, Value* otherwise) {
  Value* negative = n.Emit(Less{.lhs = x, .rhs = n.Scalar(DTypeOf(x), 0)});
  return n.Emit(Where{.condition = negative, .x = otherwise, .y = x});
}

void ImportLeakyRelu(OnnxNode& n) {
  Value* x = n.in(0);
  Value* scaled = n.Emit(Mul{.lhs = x, .rhs = n.Scalar(DTypeOf(x), n.Float("alpha", 0.01f))});
  n.Set(0, PositiveOr(n, x, scaled));
}

void ImportPRelu(OnnxNode& n) { n.Set(0, PositiveOr(n, n.in(0), n.Emit(Mul{.lhs = n.in(0), .rhs = n.in(1)}))); }

// alpha * (e^x - 1) below zero
void ImportElu(OnnxNode& n) {
  Value* x = n.in(0);
  const DType dtype = DTypeOf(x);
  Value* curve = n.Emit(Sub{.lhs = n.Emit(Exp{.x = x}), .rhs = n.Scalar(dtype, 1)});
  n.Set(0, PositiveOr(n, x, n.Emit(Mul{.lhs = curve, .rhs = n.Scalar(dtype, n.Float("alpha", 1))})));
}

void ImportSoftsign(OnnxNode& n) {
  Value* x = n.in(0);
  Value* below = n.Emit(Add{.lhs = n.Emit(Abs{.x = x}), .rhs = n.Scalar(DTypeOf(x), 1)});
  n.Set(0, n.Emit(Div{.lhs = x, .rhs = below}));
}

void ImportDropout(OnnxNode& n) {
  n.Float("ratio", 0.5);  // Of training only.
  n.Int("seed", 0);
  n.HasSince(1, 12);
  if (n.HasSince(2, 12)) {
    const Tensor* training = n.Literal(2);
    if (training == nullptr || training->size() != 1 || training->GetInt(0) != 0) {
      return n.Unsupported("training_mode must be the constant false");
    }
  }
  n.Set(0, n.in(0));
  if (n.wants(1)) {
    Tensor yes = Tensor::FromValues(DType::kBool, {}, std::vector<int64_t>{1});
    n.Set(1, n.Emit(Expand{.x = n.Literal(std::move(yes)), .shape = DimsOfValue(n.in(0))}));
  }
}

constexpr OnnxOp kOps[] = {
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
    {"Cast", 9, 1, 1, ImportCast},
    {"CastLike", 15, 2, 2, ImportCastLike},
    {"Clip", 11, 1, 3, ImportClip},
    {"Gelu", 20, 1, 1, ImportGelu},
    {"Swish", 24, 1, 1, ImportSwish},
    {"HardSigmoid", 6, 1, 1, ImportHardSigmoid},
    {"HardSwish", 14, 1, 1, ImportHardSwish},
    {"LeakyRelu", 6, 1, 1, ImportLeakyRelu},
    {"PRelu", 9, 2, 2, ImportPRelu},
    {"Elu", 6, 1, 1, ImportElu},
    {"Softsign", 1, 1, 1, ImportSoftsign},
    {"Dropout", 7, 1, 3, ImportDropout},
};

}  // namespace

absl::Span<const OnnxOp> OnnxElementwiseOps() { return kOps; }

}  // namespace llmc
