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

TEST(DimExpression, CallsFunctions) {
  EXPECT_EQ(Value("(step(A))*8 + step(1)", {{"A", 6}}), 8);
  EXPECT_EQ(Value("max(A, 2)", {{"A", -6}}), 2);
  EXPECT_EQ(Value("broadcast(A, broadcast(1, B))", {{"A", 1}, {"B", 6}}), 6);
  EXPECT_EQ(Value("within(A, B, 7)", {{"A", 2}, {"B", 6}}), 4);
  EXPECT_EQ(Value("slice_size(-3, 100, 2, N)", {{"N", 10}}), 2);
  EXPECT_EQ(Value("slice_start(-3, 100, 2, N)", {{"N", 10}}), 7);
  EXPECT_EQ(Value("slice_size(100, -100, -3, N)", {{"N", 10}}), 4);
  EXPECT_EQ(Value("slice_start(100, -100, -3, N)", {{"N", 10}}), 9);
  EXPECT_EQ(Value("slice_size(0, 5, 1, 0)", {}), 0);
  EXPECT_EQ(Value("slice_size(0, -5, -1, 0)", {}), 0);
  EXPECT_EQ(Value("range_size(10, 0, -3)", {}), 4);
  EXPECT_EQ(Value("range_size(0, 9, -3)", {}), 0);
  EXPECT_EQ(Value("select(A, 5, 7)", {{"A", -1}}), 7);
}

TEST(DimExpression, RefusesCallsWithoutAValue) {
  for (const char* text : {"broadcast(2, 3)", "within(3, 2, 9)", "within(-1, 2, 9)", "within(0, 10, 9)",
                           "slice_size(0, 1, 0, 9)", "range_size(0, 1, 0)"}) {
    EXPECT_FALSE(DimExpression::Parse(text)->Evaluate({}).ok()) << text;
  }
}

TEST(DimExpression, RefusesWhatIsNone) {
  for (const char* text : {"step", "step()", "step(1, 2)", "max(1)", "nothing(1)", "max(1, 2", "step(1))"}) {
    const auto expression = DimExpression::Parse(text);
    EXPECT_FALSE(expression.ok() && expression->Evaluate({}).ok()) << text;
  }
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
