#include "ir/dim.h"

#include <gtest/gtest.h>

#include <map>

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

TEST(Dim, QuotientsOfQuotientsAreOne) {
  EXPECT_EQ(D("(S/2)/3"), D("S/6"));
  EXPECT_EQ(D("((S - 1)/2 + 1 - 1)/2"), D("(S - 1)/4"));
  EXPECT_EQ(D("((S + 1)/3 + 5)/4").ToString(), "(S + 16)/(12)");
  EXPECT_NE(D("(2*(S/3))/5"), D("(2*S)/15"));
  EXPECT_NE(D("(S/T)/3"), D("S/3"));
  for (int64_t s : {-25, -13, -12, -1, 0, 1, 2, 11, 12, 20, 23}) {
    const auto floor = [](int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); };
    EXPECT_EQ(*D("((S + 1)/3 - 5)/4").Evaluate({{"S", s}}), floor(floor(s + 1, 3) - 5, 4)) << s;
  }
  const Dim large = D("S/4611686018427387904");
  EXPECT_EQ(*Dim::FloorDiv(large, Dim(4)).Evaluate({{"S", INT64_MAX}}), 0);
}

// Quotients repeat the text of what they divide.
TEST(Dim, TextDoesNotGrowWithoutLimit) {
  Dim grown = D("S");
  for (int i = 0; i < 40; ++i) grown = Dim::FloorDiv(grown * grown + Dim(1), Dim(3));
  EXPECT_TRUE(grown.is_unknown());
  Dim nested = D("S");
  for (int i = 0; i < 40 && !nested.is_unknown(); ++i) {
    EXPECT_EQ(D(nested.ToString()), nested);
    EXPECT_EQ(D((Dim(2) * nested * D("T")).ToString()), Dim(2) * nested * D("T"));
    nested = Dim::FloorDiv(Dim(2) * nested + Dim(1), Dim(3));
  }
  EXPECT_TRUE(nested.is_unknown());
  Dim sum(0);
  for (int i = 0; i < 60; ++i) sum = sum + Dim::Symbol(absl::StrCat(std::string(100, 's'), i));
  EXPECT_TRUE(sum.is_unknown());
}

TEST(Dim, RangesWithinBounds) {
  const std::map<std::string, int64_t> bounds = {{"S", 10}, {"T", 5}, {"H", int64_t{1} << 40}};
  const auto range = [&](absl::string_view text) -> std::string {
    const auto found = D(text).RangeWithin(bounds);
    return found.has_value() ? absl::StrCat(found->low, " to ", found->high) : "none";
  };
  EXPECT_EQ(range("7"), "7 to 7");
  EXPECT_EQ(range("S*T + 2"), "2 to 52");
  EXPECT_EQ(range("3*S - 2*T - 1"), "-11 to 29");
  EXPECT_EQ(range("(S - 4)/3"), "-2 to 2");
  EXPECT_EQ(range("S*((S - 4)/3)"), "-20 to 20");
  EXPECT_EQ(range("H*H"), "none");
  EXPECT_EQ(range("S/T"), "none");
  EXPECT_EQ(range("undeclared"), "none");
  EXPECT_EQ(range("H*9000000 + 9223372036854775807"), "none");
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

}  // namespace
}  // namespace llmc
