#include "runtime/dim_expression.h"

#include <gtest/gtest.h>

namespace llmc {
namespace {

int64_t Value(const std::string& text, const std::map<std::string, int64_t>& dims) {
  const auto expression = DimExpression::Parse(text);
  EXPECT_TRUE(expression.ok()) << expression.status();
  const auto value = expression->Evaluate(dims);
  EXPECT_TRUE(value.ok()) << value.status();
  return *value;
}

TEST(DimExpression, Evaluates) {
  EXPECT_EQ(Value("7", {}), 7);
  EXPECT_EQ(Value("2*T*S + 3", {{"T", 5}, {"S", 4}}), 43);
}

TEST(DimExpression, RoundsQuotientsDown) {
  EXPECT_EQ(Value("(T + 255)/(256)", {{"T", 1}}), 1);
  EXPECT_EQ(Value("(T - 7)/2", {{"T", 0}}), -4);
  EXPECT_EQ(Value("-T + 10 - 3*(T/2)", {{"T", 5}}), -1);
}

TEST(DimExpression, RefusesWhatIsNone) {
  for (const char* text : {"", "+", "T +", "(T", "T)", "T S", "1.5", "99999999999999999999", "T**2"}) {
    EXPECT_FALSE(DimExpression::Parse(text).ok()) << text;
  }
  EXPECT_FALSE(DimExpression::Parse(std::string(100, '(') + "1" + std::string(100, ')')).ok());
}

TEST(DimExpression, RefusesWhatItCannotEvaluate) {
  EXPECT_FALSE(DimExpression::Parse("T")->Evaluate({}).ok());
  EXPECT_FALSE(DimExpression::Parse("T*T")->Evaluate({{"T", int64_t{1} << 40}}).ok());
  EXPECT_FALSE(DimExpression::Parse("1/T")->Evaluate({{"T", 0}}).ok());
}

}  // namespace
}  // namespace llmc
