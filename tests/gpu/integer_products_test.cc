// Products in which x becomes whole numbers (kernels/linear/integer_x.cuh), against sums in f64: of numbers that are
// much smaller than others of their block, and of numbers that are not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ir/text.h"
#include "tests/gpu/op_case_parts.h"
#include "tests/gpu/quantized_numbers.h"

namespace llmc {
namespace {

constexpr int64_t kProductOut = 80, kProductIn = 1024;

struct EncodedProduct {
  std::string encoding;
  NamedTensors parts;  // of the weight
  std::string declared, operands;
};

// Superblocks of which all bytes of codes are alike, and so are neighbours that share a scale.
Tensor EvenSuperblocks(const EncodingFormat& format, const Shape& shape, uint64_t seed) {
  Tensor bytes = RandomSuperblocks(format, shape, seed);
  for (int64_t block = 0; block < bytes.size(); block += format.superblock_bytes) {
    const int64_t code = bytes.GetInt(block + format.superblock_bytes / 2) % 15 + 1;
    for (int64_t i = 0; i < format.superblock_bytes; ++i) {
      const bool is_half =
          absl::c_any_of(format.halves_at, [&](int at) { return at >= 0 && (i == at || i == at + 1); });
      if (!is_half && (format.halves_at[0] >= 0 || i > 0)) bytes.SetInt(block + i, 0x11 * code);
    }
  }
  return bytes;
}

EncodedProduct EncodedProductOf(const std::string& text) {
  EncodedProduct product = {.encoding = text};
  const auto encoding = ParseEncoding(text);
  EXPECT_TRUE(encoding.ok()) << encoding.status();
  for (size_t i = 0; i < (*encoding)->components(); ++i) {
    const TensorType type = (*encoding)->ComponentType(i, {Dim(kProductOut), Dim(kProductIn)});
    Shape shape;
    for (const Dim& dim : type.shape) shape.push_back(dim.value());
    const std::string name = absl::StrCat("c", i);
    const bool is_exponent = i == 1 && (*encoding)->format->scale_is_exponent;
    const EncodingFormat& format = *(*encoding)->format;
    product.parts[name] = format.superblock > 0 ? EvenSuperblocks(format, shape, 10 + i)
                          : is_exponent         ? RandomInts(type.dtype, shape, 123, 129, 10 + i)
                          : IsFloat(type.dtype) ? Powers(type.dtype, shape, 10 + i)
                                                : Any(type.dtype, shape, 10 + i);
    absl::StrAppend(&product.declared, ", %", name, ": ", type.ToString());
    absl::StrAppend(&product.operands, i == 0 ? "%" : ", %", name);
  }
  return product;
}

std::unique_ptr<Model> ModelOfProduct(const EncodedProduct& product, const std::string& type, int64_t rows) {
  const std::string text = absl::StrReplaceAll(R"(model m
dim T <= ROWS
step main(%x: TYPE[T, IN]PARTS) {
  %w = encode OPERANDS {as = "ENCODING", to = TYPE}
  %y = linear %x, %w {transpose_rhs = true}
  return "y" = %y
}
)",
                                               {{"ROWS", absl::StrCat(rows)},
                                                {"TYPE", type},
                                                {"IN", absl::StrCat(kProductIn)},
                                                {"PARTS", product.declared},
                                                {"OPERANDS", product.operands},
                                                {"ENCODING", product.encoding}});
  absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(text, "case.lir");
  EXPECT_TRUE(model.ok()) << model.status() << text;
  return *std::move(model);
}

Tensor NumbersInF64(const Tensor& x) {
  Tensor wide(DType::kF64, x.shape());
  for (int64_t i = 0; i < x.size(); ++i) wide.SetFloat(i, x.GetFloat(i));
  return wide;
}

Tensor ProductOnDevice(const EncodedProduct& product, const std::string& type, const Tensor& x) {
  NamedTensors inputs = product.parts;
  inputs["x"] = x;
  const auto outputs = RunOnDevice(*ModelOfProduct(product, type, x.shape()[0]), inputs);
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return outputs->at("y");
}

Tensor InSumsOfF64(const EncodedProduct& product, const Tensor& x) {
  NamedTensors inputs = product.parts;
  inputs["x"] = NumbersInF64(x);
  const std::unique_ptr<Model> model = ModelOfProduct(product, "f64", x.shape()[0]);
  const auto evaluator = Evaluator::Create(model.get());
  EXPECT_TRUE(evaluator.ok()) << evaluator.status();
  EXPECT_TRUE((*evaluator)->AllocateStates({}).ok());
  const auto outputs = (*evaluator)->Run(*model->steps.front(), inputs);
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return outputs->at("y");
}

class IntegerProducts : public testing::TestWithParam<const char*> {};

// Each 16 columns have two numbers that are `ratio` times as large as others, and cancel each other: what is left is
// the sum of the small ones.
TEST_P(IntegerProducts, KeepSmallNumbers) {
  LLMC_NEEDS_GPU();
  for (const std::string type : {"bf16", "f16"}) {
    SCOPED_TRACE(type);
    EncodedProduct product = EncodedProductOf(GetParam());
    const double ratio = type == "bf16" ? std::ldexp(1, 12) : std::ldexp(1, 9);
    Tensor x = RandomFloats(type == "bf16" ? DType::kBF16 : DType::kF16, {1, kProductIn}, 1, 1 / ratio);
    Tensor& codes = product.parts["c0"];
    for (int64_t i = 0; i < x.size(); i += 16) {
      x.SetFloat(i, 1.5);
      x.SetFloat(i + 1, -1.5);
    }
    const auto encoding = ParseEncoding(product.encoding);
    const bool is_even = encoding.ok() && (*encoding)->format->superblock > 0;
    for (int64_t i = 0; !is_even && i < codes.size(); i += 16) codes.SetInt(i + 1, codes.GetInt(i));
    const Tensor device = ProductOnDevice(product, type, x), sums = InSumsOfF64(product, x);
    double square = 0;
    for (int64_t i = 0; i < sums.size(); ++i) square += sums.GetFloat(i) * sums.GetFloat(i);
    const double size = std::sqrt(square / static_cast<double>(sums.size()));
    const double bound = type == "bf16" ? std::ldexp(1, -8) : std::ldexp(1, -10);
    for (int64_t i = 0; i < sums.size(); ++i) {
      ASSERT_NEAR(device.GetFloat(i), sums.GetFloat(i), bound * std::max(size, std::abs(sums.GetFloat(i)))) << i;
    }
  }
}

// With such a number no result is finite.
TEST_P(IntegerProducts, SayWhereNumbersAreNotFinite) {
  LLMC_NEEDS_GPU();
  const EncodedProduct product = EncodedProductOf(GetParam());
  for (const double number : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    Tensor x = RandomFloats(DType::kBF16, {1, kProductIn}, 1);
    x.SetFloat(77, number);
    const Tensor y = ProductOnDevice(product, "bf16", x);
    for (int64_t i = 0; i < kProductOut; ++i) EXPECT_FALSE(std::isfinite(y.GetFloat(i))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, IntegerProducts,
                         testing::Values("int8 per=channel scale=f32", "int8 group=128 scale=f16 zero=i8",
                                         "uint8 group=64 scale=bf16 zero=f32", "uint8 per=tensor scale=f32 zero=u8",
                                         "int8 group=32 scale=f16", "f8e4m3 per=channel scale=f32",
                                         "f8e4m3 group=64 scale=f16", "f8e5m2 per=token scale=f32", "mxfp8",
                                         "int4 group=128 scale=f16", "int4 group=32 scale=f16",
                                         "uint4 group=128 scale=f16 zero=u4", "uint4 group=64 scale=bf16 zero=bf16",
                                         "nvfp4", "nvfp4 outer=row", "mxfp4", "nf4 group=64 scale=f32",
                                         "nf4 group=128 scale=bf16", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs",
                                         "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "mxfp4_gguf"),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param, {{" ", "_"}, {"=", "_"}});
                         });

}  // namespace
}  // namespace llmc
