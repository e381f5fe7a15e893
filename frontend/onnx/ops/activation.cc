// Activations, and dropout.
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

void ImportGelu(OnnxNode& n) {
  const std::string approximate = n.String("approximate", "none");
  if (approximate == "none") return n.Set(0, Map<Gelu>(n, n.in(0)));
  if (approximate == "tanh") return n.Set(0, Map<GeluTanh>(n, n.in(0)));
  n.Invalid("approximate must be \"none\" or \"tanh\"");
}

// x * sigmoid(alpha * x)
void ImportSwish(OnnxNode& n) {
  const double alpha = n.Float("alpha", 1);
  if (alpha == 1) return n.Set(0, Map<Silu>(n, n.in(0)));
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
  Value* curve = n.Emit(Expm1{.x = x});
  n.Set(0, PositiveOr(n, x, n.Emit(Mul{.lhs = curve, .rhs = n.Scalar(dtype, n.Float("alpha", 1))})));
}

// scale * (x above zero, alpha * (e^(x / alpha) - 1) or its like below)
void ImportSelu(OnnxNode& n) {
  Value* x = n.in(0);
  const double alpha = n.Float("alpha", 1.67326319217681884765625), gamma = n.Float("gamma", 1.05070102214813232421875);
  Value* curve = Map<Mul>(n, Map<Expm1>(n, x), alpha);
  n.Set(0, Map<Mul>(n, PositiveOr(n, x, curve), gamma));
}

void ImportCelu(OnnxNode& n) {
  Value* x = n.in(0);
  const double alpha = n.Float("alpha", 1);
  Value* curve = Map<Expm1>(n, Map<Div>(n, x, alpha));
  n.Set(0, PositiveOr(n, x, Map<Mul>(n, curve, alpha)));
}

void ImportThresholdedRelu(OnnxNode& n) {
  Value* x = n.in(0);
  n.Set(0, Select(n, Map<Greater>(n, x, n.Float("alpha", 1)), x, n.Scalar(DTypeOf(x), 0)));
}

// Toward zero by `bias`, and zero within `lambd`.
void ImportShrink(OnnxNode& n) {
  Value* x = n.in(0);
  const double lambd = n.Float("lambd", 0.5), bias = n.Float("bias", 0);
  Value* zero = n.Scalar(DTypeOf(x), 0);
  Value* positive = Select(n, Map<Greater>(n, x, lambd), Map<Sub>(n, x, bias), zero);
  n.Set(0, Select(n, Map<Less>(n, x, -lambd), Map<Add>(n, x, bias), positive));
}

// x * tanh(softplus(x))
void ImportMish(OnnxNode& n) { n.Set(0, Map<Mul>(n, n.in(0), Map<Tanh>(n, Map<Softplus>(n, n.in(0))))); }

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

constexpr OnnxOp kActivationOps[] = {
    {"Gelu", 20, 1, 1, ImportGelu},
    {"Swish", 24, 1, 1, ImportSwish},
    {"HardSigmoid", 6, 1, 1, ImportHardSigmoid},
    {"HardSwish", 14, 1, 1, ImportHardSwish},
    {"LeakyRelu", 6, 1, 1, ImportLeakyRelu},
    {"PRelu", 9, 2, 2, ImportPRelu},
    {"Elu", 6, 1, 1, ImportElu},
    {"Softsign", 1, 1, 1, ImportSoftsign},
    {"Dropout", 7, 1, 3, ImportDropout, "inference only"},
    {"Selu", 6, 1, 1, ImportSelu},
    {"Celu", 12, 1, 1, ImportCelu},
    {"ThresholdedRelu", 10, 1, 1, ImportThresholdedRelu},
    {"Shrink", 9, 1, 1, ImportShrink},
    {"Mish", 18, 1, 1, ImportMish},
};

}  // namespace

absl::Span<const OnnxOp> OnnxActivationOps() { return kActivationOps; }

}  // namespace llmc
