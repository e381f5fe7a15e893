// Quantization, and products of quantized numbers, whose sums are exact.
#include "frontend/onnx/ops/quant.h"

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"
#include "frontend/onnx/ops/window.h"
#include "ir/encoding.h"

namespace llmc {
namespace {

// A scale or zero point as it meets x: one number, one for each index of `axis`, or one for each block along it.
Value* ForElements(OnnxNode& n, Value* p, const Value* x, int64_t axis, int64_t block) {
  if (p == nullptr || !n.ok()) return p;
  if (p->type.rank() == 0) return p;
  if (block == 0) {
    if (p->type.rank() > 1) n.Invalid("a scale or zero point of blocks needs block_size");
    if (p->type.shape[0] == Dim(1)) return n.ReshapeTo(p, {});
    return Along(n, p, axis, RankOf(x));
  }
  if (p->type.rank() != RankOf(x)) {
    n.Invalid("scale, zero point and input differ in rank");
    return nullptr;
  }
  const size_t at = static_cast<size_t>(axis);
  Dims apart = p->type.shape, wide = p->type.shape, joined = p->type.shape;
  apart.insert(apart.begin() + axis + 1, Dim(1));
  wide.insert(wide.begin() + axis + 1, Dim(block));
  joined[at] = joined[at] * Dim(block);
  p = n.ReshapeTo(n.Emit(Expand{.x = n.ReshapeTo(p, std::move(apart)), .shape = std::move(wide)}), std::move(joined));
  return n.SliceOf(p, axis, Dim(0), x->type.shape[at]);
}

// Axis and block size; the axis matters only where scales are not one number.
std::pair<int64_t, int64_t> AxisAndBlock(OnnxNode& n) {
  const int64_t axis = n.Int("axis", 1), block = n.Int("block_size", 0);
  if (block < 0 || block > 1 << 20) n.Invalid("block_size is out of range");
  if (RankOf(n.in(1)) == 0) return {0, 0};
  if (RankOf(n.in(1)) == 1 && n.in(1)->type.shape[0] == Dim(1) && block == 0) return {0, 0};
  return {n.NormalizeAxis(axis, RankOf(n.in(0))), block};
}

// The type that an attribute names, or `otherwise`.
DType TypeAttr(OnnxNode& n, absl::string_view name, DType otherwise) {
  const int64_t number = n.Int(name, 0);
  if (number == 0) return otherwise;
  auto dtype = DTypeOfOnnx(number);
  if (!dtype.ok()) n.Fail(dtype.status());
  return dtype.value_or(otherwise);
}

}  // namespace

Value* Rounded(OnnxNode& n, Value* x, Value* zero_point, QuantizedType to, bool saturate) {
  if (!IsFloat(to.dtype)) x = Map<Round>(n, x);
  if (zero_point != nullptr) x = Map<Add>(n, x, n.CastTo(zero_point, DTypeOf(x)));
  if (to.is_u16) return n.CastTo(Map<Min>(n, Map<Max>(n, x, 0), 65535), to.dtype);
  return saturate ? SaturatingCast(n, x, to.dtype) : n.CastTo(x, to.dtype);
}

void ImportQuantizeLinear(OnnxNode& n) {
  Value* x = n.in(0);
  const auto [axis, block] = AxisAndBlock(n);
  const bool saturate = n.Int("saturate", 1) != 0;
  QuantizedType to{.is_u16 = n.IsU16(2) || n.Int("output_dtype", 0) == onnx::TensorProto::UINT16};
  const DType zero_type = n.has(2) ? DTypeOf(n.in(2)) : DType::kU8;
  to.dtype = to.is_u16 ? DType::kI32 : TypeAttr(n, "output_dtype", zero_type);
  const DType precision = TypeAttr(n, "precision", DTypeOf(n.in(1)));
  if (n.has(2) && (zero_type != to.dtype || n.IsU16(2) != to.is_u16)) {
    return n.Invalid("output_dtype is not the type of the zero point");
  }
  Value* scale = n.CastTo(ForElements(n, n.in(1), x, axis, block), precision);
  Value* zero_point = ForElements(n, n.in(2), x, axis, block);
  n.Set(0, Rounded(n, Map<Div>(n, n.CastTo(x, precision), scale), zero_point, to, saturate));
  if (to.is_u16) n.MarkU16(0);
}

void ImportDequantizeLinear(OnnxNode& n) {
  Value* x = n.in(0);
  const auto [axis, block] = AxisAndBlock(n);
  const DType to = TypeAttr(n, "output_dtype", DTypeOf(n.in(1)));
  Value* scale = ForElements(n, n.in(1), x, axis, block);
  Value* zero_point = ForElements(n, n.in(2), x, axis, block);
  const DType wide = IsFloat(DTypeOf(x)) ? DType::kF32 : DType::kI32;
  Value* y = n.CastTo(x, wide);
  if (zero_point != nullptr) y = Map<Sub>(n, y, n.CastTo(zero_point, wide));
  y = Map<Mul>(n, n.CastTo(y, DType::kF32), n.CastTo(scale, DType::kF32));
  n.Set(0, n.CastTo(y, to));
}

DynamicNumbers QuantizedDynamically(OnnxNode& n, Value* x) {
  const std::vector<int64_t> all = CountTo(RankOf(x));
  Value* high = Map<Max>(n, ReduceOver<ReduceMax>(n, x, all, false), 0);
  Value* low = Map<Min>(n, ReduceOver<ReduceMin>(n, x, all, false), 0);
  Value* scale = Map<Div>(n, Map<Sub>(n, high, low), 255);
  Value* zero_point = Map<Neg>(n, Map<Div>(n, low, scale));
  zero_point = Map<Round>(n, Map<Min>(n, Map<Max>(n, zero_point, 0), 255));
  zero_point = n.CastTo(zero_point, DType::kU8);
  return {Rounded(n, Map<Div>(n, x, scale), zero_point, {}), scale, zero_point};
}

// ---- products -------------------------------------------------------------------------

Value* Centered(OnnxNode& n, Value* x, Value* zero_point, bool rows) {
  x = n.CastTo(x, DType::kI32);
  if (zero_point == nullptr || !n.ok()) return x;
  zero_point = n.CastTo(zero_point, DType::kI32);
  if (rows && RankOf(zero_point) == 1 && zero_point->type.shape[0] != Dim(1)) {
    zero_point = n.ReshapeTo(zero_point, {zero_point->type.shape[0], Dim(1)});
  }
  return Map<Sub>(n, x, zero_point);
}

namespace {

void ImportDynamicQuantizeLinear(OnnxNode& n) {
  const DynamicNumbers y = QuantizedDynamically(n, n.in(0));
  n.Set(0, y.numbers);
  n.Set(1, y.scale);
  n.Set(2, y.zero_point);
}

// A scale of a factor as it meets the product.
Value* ScaleOfFactor(OnnxNode& n, Value* scale, bool rows) {
  scale = n.CastTo(scale, DType::kF32);
  if (!n.ok() || !rows || RankOf(scale) != 1 || scale->type.shape[0] == Dim(1)) return scale;
  return n.ReshapeTo(scale, {scale->type.shape[0], Dim(1)});
}

void ImportMatMulInteger(OnnxNode& n) {
  n.Set(0, OnnxMatMul(n, Centered(n, n.in(0), n.in(2), true), Centered(n, n.in(1), n.in(3), false)));
}

}  // namespace

bool IsOneNumber(const Value* p) { return p != nullptr && Product(p->type.shape) == Dim(1); }

namespace {

// Whether a scale or zero point of the matrices b is one number or one for each column.
bool IsOfColumns(const Value* p, const Value* b) {
  return IsOneNumber(p) || (p != nullptr && p->type.rank() == 1 && p->type.shape[0] == b->type.shape.back());
}

// Whether the language has an op for the product: of 8-bit integers, a as a whole, b by columns.
bool IsEncodedProduct(const OnnxNode& n) {
  const auto is_byte = [&](size_t i) { return DTypeOf(n.in(i)) == DType::kI8 || DTypeOf(n.in(i)) == DType::kU8; };
  return n.ok() && is_byte(0) && is_byte(3) && RankOf(n.in(0)) >= 2 && RankOf(n.in(3)) >= 2 && IsOneNumber(n.in(1)) &&
         IsOneNumber(n.in(2)) && IsOneNumber(n.in(6)) && IsOfColumns(n.in(4), n.in(3)) && IsOfColumns(n.in(5), n.in(3));
}

// One number under no axes, others as they are.
Value* Flat(OnnxNode& n, Value* p) { return IsOneNumber(p) ? n.ReshapeTo(p, {}) : p; }

// A factor of a product, [k, n] if scale or zero point are of columns.
Value* EncodedAs(OnnxNode& n, Value* codes, Value* scale, Value* zero) {
  if (!n.ok()) return nullptr;
  const auto part = [](const Value* p) {
    return Encoding::Part{p->type.dtype, RankOf(p) == 0 ? Granularity::kTensor : Granularity::kChannel};
  };
  const auto encoding = IntegerEncoding(DTypeOf(codes), part(scale), part(zero), 0, /*k_is_last=*/false);
  if (!encoding.ok()) {
    n.Unsupported(encoding.status().message());
    return nullptr;
  }
  return n.Emit(Encode{.components = {codes, scale, zero}, .as = (*encoding)->text});
}

// Inputs: a, its scale and zero point, b and its, those of the result.
void ImportQLinearMatMul(OnnxNode& n) {
  if (IsEncodedProduct(n)) {
    const auto scale_of = [&](size_t i) { return n.CastTo(Flat(n, n.in(i)), DType::kF32); };
    Value* scale = Map<Div>(n, Map<Mul>(n, scale_of(1), scale_of(4)), scale_of(6));
    Value* lhs = EncodedAs(n, n.in(0), n.Scalar(DType::kF32, 1), Flat(n, n.in(2)));
    Value* y = n.Emit(Linear{.lhs = lhs, .rhs = EncodedAs(n, n.in(3), scale, Flat(n, n.in(5)))});
    return n.Set(0, Rounded(n, y, Flat(n, n.in(7)), {DTypeOf(n.in(7))}));
  }
  Value* sum = OnnxMatMul(n, Centered(n, n.in(0), n.in(2), true), Centered(n, n.in(3), n.in(5), false));
  Value* scale = Map<Mul>(n, ScaleOfFactor(n, n.in(1), true), ScaleOfFactor(n, n.in(4), false));
  scale = Map<Div>(n, scale, n.CastTo(n.in(6), DType::kF32));
  n.Set(0, Rounded(n, Map<Mul>(n, n.CastTo(sum, DType::kF32), scale), n.in(7), {DTypeOf(n.in(7))}));
}

// Convolution in f64, which holds sums of products of 8-bit numbers exactly.
Value* IntegerConv(OnnxNode& n, Value* x, Value* x_zero, Value* weight, Value* weight_zero) {
  if (weight_zero != nullptr && RankOf(weight_zero) == 1 && n.ok()) {
    weight_zero =
        weight_zero->type.shape[0] == Dim(1) ? n.ReshapeTo(weight_zero, {}) : Along(n, weight_zero, 0, RankOf(weight));
  }
  if (x_zero != nullptr) x_zero = n.ReshapeTo(x_zero, {});
  x = n.CastTo(Centered(n, x, x_zero, false), DType::kF64);
  weight = n.CastTo(Centered(n, weight, weight_zero, false), DType::kF64);
  return n.CastTo(ConvByAttributes(n, x, weight, nullptr), DType::kI32);
}

void ImportConvInteger(OnnxNode& n) { n.Set(0, IntegerConv(n, n.in(0), n.in(2), n.in(1), n.in(3))); }

}  // namespace

Value* QLinearConvOf(OnnxNode& n, Value* x) {
  Value* sum = IntegerConv(n, x, n.in(2), n.in(3), n.in(5));
  if (n.has(8)) sum = Map<Add>(n, sum, Along(n, n.in(8), 1, RankOf(sum)));
  Value* weight_scale = n.in(4);
  if (RankOf(weight_scale) == 1) weight_scale = Along(n, weight_scale, 1, RankOf(sum));
  Value* scale = Map<Div>(n, Map<Mul>(n, n.ReshapeTo(n.in(1), {}), weight_scale), n.ReshapeTo(n.in(6), {}));
  Value* zero_point = n.ReshapeTo(n.in(7), {});
  return Rounded(n, Map<Mul>(n, n.CastTo(sum, DType::kF32), scale), zero_point, {DTypeOf(zero_point)});
}

namespace {

void ImportQLinearConv(OnnxNode& n) { n.Set(0, QLinearConvOf(n, n.in(0))); }

constexpr OnnxOp kQuantOps[] = {
    {"QuantizeLinear", 10, 2, 3, ImportQuantizeLinear, "uint16 too, for what DequantizeLinear reads"},
    {"DequantizeLinear", 10, 2, 3, ImportDequantizeLinear, "uint16 too, of constants and QuantizeLinear"},
    {"DynamicQuantizeLinear", 11, 1, 1, ImportDynamicQuantizeLinear},
    {"MatMulInteger", 10, 2, 4, ImportMatMulInteger},
    {"QLinearMatMul", 10, 8, 8, ImportQLinearMatMul},
    {"ConvInteger", 10, 2, 4, ImportConvInteger, "1 to 3 spatial axes"},
    {"QLinearConv", 10, 8, 9, ImportQLinearConv, "1 to 3 spatial axes"},
};

}  // namespace

absl::Span<const OnnxOp> OnnxQuantOps() { return kQuantOps; }

}  // namespace llmc
