// rotary_embedding from the products and halves of models. Exporters compute cos and sin of angles that are written
// twice, side by side. First the doubling moves behind what is computed elementwise: then both halves are known to be
// equal, and one of them is what the op takes.

#include "ir/ops.h"
#include "passes/literal.h"
#include "passes/match.h"
#include "passes/rule_lists.h"

namespace llmc {
namespace {

// ---- doubled angles --------------------------------------------------------
bool DoublesLastAxis(const Match& m) {
  const Value *d = m["%d"], *y = m["%y"];
  return m.Int("$a") == d->type.rank() - 1 && y->type.rank() > 0 && y->type.shape.back() == d->type.shape.back();
}
Attr HalfOfShape(const Match& m) {
  Dims shape = m["%y"]->type.shape;
  shape.back() = m["%t"]->type.shape.back();
  return shape;
}
Attr LastAxis(const Match& m) { return int64_t{m["%y"]->type.rank() - 1}; }

// A table whose rows are something twice, side by side.
const Tensor* TableOf(const Match& m, const Value* value) {
  if (const Tensor* literal = LiteralOf(value); literal != nullptr) return literal;
  const auto it = m.model().data.find(value->name);
  return it == m.model().data.end() ? nullptr : &it->second;
}
// Rows of something as they are, or in another type.
bool TakesRows(const Node* node) {
  if (Is<Cast>(node)) return IsFloat(node->operands[0]->type.dtype) && IsFloat(node->results[0]->type.dtype);
  if (Is<Slice>(node)) return View<Slice>(*node).axis == 0;
  if (!Is<SliceBy>(node)) return false;
  const Value* axes = View<SliceBy>(*node).axes;
  return axes != nullptr && axes->contents.has_value() && *axes->contents == Dims{Dim(0)};
}
bool HasEqualHalves(const Match& m) {
  constexpr int64_t kMostElements = 1 << 26;
  const Value* value = m["%t"];
  while (TakesRows(value->def)) value = value->def->operands[0];
  const Tensor* table = TableOf(m, value);
  const bool is_table = m["%t"]->type.rank() == 2 && m["%t"]->type.shape[1].is_constant();
  if (!is_table || table == nullptr || table->shape().size() != 2 || !IsFloat(table->dtype())) return false;
  const int64_t rows = table->shape()[0], columns = table->shape()[1], half = columns / 2;
  if (rows < 1 || half < 1 || columns % 2 != 0 || table->size() > kMostElements) return false;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < half; ++i) {
      if (table->GetFloat(row * columns + i) != table->GetFloat(row * columns + half + i)) return false;
    }
  }
  return true;
}
Attr HalfOfColumns(const Match& m) { return Dims{Dim(m["%t"]->type.shape[1].value() / 2)}; }

// ---- rotation --------------------------------------------------------------
// cos and sin for x[B, heads, L, D]: [B or 1, 1, L, D / 2], or without the first axes.
bool FitsHeads(const Value* table, const Value* x, int64_t half) {
  const Dims &shape = table->type.shape, &rows = x->type.shape;
  const size_t rank = shape.size();
  if (rank < 2 || rank > 4 || rows.size() != 4 || shape[rank - 1] != Dim(half) || shape[rank - 2] != rows[2])
    return false;
  if (rank >= 3 && shape[rank - 3] != Dim(1)) return false;
  return rank < 4 || shape[0] == Dim(1) || shape[0] == rows[0];
}
bool RotatesHalves(const Match& m) {
  const Dims& end = std::get<Dims>(m.GetAttr("$h"));
  const Dims& shape = m["%x"]->type.shape;
  if (shape.size() != 4 || end.size() != 1 || !end[0].is_constant()) return false;
  const int64_t half = end[0].value();
  return shape[3] == Dim(2 * half) && std::get<Dims>(m.GetAttr("$d")) == Dims{shape[3]} &&
         FitsHeads(m["%c"], m["%x"], half) && FitsHeads(m["%s"], m["%x"], half);
}
Dims TableShape(const Value* table) {
  const Dims& shape = table->type.shape;
  const size_t rank = shape.size();
  return {rank == 4 ? shape[0] : Dim(1), shape[rank - 2], shape[rank - 1]};
}
Attr CosShape(const Match& m) { return TableShape(m["%c"]); }
Attr SinShape(const Match& m) { return TableShape(m["%s"]); }
Attr FullShape(const Match& m) {
  const Dims& shape = m["%x"]->type.shape;
  return Dims{shape[0], shape[2], m["%c"]->type.shape.back()};
}

// The same where heads follow rows, as in x[B, L, heads, D]: cos and sin are [B or 1, L, 1, D / 2].
bool FitsRows(const Value* table, const Value* x, int64_t half) {
  const Dims &shape = table->type.shape, &rows = x->type.shape;
  return shape.size() == 4 && shape[3] == Dim(half) && shape[2] == Dim(1) && shape[1] == rows[1] &&
         (shape[0] == Dim(1) || shape[0] == rows[0]);
}
bool RotatesRows(const Match& m) {
  const Dims &end = std::get<Dims>(m.GetAttr("$h")), &shape = m["%x"]->type.shape;
  if (shape.size() != 4 || end.size() != 1 || !end[0].is_constant()) return false;
  const int64_t half = end[0].value();
  return shape[3] == Dim(2 * half) && std::get<Dims>(m.GetAttr("$d")) == Dims{shape[3]} && m.Int("$ca") == 3 &&
         m.Int("$sa") == 3 && FitsRows(m["%c"], m["%x"], half) && FitsRows(m["%s"], m["%x"], half);
}
Dims RowTableShape(const Value* table) {
  const Dims& shape = table->type.shape;
  return {shape[0], shape[1], shape[3]};
}
Attr CosOfRows(const Match& m) { return RowTableShape(m["%c"]); }
Attr SinOfRows(const Match& m) { return RowTableShape(m["%s"]); }
Attr FullOfRows(const Match& m) {
  const Dims& shape = m["%x"]->type.shape;
  return Dims{shape[0], shape[1], m["%c"]->type.shape.back()};
}

// The rotated part is all that its tables cover.
bool CoversPart(const Match& m) {
  const Dim half = m["%c"]->type.shape.back();
  return m["%part"]->type.shape.back() == half + half &&
         std::get<Dims>(m.GetAttr("$d")) == Dims{m["%x"]->type.shape.back()};
}

constexpr auto kRules = Rules(
    Rule("halve-cos")
        .Find(R"(%d = concat %t, %t {axis = $a}
                 %y = cos %d)")
        .Replace(R"(%d = concat %t, %t {axis = $a}
                    %c = cos %t
                    %y = concat %c, %c {axis = $a})")
        .Example("%t: f32[4, 8]; $a = 1")
        .Quiet(),
    Rule("halve-sin")
        .Find(R"(%d = concat %t, %t {axis = $a}
                 %y = sin %d)")
        .Replace(R"(%d = concat %t, %t {axis = $a}
                    %s = sin %t
                    %y = concat %s, %s {axis = $a})")
        .Example("%t: f32[4, 8]; $a = 1")
        .Quiet(),
    Rule("halve-cast")
        .Find(R"(%d = concat %t, %t {axis = $a}
                 %y = cast %d {to = $to})")
        .Replace(R"(%d = concat %t, %t {axis = $a}
                    %c = cast %t {to = $to}
                    %y = concat %c, %c {axis = $a})")
        .Example("%t: f32[4, 8]; $a = 1; $to = f16")
        .Quiet(),
    Rule("halve-scale")
        .Find(R"(%d = concat %t, %t {axis = $a}
                 %y = mul %d, %c)")
        .When("a number", [](const Match& m) { return IsScalarNumber(m["%c"]) && m["%t"]->type.rank() > 0; })
        .Replace(R"(%d = concat %t, %t {axis = $a}
                    %s = mul %t, %c
                    %y = concat %s, %s {axis = $a})")
        .Example("%t: f32[4, 8]; $a = 1; %c = constant {value = 1.5} : f32[]")
        .Quiet(),
    Rule("halve-reshape")
        .Find(R"(%d = concat %t, %t {axis = $a}
                 %y = reshape %d {shape = $s})")
        .When("the last axis as it is", DoublesLastAxis)
        .Let("$half", HalfOfShape)
        .Let("$last", LastAxis)
        .Replace(R"(%d = concat %t, %t {axis = $a}
                    %r = reshape %t {shape = $half}
                    %y = concat %r, %r {axis = $last})")
        .Example("%t: f32[4, 8]; $a = 1; $s = [1, 1, 4, 16]")
        .Quiet(),
    Rule("halve-expand")
        .Find(R"(%d = concat %t, %t {axis = $a}
                 %y = expand %d {shape = $s})")
        .When("the last axis as it is", DoublesLastAxis)
        .Let("$half", HalfOfShape)
        .Let("$last", LastAxis)
        .Replace(R"(%d = concat %t, %t {axis = $a}
                    %r = expand %t {shape = $half}
                    %y = concat %r, %r {axis = $last})")
        .Example("%t: f32[1, 4, 8]; $a = 2; $s = [3, 4, 16]")
        .Quiet(),

    Rule("halve-gathered-rows")
        .Find("%y = gather %t, %i")
        .When("a table of rows with equal halves", HasEqualHalves)
        .Let("$half", HalfOfColumns)
        .Let("$last", LastAxis)
        .Replace(R"(%h = slice %t {axis = 1, start = [0], end = $half}
                    %g = gather %h, %i
                    %y = concat %g, %g {axis = $last})")
        .Example("%t = constant {value = [1, 2, 1, 2, 3, 4, 3, 4, 0, 5, 0, 5]} : f32[3, 4]; %i: i64[2, 5]")
        .Quiet(),

    // x * cos + rotate_half(x) * sin
    Rule("raise-rotary")
        .Find(R"(%cc = concat %c, %c {axis = $ca}
                 %ss = concat %s, %s {axis = $sa}
                 %low = slice %x {axis = 3, start = [0], end = $h}
                 %high = slice %x {axis = 3, start = $h, end = $d}
                 %minus = neg %high
                 %turned = concat %minus, %low {axis = 3}
                 %a = mul %x, %cc
                 %b = mul %turned, %ss
                 %y = add %a, %b)")
        .When("halves of heads, and tables of rows",
              [](const Match& m) {
                return RotatesHalves(m) && m.Int("$ca") == m["%c"]->type.rank() - 1 &&
                       m.Int("$sa") == m["%s"]->type.rank() - 1;
              })
        .Let("$cos", CosShape)
        .Let("$sin", SinShape)
        .Let("$full", FullShape)
        .Replace(R"(%cc = concat %c, %c {axis = $ca}
                    %ss = concat %s, %s {axis = $sa}
                    %c3 = reshape %c {shape = $cos}
                    %s3 = reshape %s {shape = $sin}
                    %cos = expand %c3 {shape = $full}
                    %sin = expand %s3 {shape = $full}
                    %y = rotary_embedding %x, %cos, %sin)")
        .Rounds(Rounding::kIn16Bit)
        .Example("%x: f32[2, 3, 4, 8]; %c: f32[1, 1, 4, 4]; %s: f32[2, 1, 4, 4]; $h = [4]; $d = [8]; $ca = 3; $sa = 3")
        .Quiet(),
    // The same of x[B, L, heads, D].
    Rule("raise-rotary-of-rows")
        .Find(R"(%cc = concat %c, %c {axis = $ca}
                 %ss = concat %s, %s {axis = $sa}
                 %low = slice %x {axis = 3, start = [0], end = $h}
                 %high = slice %x {axis = 3, start = $h, end = $d}
                 %minus = neg %high
                 %turned = concat %minus, %low {axis = 3}
                 %a = mul %x, %cc
                 %b = mul %turned, %ss
                 %y = add %a, %b)")
        .When("halves of heads, and tables of rows before heads", RotatesRows)
        .Let("$cos", CosOfRows)
        .Let("$sin", SinOfRows)
        .Let("$full", FullOfRows)
        .Replace(R"(%cc = concat %c, %c {axis = $ca}
                    %ss = concat %s, %s {axis = $sa}
                    %c3 = reshape %c {shape = $cos}
                    %s3 = reshape %s {shape = $sin}
                    %cos = expand %c3 {shape = $full}
                    %sin = expand %s3 {shape = $full}
                    %heads = transpose %x {perm = [0, 2, 1, 3]}
                    %r = rotary_embedding %heads, %cos, %sin
                    %y = transpose %r {perm = [0, 2, 1, 3]})")
        .Rounds(Rounding::kIn16Bit)
        .Example("%x: f32[2, 4, 3, 8]; %c: f32[1, 4, 1, 4]; %s: f32[2, 4, 1, 4]; $h = [4]; $d = [8]; $ca = 3; $sa = 3")
        .Quiet(),
    // [low * cos - high * sin, high * cos + low * sin]
    Rule("raise-rotary-of-halves")
        .Find(R"(%low = slice %x {axis = 3, start = [0], end = $h}
                 %high = slice %x {axis = 3, start = $h, end = $d}
                 %lc = mul %low, %c
                 %hs = mul %high, %s
                 %first = sub %lc, %hs
                 %hc = mul %high, %c
                 %ls = mul %low, %s
                 %second = add %hc, %ls
                 %y = concat %first, %second {axis = 3})")
        .When("halves of heads, and tables of rows", RotatesHalves)
        .Let("$cos", CosShape)
        .Let("$sin", SinShape)
        .Let("$full", FullShape)
        .Replace(R"(%c3 = reshape %c {shape = $cos}
                    %s3 = reshape %s {shape = $sin}
                    %cos = expand %c3 {shape = $full}
                    %sin = expand %s3 {shape = $full}
                    %y = rotary_embedding %x, %cos, %sin)")
        .Rounds(Rounding::kIn16Bit)
        .Example("%x: f32[2, 3, 4, 8]; %c: f32[1, 1, 4, 4]; %s: f32[4, 4]; $h = [4]; $d = [8]")
        .Quiet(),
    Rule("raise-partial-rotary")
        .Find(R"(%part = slice %x {axis = 3, start = [0], end = $h}
                 %rest = slice %x {axis = 3, start = $h, end = $d}
                 %turned = rotary_embedding %part, %c, %s {interleaved = $i}
                 %y = concat %turned, %rest {axis = 3})")
        .When("tables of the whole part", CoversPart)
        .Replace("%y = rotary_embedding %x, %c, %s {interleaved = $i}")
        .Example("%x: f32[2, 3, 4, 8]; %c: f32[2, 4, 2]; %s: f32[2, 4, 2]; $h = [4]; $d = [8]")
        .Quiet());

}  // namespace

RuleSpan RaiseRopeRules() { return kRules; }

}  // namespace llmc
