// Encoded tensors of every format: their numbers, and products with them.
#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "ir/encoding.h"
#include "tests/gpu/op_case_parts.h"

namespace llmc {
namespace {

Tensor Component(const Encoding& e, size_t i, const TensorType& type, uint64_t seed) {
  Shape shape;
  for (const Dim& dim : type.shape) shape.push_back(dim.value());
  if (i == 0 && e.format->superblock > 0) return RandomSuperblocks(*e.format, shape, seed);
  if (i == 1 && e.format->scale_is_exponent) return RandomInts(type.dtype, shape, 120, 132, seed);
  if (IsFloat(type.dtype)) return RandomFloats(type.dtype, shape, seed);
  const bool is_signed = type.dtype == DType::kI8 || type.dtype == DType::kI4;
  const int64_t count = DTypeBits(type.dtype) >= 8 ? 256 : 16;
  return RandomInts(type.dtype, shape, is_signed ? -count / 2 : 0, is_signed ? count / 2 : count, seed);
}

std::string EncodedCaseName(const std::string& text) {
  return absl::StrReplaceAll(text, {{"=", "_"}, {"/", "_"}, {"-", "_"}});
}

// A weight [24, 256] or [256, 24], decoded in three types and multiplied.
OpCase CaseOf(const std::string& text) {
  const Encoding& e = **ParseEncoding(text);
  const Dims shape = e.k_is_last ? Dims{Dim(24), Dim(256)} : Dims{Dim(256), Dim(24)};
  DeviceCase c = {.dims = {{"T", 40}}, .tolerance = 1.0 / 128};
  std::string params = "%x: f32[T, 256], %h: f16[T, 256]", components;
  for (size_t i = 0; i < e.components(); ++i) {
    const TensorType type = e.ComponentType(i, shape);
    const std::string name = absl::StrCat("c", i);
    absl::StrAppend(&params, ", %", name, ": ", type.ToString());
    absl::StrAppend(&components, i == 0 ? "%" : ", %", name);
    c.inputs[name] = Component(e, i, type, i + 1);
  }
  OpProgram p(Head(params, "dim T <= 100\n"));
  for (const char* to : {"f32", "f16", "f64"}) {
    p.Line(absl::StrCat("%w", to, " = encode ", components, " {as = \"", text, "\", to = ", to, "}"));
    p.Add(absl::StrCat("decode %w", to));
  }
  const std::string transposed = e.k_is_last ? " {transpose_rhs = true}" : "";
  p.Add(absl::StrCat("linear %x, %wf32", transposed));
  p.Add(absl::StrCat("linear %h, %wf16", transposed));
  c.text = p.Text();
  return {EncodedCaseName(text), c};
}

// Rows of a weight [24, 256] by index, as the rule gather-encoded leaves them: elements of 4 bits move as bytes.
OpCase RowsOf(const std::string& text, const std::string& of_rows) {
  const Encoding& e = **ParseEncoding(text);
  const Dims shape = {Dim(24), Dim(256)};
  DeviceCase c = {.inputs = {{"i", RandomInts(DType::kI32, {40}, -24, 24, 9)}}, .dims = {{"T", 40}}};
  std::string params = "%i: i32[T]", components;
  std::vector<std::string> lines;
  for (size_t i = 0; i < e.components(); ++i) {
    const TensorType type = e.ComponentType(i, shape);
    const std::string name = absl::StrCat("c", i), chosen = type.rank() == 0 ? name : absl::StrCat("rows", i);
    absl::StrAppend(&params, ", %", name, ": ", type.ToString());
    if (type.rank() > 0) lines.push_back(absl::StrCat("%", chosen, " = gather %", name, ", %i"));
    absl::StrAppend(&components, i == 0 ? "%" : ", %", chosen);
    c.inputs[name] = Component(e, i, type, i + 1);
  }
  OpProgram p(Head(params, "dim T <= 100\n"));
  for (const std::string& line : lines) p.Line(line);
  p.Line(absl::StrCat("%w = encode ", components, " {as = \"", of_rows, "\", to = f16}"));
  p.Add("decode %w");
  c.text = p.Text();
  return {EncodedCaseName(absl::StrCat("rows of ", text)), c};
}

// Elements of 4 bits that move as bytes, in pairs.
OpCase MovedPairs() {
  DeviceCase c = {.inputs = {{"a", RandomInts(DType::kU4, {3, 4, 6}, 0, 16, 1)},
                             {"b", RandomInts(DType::kU4, {3, 2, 6}, 0, 16, 2)},
                             {"i", RandomInts(DType::kI4, {5, 8}, -8, 8, 3)}}};
  OpProgram p(Head("%a: u4[3, 4, 6], %b: u4[3, 2, 6], %i: i4[5, 8]"));
  p.Line("%c = concat %a, %b {axis = 1}");
  p.Line("%s = slice %a {axis = 1, start = [1], end = [3]}");
  p.Line("%t = slice %i {axis = 1, start = [2], end = [6]}");
  for (const char* moved : {"%c", "%s", "%t"}) p.Add(absl::StrCat("cast ", moved, " {to = i32}"));
  c.text = p.Text();
  return {"pairs of 4 bits", c};
}

// The packings of checkpoints (ir/ops_encoded.h): words of one matrix and of several, of all widths of codes.
OpCase Packings() {
  DeviceCase c = {.inputs = {{"w", RandomInts(DType::kI32, {12, 21}, -2147483648LL, 2147483647, 1)},
                             {"b", RandomInts(DType::kU8, {10, 6}, 0, 256, 2)},
                             {"e", RandomInts(DType::kU8, {3, 5, 4}, 0, 256, 3)},
                             {"i", RandomInts(DType::kI32, {45}, 0, 90, 4)}}};
  OpProgram p(Head("%w: i32[12, 21], %b: u8[10, 6], %e: u8[3, 5, 4], %i: i32[45]"));
  for (const char* how :
       {"transpose = true", "transpose = true, add = 8, to = i4", "axis = 1", "bits = 8, transpose = true, to = u8",
        "bits = 8, axis = 1, add = 128, to = i8", "bits = 2, axis = 1, add = 2, to = i4",
        "bits = 3, across = true, transpose = true", "bits = 3, across = true, axis = 1, to = u8, count = 200",
        "bits = 3, axis = 1, add = 4, to = i8, count = 205", "bits = 6, axis = 1, to = u8",
        "axis = 1, order = [0, 4, 1, 5, 2, 6, 3, 7], transpose = true", "bits = 5, across = true, add = 16, to = i8",
        "bits = 3, across = true, transpose = true, to = u8, packed = true",
        "bits = 3, across = true, axis = 1, to = u8, count = 200, packed = true",
        "bits = 2, axis = 1, add = 2, to = i8, packed = true",
        "bits = 5, axis = 1, count = 120, to = u8, packed = true",
        "bits = 6, axis = 0, transpose = true, add = 32, count = 56, to = i8, packed = true"}) {
    p.Add(absl::StrCat("unpack %w {", how, "}"));
  }
  for (const char* how : {"transpose = true", "axis = 1, to = i8", "transpose = true, bits = 3, across = true"}) {
    p.Add(absl::StrCat("unpack %w, %i {", how, "}"));
  }
  for (const char* how : {"axis = 1, order = [1, 0]", "planes = true, order = [1, 0]", "bits = 2, planes = true",
                          "bits = 3, across = true, axis = 1, to = u8"}) {
    p.Add(absl::StrCat("unpack %b {", how, "}"));
  }
  for (const char* how :
       {"axis = 2", "axis = 1", "axis = 2, transpose = true", "axis = 1, transpose = true, to = u8"}) {
    p.Add(absl::StrCat("unpack %e {", how, "}"));
  }
  c.text = p.Text();
  return {"packings", c};
}

// Experts [4, out, in] that are encoded, for few pairs of a token and an expert, which codes are read for, and for
// many; the gate of an MLP of few, or instead of the products.
OpCase EncodedExperts(const std::string& text, const char* dtype, int64_t tokens, int64_t in = 64, int64_t out = 24,
                      bool gate = false) {
  const Encoding& e = **ParseEncoding(text);
  const Dims shape = {Dim(4), Dim(out), Dim(in)};
  DeviceCase c = {.inputs = {{"x", RandomFloats(*ParseDType(dtype), {tokens, in}, 7)},
                             {"y", RandomFloats(*ParseDType(dtype), {tokens, 2, in}, 8)},
                             {"b", RandomFloats(*ParseDType(dtype), {4, out}, 10)},
                             {"e", RandomInts(DType::kI32, {tokens, 2}, 0, 4, 9)}},
                  .dims = {{"T", tokens}}};
  // Where all is decoded, it is rounded to the type before it is multiplied.
  if (dtype != absl::string_view("f32")) c.tolerance = tokens > 3 ? 1.0 / 32 : 1.0 / 64;
  std::string params = absl::StrReplaceAll("%x: TYPE[T, IN], %y: TYPE[T, 2, IN], %b: TYPE[4, OUT], %e: i32[T, 2]",
                                           {{"TYPE", dtype}, {"IN", absl::StrCat(in)}, {"OUT", absl::StrCat(out)}});
  std::string components;
  for (size_t i = 0; i < e.components(); ++i) {
    const TensorType type = e.ComponentType(i, shape);
    const std::string name = absl::StrCat("c", i);
    absl::StrAppend(&params, ", %", name, ": ", type.ToString());
    absl::StrAppend(&components, i == 0 ? "%" : ", %", name);
    c.inputs[name] = Component(e, i, type, i + 1);
  }
  OpProgram p(Head(params, absl::StrCat("dim T <= ", tokens, "\n")));
  p.Line(absl::StrCat("%w = encode ", components, " {as = \"", text, "\", to = ", dtype, "}"));
  // A factor may be several times as large as most, and so is what the rounding of the other becomes.
  if (gate) c.tolerance = 1.0 / 8;
  if (!gate) {
    p.Add("expert_linear %x, %w, %e {transpose_weight = true}");
    p.Add("expert_linear %y, %w, %e, %b {transpose_weight = true}");
  }
  if (tokens <= 3 || gate) {
    p.Line("%gate_up = expert_linear %x, %w, %e, %b {transpose_weight = true}");
    p.Add("silu_mul %gate_up");
  }
  c.text = p.Text();
  const std::string wide = absl::StrCat(out == 24 ? "" : absl::StrCat(" to ", out), gate ? " gated" : "");
  return {EncodedCaseName(absl::StrCat("experts ", tokens, " of ", in, wide, " ", dtype, " ", text)), c};
}

// Of many pairs, which are sorted by expert: several tiles of pairs and of columns.
void AddSortedExperts(std::vector<OpCase>* cases) {
  for (const char* text :
       {"int4 group=128 scale=bf16", "uint4 group=32 scale=f16 zero=u4", "uint4 group=64 scale=bf16 zero=f32",
        "nf4 group=64 scale=f32", "mxfp4", "nvfp4 outer=matrix", "nvfp4 outer=row", "int8 per=token scale=f32",
        "int8 per=channel scale=f32", "f8e4m3 block=16x128 scale=f32", "f8e4m3 per=tensor scale=f32"}) {
    cases->push_back(EncodedExperts(text, "bf16", 400, 256, 330));
    cases->push_back(EncodedExperts(text, "f16", 300, 256, 24));
  }
  for (const char* text : {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl",
                           "iq4_xs", "mxfp4_gguf"}) {
    cases->push_back(EncodedExperts(text, "bf16", 400, 768, 330));
  }
  for (const char* text : {"int4 group=128 scale=bf16", "mxfp4", "q6_k"}) {
    cases->push_back(EncodedExperts(text, "bf16", 400, 256, 330, true));
  }
  cases->push_back(EncodedExperts("q8_0", "f16", 300, 192));
  // Stages of which with their scales and zero points no two fit: decoded to memory.
  cases->push_back(EncodedExperts("uint4 group=8 scale=f64 zero=f64", "bf16", 400, 256));
}

}  // namespace

Tensor RandomSuperblocks(const EncodingFormat& format, Shape shape, uint64_t seed) {
  Tensor bytes = RandomInts(DType::kU8, std::move(shape), 0, 256, seed);
  for (int64_t block = 0; block < bytes.size(); block += format.superblock_bytes) {
    if (format.halves_at[0] < 0) bytes.SetInt(block, 118 + block % 7);  // an exponent
    for (const int at : format.halves_at) {
      if (at < 0) continue;
      const uint16_t half = FloatToHalf(0.01f + 0.001f * static_cast<float>((block + at) % 17));
      bytes.SetInt(block + at, half & 255);
      bytes.SetInt(block + at + 1, half >> 8);
    }
  }
  return bytes;
}

void AddEncodedCases(std::vector<OpCase>* cases) {
  cases->push_back(Packings());
  cases->push_back(MovedPairs());
  for (const char* text : {"uint4 group=32 scale=f16 zero=u4", "mxfp4", "nvfp4 outer=matrix", "nvfp4 outer=row",
                           "int8 per=token scale=f32", "f8e4m3 block=8x32 scale=f32"}) {
    cases->push_back(EncodedExperts(text, "f32", 3));
    cases->push_back(EncodedExperts(text, "bf16", 3));
    cases->push_back(EncodedExperts(text, "bf16", 100));
    cases->push_back(EncodedExperts(text, "f16", 1000));
  }
  // Rows of more runs than lanes, and of a block that is not whole; no more pairs than experts; numbers that experts
  // share; superblocks.
  for (const char* text : {"int4 group=128 scale=bf16", "uint4 group=32 scale=f16 zero=f16", "nf4 group=64 scale=f32",
                           "int8 per=channel scale=f32", "f8e4m3 per=tensor scale=f32", "f8e4m3 per=token scale=f32",
                           "f8e5m2 block=16x128 scale=bf16", "mxfp4", "nvfp4", "nvfp4 outer=row"}) {
    cases->push_back(EncodedExperts(text, "f32", 3, 2112));
    cases->push_back(EncodedExperts(text, "bf16", 3, 2112));
    cases->push_back(EncodedExperts(text, "f16", 2, 2112));
  }
  cases->push_back(EncodedExperts("uint3 group=32 scale=f16 zero=u4", "bf16", 3));
  for (const char* text : {"q4_k", "q5_k", "q6_k", "q8_0", "q4_0", "iq4_nl", "mxfp4_gguf"}) {
    cases->push_back(EncodedExperts(text, "f32", 3, 512));
    cases->push_back(EncodedExperts(text, "f16", 3, 512));
    cases->push_back(EncodedExperts(text, "bf16", 40, 512));
  }
  cases->push_back(EncodedExperts("q4_k", "f16", 1000, 512));
  AddSortedExperts(cases);
  const std::string of_mlx = "uint4 group=64 scale=bf16 zero=f32";
  cases->push_back(EncodedExperts(of_mlx, "bf16", 3));
  cases->push_back(CaseOf(of_mlx));
  cases->push_back(RowsOf(of_mlx, of_mlx));
  const std::string blocks = "uint4 group=32 scale=f16 zero=u4";
  cases->push_back(RowsOf(blocks, blocks));
  cases->push_back(RowsOf("int4 per=channel scale=f32 zero=i4/tensor", "int4 per=token scale=f32 zero=i4/tensor"));
  cases->push_back(RowsOf("q4_k", "q4_k"));
  cases->push_back(RowsOf("mxfp4_gguf", "mxfp4_gguf"));
  cases->push_back(RowsOf("nvfp4 outer=row", "nvfp4 outer=row"));
  cases->push_back(CaseOf("nvfp4 outer=row"));
  cases->push_back(RowsOf("uint3 group=32 scale=f16 zero=u4", "uint3 group=32 scale=f16 zero=u4"));
  for (const EncodingFormat& format : EncodingFormats()) {
    if (format.superblock > 0 || format.group > 0) {
      cases->push_back(CaseOf(std::string(format.name)));
      continue;
    }
    const bool is_first = format.name == "int8" || format.name == "f8e4m3";  // of its kind, which has all granularities
    for (const char* how :
         {"group=32 scale=bf16", "per=tensor scale=f32", "per=channel scale=f16", "per=channel along=-2 scale=f32",
          "per=token scale=f32", "group=100 along=-2 scale=f32", "block=16x96 scale=f32"}) {
      cases->push_back(CaseOf(absl::StrCat(format.name, " ", how)));
      if (format.is_integer() && !absl::StrContains(how, "block")) {
        const absl::string_view zero = DTypeName(format.codes);
        cases->push_back(CaseOf(absl::StrCat(format.name, " ", how, " zero=", zero)));
      }
      if (!is_first) break;
    }
  }
}

}  // namespace llmc
