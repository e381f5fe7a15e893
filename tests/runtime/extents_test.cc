// What goes beyond the memory that is there is found before it runs.
#include "runtime/plan/extents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace llmc {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const MatrixProducts::Shape& shape, const ProductBytes& bytes) {
  return std::string(CheckProduct(shape, bytes).message());
}

TEST(Extents, OfProducts) {
  const MatrixProducts::Shape plain = {.m = 3, .n = 5, .k = 7};  // of bf16
  EXPECT_EQ(ErrorOf(plain, {30, 42, 70}), "");
  EXPECT_THAT(ErrorOf(plain, {29, 42, 70}), HasSubstr("beyond the 29 bytes of its result"));
  EXPECT_THAT(ErrorOf(plain, {30, 41, 70}), HasSubstr("beyond the 41 bytes of its first operand"));
  EXPECT_THAT(ErrorOf(plain, {30, 42, 69}), HasSubstr("beyond the 69 bytes of its weight"));
  MatrixProducts::Shape batch = plain;
  batch.out = DType::kF32;
  batch.batch = 4;
  batch.x_stride = 100;
  EXPECT_EQ(ErrorOf(batch, {240, 2 * (300 + 21), 70}), "") << "the weight is the same each time";
  EXPECT_NE(ErrorOf(batch, {239, 2 * (300 + 21), 70}), "");
  EXPECT_NE(ErrorOf(batch, {240, 2 * (300 + 21) - 1, 70}), "");
  batch.weight_stride = INT64_MAX;
  EXPECT_THAT(ErrorOf(batch, {240, 2 * (300 + 21), INT64_MAX}), HasSubstr("weight"));
  const int64_t most = INT32_MAX;
  EXPECT_THAT(ErrorOf({.m = most, .n = most, .k = 1, .batch = most}, {INT64_MAX, INT64_MAX, INT64_MAX}),
              HasSubstr("result"));
  EXPECT_EQ(ErrorOf({.m = 0, .n = 5, .k = 7}, {0, 0, 0}), "") << "nothing is computed";
  EXPECT_EQ(ErrorOf({.m = 3, .n = 5, .k = 0}, {30, 0, 0}), "") << "zeros";
  EXPECT_NE(ErrorOf({.m = 3, .n = 5, .k = 0}, {29, 0, 0}), "");
  const MatrixProducts::Shape added = {.m = 3, .n = 5, .k = 7, .bias = true, .residual = true};
  EXPECT_EQ(ErrorOf(added, {30, 42, 70, 10, 30}), "");
  EXPECT_THAT(ErrorOf(added, {30, 42, 70, 9, 30}), HasSubstr("beyond the 9 bytes of its bias"));
  EXPECT_THAT(ErrorOf(added, {30, 42, 70, 10, 29}), HasSubstr("beyond the 29 bytes of its residual"));
}

TEST(Extents, OfCopies) {
  EXPECT_TRUE(CheckCopy(8, 8, 9).ok());
  EXPECT_THAT(std::string(CheckCopy(8, 7, 9).message()), HasSubstr("7 bytes of its result"));
  EXPECT_THAT(std::string(CheckCopy(8, 8, 7).message()), HasSubstr("7 bytes of its operand"));
}

TEST(Extents, OfTensors) {
  plan::TensorSpec spec;
  for (const char* dim : {"T", "2", "T + 1"}) spec.add_shape(dim);
  const auto shape = EvaluateShape(spec.shape(), {{"T", 3}});
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(*TensorBytes(DType::kF16, *shape), 48);
  EXPECT_EQ(*TensorBytes(DType::kI4, {3}), 2);
  EXPECT_FALSE(EvaluateShape(spec.shape(), {}).ok());
  EXPECT_FALSE(TensorBytes(DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}).ok());
  EXPECT_FALSE(TensorBytes(DType::kF32, {-1}).ok());
}

}  // namespace
}  // namespace llmc
