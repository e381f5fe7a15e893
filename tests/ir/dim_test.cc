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

TEST(Dim, MissingSymbolAndOverflowAreErrors) {
  EXPECT_FALSE(D("T").Evaluate({}).ok());
  EXPECT_FALSE(D("T*T").Evaluate({{"T", int64_t{1} << 40}}).ok());
  EXPECT_TRUE((Dim(INT64_MAX) + Dim(1)).is_unknown());
  EXPECT_TRUE((Dim(INT64_MAX) * D("T") * Dim(2)).is_unknown());
}

TEST(Dim, RangesHoldEverySize) {
  const DimEnv bounds = {{"A", 6}, {"B", 9}, {"C", 4}};
  for (const char* text : {"A", "7", "A - B", "B - A + 3", "A*B - 2*C", "(A + 1)/2", "(A - B)/4", "5 - A/4", "A/B",
                           "(A*C - 7)/(B - 3)", "C*((B + 3)/4) - A", "(A + (B + 1)/2)/3", "B/(0 - C)"}) {
    const absl::StatusOr<DimRange> range = D(text).Range(bounds);
    ASSERT_TRUE(range.ok()) << text << range.status();
    for (int64_t a = 0; a <= 6; ++a) {
      for (int64_t b = 0; b <= 9; ++b) {
        for (int64_t c = 0; c <= 4; ++c) {
          const absl::StatusOr<int64_t> size = D(text).Evaluate({{"A", a}, {"B", b}, {"C", c}});
          if (!size.ok()) continue;  // divides by zero
          EXPECT_GE(*size, range->low) << text << " " << a << " " << b << " " << c;
          EXPECT_LE(*size, range->high) << text << " " << a << " " << b << " " << c;
        }
      }
    }
  }
}

TEST(Dim, RangesAreTightForSumsAndDifferences) {
  const DimEnv bounds = {{"A", 6}, {"B", 9}};
  const DimRange range = *D("2*A - B + 1").Range(bounds);
  EXPECT_EQ(range.low, -8);
  EXPECT_EQ(range.high, 13);
  EXPECT_EQ(D("(A - B)/4").Range(bounds)->low, -3);
  EXPECT_EQ(D("(A - B)/4").Range(bounds)->high, 1);
  EXPECT_FALSE(D("A + Z").Range(bounds).ok());
  EXPECT_FALSE(D("A*A").Range({{"A", int64_t{1} << 40}}).ok());
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
