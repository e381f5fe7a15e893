// Products with weights of every format of codes, from one row to many, on a GPU against the evaluator.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/gpu/quantized_numbers.h"

namespace llmc {
namespace {

// Codes that are no NaN, scales that are powers of two and whole zero points: products of many rows round each number
// of the weight to the type of x, which holds all but those of nf4.
Tensor ComponentOf(const llmc::Encoding& e, size_t i, const TensorType& type, uint64_t seed) {
  Shape shape;
  for (const Dim& dim : type.shape) shape.push_back(dim.value());
  if (i == 1 && e.format->scale_is_exponent) return RandomInts(type.dtype, shape, 123, 129, seed);
  if (i == 0 && IsFloat(type.dtype)) return RandomFloats(type.dtype, shape, seed, 4);
  // Zero points are among the codes: with others sums are so large that gates of f16 overflow but where they cancel.
  const int packed = e.format->packed_bits;
  if (e.ComponentName(i) == "zero" && (IsFloat(type.dtype) || (packed > 0 && type.dtype == DType::kU8))) {
    // Where codes lie packed, their type is that of the bytes.
    const Tensor numbers =
        packed > 0 ? RandomInts(DType::kI64, shape, 0, 1 << packed, seed) : Any(e.format->codes, shape, seed);
    Tensor zeros(type.dtype, shape);
    for (int64_t at = 0; at < zeros.size(); ++at) {
      const int64_t zero = numbers.GetInt(at);
      IsFloat(type.dtype) ? zeros.SetFloat(at, static_cast<double>(zero)) : zeros.SetInt(at, zero);
    }
    return zeros;
  }
  return IsFloat(type.dtype) ? Powers(type.dtype, shape, seed) : Any(type.dtype, shape, seed);
}

struct FormatCase {
  std::string encoding, type;
  int64_t rows, n, k;
  int64_t bound;  // of rows
};

void ExpectFormatAgrees(const FormatCase& c) {
  SCOPED_TRACE(absl::StrCat(c.encoding, ", ", c.type, ", ", c.rows, " of ", c.bound, " x ", c.n, " x ", c.k));
  const auto encoding = ParseEncoding(c.encoding);
  ASSERT_TRUE(encoding.ok()) << encoding.status();
  NamedTensors inputs;
  std::string declared;
  const auto weight = [&](const std::string& suffix, int64_t n, uint64_t seed) {
    std::string operands;
    for (size_t i = 0; i < (*encoding)->components(); ++i) {
      const TensorType type = (*encoding)->ComponentType(i, {Dim(n), Dim(c.k)});
      const std::string name = absl::StrCat("c", i, suffix);
      inputs[name] = ComponentOf(**encoding, i, type, seed + i);
      absl::StrAppend(&declared, ", %", name, ": ", type.ToString());
      absl::StrAppend(&operands, i == 0 ? "%" : ", %", name);
    }
    return absl::StrCat(operands, " {as = \"", (*encoding)->text, "\"", c.type == "f32" ? "" : ", to = " + c.type, "}");
  };
  const std::string plain = weight("", c.n, 10), gated = weight("g", 2 * c.n, 20);
  ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= BOUND
weight @b: TYPE[N] = "f#b"
step main(%x: TYPE[T, K], %y: TYPE[T, N]INPUTS) {
  %w = encode WEIGHT
  %plain = linear %x, %w {transpose_rhs = true}
  %p0 = linear %x, %w {transpose_rhs = true}
  %added = add %y, %p0
  %p1 = linear %x, %w {transpose_rhs = true}
  %biased = add %p1, @b
  %wg = encode GATED
  %g = linear %x, %wg {transpose_rhs = true}
  %gated = silu_mul %g
  return "plain" = %plain, "added" = %added, "biased" = %biased, "gated" = %gated
}
)",
                                                  {{"INPUTS", declared},
                                                   {"WEIGHT", plain},
                                                   {"GATED", gated},
                                                   {"BOUND", absl::StrCat(c.bound)},
                                                   {"TYPE", c.type},
                                                   {"N", absl::StrCat(c.n)},
                                                   {"K", absl::StrCat(c.k)}}),
                      .inputs = inputs,
                      .dims = {{"T", c.rows}},
                      .tolerance = FusedTolerance(c.type)});
}

constexpr const char* kFormats[] = {"f8e4m3 per=tensor scale=f32",
                                    "f8e4m3 per=channel scale=bf16",
                                    "f8e4m3 block=128x128 scale=f32",
                                    "f8e4m3 group=64 scale=f32",
                                    "f8e5m2 per=token scale=f32",
                                    "mxfp8",
                                    "mxfp4",
                                    "nvfp4",
                                    "nvfp4 outer=row",
                                    "nf4 group=64 scale=f32",
                                    "nf4 group=64 scale=bf16",
                                    "int4 group=128 scale=f16",
                                    "uint4 group=128 scale=f16 zero=u4",
                                    "uint4 group=64 scale=bf16 zero=bf16",
                                    "uint8 group=64 scale=f16 zero=f32",
                                    "int8 per=channel scale=f32",
                                    "int2 group=128 scale=f16",
                                    "uint2 group=64 scale=bf16 zero=bf16",
                                    "uint3 group=128 scale=f16 zero=u4",
                                    "int3 per=channel scale=f32",
                                    "int3 group=128 scale=f16 zero=i4",
                                    "uint5 group=64 scale=f16 zero=u8",
                                    "int6 group=128 scale=bf16"};

class QuantizedFormats : public testing::TestWithParam<const char*> {};

TEST_P(QuantizedFormats, FewRows) {
  LLMC_NEEDS_GPU();
  for (const std::string type : {"f32", "f16", "bf16"}) ExpectFormatAgrees({GetParam(), type, 3, 300, 512, 4});
  ExpectFormatAgrees({GetParam(), "f16", 1, 130, 14336, 1});
  ExpectFormatAgrees({GetParam(), "bf16", 8, 600, 1024, 8});
  // Rows that take most of a multiprocessor's memory, and that come with the stages.
  ExpectFormatAgrees({GetParam(), "bf16", 7, 130, 4096, 8});
  ExpectFormatAgrees({GetParam(), "bf16", 8, 40, 14336, 8});
  // Terms that are no whole blocks, and rows that no stage takes.
  ExpectFormatAgrees({GetParam(), "bf16", 1, 40, 320, 1});
  ExpectFormatAgrees({GetParam(), "f16", 2, 24, 72, 2});
}

// Tiles of 32 to 128 rows, more than one of them; parts of tiles of the weight; tiles in parts.
TEST_P(QuantizedFormats, SomeRows) {
  LLMC_NEEDS_GPU();
  ExpectFormatAgrees({GetParam(), "f16", 31, 300, 512, 256});
  ExpectFormatAgrees({GetParam(), "f16", 50, 41, 4096, 256});
  ExpectFormatAgrees({GetParam(), "bf16", 200, 300, 512, 256});
}

// Slices of k, whose sums are added up; tiles in parts, and fewer of them than workers; parts that are the blocks of a
// cluster, six or three of them.
TEST_P(QuantizedFormats, UpToThirtyTwoRows) {
  LLMC_NEEDS_GPU();
  ExpectFormatAgrees({GetParam(), "bf16", 9, 41, 4096, 16});
  ExpectFormatAgrees({GetParam(), "bf16", 32, 1030, 4096, 32});
  ExpectFormatAgrees({GetParam(), "f16", 19, 300, 14336, 32});
  ExpectFormatAgrees({GetParam(), "bf16", 27, 10000, 1280, 32});
  ExpectFormatAgrees({GetParam(), "bf16", 29, 4030, 1152, 32});
  ExpectFormatAgrees({GetParam(), "bf16", 29, 4030, 2048, 32});
  ExpectFormatAgrees({GetParam(), "bf16", 1, 72, 128, 32});
}

// Parts of tiles of rows and of columns, vectors of results of 8 elements and of one; few rows of a program of many;
// terms that are no whole stages.
TEST_P(QuantizedFormats, ManyRows) {
  LLMC_NEEDS_GPU();
  ExpectFormatAgrees({GetParam(), "bf16", 257, 328, 512, 1000});
  ExpectFormatAgrees({GetParam(), "f16", 300, 41, 1152, 1000});
  ExpectFormatAgrees({GetParam(), "bf16", 3, 300, 512, 1000});
  ExpectFormatAgrees({GetParam(), "f16", 270, 40, 200, 1000});
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedFormats, testing::ValuesIn(kFormats), [](const auto& info) {
  return absl::StrReplaceAll(info.param, {{" ", "_"}, {"=", "_"}});
});

TEST(QuantizedFormatsOfManyTiles, SomeRows) {
  LLMC_NEEDS_GPU();
  for (const char* format : {"int4 group=128 scale=f16", "f8e4m3 block=128x128 scale=f32"}) {
    ExpectFormatAgrees({format, "bf16", 33, 20000, 1024, 256});
    ExpectFormatAgrees({format, "bf16", 9, 4096, 11008, 64});
    // More tiles than a call has counters.
    ExpectFormatAgrees({format, "bf16", 9, 70000, 256, 32});
  }
}

// Tiles of 256, 192 and 128 rows, in several turns, and several groups of them.
TEST(QuantizedFormatsOfManyTiles, ManyRows) {
  LLMC_NEEDS_GPU();
  ExpectFormatAgrees({"int4 group=128 scale=f16", "bf16", 500, 8448, 256, 8192});
  ExpectFormatAgrees({"mxfp4", "bf16", 520, 5000, 128, 8192});
  ExpectFormatAgrees({"f8e4m3 block=128x128 scale=f32", "bf16", 380, 5632, 128, 8192});
  ExpectFormatAgrees({"int4 group=128 scale=f16", "f16", 2400, 2560, 256, 8192});
}

}  // namespace
}  // namespace llmc
