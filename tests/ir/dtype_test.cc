#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/base/casts.h"

namespace llmc {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST(DTypeTest, NamesRoundTrip) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    auto parsed = ParseDType(DTypeName(dtype));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, dtype);
    EXPECT_FALSE(IsFloat(dtype) && IsInteger(dtype));
  }
  EXPECT_EQ(DTypeName(DType::kBF16), "bf16");
  EXPECT_EQ(DTypeBits(DType::kU4), 4);
  EXPECT_EQ(DTypeBits(DType::kBool), 8);
  EXPECT_FALSE(IsInteger(DType::kBool));
  auto unknown = ParseDType("f17");
  EXPECT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("bf16"), std::string::npos);
}

// Rounds by search: the nearest of all finite numbers of a format, ties to the even code. `limit` is the magnitude from
// which a value rounds past the largest number.
struct Oracle {
  std::vector<double> magnitudes;  // by code, finite ones only
  int Nearest(double magnitude) const {
    int best = 0;
    for (int i = 1; i < static_cast<int>(magnitudes.size()); ++i) {
      const double old = std::fabs(magnitudes[best] - magnitude);
      const double now = std::fabs(magnitudes[i] - magnitude);
      if (now < old || (now == old && i % 2 == 0)) best = i;
    }
    return best;
  }
};

// The value of a code from the definition of the format.
double FromFields(int code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = code >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

TEST(DTypeTest, HalfWidensEveryCode) {
  for (int code = 0; code < 0x7c00; ++code) {
    const double want = FromFields(code, 5, 10);
    ASSERT_EQ(HalfToFloat(static_cast<uint16_t>(code)), want) << code;
    ASSERT_EQ(HalfToFloat(static_cast<uint16_t>(code | 0x8000)), -want) << code;
    ASSERT_EQ(FloatToHalf(static_cast<float>(want)), code);
    ASSERT_EQ(FloatToHalf(static_cast<float>(-want)), code | 0x8000);
  }
  EXPECT_EQ(HalfToFloat(0x7c00), kInf);
  EXPECT_EQ(HalfToFloat(0xfc00), -kInf);
  for (int code = 0x7c01; code < 0x8000; ++code) ASSERT_TRUE(std::isnan(HalfToFloat(static_cast<uint16_t>(code))));
}

TEST(DTypeTest, HalfRoundsToNearestEven) {
  // Between every two neighbours: just below, at and just above the middle.
  for (int code = 0; code < 0x7bff; ++code) {
    const float low = static_cast<float>(FromFields(code, 5, 10));
    const float high = static_cast<float>(FromFields(code + 1, 5, 10));
    const float middle = (low + high) / 2;
    ASSERT_EQ(FloatToHalf(middle), code + (code & 1)) << code;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), code) << code;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, kInf)), code + 1) << code;
  }
  EXPECT_EQ(FloatToHalf(65519.99f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToHalf(-0.0f), 0x8000);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(kNaN))));
}

TEST(DTypeTest, BFloat16) {
  for (uint32_t code = 0; code <= 0xffff; ++code) {
    const float value = BFloat16ToFloat(static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(value))));
    } else {
      ASSERT_EQ(FloatToBFloat16(value), code);
    }
  }
  EXPECT_EQ(FloatToBFloat16(absl::bit_cast<float>(0x3f808000u)), 0x3f80);  // a tie, to even
  EXPECT_EQ(FloatToBFloat16(absl::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(FloatToBFloat16(absl::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(FloatToBFloat16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(absl::bit_cast<float>(0x7f800001u)))));
}

TEST(DTypeTest, F8E4M3) {
  Oracle oracle;
  for (int code = 0; code < 0x7f; ++code) {
    oracle.magnitudes.push_back(FromFields(code, 4, 3));
    ASSERT_EQ(F8E4M3ToFloat(static_cast<uint8_t>(code)), oracle.magnitudes.back());
    ASSERT_EQ(F8E4M3ToFloat(static_cast<uint8_t>(code | 0x80)), -oracle.magnitudes.back());
  }
  EXPECT_EQ(oracle.magnitudes.back(), 448);
  std::mt19937 rng(7);
  for (int i = 0; i < 20000; ++i) {
    const float value = std::ldexp(static_cast<float>(rng() % 4096), static_cast<int>(rng() % 22) - 24);
    if (value > 464) continue;
    ASSERT_EQ(FloatToF8E4M3(value), oracle.Nearest(value)) << value;
    ASSERT_EQ(FloatToF8E4M3(-value), oracle.Nearest(value) | 0x80) << value;
  }
  EXPECT_EQ(FloatToF8E4M3(464.0f), 0x7e);
  EXPECT_EQ(FloatToF8E4M3(std::nextafter(464.0f, kInf)), 0x7f);
  EXPECT_EQ(FloatToF8E4M3(kInf), 0x7f);
  EXPECT_EQ(FloatToF8E4M3(-1e38f), 0xff);
  EXPECT_TRUE(std::isnan(F8E4M3ToFloat(0x7f)) && std::isnan(F8E4M3ToFloat(0xff)));
  EXPECT_TRUE(std::isnan(F8E4M3ToFloat(FloatToF8E4M3(kNaN))));
}

TEST(DTypeTest, F8E5M2) {
  Oracle oracle;
  for (int code = 0; code < 0x7c; ++code) {
    oracle.magnitudes.push_back(FromFields(code, 5, 2));
    ASSERT_EQ(F8E5M2ToFloat(static_cast<uint8_t>(code)), oracle.magnitudes.back());
  }
  std::mt19937 rng(8);
  for (int i = 0; i < 20000; ++i) {
    const float value = std::ldexp(static_cast<float>(rng() % 4096), static_cast<int>(rng() % 34) - 30);
    if (value >= 61440) continue;
    ASSERT_EQ(FloatToF8E5M2(value), oracle.Nearest(value)) << value;
  }
  EXPECT_EQ(FloatToF8E5M2(61439.0f), 0x7b);
  EXPECT_EQ(FloatToF8E5M2(61440.0f), 0x7c);
  EXPECT_EQ(FloatToF8E5M2(-kInf), 0xfc);
  EXPECT_EQ(F8E5M2ToFloat(0x7c), kInf);
  EXPECT_TRUE(std::isnan(F8E5M2ToFloat(0x7d)));
  EXPECT_TRUE(std::isnan(F8E5M2ToFloat(FloatToF8E5M2(kNaN))));
}

}  // namespace
}  // namespace llmc
