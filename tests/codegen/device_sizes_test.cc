// Sizes that a run of a plan for a GPU finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan_check.h"
#include "tests/codegen/device_plan_parts.h"
#include "tests/runtime/target_programs.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

TEST(DeviceSizes, SaysHowARunFindsSizes) {
  const auto model = Parse(R"(model m
dim A <= 32
dim B <= 32
step main(%x: f32[A, 4], %y: f32[B, 4], %ends: i64[1]) {
  %zero = constant {value = 0} : i64[1]
  %s = add %x, %y
  %t = slice_by %s, %zero, %ends
  return "t" = %t
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  std::vector<std::string> rules;
  for (const plan::SizeRule& rule : manifest.programs(0).size_rules()) {
    rules.push_back(absl::StrCat(rule.symbol(), " = ", rule.input(), rule.size()));
  }
  EXPECT_THAT(rules,
              ::testing::ElementsAre("u = broadcast(A, B)", "in.ends.0 = ends", "u1 = slice_size(0, in.ends.0, 1, u)"));
}

// Symbols and what they come to, as a run applies the rules.
std::map<std::string, int64_t> ApplyRules(const plan::Program& program, std::map<std::string, int64_t> dims,
                                          int64_t element) {
  for (const plan::SizeRule& rule : program.size_rules()) {
    const auto value = [&](const std::string& text) -> int64_t {
      const auto expression = DimExpression::Parse(text);
      EXPECT_TRUE(expression.ok()) << expression.status();
      const auto size = expression->Evaluate(dims);
      EXPECT_TRUE(size.ok()) << size.status();
      return size.value_or(-1);
    };
    const int64_t size = rule.input().empty() ? value(rule.size()) : element;
    if (!rule.expected().empty()) {
      EXPECT_EQ(size, value(rule.expected())) << rule.label();
    }
    if (!rule.symbol().empty()) dims[rule.symbol()] = size;
  }
  return dims;
}

// (h - 1) / 4 + 1 rounds toward zero, half of h is a float, and each is as long as the evaluator makes it.
TEST(DeviceSizes, ComputesSizesThatSmallTensorsTell) {
  const auto model = Parse(R"(model m
dim h <= 4096
step main(%x: f32[h, 2], %k: i64[1]) {
  %shape = shape_of %x
  %one = constant {value = 1} : i64[1]
  %four = constant {value = 4} : i64[1]
  %rows = slice %shape {start = [0], end = [1]}
  %less = sub %rows, %one
  %quarter = div %less, %four
  %more = add %quarter, %one
  %list = concat %more, %k
  %y = expand_to %one, %list
  %row = reshape %rows {shape = []}
  %float = cast %row {to = f32}
  %half = constant {value = 0.5} : f32[]
  %zero = constant {value = 0} : f32[]
  %unit = constant {value = 1} : f32[]
  %limit = mul %float, %half
  %r = range %zero, %limit, %unit
  return "y" = %y, "r" = %r
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  const Dims y = model->Find("%y")->type.shape, r = model->Find("%r")->type.shape;
  struct Run {
    int64_t h, rows, half;
  };
  for (const Run& run : {Run{9, 3, 5}, Run{8, 2, 4}, Run{1, 1, 1}, Run{0, 1, 0}}) {
    const auto dims = ApplyRules(manifest.programs(0), {{"h", run.h}}, 7);
    EXPECT_EQ(dims.at(y[0].ToString()), run.rows) << run.h;
    EXPECT_EQ(dims.at(y[1].ToString()), 7);
    EXPECT_EQ(dims.at(r[0].ToString()), run.half) << run.h;
  }
}

// Single elements of lists that are as long as an input: of a slice, from either end, and of what stands before it.
TEST(DeviceSizes, ComputesSizesThatElementsOfListsTell) {
  const auto model = Parse(R"(model m
dim h <= 4096
step main(%x: f32[h, 2]) {
  %shape = shape_of %x
  %rows = slice %shape {start = [0], end = [1]}
  %limit = reshape %rows {shape = []}
  %zero = constant {value = 0} : i64[]
  %unit = constant {value = 1} : i64[]
  %list = range %zero, %limit, %unit
  %i0 = constant {value = 0} : i64[1]
  %i1 = constant {value = 1} : i64[1]
  %i2 = constant {value = 2} : i64[1]
  %end = constant {value = -1} : i64[1]
  %most = constant {value = 9223372036854775807} : i64[1]
  %lowest = constant {value = -9223372036854775808} : i64[1]
  %inner = slice_by %list, %i1, %end, %i0, %i1
  %odd = slice_by %inner, %i0, %most, %i0, %i2
  %behind = slice_by %list, %end, %lowest, %i0, %end
  %before = concat %i0, %odd
  %third = gather %before, %i2
  %last = gather %inner, %end
  %second = gather %behind, %i1
  %y = expand_to %zero, %third
  %z = expand_to %zero, %last
  %v = expand_to %zero, %second
  return "y" = %y, "z" = %z, "v" = %v
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  for (const int64_t h : {5, 6, 4096}) {
    const auto dims = ApplyRules(manifest.programs(0), {{"h", h}}, 0);
    // 0 1 2 ... h-1; inner: 1 ... h-2; before: 0 1 3 5 ...; behind: h-1 h-2 ...
    EXPECT_EQ(dims.at(model->Find("%y")->type.shape[0].ToString()), 3);
    EXPECT_EQ(dims.at(model->Find("%z")->type.shape[0].ToString()), h - 2);
    EXPECT_EQ(dims.at(model->Find("%v")->type.shape[0].ToString()), h - 2);
  }
}

// A product of sums that is no dim any more: the grid is written as a product.
TEST(DeviceSizes, LaunchesOverProductsOfManyTerms) {
  const auto model = Parse(R"(model m
dim b <= 64
dim h <= 4096
dim w <= 4096
step main(%x: f32[b, (h - 1)/(4) + ((h - 1)/(4))*((w - 1)/(4)) + (w - 1)/(4) + 1, (h - 13)/(16) + ((h - 13)/(16))*((w - 13)/(16)) + (w - 13)/(16) + 1]) {
  %y = round %x
  return "y" = %y
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  const auto grid = DimExpression::Parse(manifest.programs(0).tasks(0).kernel().tiles(0));
  ASSERT_TRUE(grid.ok()) << grid.status();
  // 64 x (8 + 72 + 9 + 1) x (1 + 1 + 1 + 1) elements, four for each of 256 threads.
  const auto blocks = grid->Evaluate({{"b", 64}, {"h", 33}, {"w", 37}});
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ(*blocks, (64 * 90 * 4 + 1023) / 1024);
}

// A product of sums of forty long names: more than a plan holds.
TEST(DeviceSizes, RefusesSizesThatNoPlanCanHold) {
  std::string head = "model m\n", sum;
  for (int i = 0; i < 40; ++i) {
    const std::string name = absl::StrCat("a_name_of_a_dim_that_is_as_long_as_names_may_well_become_here_", i);
    absl::StrAppend(&head, "dim ", name, " <= 2\n");
    absl::StrAppend(&sum, i == 0 ? "" : " + ", name);
  }
  std::string dims = sum;
  for (int i = 0; i < 31; ++i) absl::StrAppend(&dims, ", ", sum);
  const auto model =
      Parse(absl::StrCat(head, "step main(%x: f32[", dims, "]) {\n  %y = neg %x\n  return \"y\" = %y\n}\n"));
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("neg: there is no GPU form of a result whose sizes take more than"));
}

}  // namespace
}  // namespace llmc
