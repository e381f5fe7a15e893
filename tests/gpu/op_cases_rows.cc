// What looks at whole rows: sorts, reductions, norms.
#include "absl/strings/str_replace.h"
#include "tests/gpu/op_case_parts.h"

namespace llmc {
namespace {

void AddSorts(std::vector<OpCase>* cases) {
  for (const DType dtype : kEvery) {
    if (DTypeBits(dtype) < 8) continue;
    OpProgram p(Head(absl::StrReplaceAll("%x: T[3, 40, 33], %w: T[2, 2500], %y: T[5, 64], %one: T[7, 1], %e: T[0, 4]",
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
    OpProgram p(Head(absl::StrReplaceAll("%x: T[3, 40, 33], %w: T[2, 2500], %e: T[0, 4]", {{"T", Name(dtype)}})));
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
    OpProgram f(
        Head(absl::StrReplaceAll("%x: T[3, 40, 33], %w: T[2, 2500], %g: T[33], %b: T[33], %h: f32[2500], %n: T[40, "
                                 "33], %l: T[5, 776], %lw: T[776], %lb: T[776]",
                                 {{"T", Name(dtype)}})));
    for (const char* line :
         {"softmax %x {axis = 2}", "softmax %x {axis = 0}", "softmax %w {axis = 1}",
          "softmax %w {axis = 1, log = true}", "softmax %x {axis = 1, log = true}", "layer_norm %x, %g, %b {axis = 2}",
          "layer_norm %x, %n {axis = 1}", "layer_norm %w, %h {axis = 1, eps = 0.01}", "rms_norm %w, %h {eps = 0.001}",
          "rms_norm %x, %g", "layer_norm %l, %lw, %lb {axis = 1}", "layer_norm %l, %lw {axis = 1, eps = 0.01}"}) {
      f.Add(line);
    }
    f.Line("%sum = add %w, %w");
    f.Line("%norm = rms_norm %sum, %h");
    f.Add("neg %norm");
    f.Add("neg %sum");
    cases->push_back({absl::StrCat("norms ", Name(dtype)), {.text = f.Text()}});
    OpProgram nan(Head(absl::StrReplaceAll("%x: T[5, 64]", {{"T", Name(dtype)}})));
    for (const char* line : {"reduce_max %x {axes = [1]}", "reduce_min %x {axes = [0]}", "argmax %x {axis = 1}",
                             "argmax %x {axis = 0}", "softmax %x {axis = 1}", "reduce_max %x {axes = [0, 1]}"}) {
      nan.Add(line);
    }
    cases->push_back({absl::StrCat("rows with edges ", Name(dtype)),
                      {.text = nan.Text(), .inputs = {{"x", EdgeFloats(dtype, {5, 64}, 3)}}}});
  }
}

}  // namespace

void AddRowCases(std::vector<OpCase>* cases) {
  AddSorts(cases);
  AddRows(cases);
}

}  // namespace llmc
