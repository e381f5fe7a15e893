// Operators on numbers of 8 bits that stand for others: what ONNX Runtime's quantizer and optimizer write.
//
// But for products and convolutions, whose sums are exact, an operator is computed on the numbers that are stood for.
#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"
#include "frontend/onnx/ops/quant.h"
#include "frontend/onnx/ops/window.h"

namespace llmc {
namespace {

Value* OneNumber(OnnxNode& n, size_t i) {
  Value* p = n.in(i);
  if (p == nullptr || !n.ok()) return p;
  if (RankOf(p) > 1 || (RankOf(p) == 1 && p->type.shape[0].is_constant() && !IsOneNumber(p))) {
    n.Invalid(absl::StrCat("input ", i, " must be one number"));
  }
  return n.ReshapeTo(p, {});
}

// Inputs i, i + 1 and i + 2: numbers, their scale and their zero point, which may be absent.
Value* Meaning(OnnxNode& n, size_t i) {
  if (!n.has(i) || !n.has(i + 1)) n.Invalid(absl::StrCat("input ", n.has(i) ? i + 1 : i, " is missing"));
  if (!n.ok()) return nullptr;
  Value* x = n.CastTo(n.in(i), DType::kF32);
  if (Value* zero_point = OneNumber(n, i + 2); zero_point != nullptr) {
    x = Map<Sub>(n, x, n.CastTo(zero_point, DType::kF32));
  }
  return Map<Mul>(n, x, n.CastTo(OneNumber(n, i + 1), DType::kF32));
}

// y in the type of the first input, with the scale of input i and the zero point of the next, which may be absent.
Value* Quantized(OnnxNode& n, Value* y, size_t i, DType to) {
  if (!n.has(i)) n.Invalid(absl::StrCat("input ", i, " is missing"));
  if (!n.ok()) return nullptr;
  return Rounded(n, Map<Div>(n, y, n.CastTo(OneNumber(n, i), DType::kF32)), OneNumber(n, i + 1), {to});
}

template <class Op>
void ImportQLinearBinary(OnnxNode& n) {
  n.Set(0, Quantized(n, Map<Op>(n, Meaning(n, 0), Meaning(n, 3)), 6, DTypeOf(n.in(0))));
}

void ImportQLinearSigmoid(OnnxNode& n) { n.Set(0, Quantized(n, Map<Sigmoid>(n, Meaning(n, 0)), 3, DTypeOf(n.in(0)))); }

void ImportQLinearLeakyRelu(OnnxNode& n) {
  const double alpha = n.Float("alpha", 0.01f);
  Value* x = Meaning(n, 0);
  Value* y = Select(n, Map<Less>(n, x, 0), Map<Mul>(n, x, alpha), x);
  n.Set(0, Quantized(n, y, 3, DTypeOf(n.in(0))));
}

// `opset` is that of the Softmax that it was: before 13 the axes from `axis` on are one.
void ImportQLinearSoftmax(OnnxNode& n) {
  const bool joined = n.Int("opset", 13) < 13;
  const int64_t axis = n.Axis("axis", -1, RankOf(n.in(0)), joined);
  Value* x = Meaning(n, 0);
  if (!n.ok()) return;
  Value* y = joined ? JoinedSoftmax(n, x, axis, false) : n.Emit(Softmax{.x = x, .axis = axis});
  n.Set(0, Quantized(n, y, 3, DTypeOf(n.in(0))));
}

// Inputs: scale and zero point of the result, then three of each part.
void ImportQLinearConcat(OnnxNode& n) {
  const size_t count = n.AllInputs().size();
  if (!n.ok()) return;
  if (count % 3 != 2) return n.Invalid("each part needs a scale and a zero point");
  std::vector<Value*> parts;
  for (size_t i = 2; i < count; i += 3) parts.push_back(Meaning(n, i));
  const int64_t axis = n.Axis("axis", 0, RankOf(n.in(2)));
  Value* all = n.Emit(Concat{.parts = std::move(parts), .axis = axis});
  n.Set(0, Quantized(n, all, 0, DTypeOf(n.in(2))));
}

void ImportQLinearWhere(OnnxNode& n) {
  n.Set(0, Quantized(n, Select(n, n.in(0), Meaning(n, 1), Meaning(n, 4)), 7, DTypeOf(n.in(1))));
}

void ImportQLinearReduceMean(OnnxNode& n) {
  const bool keep = n.Int("keepdims", 1) != 0;
  const int rank = RankOf(n.in(0));
  std::vector<int64_t> axes = n.NormalizeAxes(n.Ints("axes"), rank);
  if (axes.empty()) axes = CountTo(rank);
  n.Set(0, Quantized(n, ReduceOver<ReduceMean>(n, Meaning(n, 0), axes, keep), 3, DTypeOf(n.in(0))));
}

void ImportQLinearAveragePool(OnnxNode& n) {
  const bool last = n.Int("channels_last", 0) != 0;
  Value* x = Meaning(n, 0);
  Value* y = AveragePoolByAttributes(n, last ? ChannelsFirst(n, x) : x);
  n.Set(0, Quantized(n, last ? ChannelsLast(n, y) : y, 3, DTypeOf(n.in(0))));
}

void ImportQLinearGlobalAveragePool(OnnxNode& n) {
  const bool last = n.Int("channels_last", 0) != 0;
  std::vector<int64_t> axes = CountTo(RankOf(n.in(0)));
  if (axes.size() < 3) return n.Invalid("the input must have rank 3 or more");
  axes.erase(axes.begin());
  axes.erase(last ? axes.end() - 1 : axes.begin());
  n.Set(0, Quantized(n, ReduceOver<ReduceMean>(n, Meaning(n, 0), axes), 3, DTypeOf(n.in(0))));
}

void ImportNhwcQLinearConv(OnnxNode& n) {
  const bool last = n.Int("channels_last", 0) != 0;
  Value* y = QLinearConvOf(n, last ? ChannelsFirst(n, n.in(0)) : n.in(0));
  n.Set(0, last ? ChannelsLast(n, y) : y);
}

// ---- products -------------------------------------------------------------------------

// Of b: one number, or one for each column.
Value* OfColumns(OnnxNode& n, Value* p) {
  if (p == nullptr || !n.ok() || !IsOneNumber(p)) return p;
  return n.ReshapeTo(p, {});
}

struct IntegerFactor {
  Value *numbers = nullptr, *scale = nullptr, *zero_point = nullptr;
};

// (a - its zero point) (b - its), exactly, in f32, times both scales.
Value* ProductOf(OnnxNode& n, const IntegerFactor& a, const IntegerFactor& b) {
  Value* sum = OnnxMatMul(n, Centered(n, a.numbers, a.zero_point, true),
                          Centered(n, b.numbers, OfColumns(n, b.zero_point), false));
  Value* scale = Map<Mul>(n, n.CastTo(a.scale, DType::kF32), n.CastTo(OfColumns(n, b.scale), DType::kF32));
  return Map<Mul>(n, n.CastTo(sum, DType::kF32), scale);
}

void ImportMatMulIntegerToFloat(OnnxNode& n) {
  Value* y = ProductOf(n, {n.in(0), OneNumber(n, 2), OneNumber(n, 4)}, {n.in(1), n.in(3), n.in(5)});
  if (n.has(6)) y = Map<Add>(n, y, n.CastTo(n.in(6), DType::kF32));
  n.Set(0, n.CastTo(y, DTypeOf(n.in(2))));
}

void ImportDynamicQuantizeMatMul(OnnxNode& n) {
  const DynamicNumbers a = QuantizedDynamically(n, n.in(0));
  Value* y = ProductOf(n, {a.numbers, a.scale, a.zero_point}, {n.in(1), n.in(2), n.in(3)});
  n.Set(0, n.has(4) ? Map<Add>(n, y, n.in(4)) : y);
}

// Inputs: A and its scale and zero point, B and its, C in i32, scale and zero point of the result or none.
void ImportQGemm(OnnxNode& n) {
  const double alpha = n.Float("alpha", 1);
  if (RankOf(n.in(0)) != 2 || RankOf(n.in(3)) != 2) return n.Invalid("the factors must be matrices");
  const bool turn_a = n.Int("transA", 0) != 0, turn_b = n.Int("transB", 0) != 0;
  Value* a = turn_a ? n.TransposeBy(n.in(0), {1, 0}) : n.in(0);
  Value* b = turn_b ? n.TransposeBy(n.in(3), {1, 0}) : n.in(3);
  Value* sum = OnnxMatMul(n, Centered(n, a, OneNumber(n, 2), false), Centered(n, b, OfColumns(n, n.in(5)), false));
  if (n.has(6)) sum = Map<Add>(n, sum, n.in(6));  // its scale is that of the product
  Value* scale = Map<Mul>(n, OneNumber(n, 1), OfColumns(n, n.in(4)));
  if (alpha != 1) scale = Map<Mul>(n, scale, alpha);
  Value* y = Map<Mul>(n, n.CastTo(sum, DType::kF32), scale);
  n.Set(0, n.has(7) ? Quantized(n, y, 7, n.has(8) ? DTypeOf(n.in(8)) : DTypeOf(n.in(0))) : y);
}

// Inputs: x, weights, bias, scales of both, padding, zero points of both, past.
void ImportQAttention(OnnxNode& n) {
  if (RankOf(n.in(0)) != 3 || RankOf(n.in(1)) != 2) return n.Invalid("the input must have rank 3, the weights rank 2");
  Value* merged = ProductOf(n, {n.in(0), OneNumber(n, 3), OneNumber(n, 6)}, {n.in(1), n.in(4), n.in(7)});
  AttendMerged(n, Map<Add>(n, merged, n.in(2)), 8, 5, SIZE_MAX);
}

constexpr OnnxOp kContribIntegerOps[] = {
    {"QuantizeLinear", 1, 2, 3, ImportQuantizeLinear, "uint16 too, for what DequantizeLinear reads"},
    {"DequantizeLinear", 1, 2, 3, ImportDequantizeLinear, "uint16 too, of constants and QuantizeLinear"},
    {"QLinearAdd", 1, 2, 8, ImportQLinearBinary<Add>},
    {"QLinearMul", 1, 2, 8, ImportQLinearBinary<Mul>},
    {"QLinearSigmoid", 1, 2, 5, ImportQLinearSigmoid},
    {"QLinearLeakyRelu", 1, 2, 5, ImportQLinearLeakyRelu},
    {"QLinearSoftmax", 1, 2, 5, ImportQLinearSoftmax},
    {"QLinearConcat", 1, 5, -1, ImportQLinearConcat},
    {"QLinearWhere", 1, 9, 9, ImportQLinearWhere},
    {"QLinearReduceMean", 1, 2, 5, ImportQLinearReduceMean},
    {"QLinearAveragePool", 1, 2, 5, ImportQLinearAveragePool, "ceil_mode with padding needs known sizes"},
    {"QLinearGlobalAveragePool", 1, 5, 5, ImportQLinearGlobalAveragePool},
    {"QLinearConv", 1, 8, 9, ImportNhwcQLinearConv, "1 to 3 spatial axes"},
    {"QGemm", 1, 6, 9, ImportQGemm},
    {"MatMulIntegerToFloat", 1, 4, 7, ImportMatMulIntegerToFloat, "one scale and zero point of A"},
    {"DynamicQuantizeMatMul", 1, 3, 5, ImportDynamicQuantizeMatMul},
    {"QAttention", 1, 5, 9, ImportQAttention, "masks of rank 1 to 3; no rotary embedding, no past in a shared buffer"},
};

}  // namespace

absl::Span<const OnnxOp> OnnxContribIntegerOps() { return kContribIntegerOps; }

}  // namespace llmc
