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
  const std::string blocks = "uint4 group=32 scale=f16 zero=u4";
  cases->push_back(RowsOf(blocks, blocks));
  cases->push_back(RowsOf("int4 per=channel scale=f32 zero=i4/tensor", "int4 per=token scale=f32 zero=i4/tensor"));
  cases->push_back(RowsOf("q4_k", "q4_k"));
  cases->push_back(RowsOf("mxfp4_gguf", "mxfp4_gguf"));
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
