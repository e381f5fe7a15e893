#include "ir/cached_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Truly;

constexpr float kEndless = std::numeric_limits<float>::infinity();

// A component of one head, two pages of four tokens.
class OneHead {
 public:
  OneHead(const std::string& encoding, int64_t dim, const Tensor* scale = nullptr)
      : type_(*StateType::Parse(absl::StrCat("paged[2, 4] {k: f32<", encoding, ">[1, ", dim, "]}"))),
        memory_(DType::kU8, {2, type_.RecordBytes()}),
        rows_(type_, type_.components[0], memory_, scale) {}

  // What is read of a row that was written to slot 6.
  std::vector<float> RoundTrip(const std::vector<float>& row) {
    rows_.Write(row.data(), 6, 0);
    std::vector<float> read(row.size());
    rows_.Read(1, 0, 2, read.data());
    return read;
  }
  // A byte of a part, in the record of page 1.
  uint8_t Byte(size_t part, int64_t at) const {
    return memory_.data<uint8_t>()[type_.RecordBytes() + type_.OffsetOf(type_.components[0], part) + at];
  }
  const StateType& type() const { return type_; }

 private:
  StateType type_;
  Tensor memory_;
  CachedRows rows_;
};

// The greatest element is 127, so that the scale is 1; halves go to the even neighbour.
TEST(CachedRows, RoundBytesToNearest) {
  OneHead row("int8 per=token scale=f32", 6);
  EXPECT_THAT(row.RoundTrip({127, -63.5f, 62.5f, 1.4f, 0, -126.6f}), ElementsAre(127, -64, 62, 1, 0, -127));
  // Codes of 4 rows of 6, then a scale for each row.
  EXPECT_EQ(row.type().RecordBytes(), 32 + 16);
  EXPECT_EQ(row.Byte(0, 2 * 6 + 1), static_cast<uint8_t>(-64));
  EXPECT_EQ(row.Byte(1, 2 * 4 + 3), 0x3f);  // 1.0f is 0x3f800000
  EXPECT_EQ(row.Byte(1, 2 * 4 + 2), 0x80);
}

TEST(CachedRows, RoundFloatsToNearest) {
  OneHead row("f8e4m3 per=token scale=f32", 4);
  EXPECT_THAT(row.RoundTrip({448, 1.0625f, -3, 1.1875f}), ElementsAre(448, 1, -3, 1.25));
  OneHead wide("f8e5m2 per=token scale=f32", 2);
  EXPECT_THAT(wide.RoundTrip({57344, -1.125f}), ElementsAre(57344, -1));
}

TEST(CachedRows, HaveZeroPoints) {
  OneHead row("uint4 group=4 scale=f16 zero=u8", 8);
  // From -3 to 12 with scale 1 and zero point 3; then from 0, which is always in the range, to 15.
  EXPECT_THAT(row.RoundTrip({-3, 0, 6.5f, 12, 15, 14, 13.4f, 12}), ElementsAre(-3, 0, 6, 12, 15, 14, 13, 12));
  EXPECT_EQ(row.Byte(0, 2 * 4), 0x30);      // codes 0 and 3
  EXPECT_EQ(row.Byte(0, 2 * 4 + 1), 0xf9);  // 9: 6.5 to the even 6, and the zero point; 15
  EXPECT_EQ(row.Byte(2, 2 * 2), 3);
  EXPECT_EQ(row.Byte(2, 2 * 2 + 1), 0);
}

TEST(CachedRows, HaveGroupsOfFourBits) {
  OneHead row("int4 group=2 scale=f32", 4);
  EXPECT_THAT(row.RoundTrip({7, -3, 3.5f, -1.9f}), ElementsAre(7, -3, 3.5f, -2));
}

TEST(CachedRows, TakeStaticScales) {
  const Tensor scale = Tensor::FromValues(DType::kF32, {}, std::vector<float>{0.5f});
  OneHead row("f8e4m3 per=tensor scale=f32", 4, &scale);
  EXPECT_THAT(row.RoundTrip({1, 1000, -1000, 0.53125f}), ElementsAre(1, 224, -224, 0.5f));
  EXPECT_EQ(row.type().RecordBytes(), 16);  // no scales
}

TEST(CachedRows, KeepZeroRows) {
  for (const char* encoding : {"int8 per=token scale=f32", "f8e4m3 per=token scale=f32", "int4 group=2 scale=f16",
                               "uint4 group=2 scale=f16 zero=u8"}) {
    EXPECT_THAT(OneHead(encoding, 2).RoundTrip({0, 0}), ElementsAre(0, 0)) << encoding;
  }
}

// What is not finite is not hidden: all that shares its scale is NaN.
TEST(CachedRows, KeepNoNumbersThatAreNone) {
  const auto is_nan = [](float x) { return std::isnan(x); };
  for (float bad : {kEndless, -kEndless, std::numeric_limits<float>::quiet_NaN()}) {
    for (const char* encoding : {"int8 per=token scale=f32", "f8e4m3 per=token scale=f32", "f8e5m2 per=token scale=f32",
                                 "uint4 group=2 scale=f16 zero=u8"}) {
      EXPECT_THAT(OneHead(encoding, 2).RoundTrip({bad, 1}), Each(Truly(is_nan))) << encoding << " " << bad;
    }
    const Tensor scale = Tensor::FromValues(DType::kF32, {1}, std::vector<float>{1});
    const std::vector<float> read = OneHead("f8e4m3 per=channel scale=f32", 2, &scale).RoundTrip({1, bad});
    EXPECT_EQ(read[0], 1);
    EXPECT_TRUE(std::isnan(read[1]));
  }
}

// A scale that its type cannot hold is the greatest that it can.
TEST(CachedRows, SaturateScales) {
  EXPECT_THAT(OneHead("int4 group=2 scale=f16", 2).RoundTrip({1e6f, 65504}), ElementsAre(7 * 65504.0f, 65504));
}

// Against the definition, in double.
TEST(CachedRows, AreWithinHalfAStepOfRandomNumbers) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.3f, 2);
  for (const auto& [encoding, most] : {std::pair("int8 per=token scale=f32", 127), {"int4 group=8 scale=f32", 7}}) {
    OneHead row(encoding, 8);
    for (int i = 0; i < 200; ++i) {
      std::vector<float> x(8);
      double greatest = 0;
      for (float& each : x) greatest = std::max<double>(greatest, std::abs(each = normal(random)));
      const std::vector<float> read = row.RoundTrip(x);
      const double step = greatest / most;
      for (size_t j = 0; j < x.size(); ++j) {
        EXPECT_NEAR(read[j], std::nearbyint(x[j] / step) * step,
                    step * 1e-4 + (std::abs(std::remainder(x[j] / step, 1.0)) > 0.4999 ? step : 0));
        EXPECT_LE(std::abs(read[j] - x[j]), step * 0.50001);
      }
    }
  }
  OneHead row("uint4 group=8 scale=f32 zero=u8", 8);
  for (int i = 0; i < 200; ++i) {
    std::vector<float> x(8);
    double low = 0, high = 0;
    for (float& each : x) {
      each = normal(random);
      low = std::min<double>(low, each);
      high = std::max<double>(high, each);
    }
    const std::vector<float> read = row.RoundTrip(x);
    // The zero point is rounded, too, so that an end of the range may be cut off by half a step.
    for (size_t j = 0; j < x.size(); ++j) EXPECT_LE(std::abs(read[j] - x[j]), (high - low) / 15 * 1.00001);
  }
}

TEST(CachedRows, LieInRecordsByParts) {
  const StateType type = *StateType::Parse(
      "paged[N, 16] {k: bf16<int8 per=token scale=f32>[8, 128], v: bf16<uint4 group=32 scale=f16 zero=u8>[8, 128]}");
  EXPECT_EQ(type.ToString(),
            "paged[N, 16] {k: bf16<int8 per=token scale=f32>[8, 128], v: bf16<uint4 group=32 scale=f16 zero=u8>[8, "
            "128]}");
  const StateComponent &k = type.components[0], &v = type.components[1];
  EXPECT_EQ(k.parts(), 2u);
  EXPECT_EQ(k.PartType(1).ToString(), "f32[8, 1]");
  EXPECT_EQ(k.TokenBytes(), 8 * (128 + 4));
  EXPECT_EQ(type.OffsetOf(k, 1), 16 * 8 * 128);
  EXPECT_EQ(v.parts(), 3u);
  EXPECT_EQ(v.PartType(1).ToString(), "f16[8, 4]");
  EXPECT_EQ(v.PartType(2).ToString(), "u8[8, 4]");
  EXPECT_EQ(v.TokenBytes(), 8 * (64 + 4 * 3));
  EXPECT_EQ(type.OffsetOf(v), 16 * 8 * (128 + 4));
  EXPECT_EQ(type.OffsetOf(v, 2), 16 * 8 * (128 + 4 + 64 + 8));
  EXPECT_EQ(type.RecordBytes(), 16 * 8 * (128 + 4 + 64 + 12));
}

TEST(CachedRows, SayWhatACacheCannotBe) {
  const auto error = [](const std::string& component) {
    const auto type = StateType::Parse(absl::StrCat("paged[2, 4] {k: ", component, "}"));
    return type.ok() ? "no error" : std::string(type.status().message());
  };
  const auto has = [](const char* text) { return ::testing::HasSubstr(text); };
  EXPECT_THAT(error("f32<nf4 group=4 scale=f32>[1, 8]"), has("a format that a cache cannot have"));
  EXPECT_THAT(error("f32<q4_0>[1, 32]"), has("a format that a cache cannot have"));
  EXPECT_THAT(error("f32<mxfp8>[1, 32]"), has("a format that a cache cannot have"));
  EXPECT_THAT(error("f32<int8 per=tensor scale=f32>[1, 8]"), has("integers, which need scales per=token or group=N"));
  EXPECT_THAT(error("f32<f8e4m3 per=tensor scale=f16>[1, 8]"), has("a static scale that is not f32"));
  EXPECT_THAT(error("f32<f8e4m3 block=1x4 scale=f32>[1, 8]"), has("scales that run across heads"));
  EXPECT_THAT(error("f32<int8 group=4 along=-2 scale=f32>[4, 8]"), has("scales that run across heads"));
  EXPECT_THAT(error("f32<uint4 group=4 scale=f32>[1, 8]"), has("zero points exactly if its codes have no sign"));
  EXPECT_THAT(error("f32<int4 group=4 scale=f32 zero=u8>[1, 8]"), has("zero points exactly if its codes have no"));
  EXPECT_THAT(error("f32<uint4 group=4 scale=f32 zero=f16>[1, 8]"), has("a zero point in u8"));
  EXPECT_THAT(error("f32<int8 group=3 scale=f32>[1, 8]"), has("heads that are no whole groups"));
  EXPECT_THAT(error("f32<int4 per=token scale=f32>[2, 3]"), has("heads that are no whole bytes"));
  EXPECT_THAT(error("i32<int8 per=token scale=f32>[2, 4]"), has("which only floats may be"));
  EXPECT_THAT(error("f32<f8e4m3 per=channel scale=f32>[2, 3, 4]"), has("scales of no heads"));
  const auto sequence = StateType::Parse("per_sequence[2] {k: f32<int8 per=token scale=f32>[2, 4]}");
  EXPECT_THAT(std::string(sequence.status().message()), has("which only components of pages may be"));
}

}  // namespace
}  // namespace llmc
