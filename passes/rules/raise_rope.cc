// rotary_embedding from the products and halves of models. Exporters compute cos and sin of angles that are written
// twice, side by side. First the doubling moves behind what is computed elementwise: then both halves are known to be
// equal, and one of them is what the op takes.

#include "ir/ops.h"
#include "passes/driver/match.h"
#include "passes/proof/literal.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

// ---- tables ----------------------------------------------------------------
constexpr int64_t kMaxTable = 1 << 24;  // elements that are looked at

// Rows of something as they are, or in another type.
bool TakesRows(const Node* node) {
  if (Is<Cast>(node)) return IsFloat(node->operands[0]->type.dtype) && IsFloat(node->results[0]->type.dtype);
  if (Is<Slice>(node)) return View<Slice>(*node).axis == 0;
  if (!Is<SliceBy>(node)) return false;
  const Value* axes = View<SliceBy>(*node).axes;
  return axes != nullptr && axes->contents.has_value() && *axes->contents == Dims{Dim(0)};
}

// A weight or constant [positions, D], or rows of one, each of D / 2 numbers that are written twice.
bool IsDoubledTable(const Match& m) {
  const Value* table = m["%t"];
  if (table->type.rank() != 2 || !table->type.shape[1].is_constant()) return false;
  while (TakesRows(table->def)) table = table->def->operands[0];
  const Tensor* tensor = LiteralOf(table);
  if (tensor == nullptr && table->kind == ValueKind::kWeight) {
    const auto data = m.model().data.find(table->name);
    if (data != m.model().data.end()) tensor = &data->second;
  }
  if (tensor == nullptr || tensor->rank() != 2 || !IsFloat(tensor->dtype()) || tensor->size() > kMaxTable) return false;
  const int64_t columns = tensor->shape()[1], half = columns / 2;
  if (columns % 2 != 0 || tensor->size() == 0) return false;
  for (int64_t i = 0; i < tensor->size(); ++i) {
    if (i % columns < half && tensor->GetFloat(i) != tensor->GetFloat(i + half)) return false;
  }
  return true;
}
Attr HalfOfTable(const Match& m) { return Dims{Dim(m["%t"]->type.shape[1].value() / 2)}; }
Attr LastAxisOfRows(const Match& m) { return int64_t{m["%y"]->type.rank() - 1}; }

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

// ---- rotation --------------------------------------------------------------
// cos and sin for x[B, heads, L, D]: [B or 1, 1, L, D / 2], or without the first axes.
bool FitsHeads(const Dims& shape, const Value* x, int64_t half) {
  const Dims& rows = x->type.shape;
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
         FitsHeads(m["%c"]->type.shape, m["%x"], half) && FitsHeads(m["%s"]->type.shape, m["%x"], half);
}
Dims TableShape(const Dims& shape) {
  const size_t rank = shape.size();
  return {rank == 4 ? shape[0] : Dim(1), shape[rank - 2], shape[rank - 1]};
}
Attr CosShape(const Match& m) { return TableShape(m["%c"]->type.shape); }
Attr SinShape(const Match& m) { return TableShape(m["%s"]->type.shape); }
Attr FullShape(const Match& m) {
  const Dims& shape = m["%x"]->type.shape;
  return Dims{shape[0], shape[2], m["%c"]->type.shape.back()};
}

// x[B, L, heads, D], and cos and sin [B or 1, L, 1, D / 2], or without the first axis.
bool FitsRows(const Dims& shape, const Value* x, int64_t half) {
  const Dims& rows = x->type.shape;
  const size_t rank = shape.size();
  return (rank == 3 || (rank == 4 && (shape[0] == Dim(1) || shape[0] == rows[0]))) && shape[rank - 1] == Dim(half) &&
         shape[rank - 2] == Dim(1) && shape[rank - 3] == rows[1];
}
bool RotatesHalvesOfRows(const Match& m) {
  const Dims& end = std::get<Dims>(m.GetAttr("$h"));
  const Dims& shape = m["%x"]->type.shape;
  if (shape.size() != 4 || end.size() != 1 || !end[0].is_constant()) return false;
  const int64_t half = end[0].value();
  return shape[3] == Dim(2 * half) && std::get<Dims>(m.GetAttr("$d")) == Dims{shape[3]} &&
         m.Int("$ca") == m["%c"]->type.rank() - 1 && m.Int("$sa") == m["%s"]->type.rank() - 1 &&
         FitsRows(m["%c"]->type.shape, m["%x"], half) && FitsRows(m["%s"]->type.shape, m["%x"], half);
}
Dims RowTableShape(const Dims& shape) {
  const size_t rank = shape.size();
  return {rank == 4 ? shape[0] : Dim(1), shape[rank - 3], shape[rank - 1]};
}
Attr CosShapeOfRows(const Match& m) { return RowTableShape(m["%c"]->type.shape); }
Attr SinShapeOfRows(const Match& m) { return RowTableShape(m["%s"]->type.shape); }
Attr FullShapeOfRows(const Match& m) {
  const Dims& shape = m["%x"]->type.shape;
  return Dims{shape[0], shape[1], m["%c"]->type.shape.back()};
}

// ---- rotation of pairs -----------------------------------------------------
// Whether [.., h], [.., h, 1], [.., h, 2] and [.., 2 h] are the shapes of a table, of it with an axis more, of that
// repeated, and of the result, in which each number is written twice, in turn.
bool RepeatsEach(const Value* one, const Value* two, const Value* all) {
  const Dims &a = one->type.shape, &b = two->type.shape, &c = all->type.shape;
  if (a.size() < 2 || b.size() != a.size() || c.empty() || !a[a.size() - 2].is_constant()) return false;
  Dims repeated = a;
  repeated.back() = Dim(2);
  return a.back() == Dim(1) && b == repeated && c.back() == a[a.size() - 2] * Dim(2);
}
bool RepeatsTable(const Match& m) { return RepeatsEach(m["%t1"], m["%t2"], m["%d"]); }
// The shape of the table alone.
Dims WithoutRepeat(const Value* all) {
  Dims shape = all->type.shape;
  shape.back() = Dim(shape.back().value() / 2);
  return shape;
}

// x[.., start::2] of the last axis.
bool TakesEveryOther(const Match& m, const char* start, const char* end, const char* axes, const char* steps,
                     int64_t first) {
  const auto number = [&](const char* name) -> std::optional<int64_t> {
    const std::optional<Dims>& contents = m[name]->contents;
    const bool one = contents.has_value() && contents->size() == 1 && (*contents)[0].is_constant();
    return one ? std::optional((*contents)[0].value()) : std::nullopt;
  };
  const int rank = m["%x"]->type.rank();
  const Dim& size = m["%x"]->type.shape.back();
  return number(start) == first && number(steps) == 2 && (number(axes) == rank - 1 || number(axes) == -1) &&
         size.is_constant() && number(end) >= size.value();
}
bool RotatesPairs(const Match& m) {
  const Dims& shape = m["%x"]->type.shape;
  if (shape.size() != 4 || !shape[3].is_constant() || shape[3].value() % 2 != 0) return false;
  Dims pairs = shape;
  pairs[3] = Dim(shape[3].value() / 2);
  pairs.push_back(Dim(1));
  return TakesEveryOther(m, "%b0", "%e0", "%a0", "%s0", 0) && TakesEveryOther(m, "%b1", "%e1", "%a1", "%s1", 1) &&
         std::get<Dims>(m.GetAttr("$m")) == pairs && m["%turned"]->type.shape == shape &&
         RepeatsEach(m["%c1"], m["%c2"], m["%cc"]) && RepeatsEach(m["%r1"], m["%r2"], m["%ss"]);
}
bool RotatesPairsOfHeads(const Match& m) {
  if (!RotatesPairs(m)) return false;
  const int64_t half = m["%x"]->type.shape[3].value() / 2;
  return FitsHeads(WithoutRepeat(m["%cc"]), m["%x"], half) && FitsHeads(WithoutRepeat(m["%ss"]), m["%x"], half);
}
bool RotatesPairsOfRows(const Match& m) {
  if (!RotatesPairs(m)) return false;
  const int64_t half = m["%x"]->type.shape[3].value() / 2;
  return FitsRows(WithoutRepeat(m["%cc"]), m["%x"], half) && FitsRows(WithoutRepeat(m["%ss"]), m["%x"], half);
}
Attr PairCosShape(const Match& m) { return TableShape(WithoutRepeat(m["%cc"])); }
Attr PairSinShape(const Match& m) { return TableShape(WithoutRepeat(m["%ss"])); }
Attr PairCosShapeOfRows(const Match& m) { return RowTableShape(WithoutRepeat(m["%cc"])); }
Attr PairSinShapeOfRows(const Match& m) { return RowTableShape(WithoutRepeat(m["%ss"])); }
Attr PairFullShape(const Match& m) {
  const Dims& shape = m["%x"]->type.shape;
  return Dims{shape[0], shape[2], Dim(shape[3].value() / 2)};
}
Attr PairFullShapeOfRows(const Match& m) {
  const Dims& shape = m["%x"]->type.shape;
  return Dims{shape[0], shape[1], Dim(shape[3].value() / 2)};
}

// x * cos + rotate_half(x) * sin
constexpr char kHalves[] = R"(%cc = concat %c, %c {axis = $ca}
                 %ss = concat %s, %s {axis = $sa}
                 %low = slice %x {axis = 3, start = [0], end = $h}
                 %high = slice %x {axis = 3, start = $h, end = $d}
                 %minus = neg %high
                 %turned = concat %minus, %low {axis = 3}
                 %a = mul %x, %cc
                 %b = mul %turned, %ss
                 %y = add %a, %b)";

// x * cos + rotate_every_two(x) * sin, whose tables repeat each number.
constexpr char kPairs[] = R"(%c1 = reshape %c {shape = $c1}
                 %c2 = expand %c1 {shape = $c2}
                 %cc = reshape %c2 {shape = $c3}
                 %r1 = reshape %s {shape = $s1}
                 %r2 = expand %r1 {shape = $s2}
                 %ss = reshape %r2 {shape = $s3}
                 %even = slice_by %x, %b0, %e0, %a0, %s0
                 %odd = slice_by %x, %b1, %e1, %a1, %s1
                 %minus = neg %odd
                 %m1 = reshape %minus {shape = $m}
                 %m2 = reshape %even {shape = $m}
                 %pairs = concat %m1, %m2 {axis = 4}
                 %turned = reshape %pairs {shape = $t}
                 %a = mul %x, %cc
                 %b = mul %turned, %ss
                 %y = add %a, %b)";
// The rotated part is all that its tables cover.
bool CoversPart(const Match& m) {
  const Dim half = m["%c"]->type.shape.back();
  return m["%part"]->type.shape.back() == half + half &&
         std::get<Dims>(m.GetAttr("$d")) == Dims{m["%x"]->type.shape.back()};
}

constexpr auto kRopeRules = Rules(
    Rule("halve-table")
        .Find("%y = gather %t, %i {axis = 0}")
        .When("rows of numbers that are written twice", IsDoubledTable)
        .Let("$half", HalfOfTable)
        .Let("$last", LastAxisOfRows)
        .Replace(R"(%h = slice %t {axis = 1, start = [0], end = $half}
                    %g = gather %h, %i {axis = 0}
                    %y = concat %g, %g {axis = $last})")
        .Example("%t = constant {value = [1, 2, 1, 2, 3, 4, 3, 4]} : f32[2, 4]; %i: i64[1, 5]")
        .Quiet(),
    Rule("repeat-after-cos")
        .Find(R"(%t1 = reshape %t {shape = $a}
                 %t2 = expand %t1 {shape = $b}
                 %d = reshape %t2 {shape = $s}
                 %y = cos %d)")
        .When("each number twice", RepeatsTable)
        .Replace(R"(%t1 = reshape %t {shape = $a}
                    %t2 = expand %t1 {shape = $b}
                    %d = reshape %t2 {shape = $s}
                    %c = cos %t
                    %c1 = reshape %c {shape = $a}
                    %c2 = expand %c1 {shape = $b}
                    %y = reshape %c2 {shape = $s})")
        .Example("%t: f32[4, 8]; $a = [4, 8, 1]; $b = [4, 8, 2]; $s = [1, 4, 16]")
        .Quiet(),
    Rule("repeat-after-sin")
        .Find(R"(%t1 = reshape %t {shape = $a}
                 %t2 = expand %t1 {shape = $b}
                 %d = reshape %t2 {shape = $s}
                 %y = sin %d)")
        .When("each number twice", RepeatsTable)
        .Replace(R"(%t1 = reshape %t {shape = $a}
                    %t2 = expand %t1 {shape = $b}
                    %d = reshape %t2 {shape = $s}
                    %c = sin %t
                    %c1 = reshape %c {shape = $a}
                    %c2 = expand %c1 {shape = $b}
                    %y = reshape %c2 {shape = $s})")
        .Example("%t: f32[4, 8]; $a = [4, 8, 1]; $b = [4, 8, 2]; $s = [1, 4, 16]")
        .Quiet(),
    Rule("repeat-after-cast")
        .Find(R"(%t1 = reshape %t {shape = $a}
                 %t2 = expand %t1 {shape = $b}
                 %d = reshape %t2 {shape = $s}
                 %y = cast %d {to = $to})")
        .When("each number twice", RepeatsTable)
        .Replace(R"(%t1 = reshape %t {shape = $a}
                    %t2 = expand %t1 {shape = $b}
                    %d = reshape %t2 {shape = $s}
                    %c = cast %t {to = $to}
                    %c1 = reshape %c {shape = $a}
                    %c2 = expand %c1 {shape = $b}
                    %y = reshape %c2 {shape = $s})")
        .Example("%t: f32[4, 8]; $a = [4, 8, 1]; $b = [4, 8, 2]; $s = [1, 4, 16]; $to = f16")
        .Quiet(),
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
        .Let("$last", LastAxisOfRows)
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
        .Let("$last", LastAxisOfRows)
        .Replace(R"(%d = concat %t, %t {axis = $a}
                    %r = expand %t {shape = $half}
                    %y = concat %r, %r {axis = $last})")
        .Example("%t: f32[1, 4, 8]; $a = 2; $s = [3, 4, 16]")
        .Quiet(),

    Rule("raise-rotary")
        .Find(kHalves)
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
    // The same where heads come after positions.
    Rule("raise-rotary-of-rows")
        .Find(kHalves)
        .When("halves of heads, and tables of rows", RotatesHalvesOfRows)
        .Let("$cos", CosShapeOfRows)
        .Let("$sin", SinShapeOfRows)
        .Let("$full", FullShapeOfRows)
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
        .Example("%x: f32[2, 4, 3, 8]; %c: f32[1, 4, 1, 4]; %s: f32[4, 1, 4]; $h = [4]; $d = [8]; $ca = 3; $sa = 2")
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
    Rule("raise-rotary-of-pairs")
        .Find(kPairs)
        .When("pairs of heads, and tables of rows", RotatesPairsOfHeads)
        .Let("$cos", PairCosShape)
        .Let("$sin", PairSinShape)
        .Let("$full", PairFullShape)
        .Replace(R"(%c1 = reshape %c {shape = $c1}
                    %c2 = expand %c1 {shape = $c2}
                    %cc = reshape %c2 {shape = $c3}
                    %r1 = reshape %s {shape = $s1}
                    %r2 = expand %r1 {shape = $s2}
                    %ss = reshape %r2 {shape = $s3}
                    %c3 = reshape %c {shape = $cos}
                    %s3 = reshape %s {shape = $sin}
                    %cos = expand %c3 {shape = $full}
                    %sin = expand %s3 {shape = $full}
                    %y = rotary_embedding %x, %cos, %sin {interleaved = true})")
        .Rounds(Rounding::kIn16Bit)
        .Example("%x: f32[2, 3, 4, 8]; %c: f32[1, 4, 4]; %s: f32[4, 4]; $c1 = [1, 4, 4, 1]; $c2 = [1, 4, 4, 2]; "
                 "$c3 = [1, 1, 4, 8]; $s1 = [4, 4, 1]; $s2 = [4, 4, 2]; $s3 = [4, 8]; $m = [2, 3, 4, 4, 1]; "
                 "$t = [2, 3, 4, 8]; %b0 = constant {value = [0]} : i64[1]; %b1 = constant {value = [1]} : i64[1]; "
                 "%e0 = constant {value = [100]} : i64[1]; %e1 = constant {value = [8]} : i64[1]; "
                 "%a0 = constant {value = [3]} : i64[1]; %a1 = constant {value = [-1]} : i64[1]; "
                 "%s0 = constant {value = [2]} : i64[1]; %s1 = constant {value = [2]} : i64[1]")
        .Quiet(),
    // The same where heads come after positions.
    Rule("raise-rotary-of-pairs-of-rows")
        .Find(kPairs)
        .When("pairs of heads, and tables of rows", RotatesPairsOfRows)
        .Let("$cos", PairCosShapeOfRows)
        .Let("$sin", PairSinShapeOfRows)
        .Let("$full", PairFullShapeOfRows)
        .Replace(R"(%c1 = reshape %c {shape = $c1}
                    %c2 = expand %c1 {shape = $c2}
                    %cc = reshape %c2 {shape = $c3}
                    %r1 = reshape %s {shape = $s1}
                    %r2 = expand %r1 {shape = $s2}
                    %ss = reshape %r2 {shape = $s3}
                    %c3 = reshape %c {shape = $cos}
                    %s3 = reshape %s {shape = $sin}
                    %cos = expand %c3 {shape = $full}
                    %sin = expand %s3 {shape = $full}
                    %heads = transpose %x {perm = [0, 2, 1, 3]}
                    %r = rotary_embedding %heads, %cos, %sin {interleaved = true}
                    %y = transpose %r {perm = [0, 2, 1, 3]})")
        .Rounds(Rounding::kIn16Bit)
        .Example("%x: f32[2, 4, 3, 8]; %c: f32[1, 4, 4]; %s: f32[4, 4]; $c1 = [1, 4, 4, 1]; $c2 = [1, 4, 4, 2]; "
                 "$c3 = [1, 4, 1, 8]; $s1 = [4, 4, 1]; $s2 = [4, 4, 2]; $s3 = [4, 1, 8]; $m = [2, 4, 3, 4, 1]; "
                 "$t = [2, 4, 3, 8]; %b0 = constant {value = [0]} : i64[1]; %b1 = constant {value = [1]} : i64[1]; "
                 "%e0 = constant {value = [100]} : i64[1]; %e1 = constant {value = [8]} : i64[1]; "
                 "%a0 = constant {value = [3]} : i64[1]; %a1 = constant {value = [-1]} : i64[1]; "
                 "%s0 = constant {value = [2]} : i64[1]; %s1 = constant {value = [2]} : i64[1]")
        .Quiet(),
    Rule("raise-partial-rotary-of-rows")
        .Find(R"(%part = slice %x {axis = 3, start = [0], end = $h}
                 %rest = slice %x {axis = 3, start = $h, end = $d}
                 %heads = transpose %part {perm = [0, 2, 1, 3]}
                 %turned = rotary_embedding %heads, %c, %s {interleaved = $i}
                 %rows = transpose %turned {perm = [0, 2, 1, 3]}
                 %y = concat %rows, %rest {axis = 3})")
        .When("tables of the whole part", CoversPart)
        .Replace(R"(%all = transpose %x {perm = [0, 2, 1, 3]}
                    %r = rotary_embedding %all, %c, %s {interleaved = $i}
                    %y = transpose %r {perm = [0, 2, 1, 3]})")
        .Example("%x: f32[2, 4, 3, 8]; %c: f32[2, 4, 2]; %s: f32[2, 4, 2]; $h = [4]; $d = [8]; $i = true")
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

RuleSpan RaiseRopeRules() { return kRopeRules; }

}  // namespace llmc
