#include "ir/dim.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

Dim D(absl::string_view text) {
  absl::StatusOr<Dim> dim = Dim::Parse(text);
  EXPECT_TRUE(dim.ok()) << dim.status();
  return dim.ok() ? *dim : Dim::Unknown();
}

TEST(Dim, CanonicalFormIgnoresOrder) {
  EXPECT_EQ(D("past + seq"), D("seq + past"));
  EXPECT_EQ(D("2*B*S + S*B"), D("3*S*B"));
  EXPECT_EQ(D("S - S"), Dim(0));
  EXPECT_EQ(D("(a + b)*(a - b)"), D("a*a - b*b"));
  EXPECT_NE(D("a"), D("b"));
}

TEST(Dim, DivisionIsExactWhereItCanBe) {
  EXPECT_EQ(Dim::FloorDiv(D("64*B*S"), D("B*S")), Dim(64));
  EXPECT_EQ(Dim::FloorDiv(D("B*(p + s)*64"), D("16*(p + s)")), D("4*B"));
  EXPECT_EQ(Dim::FloorDiv(D("6*a + 4"), Dim(2)), D("3*a + 2"));
  EXPECT_EQ(Dim::FloorDiv(Dim(-7), Dim(2)), Dim(-4));
  EXPECT_TRUE(Dim::FloorDiv(D("a"), Dim(0)).is_unknown());
}

TEST(Dim, UnevenQuotientsRoundTripAndEvaluate) {
  const Dim patches = D("(H + 15)/(16)");
  EXPECT_EQ(D(patches.ToString()), patches);
  EXPECT_EQ(*patches.Evaluate({{"H", 33}}), 3);
  const Dim nested = Dim::FloorDiv(patches + Dim(1), D("W"));
  EXPECT_EQ(D(nested.ToString()), nested);
  EXPECT_EQ(*nested.Evaluate({{"H", 33}, {"W", 2}}), 2);
  EXPECT_FALSE(nested.Evaluate({{"H", 33}, {"W", 0}}).ok());
}

TEST(Dim, QuotientsInProductsRoundTrip) {
  const Dim product = Dim(16) * D("H/3") * D("W/5");
  EXPECT_EQ(D(product.ToString()), product) << product.ToString();
  EXPECT_EQ(*product.Evaluate({{"H", 4}, {"W", 9}}), 16);
}

TEST(Dim, MissingSymbolAndOverflowAreErrors) {
  EXPECT_FALSE(D("T").Evaluate({}).ok());
  EXPECT_FALSE(D("T*T").Evaluate({{"T", int64_t{1} << 40}}).ok());
  EXPECT_TRUE((Dim(INT64_MAX) + Dim(1)).is_unknown());
  EXPECT_TRUE((Dim(INT64_MAX) * D("T") * Dim(2)).is_unknown());
}

TEST(Dim, BadTextIsRefused) {
  for (const char* text : {"", "+", "a +", "(a", "a)", "a b", "1.5x", "9999999999999999999", "a/0"}) {
    EXPECT_FALSE(Dim::Parse(text).ok()) << text;
  }
  EXPECT_FALSE(Dim::Parse(std::string(5000, '(')).ok());
}

TEST(Dim, Substitutes) {
  const std::map<std::string, Dim, std::less<>> known = {{"u", Dim(5)}, {"v", Dim::Symbol("T") + Dim(1)}};
  const std::pair<const char*, const char*> cases[] = {
      {"u", "5"}, {"2*u + T", "T + 10"}, {"(u)/(2)", "2"}, {"(T*v)/(u)", "(T*T + T)/(5)"}, {"T", "T"}, {"uv", "uv"}};
  for (const auto& [before, after] : cases) {
    EXPECT_EQ(Dim::Parse(before)->Substitute(known), *Dim::Parse(after)) << before;
  }
}

}  // namespace
}  // namespace llmc
