// Arithmetic on elements.
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ir/op.h"
#include "ir/text.h"
#include "tests/gpu/op_case_parts.h"

namespace llmc {
namespace {

constexpr absl::string_view kAngles[] = {"sin", "cos", "tan", "atan"};  // large ones have no digits left

// The elementwise ops of one operand that take a type.
std::vector<absl::string_view> UnaryOps(DType dtype) {
  std::vector<absl::string_view> names;
  for (const OpDef* op : AllOpDefs()) {
    const bool is_unary = op->info.is_elementwise() && op->max_operands == 1 && op->attrs.empty();
    if (!is_unary || absl::c_linear_search(kAngles, op->info.name)) continue;
    const std::string text = absl::StrCat("in %x: ", Name(dtype), "[1]\n%y = ", op->info.name, " %x\n");
    if (ParseFragment(text, "op").ok()) names.push_back(op->info.name);
  }
  return names;
}

void AddUnary(std::vector<OpCase>* cases) {
  for (const DType dtype : kFloats) {
    OpProgram p(Head(absl::StrCat("%x: ", Name(dtype), "[3, 37]")));
    for (const absl::string_view op : UnaryOps(dtype)) p.Add(absl::StrCat(op, " %x"));
    cases->push_back(
        {absl::StrCat("unary ", Name(dtype)), {.text = p.Text(), .inputs = {{"x", EdgeFloats(dtype, {3, 37}, 1)}}}});
    OpProgram angles(Head(absl::StrCat("%x: ", Name(dtype), "[200]")));
    for (const absl::string_view op : kAngles) angles.Add(absl::StrCat(op, " %x"));
    cases->push_back({absl::StrCat("angles ", Name(dtype)), {.text = angles.Text()}});
  }
  for (const DType dtype : kIntegers) {
    OpProgram p(Head(absl::StrCat("%x: ", Name(dtype), "[41]")));
    for (const absl::string_view op : UnaryOps(dtype)) p.Add(absl::StrCat(op, " %x"));
    cases->push_back(
        {absl::StrCat("unary ", Name(dtype)), {.text = p.Text(), .inputs = {{"x", EdgeInts(dtype, {41}, 1)}}}});
  }
  for (const DType dtype : kFourBits) {
    OpProgram p(Head(absl::StrCat("%x: ", Name(dtype), "[41], %y: ", Name(dtype), "[41]")));
    for (const char* op : {"neg %x", "add %x, %y", "mul %x, %y", "less %x, %y"}) p.Add(op);
    cases->push_back(
        {absl::StrCat("four bits ", Name(dtype)),
         {.text = p.Text(), .inputs = {{"x", EdgeInts(dtype, {41}, 1)}, {"y", EdgeInts(dtype, {41}, 2)}}}});
  }
}

void AddBinary(std::vector<OpCase>* cases) {
  const char* compares[] = {"equal", "less", "less_equal", "greater", "greater_equal", "max", "min"};
  for (const DType dtype : kFloats) {
    OpProgram p(Head(absl::StrReplaceAll("%x: T[3, 1, 40], %y: T[5, 40], %s: T[], %row: T[40], %i: i32[5, 1]",
                                         {{"T", Name(dtype)}})));
    for (const char* op : {"add", "sub", "mul", "div", "mod", "fmod", "pow"}) {
      p.Add(absl::StrCat(op, " %x, %y"));
    }
    for (const char* op : compares) p.Add(absl::StrCat(op, " %y, %x"));
    for (const char* line : {"add %y, %s", "mul %row, %y", "sub %s, %row", "pow %y, %i", "div %y, %y"}) p.Add(line);
    cases->push_back(
        {absl::StrCat("binary ", Name(dtype)), {.text = p.Text(), .inputs = {{"y", EdgeFloats(dtype, {5, 40}, 3)}}}});
  }
  for (const DType dtype : kIntegers) {
    OpProgram p(
        Head(absl::StrReplaceAll("%x: T[3, 1, 40], %y: T[5, 40], %d: T[5, 1], %e: T[40]", {{"T", Name(dtype)}})));
    for (const char* op : {"add", "sub", "mul", "and", "or", "xor"}) p.Add(absl::StrCat(op, " %x, %y"));
    for (const char* op : {"div", "mod", "fmod"}) p.Add(absl::StrCat(op, " %y, %d"));
    for (const char* op : compares) p.Add(absl::StrCat(op, " %y, %x"));
    p.Add("pow %x, %e");
    const bool is_unsigned = dtype == DType::kU8;
    Tensor divisors = RandomInts(dtype, {5, 1}, 1, 6, 3);
    if (!is_unsigned) divisors.SetInt(0, -1);
    if (!is_unsigned) divisors.SetInt(1, -3);
    cases->push_back({absl::StrCat("binary ", Name(dtype)),
                      {.text = p.Text(),
                       .inputs = {{"x", EdgeInts(dtype, {3, 1, 40}, 3)},
                                  {"y", EdgeInts(dtype, {5, 40}, 4)},
                                  {"d", divisors},
                                  {"e", RandomInts(dtype, {40}, 0, 5, 7)}}}});
  }
  OpProgram p(
      Head("%x: bool[7, 33], %y: bool[33], %a: i32[7, 1], %b: i32[33], %f: f16[7, 33], %n: i64[7], %e: f32[7]"));
  for (const char* line : {"not %x", "and %x, %y", "or %x, %y", "xor %y, %x", "equal %x, %y", "where %x, %a, %b",
                           "where %y, %f, %f", "where %x, %y, %x", "pow %n, %e"}) {
    p.Add(line);
  }
  cases->push_back(
      {"logic",
       {.text = p.Text(),
        .inputs = {{"e", Tensor::FromValues(DType::kF32, {7}, std::vector<float>{0, 0.5, 1, 2, 2.5, 3, 0.1})}}}});
}

void AddCasts(std::vector<OpCase>* cases) {
  for (const DType from : kEvery) {
    OpProgram p(Head(absl::StrCat("%x: ", Name(from), "[67]")));
    for (const DType to : kEvery) p.Add(absl::StrCat("cast %x {to = ", Name(to), "}"));
    cases->push_back({absl::StrCat("cast ", Name(from)), {.text = p.Text(), .inputs = {{"x", Edges(from, {67}, 5)}}}});
  }
  OpProgram p(Head("%x: i64[4], %y: f64[3]"));
  for (const char* to : {"f32", "f16", "bf16", "f8e4m3", "i32", "u8"}) {
    p.Add(absl::StrCat("cast %x {to = ", to, "}"));
    p.Add(absl::StrCat("cast %y {to = ", to, "}"));
  }
  // Where rounding twice differs from rounding once.
  cases->push_back({"cast between",
                    {.text = p.Text(),
                     .inputs = {{"x", Ints(DType::kI64, {2049, 4097, 16777217, -9007199254740993})},
                                {"y", Tensor::FromValues(DType::kF64, {3},
                                                         std::vector<double>{1.00048828125 + 1e-12, 2049.0000001,
                                                                             -1.00390625 - 1e-11})}}}});
}

void AddFused(std::vector<OpCase>* cases) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    const std::string text = absl::StrReplaceAll(R"(model m
dim B <= 64
dim S <= 64
weight @bias: TYPE[48] = "f#b"
step main(%x: TYPE[B, S, 48], %y: TYPE[B, S, 48], %m: bool[B, 1, 48]) {
  %half = constant {value = 0.5} : TYPE[]
  %one = constant {value = 1} : TYPE[]
  %two = constant {value = 2} : TYPE[]
  %a = add %x, @bias
  %b = erf %a
  %c = add %b, %one
  %d = mul %c, %half
  %e = mul %a, %d
  %s = sigmoid %y
  %f = mul %y, %s
  %g = add %e, %f
  %n = is_nan %g
  %h = where %n, %half, %g
  %i = where %m, %h, %y
  %sq = pow %i, %two
  %j = cast %sq {to = f32}
  %k = exp %e
  return "g" = %g, "j" = %j, "k" = %k
}
)",
                                                 {{"TYPE", Name(dtype)}});
    for (const int64_t rows : {1, 5}) {
      cases->push_back(
          {absl::StrCat("fused ", Name(dtype), " ", rows), {.text = text, .dims = {{"B", rows}, {"S", 7}}}});
    }
  }
  // Results in the place of operands, more than one block, a tail.
  cases->push_back({"fused in place",
                    {.text = R"(model m
dim N <= 100000
step main(%x: f32[N], %y: f32[N], %h: f16[N]) {
  %a = exp %x
  %b = cumsum %a {axis = 0}
  %c = mul %b, %y
  %d = sub %c, %b
  %e = cast %h {to = f32}
  %f = add %d, %e
  %g = cumsum %f {axis = 0}
  %i = neg %g
  return "i" = %i
}
)",
                     .dims = {{"N", 5003}},
                     .tolerance = 1e-4}});  // sums of thousands, in another order
}

}  // namespace

void AddElementwiseCases(std::vector<OpCase>* cases) {
  AddUnary(cases);
  AddBinary(cases);
  AddCasts(cases);
  AddFused(cases);
}

}  // namespace llmc
