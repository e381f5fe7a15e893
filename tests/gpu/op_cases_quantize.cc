// Activations to codes, and products of encoded factors.
#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "ir/encoding.h"
#include "tests/gpu/op_case_parts.h"

namespace llmc {
namespace {

std::string NameOfCase(const std::string& what, const std::string& as) {
  return absl::StrCat(what, " ", absl::StrReplaceAll(as, {{"=", "_"}, {"/", "_"}, {" ", "_"}}));
}

// As checkpoints with scales of runs of 128 have it.
std::string Inverse(const std::string& as) { return absl::StrContains(as, "group=128") ? ", inverse = true" : ""; }

std::string Outer(const std::string& as) { return (*ParseEncoding(as))->format->outer_scale ? ", %o" : ""; }

// Scales and codes of random rows: the same to the last bit.
OpCase QuantizeCase(DType dtype, const std::string& as, double limit) {
  OpProgram p(Head(absl::StrCat("%x: ", DTypeName(dtype), "[T, 97], %y: ", DTypeName(dtype), "[2, 3, 64], %o: f32[]"),
                   "dim T <= 100\n"));
  DeviceCase c = {.inputs = {{"o", Tensor::FromValues(DType::kF32, {}, std::vector<double>{0.01})}},
                  .dims = {{"T", 40}}};
  const std::string outer = Outer(as);
  for (const std::string x : {"x", "y"}) {
    const std::string scale = absl::StrCat("%s", x);
    p.Line(
        absl::StrCat(scale, " = dynamic_scale %", x, outer, " {as = \"", as, "\", limit = ", limit, Inverse(as), "}"));
    p.Add(absl::StrCat("quantize %", x, ", ", scale, outer, " {as = \"", as, "\"", Inverse(as), "}"));
    p.Add(absl::StrCat("cast ", scale, " {to = f32}"));
  }
  c.text = p.Text();
  return {NameOfCase(std::string(DTypeName(dtype)), as), c};
}

// Rows of norms, of sums and of gates, with other readers and without. What a norm rounds otherwise may get the next
// code, so the numbers are compared: half a step of f8 is 1/16.
OpCase FusedCase(DType dtype, const std::string& as, double limit, bool is_static) {
  const std::string t(DTypeName(dtype));
  OpProgram p(
      Head(absl::StrReplaceAll("%x: T0[T, 256], %r: T0[T, 256], %g: T0[T, 512], %w: T0[256], %s: f32[]", {{"T0", t}}),
           "dim T <= 100\n"));
  const std::string limits = absl::StrCat("{as = \"", as, "\", limit = ", limit, Inverse(as), "}");
  const auto quantize = [&](const std::string& rows, const std::string& name) {
    if (!is_static) p.Line(absl::StrCat("%s", name, " = dynamic_scale ", rows, " ", limits));
    const std::string scale = is_static ? "%s" : absl::StrCat("%s", name);
    p.Line(absl::StrCat("%q", name, " = quantize ", rows, ", ", scale, " {as = \"", as, "\"", Inverse(as), "}"));
    p.Line(absl::StrCat("%e", name, " = encode %q", name, ", ", scale, " {as = \"", as, "\", to = ", t, "}"));
    p.Add(absl::StrCat("decode %e", name));
  };
  p.Line("%n = rms_norm %x, %w {eps = 1e-6}");
  quantize("%n", "n");
  p.Line("%h = add %x, %r");
  p.Line("%m = rms_norm %h, %w {eps = 1e-6}");
  quantize("%m", "m");
  p.Add("neg %h");
  p.Add("neg %m");
  p.Line("%a = silu_mul %g");
  quantize("%a", "a");
  quantize("%r", "r");
  DeviceCase c = {.inputs = {{"s", Tensor::FromValues(DType::kF32, {}, std::vector<double>{0.02})}},
                  .dims = {{"T", 40}},
                  .tolerance = 1.0 / 8};
  c.text = p.Text();
  return {NameOfCase(absl::StrCat("fused ", t, is_static ? " static" : ""), as), c};
}

// x, quantized, by a weight [n, k], quantized too.
OpCase ProductCase(DType dtype, const std::string& x_as, double limit, const std::string& weight_as, int64_t tokens,
                   int64_t n = 48, int64_t k = 256) {
  const std::string t(DTypeName(dtype));
  const Encoding& x = **ParseEncoding(x_as);
  const Encoding& weight = **ParseEncoding(weight_as);
  std::string params = absl::StrCat("%x: ", t, "[T, ", k, "], %s: f32[]"), components;
  DeviceCase c = {.inputs = {{"s", Tensor::FromValues(DType::kF32, {}, std::vector<double>{0.02})}},
                  .dims = {{"T", tokens}},
                  .tolerance = dtype == DType::kF32 ? 1e-4 : 1.0 / 64};
  // Of many rows both factors are decoded, and rounded to the type: to 8 bits. Where rows of the weight have outer
  // scales of their own, that alone makes up to 1 / 65 of the root mean square, by a simulation of 14,400 results.
  const bool are_alike = x.format == weight.format && x.outer == weight.outer;
  if (dtype == DType::kBF16 && tokens > 32 && !are_alike) c.tolerance = 1.0 / 32;
  for (size_t i = 0; i < weight.components(); ++i) {
    const TensorType type = weight.ComponentType(i, {Dim(n), Dim(k)});
    Shape shape;
    for (const Dim& dim : type.shape) shape.push_back(dim.value());
    const std::string name = absl::StrCat("c", i);
    absl::StrAppend(&params, ", %", name, ": ", type.ToString());
    absl::StrAppend(&components, i == 0 ? "%" : ", %", name);
    const bool is_exponent = i == 1 && weight.format->scale_is_exponent;
    c.inputs[name] = is_exponent                ? RandomInts(type.dtype, shape, 120, 128, i + 1)
                     : IsFloat(type.dtype)      ? RandomFloats(type.dtype, shape, i + 1)
                     : type.dtype == DType::kU4 ? RandomInts(type.dtype, shape, 0, 16, i + 1)
                     : type.dtype == DType::kI4 ? RandomInts(type.dtype, shape, -8, 8, i + 1)
                                                : RandomInts(type.dtype, shape, -128, 128, i + 1);
  }
  OpProgram p(Head(params, absl::StrCat("dim T <= ",
                                        tokens <= 8    ? 8
                                        : tokens <= 32 ? 32
                                                       : std::max<int64_t>(300, tokens),
                                        "\n")));
  const bool is_static = x.scale->per == Granularity::kTensor;
  const std::string outer = x.format->outer_scale ? ", %s" : "", scale = is_static ? "%s" : "%d";
  if (!is_static)
    p.Line(absl::StrCat("%d = dynamic_scale %x", outer, " {as = \"", x_as, "\", limit = ", limit, Inverse(x_as), "}"));
  p.Line(absl::StrCat("%q = quantize %x, ", scale, outer, " {as = \"", x_as, "\"", Inverse(x_as), "}"));
  p.Line(absl::StrCat("%e = encode %q, ", scale, outer, " {as = \"", x_as, "\", to = ", t, "}"));
  p.Line(absl::StrCat("%w = encode ", components, " {as = \"", weight_as, "\", to = ", t, "}"));
  p.Add("linear %e, %w {transpose_rhs = true}");
  c.text = p.Text();
  const std::string size = k == 256 ? "" : absl::StrCat("of ", n, " x ", k, " ");
  return {NameOfCase(absl::StrCat("product ", t, " ", tokens, " ", size, NameOfCase("", x_as), " by"), weight_as), c};
}

}  // namespace

void AddQuantizeCases(std::vector<OpCase>* cases) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    cases->push_back(QuantizeCase(dtype, "int8 per=token scale=f32", 127.5));
    cases->push_back(QuantizeCase(dtype, "f8e4m3 group=16 scale=f32", 448));
    cases->push_back(QuantizeCase(dtype, "f8e4m3 group=128 scale=f32", 448));
    for (const char* t : {"int8 per=token scale=f32", "f8e4m3 per=token scale=f32", "f8e4m3 group=128 scale=f32"}) {
      cases->push_back(FusedCase(dtype, t, t[0] == 'i' ? 127 : 448, false));
    }
    cases->push_back(FusedCase(dtype, "f8e4m3 per=tensor scale=f32", 448, true));
    for (const int64_t tokens : {1, 7, 20, 40, 300}) {
      cases->push_back(ProductCase(dtype, "int8 per=token scale=f32", 127.5, "int8 per=channel scale=f32", tokens));
      cases->push_back(ProductCase(dtype, "f8e4m3 per=token scale=f32", 448, "f8e4m3 per=channel scale=f32", tokens));
      cases->push_back(ProductCase(dtype, "f8e4m3 per=tensor scale=f32", 448, "f8e4m3 per=tensor scale=f32", tokens));
      cases->push_back(ProductCase(dtype, "f8e4m3 per=tensor scale=f32", 448, "f8e4m3 per=channel scale=f32", tokens));
      if (dtype == DType::kF32 && tokens != 40) continue;
      cases->push_back(ProductCase(dtype, "f8e4m3 group=128 scale=f32", 448, "f8e4m3 block=128x128 scale=f32", tokens));
      cases->push_back(ProductCase(dtype, "nvfp4", 6, "nvfp4", tokens));
      cases->push_back(ProductCase(dtype, "nvfp4", 6, "nvfp4 outer=row", tokens));
      cases->push_back(ProductCase(dtype, "mxfp4", 7, "mxfp4", tokens));
      cases->push_back(ProductCase(dtype, "f8e4m3 per=token scale=f32", 448, "int4 group=128 scale=f16", tokens));
    }
  }
  // More tiles than multiprocessors, and parts of tiles; an odd number of blocks.
  for (const auto& [tokens, n, k] : {std::array<int64_t, 3>{1000, 4104, 384}, {257, 136, 2048}}) {
    cases->push_back(
        ProductCase(DType::kBF16, "f8e4m3 group=128 scale=f32", 448, "f8e4m3 block=128x128 scale=bf16", tokens, n, k));
  }
  cases->push_back(QuantizeCase(DType::kF32, "int8 per=token scale=f16", 127));
  for (const char* as : {"f8e5m2 per=token scale=f32", "int4 group=32 scale=f32", "uint4 per=token scale=bf16",
                         "nf4 group=64 scale=f32", "mxfp8"}) {
    cases->push_back(QuantizeCase(DType::kBF16, as, 7));
  }
  for (const DType dtype : {DType::kF32, DType::kBF16}) cases->push_back(QuantizeCase(dtype, "mxfp4", 7));
}

}  // namespace llmc
