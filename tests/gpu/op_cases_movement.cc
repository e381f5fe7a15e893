// What moves elements, or makes them from numbers.
#include "absl/strings/str_replace.h"
#include "tests/gpu/op_case_parts.h"

namespace llmc {
namespace {

void AddMovement(std::vector<OpCase>* cases) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kU8, DType::kBool}) {
    OpProgram p(Head(absl::StrReplaceAll("%x: T[2, 3, 40, 70], %y: T[2, 5, 40, 70], %v: T[1, 40, 1], %z: T[9]",
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

void AddNumbers(std::vector<OpCase>* cases) {
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
  OpProgram floats(Head("%x: f32[2]"));
  floats.Line("%a = constant {value = 1} : f32[]");
  floats.Line("%b = constant {value = 6.5} : f32[]");
  floats.Line("%c = constant {value = 0.75} : f32[]");
  floats.Line("%r = range %a, %b, %c : f32[8]");
  floats.Add("exp %r");
  cases->push_back({"range of floats", {.text = floats.Text()}});
}

void AddIndexed(std::vector<OpCase>* cases) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBool}) {
    for (const DType index : {DType::kI64, DType::kI32}) {
      OpProgram p(Head(absl::StrReplaceAll(
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
    OpProgram p(Head(absl::StrReplaceAll("%x: T[4, 6, 10], %t: i64[5, 2], %u: T[5, 10], %o: i32[7, 1], %s: T[7, 6, 10]",
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

}  // namespace

void AddMovementCases(std::vector<OpCase>* cases) {
  AddMovement(cases);
  AddNumbers(cases);
  AddIndexed(cases);
  AddJoinedUpdates(cases);
}

}  // namespace llmc
