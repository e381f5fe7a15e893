// Sizes that the dims of inputs do not give, and what is prepared.
#include "absl/strings/str_replace.h"
#include "tests/gpu/op_case_parts.h"

namespace llmc {
namespace {

void AddSizesOfDims(std::vector<OpCase>* cases) {
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
}

void AddSizesOfInputs(std::vector<OpCase>* cases) {
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
}

// What the sizes are is computed on the host as the evaluator does: through floats, comparisons and a product.
void AddSizesThroughFloats(std::vector<OpCase>* cases) {
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
}

void AddPrepared(std::vector<OpCase>* cases) {
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

void AddSizeCases(std::vector<OpCase>* cases) {
  AddSizesOfDims(cases);
  AddSizesOfInputs(cases);
  AddSizesThroughFloats(cases);
  AddPrepared(cases);
}

}  // namespace llmc
