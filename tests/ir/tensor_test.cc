#include "ir/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "absl/base/casts.h"

namespace llmc {
namespace {

TEST(TensorTest, CheckedElements) {
  EXPECT_EQ(*CheckedElements(DType::kF32, {}), 1);
  EXPECT_EQ(*CheckedElements(DType::kF32, {2, 3}), 6);
  EXPECT_EQ(*CheckedElements(DType::kF32, {int64_t{1} << 62, int64_t{1} << 62, 0}), 0);
  EXPECT_FALSE(CheckedElements(DType::kF32, {2, -1}).ok());
  EXPECT_FALSE(CheckedElements(DType::kF32, {0, -1}).ok());
  EXPECT_FALSE(CheckedElements(DType::kI4, {int64_t{1} << 32, int64_t{1} << 32}).ok());
  EXPECT_FALSE(CheckedElements(DType::kF64, {int64_t{1} << 60}).ok());
}

TEST(TensorTest, StartsZeroAndAligned) {
  Tensor t(DType::kF16, {3, 5});
  EXPECT_EQ(t.size(), 15);
  EXPECT_EQ(t.bytes(), 30);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.raw()) % 64, 0u);
  for (float f : t.ToFloats()) EXPECT_EQ(f, 0);
  EXPECT_EQ(Tensor(DType::kF32, {}).size(), 1);
  EXPECT_EQ(Tensor().size(), 0);
}

TEST(TensorTest, FourBitElementsArePackedLowHalfFirst) {
  Tensor t = Tensor::FromValues<int64_t>(DType::kI4, {3}, {-8, 7, -1});
  EXPECT_EQ(t.bytes(), 2);
  EXPECT_EQ(static_cast<uint8_t>(t.raw()[0]), 0x78);
  EXPECT_EQ(static_cast<uint8_t>(t.raw()[1]), 0x0f);
  EXPECT_EQ(t.ToInts(), (std::vector<int64_t>{-8, 7, -1}));
  t.SetFloat(1, 100);
  EXPECT_EQ(t.ToInts(), (std::vector<int64_t>{-8, 7, -1}));
  Tensor u = Tensor::FromValues<double>(DType::kU4, {3}, {15.9, -3, 4});
  EXPECT_EQ(u.ToInts(), (std::vector<int64_t>{15, 0, 4}));
  Tensor v = u;
  Tensor w = Tensor::FromValues<int64_t>(DType::kU4, {3}, {15, 0, 4});
  w.mutable_raw()[1] = static_cast<char>(w.raw()[1] | 0xf0);  // the unused half does not count
  EXPECT_EQ(v, w);
  w.SetInt(2, 5);
  EXPECT_FALSE(v == w);
}

TEST(TensorTest, IntegersKeepAllBitsOrSaturate) {
  const int64_t big = (int64_t{1} << 53) + 1;
  Tensor t = Tensor::FromValues<int64_t>(DType::kI64, {2}, {big, std::numeric_limits<int64_t>::min()});
  EXPECT_EQ(t.GetInt(0), big);
  EXPECT_EQ(t.GetInt(1), std::numeric_limits<int64_t>::min());
  const double inf = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::kI64, DType::kI32, DType::kI16, DType::kI8, DType::kU8}) {
    Tensor s = Tensor::FromValues<double>(dtype, {4}, {inf, -inf, std::nan(""), -2.9});
    const bool is_signed = dtype != DType::kU8;
    const int bits = DTypeBits(dtype) - (is_signed ? 1 : 0);
    const int64_t max = bits == 63 ? std::numeric_limits<int64_t>::max() : (int64_t{1} << bits) - 1;
    EXPECT_EQ(s.ToInts(), (std::vector<int64_t>{max, is_signed ? -max - 1 : 0, 0, is_signed ? -2 : 0}));
  }
  Tensor b = Tensor::FromValues<int64_t>(DType::kBool, {3}, {0, 256, -1});
  EXPECT_EQ(b.ToInts(), (std::vector<int64_t>{0, 1, 1}));
  Tensor f = Tensor::FromValues<double>(DType::kF32, {3}, {1e30, -3.7, std::nan("")});
  EXPECT_EQ(f.ToInts(), (std::vector<int64_t>{std::numeric_limits<int64_t>::max(), -3, 0}));
}

TEST(TensorTest, SetFloatRoundsOnce) {
  // 1 + 2^-11 + 2^-40: over the middle of two halves, but f32 in between would land on the middle and go to even.
  Tensor half(DType::kF16, {2});
  half.SetFloat(0, 1 + std::ldexp(1.0, -11) + std::ldexp(1.0, -40));
  EXPECT_EQ(half.GetFloat(0), 1 + std::ldexp(1.0, -10));
  half.SetFloat(1, -(1 + std::ldexp(1.0, -11)));
  EXPECT_EQ(half.GetFloat(1), -1);
  Tensor bf(DType::kBF16, {3});
  bf.SetFloat(0, 1 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40));
  EXPECT_EQ(bf.GetFloat(0), 1 + std::ldexp(1.0, -7));
  bf.SetFloat(1, 1 + 3 * std::ldexp(1.0, -8) - std::ldexp(1.0, -40));
  EXPECT_EQ(bf.GetFloat(1), 1 + std::ldexp(1.0, -7));
  bf.SetFloat(2, 1e300);
  EXPECT_EQ(bf.GetFloat(2), std::numeric_limits<double>::infinity());
  Tensor ints(DType::kBF16, {1});
  ints.SetInt(0, (int64_t{1} << 62) + (int64_t{1} << 54) + 1);  // just over the middle
  EXPECT_EQ(ints.GetFloat(0), std::ldexp(1.0, 62) + std::ldexp(1.0, 55));
}

TEST(TensorTest, BulkConversionEqualsElementwise) {
  for (DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8,
                      DType::kU4, DType::kBool}) {
    // Every 16-bit code for the 16-bit types; an odd count for the tails.
    Tensor t(dtype, {65536 + 3});
    for (int64_t i = 0; i < t.bytes(); ++i) t.mutable_raw()[i] = static_cast<char>((i / 2) >> (8 * (i & 1)));
    const std::vector<float> floats = t.ToFloats();
    for (int64_t i = 0; i < t.size(); ++i) {
      const float want = static_cast<float>(t.GetFloat(i));
      ASSERT_TRUE(floats[i] == want || (std::isnan(floats[i]) && std::isnan(want))) << DTypeName(dtype) << " " << i;
    }
  }
}

TEST(TensorTest, ViewsKeepTheirOwnerAlive) {
  auto owner = std::make_shared<std::vector<char>>(9, 1);
  std::weak_ptr<std::vector<char>> watch = owner;
  {
    // One byte in: not aligned.
    Tensor view(DType::kI32, {2}, std::shared_ptr<const char>(owner, owner->data() + 1));
    owner.reset();
    Tensor reshaped = view.Reshaped({2, 1});
    view = Tensor();
    EXPECT_EQ(reshaped.shape(), (Shape{2, 1}));
    EXPECT_EQ(reshaped.GetInt(1), 0x01010101);
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(TensorTest, EqualityComparesTypeShapeAndBytes) {
  Tensor a = Tensor::FromValues<double>(DType::kF32, {2}, {1, 2});
  Tensor b = Tensor::FromValues<double>(DType::kF32, {2}, {1, 2});
  EXPECT_EQ(a, b);
  EXPECT_FALSE(a == b.Reshaped({2, 1}));
  b.SetFloat(1, 3);
  EXPECT_FALSE(a == b);
  EXPECT_EQ(ShapeToString(a.shape()), "[2]");
  EXPECT_EQ(ShapeToString({}), "[]");
}

}  // namespace
}  // namespace llmc
