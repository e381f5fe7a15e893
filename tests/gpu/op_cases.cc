#include "tests/gpu/op_cases.h"

#include <cmath>
#include <limits>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ir/op.h"
#include "ir/text.h"

namespace llmc {
namespace {

constexpr DType kFloats[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
constexpr DType kIntegers[] = {DType::kI64, DType::kI32, DType::kI16, DType::kI8, DType::kU8};
constexpr DType kFourBits[] = {DType::kI4, DType::kU4};
constexpr DType kEvery[] = {DType::kF64,    DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3,
                            DType::kF8E5M2, DType::kI64, DType::kI32, DType::kI16,  DType::kI8,
                            DType::kI4,     DType::kU8,  DType::kU4,  DType::kBool};

// A program with one step: a line for each op, all results are outputs.
class Program {
 public:
  explicit Program(std::string head) : text_(std::move(head)) {}
  // "%NAME = LINE"; the result is an output.
  void Add(const std::string& line) {
    const std::string name = absl::StrCat("r", count_++);
    absl::StrAppend(&text_, "  %", name, " = ", line, "\n");
    absl::StrAppend(&outputs_, outputs_.empty() ? "" : ", ", "\"", name, " ", line.substr(0, line.find(' ')), "\" = %",
                    name);
  }
  void Line(const std::string& line) { absl::StrAppend(&text_, "  ", line, "\n"); }
  std::string Text() const { return absl::StrCat(text_, "  return ", outputs_, "\n}\n"); }

 private:
  std::string text_, outputs_;
  int count_ = 0;
};

std::string Head(const std::string& params, const std::string& dims = "") {
  return absl::StrCat("model m\n", dims, "step main(", params, ") {\n");
}

std::string Name(DType dtype) { return std::string(DTypeName(dtype)); }

// Numbers at the edges of what types hold, and random ones.
Tensor EdgeFloats(DType dtype, Shape shape, uint64_t seed) {
  Tensor tensor = RandomFloats(dtype, std::move(shape), seed, 2);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double edges[] = {0.0,  -0.0,      1.0,        -1.0,         0.5,     1.5,   2.5,   -0.5,
                          -2.5, kInfinity, -kInfinity, std::nan(""), 1e-8,    447.9, 448.1, 70000.0,
                          -7.5, 8.5,       255.7,      -129.0,       65519.9, 3e9,   -1e19};
  for (int64_t i = 0; i < std::min<int64_t>(tensor.size(), std::size(edges)); ++i) tensor.SetFloat(i, edges[i]);
  return tensor;
}

Tensor EdgeInts(DType dtype, Shape shape, uint64_t seed) {
  const int bits = DTypeBits(dtype);
  const bool is_unsigned = dtype == DType::kU8 || dtype == DType::kU4 || dtype == DType::kBool;
  Tensor tensor = RandomInts(dtype, std::move(shape), is_unsigned ? 0 : -7, dtype == DType::kBool ? 2 : 8, seed);
  if (dtype == DType::kBool) return tensor;
  const int64_t high = bits == 64 ? INT64_MAX : (int64_t{1} << (is_unsigned ? bits : bits - 1)) - 1;
  const int64_t edges[] = {0, high, is_unsigned ? 0 : -high - 1, 1, high - 1};
  for (int64_t i = 0; i < std::min<int64_t>(tensor.size(), std::size(edges)); ++i) tensor.SetInt(i, edges[i]);
  return tensor;
}

Tensor Edges(DType dtype, Shape shape, uint64_t seed) {
  return IsFloat(dtype) ? EdgeFloats(dtype, std::move(shape), seed) : EdgeInts(dtype, std::move(shape), seed);
}

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
    Program p(Head(absl::StrCat("%x: ", Name(dtype), "[3, 37]")));
    for (const absl::string_view op : UnaryOps(dtype)) p.Add(absl::StrCat(op, " %x"));
    cases->push_back(
        {absl::StrCat("unary ", Name(dtype)), {.text = p.Text(), .inputs = {{"x", EdgeFloats(dtype, {3, 37}, 1)}}}});
    Program angles(Head(absl::StrCat("%x: ", Name(dtype), "[200]")));
    for (const absl::string_view op : kAngles) angles.Add(absl::StrCat(op, " %x"));
    cases->push_back({absl::StrCat("angles ", Name(dtype)), {.text = angles.Text()}});
  }
  for (const DType dtype : kIntegers) {
    Program p(Head(absl::StrCat("%x: ", Name(dtype), "[41]")));
    for (const absl::string_view op : UnaryOps(dtype)) p.Add(absl::StrCat(op, " %x"));
    cases->push_back(
        {absl::StrCat("unary ", Name(dtype)), {.text = p.Text(), .inputs = {{"x", EdgeInts(dtype, {41}, 1)}}}});
  }
  for (const DType dtype : kFourBits) {
    Program p(Head(absl::StrCat("%x: ", Name(dtype), "[41], %y: ", Name(dtype), "[41]")));
    for (const char* op : {"neg %x", "add %x, %y", "mul %x, %y", "less %x, %y"}) p.Add(op);
    cases->push_back(
        {absl::StrCat("four bits ", Name(dtype)),
         {.text = p.Text(), .inputs = {{"x", EdgeInts(dtype, {41}, 1)}, {"y", EdgeInts(dtype, {41}, 2)}}}});
  }
}

void AddBinary(std::vector<OpCase>* cases) {
  const char* compares[] = {"equal", "less", "less_equal", "greater", "greater_equal", "max", "min"};
  for (const DType dtype : kFloats) {
    Program p(Head(absl::StrReplaceAll("%x: T[3, 1, 40], %y: T[5, 40], %s: T[], %row: T[40], %i: i32[5, 1]",
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
    Program p(Head(absl::StrReplaceAll("%x: T[3, 1, 40], %y: T[5, 40], %d: T[5, 1], %e: T[40]", {{"T", Name(dtype)}})));
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
  Program p(Head("%x: bool[7, 33], %y: bool[33], %a: i32[7, 1], %b: i32[33], %f: f16[7, 33], %n: i64[7], %e: f32[7]"));
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
    Program p(Head(absl::StrCat("%x: ", Name(from), "[67]")));
    for (const DType to : kEvery) p.Add(absl::StrCat("cast %x {to = ", Name(to), "}"));
    cases->push_back({absl::StrCat("cast ", Name(from)), {.text = p.Text(), .inputs = {{"x", Edges(from, {67}, 5)}}}});
  }
  Program p(Head("%x: i64[4], %y: f64[3]"));
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

void AddMovement(std::vector<OpCase>* cases) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kU8, DType::kBool}) {
    Program p(Head(absl::StrReplaceAll("%x: T[2, 3, 40, 70], %y: T[2, 5, 40, 70], %v: T[1, 40, 1], %z: T[9]",
                                       {{"T", Name(dtype)}})));
    for (const char* perm : {"0, 1, 3, 2", "0, 2, 1, 3", "3, 2, 1, 0", "1, 0, 2, 3", "2, 3, 0, 1", "3, 0, 1, 2"}) {
      p.Add(absl::StrCat("transpose %x {perm = [", perm, "]}"));
    }
    p.Add("concat %x, %y {axis = 1}");
    p.Add("concat %x, %x, %x {axis = 3}");
    p.Add("concat %x, %x {axis = 0}");
    p.Add("expand %v {shape = [3, 40, 33]}");
    p.Add("expand %v {shape = [3, 1, 2]}");
    p.Add("slice %x {axis = 3, start = [3], end = [68]}");
    p.Add("slice %x {axis = 2, start = [8], end = [40]}");
    p.Add("slice %x {axis = 0, start = [1], end = [2]}");
    p.Add("slice %z {axis = 0, start = [9], end = [9]}");
    p.Line("%starts = constant {value = [-1, 100, 2]} : i64[3]");
    p.Line("%ends = constant {value = [-9223372036854775808, 3, 60]} : i64[3]");
    p.Line("%axes = constant {value = [1, 2, -1]} : i64[3]");
    p.Line("%steps = constant {value = [-1, -4, 7]} : i64[3]");
    p.Add("slice_by %x, %starts, %ends, %axes, %steps");
    p.Add("slice_by %y, %axes, %steps");
    p.Add("triangle %x {upper = true, diagonal = 3}");
    p.Add("triangle %x {upper = false, diagonal = -2}");
    p.Add("pad %x {before = [0, 1, 0, 2], after = [1, 0, 0, 3], value = 1}");
    cases->push_back({absl::StrCat("movement ", Name(dtype)), {.text = p.Text()}});
  }
  cases->push_back({"numbers",
                    {.text = R"(model m
dim B <= 100
dim S <= 100
step main(%x: f32[B, S], %n: i64[]) {
  %shape = shape_of %x
  %dims = dims {values = [S, B*S + 2, (S)/(2)]}
  %scalar = dims {values = [S], scalar = true}
  %zero = constant {value = 0} : i64[]
  %three = constant {value = 3} : i64[]
  %r = range %zero, %scalar, %three
  %down = range %scalar, %zero, %zero1
  %mask = less %r, %scalar
  return "shape" = %shape, "dims" = %dims, "scalar" = %scalar, "r" = %r, "down" = %down, "mask" = %mask
}
)",
                     .dims = {{"B", 3}, {"S", 11}}}});
  std::string& text = cases->back().device_case.text;
  text = absl::StrReplaceAll(
      text, {{"%zero1", "%minus"}, {"  %r = range", "  %minus = constant {value = -2} : i64[]\n  %r = range"}});
  Program floats(Head("%x: f32[2]"));
  floats.Line("%a = constant {value = 1} : f32[]");
  floats.Line("%b = constant {value = 6.5} : f32[]");
  floats.Line("%c = constant {value = 0.75} : f32[]");
  floats.Line("%r = range %a, %b, %c : f32[8]");
  floats.Add("exp %r");
  cases->push_back({"range of floats", {.text = floats.Text()}});
  cases->push_back({"concat of dims",
                    {.text = R"(model m
dim P <= 100
dim S <= 100
step main(%past: f16[2, P, 3, 8], %x: f16[2, S, 3, 8]) {
  %all = concat %past, %x {axis = 1}
  %t = transpose %all {perm = [0, 2, 1, 3]}
  %last = slice %all {axis = 1, start = [P], end = [P + S]}
  return "all" = %all, "t" = %t, "last" = %last
}
)",
                     .dims = {{"P", 5}, {"S", 2}}}});
  cases->push_back({"concat with nothing", {.text = cases->back().device_case.text, .dims = {{"P", 0}, {"S", 3}}}});
}

void AddIndexed(std::vector<OpCase>* cases) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBool}) {
    for (const DType index : {DType::kI64, DType::kI32}) {
      Program p(Head(absl::StrReplaceAll(
          "%x: T[4, 6, 10], %i: I[2, 3], %e: I[4, 5, 10], %t: I[3, 2], %b: I[4, 2, 1], %u: T[3, 10], %v: T[6]",
          {{"T", Name(dtype)}, {"I", Name(index)}})));
      for (const char* axis : {"0", "1", "2"}) p.Add(absl::StrCat("gather %x, %i {axis = ", axis, "}"));
      p.Add("gather %v, %i");
      p.Add("gather_elements %x, %e {axis = 1}");
      p.Add("gather_nd %x, %t");
      p.Add("gather_nd %x, %b {batch_dims = 1}");
      p.Add("scatter_nd %x, %t, %u");
      cases->push_back({absl::StrCat("indexed ", Name(dtype), " ", Name(index)),
                        {.text = p.Text(),
                         .inputs = {{"i", RandomInts(index, {2, 3}, -4, 4, 1)},
                                    {"e", RandomInts(index, {4, 5, 10}, -6, 6, 2)},
                                    {"t", RandomInts(index, {3, 2}, -4, 4, 3)},
                                    {"b", RandomInts(index, {4, 2, 1}, -6, 6, 4)}}}});
    }
  }
}

// Updates that join what is there, some of them at the same place.
void AddJoinedUpdates(std::vector<OpCase>* cases) {
  for (const DType dtype : kEvery) {
    if (DTypeBits(dtype) < 8 || dtype == DType::kBool) continue;
    Program p(Head(absl::StrReplaceAll("%x: T[4, 6, 10], %t: i64[5, 2], %u: T[5, 10], %o: i32[7, 1], %s: T[7, 6, 10]",
                                       {{"T", Name(dtype)}})));
    for (const char* reduction : {"add", "mul", "max", "min"}) {
      p.Add(absl::StrCat("scatter_nd %x, %t, %u {reduction = \"", reduction, "\"}"));
      p.Add(absl::StrCat("scatter_nd %x, %o, %s {reduction = \"", reduction, "\"}"));
    }
    cases->push_back({absl::StrCat("joined updates ", Name(dtype)),
                      {.text = p.Text(),
                       .inputs = {{"x", Edges(dtype, {4, 6, 10}, 7)},
                                  {"t", Tensor::FromValues(DType::kI64, {5, 2},
                                                           std::vector<int64_t>{1, 2, -3, 2, 0, -1, 3, 5, 1, 2})},
                                  {"u", Edges(dtype, {5, 10}, 8)},
                                  {"o", RandomInts(DType::kI32, {7, 1}, -4, 4, 9)}}}});
  }
}

void AddSorts(std::vector<OpCase>* cases) {
  for (const DType dtype : kEvery) {
    if (DTypeBits(dtype) < 8) continue;
    Program p(Head(absl::StrReplaceAll("%x: T[3, 40, 33], %w: T[2, 2500], %y: T[5, 64], %one: T[7, 1], %e: T[0, 4]",
                                       {{"T", Name(dtype)}})));
    for (const char* line :
         {"argsort %x {axis = 2}", "argsort %x {axis = 1, descending = true}", "argsort %x {axis = 0}",
          "argsort %w {axis = 1, descending = true}", "argsort %w {axis = 1}", "argsort %y {axis = 1}",
          "argsort %y {axis = 0, descending = true}", "argsort %one {axis = 1}", "argsort %e {axis = 0}",
          "argsort %e {axis = 1}"}) {
      p.Add(line);
    }
    cases->push_back(
        {absl::StrCat("sorts ", Name(dtype)), {.text = p.Text(), .inputs = {{"y", Edges(dtype, {5, 64}, 3)}}}});
  }
}

void AddRows(std::vector<OpCase>* cases) {
  for (const DType dtype : kEvery) {
    if (DTypeBits(dtype) < 8) continue;
    const bool is_bool = dtype == DType::kBool;
    Program p(Head(absl::StrReplaceAll("%x: T[3, 40, 33], %w: T[2, 2500], %e: T[0, 4]", {{"T", Name(dtype)}})));
    for (const char* op : {"reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"}) {
      if (is_bool && std::string(op) != "reduce_max" && std::string(op) != "reduce_min") continue;
      for (const char* axes : {"[2]", "[1]", "[0, 2], keep_dims = true", "[0, 1, 2]", "[1, 2]"}) {
        if (std::string(op) == "reduce_prod" && std::string(axes) != "[1]") continue;
        p.Add(absl::StrCat(op, " %x {axes = ", axes, "}"));
      }
      p.Add(absl::StrCat(op, " %e {axes = [0]}"));
    }
    if (!is_bool) {
      p.Add("reduce_sum %w {axes = [1]}");
      p.Add("argmax %x {axis = 1}");
      p.Add("argmax %x {axis = 2, keep_dims = true}");
      p.Add("argmax %w {axis = 1}");
      p.Add("cumsum %x {axis = 2}");
      p.Add("cumsum %x {axis = 1, exclusive = true}");
      p.Add("cumsum %x {axis = 0, reverse = true}");
      p.Add("cumsum %w {axis = 1, exclusive = true, reverse = true}");
    }
    // Small integers in floats: sums are exact in any order, products do not run over.
    NamedTensors inputs;
    if (IsFloat(dtype)) {
      for (const auto& [name, shape] : {std::pair<std::string, Shape>{"x", {3, 40, 33}}, {"w", {2, 2500}}}) {
        Tensor tensor = RandomInts(DType::kI64, shape, -1, 2, 9), converted(dtype, shape);
        for (int64_t i = 0; i < tensor.size(); ++i) converted.SetFloat(i, static_cast<double>(tensor.GetInt(i)));
        inputs[name] = converted;
      }
    }
    cases->push_back({absl::StrCat("rows ", Name(dtype)), {.text = p.Text(), .inputs = inputs}});
    if (!IsFloat(dtype)) continue;
    Program f(Head(absl::StrReplaceAll(
        "%x: T[3, 40, 33], %w: T[2, 2500], %g: T[33], %b: T[33], %h: f32[2500], %n: T[40, 33]", {{"T", Name(dtype)}})));
    for (const char* line :
         {"softmax %x {axis = 2}", "softmax %x {axis = 0}", "softmax %w {axis = 1}",
          "softmax %w {axis = 1, log = true}", "softmax %x {axis = 1, log = true}", "layer_norm %x, %g, %b {axis = 2}",
          "layer_norm %x, %n {axis = 1}", "layer_norm %w, %h {axis = 1, eps = 0.01}", "rms_norm %w, %h {eps = 0.001}",
          "rms_norm %x, %g"}) {
      f.Add(line);
    }
    f.Line("%sum, %norm = add_rms_norm %w, %w, %h");
    f.Add("neg %norm");
    f.Add("neg %sum");
    cases->push_back({absl::StrCat("norms ", Name(dtype)), {.text = f.Text()}});
    Program nan(Head(absl::StrReplaceAll("%x: T[5, 64]", {{"T", Name(dtype)}})));
    for (const char* line : {"reduce_max %x {axes = [1]}", "reduce_min %x {axes = [0]}", "argmax %x {axis = 1}",
                             "argmax %x {axis = 0}", "softmax %x {axis = 1}", "reduce_max %x {axes = [0, 1]}"}) {
      nan.Add(line);
    }
    cases->push_back({absl::StrCat("rows with edges ", Name(dtype)),
                      {.text = nan.Text(), .inputs = {{"x", EdgeFloats(dtype, {5, 64}, 3)}}}});
  }
}

void AddProducts(std::vector<OpCase>* cases) {
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI64, DType::kI32, DType::kU8}) {
    Program p(
        Head(absl::StrReplaceAll("%x: T[2, 3, 17, 40], %y: T[2, 3, 40, 21], %z: T[2, 3, 21, 40], %w: T[40, 96], "
                                 "%v: T[40], %one: T[1, 3, 40, 8], %few: T[3, 1, 40, 8], %s: T[4, 40], %e: T[5, 0], "
                                 "%f: T[0, 7], %g: T[4, 64], %n: T[0, 64]",
                                 {{"T", Name(dtype)}})));
    for (const char* line :
         {"matmul %x, %y", "matmul %x, %z {transpose_rhs = true}", "matmul %x, %w", "matmul %s, %w", "matmul %v, %w",
          "matmul %x, %v", "matmul %v, %v", "matmul %v, %y", "matmul %s, %y", "matmul %x, %one", "matmul %s, %few",
          "matmul %e, %f", "matmul %s, %s {transpose_rhs = true}", "matmul %g, %n {transpose_rhs = true}"}) {
      p.Add(line);
    }
    cases->push_back({absl::StrCat("products ", Name(dtype)), {.text = p.Text()}});
  }
  cases->push_back({"products of dims",
                    {.text = R"(model m
dim B <= 100
dim S <= 100
dim K <= 100
step main(%q: f16[B, 4, S, 16], %k: f16[B, 4, K, 16], %v: f16[B, 4, K, 16]) {
  %t = transpose %k {perm = [0, 1, 3, 2]}
  %s = matmul %q, %t
  %p = softmax %s {axis = 3}
  %o = matmul %p, %v
  return "s" = %s, "p" = %p, "o" = %o
}
)",
                     .dims = {{"B", 2}, {"S", 5}, {"K", 9}}}});
}

void AddQuantizedProducts(std::vector<OpCase>* cases) {
  for (const int64_t rows : {3, 40}) {
    Program p(
        Head("%x: f32[T, 40], %a: u8[T, 40], %b: i8[40, 24], %t: i8[24, 40], %q: u4[24, 40], %s: f32[24], "
             "%z: i8[24], %sq: f32[24, 5], %zq: u4[24, 5], %sa: f32[], %za: u8[]",
             absl::StrCat("dim T <= ", rows <= 8 ? 4 : 100, "\n")));
    for (const char* line :
         {"quantized_matmul %a, %t, %s, %z, %sa, %za {transpose_rhs = true}",
          "quantized_matmul %a, %b, %s, _, %sa, %za",
          "quantized_matmul %x, %q, %sq, %zq {transpose_rhs = true, block = 8}", "quantized_matmul %x, %b, %s, %z"}) {
      p.Add(line);
    }
    cases->push_back(
        {absl::StrCat("quantized products of ", rows, " rows"), {.text = p.Text(), .dims = {{"T", rows}}}});
  }
}

void AddConvs(std::vector<OpCase>* cases) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    Program p(Head(absl::StrReplaceAll(
        "%x: T[2, 6, 33], %w1: T[8, 6, 5], %b1: T[8], %y: T[2, 4, 20, 24], %w2: T[70, 4, 8, 8], %g: T[8, 2, 3, 3], "
        "%d: T[4, 1, 3, 3], %z: T[1, 2, 6, 7, 8], %w3: T[3, 2, 2, 3, 2]",
        {{"T", Name(dtype)}})));
    p.Add("conv %x, %w1, %b1 {strides = [2], pads = [2, 1]}");
    p.Add("conv %x, %w1 {dilations = [3]}");
    p.Add("conv %y, %w2 {strides = [8, 8]}");
    p.Add("conv %y, %g {groups = 2, pads = [1, 1, 1, 1]}");
    p.Add("conv %y, %d {groups = 4, pads = [0, 2, 1, 0], strides = [1, 2]}");
    p.Add("conv %z, %w3");
    cases->push_back({absl::StrCat("conv ", Name(dtype)), {.text = p.Text()}});
  }
  cases->push_back({"conv of dims",
                    {.text = R"(model m
dim B <= 16
dim H <= 100
weight @w: f32[16, 3, 4, 4] = "f#w"
weight @b: f32[16] = "f#b"
step main(%x: f32[B, 3, H, H]) {
  %y = conv %x, @w, @b {strides = [4, 4]}
  return "y" = %y
}
)",
                     .dims = {{"B", 3}, {"H", 30}}}});
}

void AddAttention(std::vector<OpCase>* cases) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    const std::string type = Name(dtype);
    const std::string text = absl::StrReplaceAll(R"(model m
dim B <= 8
dim L <= 100
dim K <= 100
step main(%q: TYPE[B, 4, L, 24], %k: TYPE[B, 2, K, 24], %v: TYPE[B, 2, K, 40], %m: bool[B, 1, 1, K], %f: TYPE[L, K]) {
  %a = attention %q, %k, %v {scale = 0.2}
  %b = attention %q, %k, %v, %m {scale = 0.2}
  %d = attention %q, %k, %v, %f {scale = 0.2, softcap = 3}
  %e = attention %q, %k, %v {scale = 0.2, causal = true}
  %g = attention %q, %k, %v, %m {scale = 0.2, causal = true, causal_from_end = true}
  return "a" = %a, "b" = %b, "d" = %d, "e" = %e, "g" = %g
}
)",
                                                 {{"TYPE", type}});
    // On tensor cores weights are rounded before they meet values: see attention_test.cc.
    const double tolerance = dtype == DType::kF16 ? 1.0 / 512 : dtype == DType::kBF16 ? 1.0 / 64 : 0;
    for (const auto& [queries, keys] : {std::pair{1, 1}, {1, 70}, {37, 37}, {17, 64}}) {
      cases->push_back({absl::StrCat("attention ", type, " ", queries, " ", keys),
                        {.text = text,
                         .dims = {{"B", 2}, {"L", queries}, {"K", keys}},
                         .tolerance = tolerance,
                         .by_row = tolerance != 0}});
    }
    cases->push_back({absl::StrCat("rotary ", type),
                      {.text = absl::StrReplaceAll(R"(model m
dim B <= 8
dim L <= 100
step main(%q: TYPE[B, 4, L, 24], %c: TYPE[B, L, 8], %s: TYPE[B, L, 8]) {
  %h = rotary_embedding %q, %c, %s
  %i = rotary_embedding %q, %c, %s {interleaved = true}
  return "h" = %h, "i" = %i
}
)",
                                                   {{"TYPE", type}}),
                       .dims = {{"B", 2}, {"L", 37}}}});
  }
  cases->push_back({"attention with wide heads",
                    {.text = R"(model m
step main(%q: f16[1, 2, 20, 256], %k: f16[1, 1, 50, 256], %v: f16[1, 1, 50, 256]) {
  %a = attention %q, %k, %v {scale = 0.0625, causal = true}
  return "a" = %a
}
)",
                     .tolerance = 1.0 / 512,
                     .by_row = true}});
}

// Sizes that the dims of inputs do not give.
void AddRecurrences(std::vector<OpCase>* cases) {
  struct Kind {
    const char* name;
    int64_t gates;
  };
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t hidden : {5, 130}) {
      for (const Kind& kind :
           {Kind{"lstm", 4}, Kind{"gru", 3}, Kind{"gru_reset_after", 3}, Kind{"rnn_tanh", 1}, Kind{"rnn_relu", 1}}) {
        const bool is_lstm = kind.gates == 4;
        const std::string cell = is_lstm ? "%c" : "_", bias = std::string(kind.name) == "gru_reset_after" ? ", %b" : "";
        Program p(
            Head(absl::StrReplaceAll("%x: T[N, B, R], %w: T[R, H], %h: T[B, H], %c: T[B, H], %b: T[H], %l: i64[B]",
                                     {{"T[", absl::StrCat(Name(dtype), "[")},
                                      {"R", absl::StrCat(kind.gates * hidden)},
                                      {"H", absl::StrCat(hidden)}}),
                 "dim N <= 100\ndim B <= 100\n"));
        for (const char* reverse : {"false", "true"}) {
          const std::string attrs = absl::StrCat(" {kind = \"", kind.name, "\", reverse = ", reverse, "}");
          const std::string all = absl::StrCat("%all_", reverse), some = absl::StrCat("%some_", reverse);
          p.Line(absl::StrCat(all, ", ", all, "_last = recurrence %x, %w, %h, ", cell, ", _", bias, attrs));
          p.Line(absl::StrCat(some, ", ", some, "_last = recurrence %x, %w, %h, ", cell, ", %l", bias, attrs));
          for (const std::string& result : {all, all + "_last", some, some + "_last"}) p.Add("neg " + result);
        }
        // A recurrence carries rounding on: of halves only the results are rounded.
        cases->push_back({absl::StrCat(kind.name, " of ", hidden, " ", Name(dtype)),
                          {.text = p.Text(),
                           .inputs = {{"w", RandomFloats(dtype, {kind.gates * hidden, hidden}, 3, 0.1)},
                                      {"l", Ints(DType::kI64, {7, 0, 3})}},
                           .dims = {{"N", 7}, {"B", 3}}}});
      }
    }
  }
  cases->push_back({"choices",
                    {.text = R"(model m
dim N <= 100
step main(%x: f32[N, 6], %y: f32[N, 6], %k: i64[], %i: i64[N], %j: i64[N]) {
  %three = constant {value = 3} : i64[]
  %c = less %k, %three
  %a = neg %x
  %b = add %x, %y
  %p = choose %c, %a, %b
  %q = choose %c, %i, %j
  %n = not %c
  %r = choose %n, %a, %b
  return "p" = %p, "q" = %q, "r" = %r
}
)",
                     .inputs = {{"k", Tensor::FromValues(DType::kI64, {}, std::vector<int64_t>{7})}},
                     .dims = {{"N", 9}}}});
}

void AddSizes(std::vector<OpCase>* cases) {
  cases->push_back({"broadcast of dims",
                    {.text = R"(model m
dim A <= 50
dim B <= 50
step main(%x: f32[A, 8], %y: f32[B, 8], %z: f32[B, 1]) {
  %s = add %x, %y
  %t = mul %s, %z
  %u = concat %t, %x {axis = 0}
  return "s" = %s, "t" = %t, "u" = %u
}
)",
                     .dims = {{"A", 6}, {"B", 6}}}});
  const std::string text = cases->back().device_case.text;
  cases->push_back({"broadcast of one", {.text = text, .dims = {{"A", 6}, {"B", 1}}}});
  cases->push_back({"broadcast to one", {.text = text, .dims = {{"A", 1}, {"B", 5}}}});
  cases->push_back({"slices of dims",
                    {.text = R"(model m
dim S <= 300
weight @table: i64[1, 256] = "f#t"
step main(%x: f32[2, S]) {
  %zero = constant {value = 0} : i64[1]
  %one = constant {value = 1} : i64[1]
  %minus = constant {value = -1} : i64[1]
  %five = constant {value = 5} : i64[1]
  %size = dims {values = [S]}
  %a = slice_by @table, %zero, %size, %one, %one
  %b = slice_by %x, %one, %five, %one, %one
  %c = slice_by %x, %minus, %zero, %one, %minus
  %d = slice_by %x, %five, %size, %minus
  %e = cast %a {to = f32}
  %f = add %x, %e
  return "a" = %a, "b" = %b, "c" = %c, "d" = %d, "f" = %f
}
)",
                     .dims = {{"S", 9}}}});
  cases->push_back({"slices past the end", {.text = cases->back().device_case.text, .dims = {{"S", 3}}}});
  cases->push_back({"sizes from inputs",
                    {.text = R"(model m
dim N <= 100
step main(%x: f32[N, 6], %shape: i64[3], %starts: i64[1], %ends: i64[1], %axes: i64[2], %wide: i64[3], %n: i64[]) {
  %zero = constant {value = 0} : i64[]
  %two = constant {value = 2} : i64[]
  %one = constant {value = 1} : i64[1]
  %a = reshape_to %x, %shape
  %b = slice_by %x, %starts, %ends, %one
  %c = expand_to %x, %wide
  %d = range %zero, %n, %two
  return "a" = %a, "b" = %b, "c" = %c, "d" = %d
}
)",
                     .inputs = {{"shape", Ints(DType::kI64, {2, -1, 3})},
                                {"starts", Ints(DType::kI64, {-5})},
                                {"ends", Ints(DType::kI64, {100})},
                                {"wide", Ints(DType::kI64, {3, 1, 6})},
                                {"n", Tensor::FromValues(DType::kI64, {}, std::vector<int64_t>{7})}},
                     .dims = {{"N", 4}}}});
  // What the sizes are is computed on the host as the evaluator does: through floats, comparisons and a product.
  cases->push_back({"sizes through floats",
                    {.text = R"(model m
dim H <= 100
dim W <= 100
step main(%x: f32[H, W], %k: i64[]) {
  %shape = shape_of %x
  %floats = cast %shape {to = f32}
  %scale = constant {value = [0.5, 0.7]} : f32[2]
  %scaled = mul %floats, %scale
  %down = floor %scaled
  %sizes = cast %down {to = i64}
  %two = constant {value = 2} : i64[]
  %three = constant {value = 3} : i64[]
  %first = gather %sizes, %zero
  %last = gather %sizes, %one
  %is_odd = mod %k, %two
  %none = constant {value = 0} : i64[]
  %even = equal %is_odd, %none
  %side = where %even, %first, %last
  %all = reduce_prod %sizes {axes = [0]}
  %start = cast %none {to = f32}
  %half = constant {value = 0.5} : f32[]
  %limit = cast %side {to = f32}
  %a = range %start, %limit, %half
  %b = range %none, %all, %three
  %minus = constant {value = -1} : i64[1]
  %height = reshape %first {shape = [1]}
  %width = reshape %last {shape = [1]}
  %ends = concat %height, %width
  %zeros = constant {value = 0} : i64[2]
  %c = slice_by %x, %zeros, %ends
  %list = concat %minus, %width
  %d = reshape_to %c, %list
  %e = neg %d
  %f = add %a, %a
  return "a" = %a, "b" = %b, "c" = %c, "e" = %e, "f" = %f
}
)",
                     .inputs = {{"k", Tensor::FromValues(DType::kI64, {}, std::vector<int64_t>{4})}},
                     .dims = {{"H", 13}, {"W", 9}}}});
  std::string& floats = cases->back().device_case.text;
  floats = absl::StrReplaceAll(floats, {{"  %two =",
                                         "  %zero = constant {value = 0} : i64[]\n  %one = constant {value "
                                         "= 1} : i64[]\n  %two ="}});
  cases->push_back({"sizes through floats of an odd input",
                    {.text = floats,
                     .inputs = {{"k", Tensor::FromValues(DType::kI64, {}, std::vector<int64_t>{7})}},
                     .dims = {{"H", 30}, {"W", 10}}}});
  cases->push_back({"prepared",
                    {.text = R"(model m
dim T <= 8
weight @a: f32[24, 16] = "f#a"
weight @b: f32[24, 16] = "f#b"
weight @q: i4[24, 16] = "f#q"
prepare {
  @t = transpose @a {perm = [1, 0]}
  @s = mul @a, @b
  @d = cast @q {to = f32}
  @e = add @d, @s
}
step main(%x: f32[T, 24]) {
  %y = matmul %x, @e
  %z = matmul %y, @t
  return "y" = %y, "z" = %z
}
)",
                     .dims = {{"T", 3}}}});
}

}  // namespace

std::vector<OpCase> OpCases() {
  std::vector<OpCase> cases;
  AddUnary(&cases);
  AddBinary(&cases);
  AddCasts(&cases);
  AddFused(&cases);
  AddMovement(&cases);
  AddIndexed(&cases);
  AddJoinedUpdates(&cases);
  AddSorts(&cases);
  AddRows(&cases);
  AddProducts(&cases);
  AddQuantizedProducts(&cases);
  AddConvs(&cases);
  AddAttention(&cases);
  AddRecurrences(&cases);
  AddSizes(&cases);
  return cases;
}

}  // namespace llmc
