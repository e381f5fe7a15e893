#include "runtime/plan/dim_expression.h"

#include <gtest/gtest.h>

namespace llmc {
namespace {

int64_t ValueOf(const std::string& text, const std::map<std::string, int64_t>& dims) {
  const auto expression = DimExpression::Parse(text);
  EXPECT_TRUE(expression.ok()) << expression.status();
  const auto value = expression->Evaluate(dims);
  EXPECT_TRUE(value.ok()) << value.status();
  return *value;
}

TEST(DimExpression, Evaluates) {
  EXPECT_EQ(ValueOf("7", {}), 7);
  EXPECT_EQ(ValueOf("2*T*S + 3", {{"T", 5}, {"S", 4}}), 43);
}

TEST(DimExpression, TakesSizesThatNoModelNames) {
  EXPECT_EQ(ValueOf("2*step:keys + step:pairs:128", {{"step:keys", 5}, {"step:pairs:128", 4}}), 14);
  EXPECT_FALSE(DimExpression::Parse("2:3").ok());
}

TEST(DimExpression, RoundsQuotientsDown) {
  EXPECT_EQ(ValueOf("(T + 255)/(256)", {{"T", 1}}), 1);
  EXPECT_EQ(ValueOf("(T - 7)/2", {{"T", 0}}), -4);
  EXPECT_EQ(ValueOf("-T + 10 - 3*(T/2)", {{"T", 5}}), -1);
}

TEST(DimExpression, CallsFunctions) {
  EXPECT_EQ(ValueOf("(step(A))*8 + step(1)", {{"A", 6}}), 8);
  EXPECT_EQ(ValueOf("max(A, 2)", {{"A", -6}}), 2);
  EXPECT_EQ(ValueOf("broadcast(A, broadcast(1, B))", {{"A", 1}, {"B", 6}}), 6);
  EXPECT_EQ(ValueOf("within(A, B, 7)", {{"A", 2}, {"B", 6}}), 4);
  EXPECT_EQ(ValueOf("slice_size(-3, 100, 2, N)", {{"N", 10}}), 2);
  EXPECT_EQ(ValueOf("slice_start(-3, 100, 2, N)", {{"N", 10}}), 7);
  EXPECT_EQ(ValueOf("slice_size(100, -100, -3, N)", {{"N", 10}}), 4);
  EXPECT_EQ(ValueOf("slice_start(100, -100, -3, N)", {{"N", 10}}), 9);
  EXPECT_EQ(ValueOf("slice_size(0, 5, 1, 0)", {}), 0);
  EXPECT_EQ(ValueOf("slice_size(0, -5, -1, 0)", {}), 0);
  EXPECT_EQ(ValueOf("range_size(10, 0, -3)", {}), 4);
  EXPECT_EQ(ValueOf("range_size(0, 9, -3)", {}), 0);
  EXPECT_EQ(ValueOf("select(A, 5, 7)", {{"A", -1}}), 7);
}

// Numbers that are no integers are the bits of doubles: 1.0 is 4607182418800017408, 0.5 is 4602678819172646912.
TEST(DimExpression, ComputesAsElementsOfTensors) {
  EXPECT_EQ(ValueOf("quotient(-7, 2)", {}), -3);
  EXPECT_EQ(ValueOf("remainder(-7, 2)", {}), -1);
  EXPECT_EQ(ValueOf("modulo(-7, 2)", {}), 1);
  EXPECT_EQ(ValueOf("power(-3, 3)", {}), -27);
  EXPECT_EQ(ValueOf("wrap(2147483648, 32)", {}), -2147483648LL);
  EXPECT_EQ(ValueOf("less(1, 2) + less_equal(2, 2)*10 + equal(3, 2)*100", {}), 11);
  EXPECT_EQ(ValueOf("where(bit_and(6, 4), bit_or(1, 2), bit_xor(1, 2))", {}), 3);
  EXPECT_EQ(ValueOf("real(1)", {}), 4607182418800017408);
  EXPECT_EQ(ValueOf("integer(real_floor(real_mul(real(A), 4602678819172646912)))", {{"A", 7}}), 3);
  EXPECT_EQ(ValueOf("integer(real_ceil(real_div(real(A), real(2))))", {{"A", 7}}), 4);
  EXPECT_EQ(ValueOf("integer(real_round(real_div(real(5), real(2))))", {}), 2);
  EXPECT_EQ(ValueOf("integer(real_neg(real_sqrt(real_add(real(5), real_abs(real(-11))))))", {}), -4);
  EXPECT_EQ(ValueOf("integer(single_of(A))", {{"A", 16777217}}), 16777216);
  EXPECT_EQ(ValueOf("integer(single(real(A)))", {{"A", 16777219}}), 16777220);
  EXPECT_EQ(ValueOf("integer(real_max(real(2), real_min(real(5), real_sub(real(9), real(6)))))", {}), 3);
  EXPECT_EQ(
      ValueOf("real_less(real(-1), real(1)) + real_less_equal(real(1), real(1)) + real_equal(real(0), real(1))", {}),
      2);
  EXPECT_EQ(ValueOf("integer(real_power(real(2), real(10)))", {}), 1024);
  EXPECT_EQ(ValueOf("real_range_size(real(0), real(3), 4602678819172646912)", {}), 6);
  EXPECT_EQ(ValueOf("integer(half(real(2049)))", {}), 2048);
  EXPECT_EQ(ValueOf("integer(half(real(65519)))", {}), 65504);
  EXPECT_EQ(ValueOf("integer(brain(real(257)))", {}), 256);
  EXPECT_EQ(ValueOf("integer(brain(real(-259)))", {}), -260);
}

TEST(DimExpression, RefusesCallsWithoutAValue) {
  for (const char* text : {"broadcast(2, 3)", "within(3, 2, 9)", "within(-1, 2, 9)", "within(0, 10, 9)",
                           "slice_size(0, 1, 0, 9)", "range_size(0, 1, 0)", "quotient(1, 0)", "modulo(1, 0)",
                           "remainder(-9223372036854775807 - 1, -1)", "power(2, 63)", "power(0, -1)", "wrap(1, 64)",
                           "integer(real_div(real(1), real(0)))", "integer(half(real(65520)))",
                           "integer(real_div(real(0), real(0)))", "real_range_size(real(0), real(1), real(0))"}) {
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
