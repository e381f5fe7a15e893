// linear of encoded factors, from factors that were dequantized before a product, or from a product of integers and
// what is multiplied to it after.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "ir/encoding.h"
#include "ir/ops.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/proof/literal.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

// Terms of 8-bit numbers less a zero point, -383 to 383 where signs differ, whose sum 32 bits hold.
constexpr int64_t kMaxTerms = (int64_t{1} << 31) / (383 * 383);

bool IsByte(const Value* value) { return value->type.dtype == DType::kI8 || value->type.dtype == DType::kU8; }
bool IsNibble(const Value* value) { return value->type.dtype == DType::kI4 || value->type.dtype == DType::kU4; }
bool IsQuantized(const Value* value) { return IsByte(value) || IsNibble(value); }
// All bytes.
bool HoldsExactly(const Value* value) { return DTypeBits(value->type.dtype) >= 16; }

bool IsOneNumber(const Value* value) {
  return std::all_of(value->type.shape.begin(), value->type.shape.end(), [](const Dim& dim) { return dim == Dim(1); });
}
bool IsPrepared(const Value* value) { return value->name[0] == '@'; }

// Beneath casts that keep every number.
Value* Uncast(Value* value) {
  while (Is<Cast>(value->def) && HoldsExactly(value)) {
    Value* from = value->def->operands[0];
    if (!IsQuantized(from) && (!HoldsExactly(from) || IsFloat(from->type.dtype) != IsFloat(value->type.dtype))) {
      const bool counts = IsFloat(value->type.dtype) && from->type.dtype == DType::kI32;
      if (!counts) return value;
    }
    value = from;
  }
  return value;
}

// Floats of 16 bits that were made f32.
Value* Unwidened(Value* value) {
  if (!Is<Cast>(value->def) || value->type.dtype != DType::kF32) return value;
  Value* from = value->def->operands[0];
  return IsFloat(from->type.dtype) && DTypeBits(from->type.dtype) == 16 ? from : value;
}

// (q - zero) * scale, with numbers of shapes that broadcast to that of q.
struct Factor {
  Value* q = nullptr;
  Value* zero = nullptr;   // nullptr: 0
  Value* scale = nullptr;  // nullptr: 1

  explicit operator bool() const { return q != nullptr; }
};

// q less a zero point that 8 bits hold, or, where numbers are dequantized, that is a float.
Factor CenteredOf(Value* value) {
  const bool is_float = IsFloat(value->type.dtype);
  Value* inner = Uncast(value);
  if (IsQuantized(inner)) return {.q = inner};
  if (!Is<Sub>(inner->def) || !HoldsExactly(inner)) return {};
  Value *q = Uncast(inner->def->operands[0]), *zero = Uncast(inner->def->operands[1]);
  if (!IsQuantized(q) || q->type.shape != inner->type.shape) return {};
  if (NumberOf(zero) == 0.0) return {.q = q};
  if (const Tensor* literal = LiteralOf(zero); literal != nullptr && zero->type.dtype == DType::kI32) {
    const std::vector<int64_t> numbers = literal->ToInts();
    const bool fits = std::all_of(numbers.begin(), numbers.end(), [](int64_t n) { return n >= -128 && n <= 255; });
    return fits ? Factor{q, zero, nullptr} : Factor{};
  }
  const bool takes = IsQuantized(zero) || (is_float && IsFloat(zero->type.dtype));
  return takes ? Factor{q, zero, nullptr} : Factor{};
}

Factor MultipliedOut(const Value* value) {
  if (!Is<Mul>(value->def)) return {};
  for (size_t i = 0; i < 2; ++i) {
    Factor factor = CenteredOf(value->def->operands[i]);
    factor.scale = value->def->operands[1 - i];
    if (factor && factor.q->type.shape == value->type.shape && IsFloat(factor.scale->type.dtype)) return factor;
  }
  return {};
}

// ---- scales and zero points along a matrix
// ----------------------------------------------------------------------------

// The shape under which the op takes a number for each column, and the value that has them in this order.
struct Numbers {
  Value* value = nullptr;
  Dims shape;
  int64_t block = 0;  // > 0: for each block of so many
};

// What was repeated along an axis of a matrix: reshape(expand(reshape(value, [… 1 …]), [… block …])).
std::optional<Numbers> Repeated(const Value* value, size_t axis) {
  if (!Is<Reshape>(value->def) || value->type.rank() != 2) return std::nullopt;
  const Value* wide = value->def->operands[0];
  if (!Is<Expand>(wide->def) || wide->type.rank() != 3) return std::nullopt;
  Value* narrow = wide->def->operands[0];
  const Dims &from = narrow->type.shape, &to = wide->type.shape;
  if (from.size() != 3 || !(from[axis + 1] == Dim(1)) || !to[axis + 1].is_constant()) return std::nullopt;
  Dims shape = {from[0], from[1], from[2]};
  shape.erase(shape.begin() + static_cast<ptrdiff_t>(axis) + 1);
  Dims joined = shape;
  joined[axis] = joined[axis] * to[axis + 1];
  Dims grown = from;
  grown[axis + 1] = to[axis + 1];
  if (to != grown || value->type.shape != joined) return std::nullopt;
  return Numbers{narrow, shape, to[axis + 1].value()};
}

// Of a matrix of `shape`, whose columns in the product are its rows if it is `transposed`.
std::optional<Numbers> AlongColumns(Value* value, const Dims& shape, bool transposed) {
  if (IsOneNumber(value)) return Numbers{value, {}, 0};
  const size_t rank = shape.size(), of_columns = transposed ? rank - 2 : rank - 1,
               of_sum = transposed ? rank - 1 : rank - 2;
  if (rank == 2) {
    if (std::optional<Numbers> repeated = Repeated(value, of_sum)) return repeated;
  }
  const Dims& own = value->type.shape;
  if (own.size() > rank) return std::nullopt;
  for (size_t i = 0; i < own.size(); ++i) {
    const size_t axis = rank - own.size() + i;
    if (!(own[i] == (axis == of_columns ? shape[axis] : Dim(1)))) return std::nullopt;
  }
  // A vector lies along the last axis.
  if (own.size() + of_columns < rank) return std::nullopt;
  return Numbers{value, {shape[of_columns]}, 0};
}

// Of q [n, blocks, block], which is a matrix [n, k] with a sum along k.
std::optional<Numbers> AlongBlocks(Value* value, const Dims& shape) {
  if (IsOneNumber(value)) return Numbers{value, {}, 0};
  const Dims& own = value->type.shape;
  if (own.size() != 3 || !(own[0] == shape[0]) || !(own[2] == Dim(1))) return std::nullopt;
  if (own[1] == shape[1] && shape[2].is_constant()) return Numbers{value, {shape[0], shape[1]}, shape[2].value()};
  if (own[1] == Dim(1)) return Numbers{value, {shape[0]}, 0};
  return std::nullopt;
}

Value* Under(Rewriter& rewriter, Value* value, const Dims& shape) {
  if (value->type.shape == shape) return value;
  return rewriter.Add(Reshape{.x = value, .shape = shape});
}

// ---- a product
// ----------------------------------------------------------------------------------------------------------

// The factors as `linear` takes them.
struct Right {
  Value *q = nullptr, *scale = nullptr, *zero = nullptr;
  bool transposed = false;
  int64_t block = 0;
};

// Bytes of weights are turned, once in `prepare`: kernels read columns.
bool Turn(Rewriter& rewriter, Right* right) {
  if (right->transposed || right->block > 0 || !IsPrepared(right->q) || !IsByte(right->q) ||
      right->q->type.rank() != 2) {
    return right->q != nullptr;
  }
  right->q = rewriter.Add(Transpose{.x = right->q, .perm = {1, 0}});
  right->transposed = true;
  return right->q != nullptr;
}

// nullopt: what does not fit stays as it is. `shape`: of the factor as the product has it. `of_result`: the scale is
// one of the result.
std::optional<Right> RightOf(Rewriter& rewriter, const Factor& factor, const Dims& shape, bool transposed,
                             bool of_result) {
  const bool apart = factor.q->type.shape != shape;
  const auto along = [&](Value* value, bool as_result) -> std::optional<Numbers> {
    if (apart) return AlongBlocks(value, factor.q->type.shape);
    if (!as_result) return AlongColumns(value, shape, transposed);
    const Dim& columns = shape[shape.size() - (transposed ? 2 : 1)];
    const std::optional<Numbers> numbers = AlongColumns(value, {Dim(1), columns}, false);
    return numbers.has_value() && numbers->block > 0 ? std::nullopt : numbers;
  };
  Right right = {.q = Under(rewriter, factor.q, shape), .transposed = transposed};
  const std::optional<Numbers> scale = along(factor.scale, of_result);
  std::optional<Numbers> zero;
  if (factor.zero != nullptr) zero = along(factor.zero, false);
  if (!scale.has_value() || (factor.zero != nullptr && !zero.has_value())) return std::nullopt;
  if (zero.has_value() && zero->block > 0 && scale->block > 0 && zero->block != scale->block) return std::nullopt;
  right.block = std::max(scale->block, zero.has_value() ? zero->block : 0);
  right.scale = Under(rewriter, scale->value, scale->shape);
  if (zero.has_value()) right.zero = Under(rewriter, zero->value, zero->shape);
  if (right.scale == nullptr || (zero.has_value() && right.zero == nullptr)) return std::nullopt;
  return Turn(rewriter, &right) ? std::optional(right) : std::nullopt;
}

Granularity GranularityOf(const Value* part) {
  if (part->type.rank() == 2) return Granularity::kGroup;
  return IsOneNumber(part) ? Granularity::kTensor : Granularity::kChannel;
}

Value* EncodedAs(Rewriter& rewriter, const Right& factor, DType to) {
  const Encoding::Part scale = {factor.scale->type.dtype, GranularityOf(factor.scale)};
  std::optional<Encoding::Part> zero;
  if (factor.zero != nullptr) zero = {factor.zero->type.dtype, GranularityOf(factor.zero)};
  const absl::StatusOr<const Encoding*> encoding =
      IntegerEncoding(factor.q->type.dtype, scale, zero, factor.block, factor.transposed);
  if (!encoding.ok()) return nullptr;
  std::vector<Value*> components = {factor.q, factor.scale};
  if (factor.zero != nullptr) components.push_back(factor.zero);
  return rewriter.Add(Encode{.components = std::move(components), .as = (*encoding)->text, .to = to});
}

constexpr char kWantedScales[] = "scales and zero points for columns, or blocks of them";

// 16-bit floats may have been rounded from f32, and blocks become `rows`.
const Value* BeforeRounding(const Value* matrix, bool rows) {
  while (Is<Cast>(matrix->def) || (Is<Reshape>(matrix->def) && rows)) {
    const Value* from = matrix->def->operands[0];
    if (!IsFloat(from->type.dtype) || !HoldsExactly(matrix) || !HoldsExactly(from)) break;
    matrix = from;
  }
  return matrix;
}

// Whether it is a matrix of this shape, or rows of blocks of one.
bool HasShape(const Factor& factor, const Dims& shape) {
  const Dims& q = factor.q->type.shape;
  return q == shape || (q.size() == 3 && shape.size() == 2 && q[0] == shape[0] && q[1] * q[2] == shape[1]);
}

// A product of a factor that was dequantized and another one, or floats.
bool RaiseDequantized(Rewriter& rewriter, Node* node) {
  const auto op = View<MatMul>(*node);
  if (op.lhs->type.rank() < 2 || op.rhs->type.rank() < 2 || !IsFloat(op.rhs->type.dtype)) return false;
  const Value* matrix = BeforeRounding(op.rhs, op.transpose_rhs);
  const Factor lhs = MultipliedOut(op.lhs);
  Factor rhs = MultipliedOut(matrix);
  if (!rhs) return false;
  const Dims& shape = op.rhs->type.shape;
  if (!HasShape(rhs, shape)) return rewriter.Refuse(matrix->type.ToString(), op.rhs->type.ToString());
  const bool integers = lhs && IsByte(lhs.q) && IsByte(rhs.q) && matrix == op.rhs &&
                        lhs.scale->type.dtype == rhs.scale->type.dtype && IsOneNumber(lhs.scale) &&
                        (lhs.zero == nullptr || (IsOneNumber(lhs.zero) && !IsFloat(lhs.zero->type.dtype))) &&
                        (rhs.zero == nullptr || !IsFloat(rhs.zero->type.dtype));
  if (!integers && !IsPrepared(rhs.q)) return rewriter.Refuse(op.lhs->name, "a left factor of bytes, or a weight");
  if (!integers) rhs.scale = Unwidened(rhs.scale);
  std::optional<Right> right = RightOf(rewriter, rhs, shape, op.transpose_rhs, false);
  if (!right.has_value()) return rewriter.Refuse(rhs.scale->type.ToString(), kWantedScales);
  Value* factor = op.lhs;
  if (integers && right->block == 0) {
    Right left = {.q = lhs.q, .scale = Under(rewriter, lhs.scale, {})};
    if (lhs.zero != nullptr) left.zero = Under(rewriter, lhs.zero, {});
    factor = EncodedAs(rewriter, left, op.lhs->type.dtype);
  } else if (!IsPrepared(rhs.q)) {
    return rewriter.Refuse(op.lhs->name, kWantedScales);
  }
  Value* weight = EncodedAs(rewriter, *right, op.rhs->type.dtype);
  if (factor == nullptr || weight == nullptr) return false;
  return rewriter.ReplaceWith(rewriter.Add(Linear{.lhs = factor, .rhs = weight, .transpose_rhs = right->transposed}));
}

// What rows of `table` are rounded from, which is done once: a cast between f32 and 16 bits on the way would be lost.
const Value* BeforeLastRounding(const Value* table) {
  const Value* matrix = table;
  while (Is<Cast>(matrix->def) || Is<Reshape>(matrix->def)) {
    const Value* from = matrix->def->operands[0];
    const bool narrows =
        matrix->type.dtype == table->type.dtype && DTypeBits(from->type.dtype) > DTypeBits(table->type.dtype);
    if (!IsFloat(from->type.dtype) || !HoldsExactly(matrix) || (Is<Cast>(matrix->def) && !narrows)) break;
    matrix = from;
  }
  return matrix;
}

// Whether rows end within a byte, so that no kernel moves them.
bool EndsWithinByte(const Value* value) {
  const bool is_row = value->type.rank() == 2 && Size(value->type.shape[1]).IsMultipleOf(2);
  return IsNibble(value) && value->type.rank() > 0 && !is_row;
}

// Rows of a weight that was dequantized whole: they are dequantized when they are chosen.
bool RaiseRows(Rewriter& rewriter, Node* node) {
  const auto op = View<Gather>(*node);
  if (op.axis != 0 || op.x->type.rank() != 2 || !IsFloat(op.x->type.dtype)) return false;
  const Value* matrix = BeforeLastRounding(op.x);
  Factor table = MultipliedOut(matrix);
  if (!table || !IsPrepared(table.q) || !HasShape(table, op.x->type.shape)) return false;
  table.scale = Unwidened(table.scale);
  std::optional<Right> right = RightOf(rewriter, table, op.x->type.shape, true, false);
  if (!right.has_value()) {
    return rewriter.Refuse(table.scale->type.ToString(), "scales and zero points for rows, or blocks of them");
  }
  if (EndsWithinByte(right->q)) return rewriter.Refuse(right->q->type.ToString(), "rows of whole bytes");
  if (right->zero != nullptr && EndsWithinByte(right->zero)) {
    right->zero =
        rewriter.Add(Cast{.x = right->zero, .to = right->zero->type.dtype == DType::kU4 ? DType::kU8 : DType::kI8});
    if (right->zero == nullptr) return false;
  }
  Value* encoded = EncodedAs(rewriter, *right, op.x->type.dtype);
  Value* rows = encoded == nullptr ? nullptr : rewriter.Add(Gather{.x = encoded, .indices = op.indices});
  return rows != nullptr && rewriter.ReplaceWith(rewriter.Add(Decode{.x = rows}));
}

// A product of integers that is scaled: cast(matmul(a - a_zero, b - b_zero)) * scale.
bool RaiseInteger(Rewriter& rewriter, Node* node) {
  for (size_t i = 0; i < 2; ++i) {
    Value *sum = node->operands[i], *scale = node->operands[1 - i];
    if (!Is<Cast>(sum->def) || !IsFloat(sum->type.dtype)) continue;
    const Node* product = sum->def->operands[0]->def;
    if (!Is<MatMul>(product) || product->results[0]->type.dtype != DType::kI32) continue;
    const auto op = View<MatMul>(*product);
    if (op.lhs->type.rank() < 2 || op.rhs->type.rank() < 2) continue;
    const Factor lhs = CenteredOf(op.lhs);
    Factor rhs = CenteredOf(op.rhs);
    if (!lhs || !rhs || !IsByte(lhs.q) || !IsByte(rhs.q)) return rewriter.Refuse(op.lhs->name, "factors of bytes");
    const Dim& terms = op.lhs->type.shape.back();
    const absl::StatusOr<DimRange> range = terms.Range(rewriter.model().dims);
    if (!range.ok() || range->high > kMaxTerms) {
      return rewriter.Refuse(absl::StrCat("sums of ", terms.ToString()), "a sum that 32 bits hold");
    }
    if (lhs.zero != nullptr && !IsOneNumber(lhs.zero)) {
      return rewriter.Refuse(lhs.zero->type.ToString(), "one zero point of the left factor");
    }
    // A product of scales is taken apart where the first is one number.
    Value* lhs_scale = nullptr;
    rhs.scale = scale;
    for (size_t j = 0; j < 2 && Is<Mul>(scale->def) && lhs_scale == nullptr; ++j) {
      Value *one = scale->def->operands[j], *other = scale->def->operands[1 - j];
      if (!IsOneNumber(one) || other->type.shape != scale->type.shape) continue;
      lhs_scale = one;
      rhs.scale = other;
    }
    std::optional<Right> right = RightOf(rewriter, rhs, op.rhs->type.shape, op.transpose_rhs, true);
    if (!right.has_value() || right->block > 0) return rewriter.Refuse(rhs.scale->type.ToString(), kWantedScales);
    lhs_scale = lhs_scale != nullptr ? Under(rewriter, lhs_scale, {})
                                     : rewriter.Add(Constant{.value = Filled(rhs.scale->type.dtype, {}, 1)});
    Right left = {.q = lhs.q, .scale = lhs_scale};
    if (lhs.zero != nullptr) left.zero = Under(rewriter, lhs.zero, {});
    Value* factor = EncodedAs(rewriter, left, rhs.scale->type.dtype);
    Value* weight = EncodedAs(rewriter, *right, rhs.scale->type.dtype);
    if (factor == nullptr || weight == nullptr) return false;
    return rewriter.ReplaceWith(rewriter.Add(Linear{.lhs = factor, .rhs = weight, .transpose_rhs = right->transposed}));
  }
  return false;
}

constexpr auto kQuantRules = Rules(
    Rule("raise-quantized-linear")
        .Apply("matmul", RaiseDequantized)
        .Rounds(Rounding::kAnywhere)
        .Example("%a: u8[4, 8]; %az: u8[]; %as = constant {value = 0.25} : f32[]; %ai = cast %a {to = i32}; "
                 "%azi = cast %az {to = i32}; %ac = sub %ai, %azi; %af = cast %ac {to = f32}; %ad = mul %af, %as; "
                 "@b: i8[8, 6]; @bs: f32[6]; %bi = cast @b {to = i32}; %bf = cast %bi {to = f32}; "
                 "%bsr = reshape @bs {shape = [1, 6]}; %bd = mul %bf, %bsr; %y = matmul %ad, %bd")
        .Example("%x: f32[4, 64]; @w: u4[6, 2, 32]; @s: f32[6, 2]; @z: u4[6, 2]; %wf = cast @w {to = f32}; "
                 "%zr = reshape @z {shape = [6, 2, 1]}; %zf = cast %zr {to = f32}; %wc = sub %wf, %zf; "
                 "%sr = reshape @s {shape = [6, 2, 1]}; %wd = mul %wc, %sr; %wm = reshape %wd {shape = [6, 64]}; "
                 "%y = matmul %x, %wm {transpose_rhs = true}"),
    Rule("raise-quantized-gather")
        .Apply("gather", RaiseRows)
        .Rounds(Rounding::kIn16Bit)
        .Example("@w: i8[6, 8]; @s: f32[6, 1]; %wf = cast @w {to = f32}; %wd = mul %wf, @s; %i: i32[3]; "
                 "%y = gather %wd, %i")
        .Example("@w: u4[6, 2, 32]; @s: f32[6, 2, 1]; @z: u4[6, 2, 1]; %wf = cast @w {to = f32}; "
                 "%zf = cast @z {to = f32}; %wc = sub %wf, %zf; %wd = mul %wc, @s; "
                 "%wm = reshape %wd {shape = [6, 64]}; %i: i32[3]; %y = gather %wm, %i"),
    Rule("raise-integer-linear")
        .Apply("mul", RaiseInteger)
        .Rounds(Rounding::kAnywhere)
        .Example("%a: u8[4, 8]; %az: u8[]; %as: f32[]; @b: i8[8, 6]; @bz: i8[]; @bs: f32[6]; "
                 "%ai = cast %a {to = i32}; %azi = cast %az {to = i32}; %ac = sub %ai, %azi; "
                 "%bi = cast @b {to = i32}; %bzi = cast @bz {to = i32}; %bc = sub %bi, %bzi; "
                 "%p = matmul %ac, %bc; %f = cast %p {to = f32}; %s = mul %as, @bs; %y = mul %f, %s"));

}  // namespace

RuleSpan RaiseQuantRules() { return kQuantRules; }

}  // namespace llmc
