// Which weights can hold factors of channels, by the graph alone.
#include "quantize/scale_folds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/text.h"

namespace llmc {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Model> Parsed(const std::string& text) {
  absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(text, "test");
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// The fold of the left side of the product that gives `product`.
std::optional<ScaleFold> FoldOf(const Model& model, const std::string& input, std::string* why) {
  const Value* value = model.Find(input);
  return FindFold(value, value->type.shape.back().value(), FindLinearModules(model), why);
}

std::vector<std::string> TargetsOf(const ScaleFold& fold) {
  std::vector<std::string> names;
  for (const FoldTarget& target : fold.targets) names.push_back(target.weight->name);
  return names;
}

constexpr char kMlp[] = R"(model "mlp"
dim T <= 64
weight @norm: f32[8] = "m#norm"
weight @up: f32[12, 8] = "m#up"
weight @up.b: f32[12] = "m#up.b"
weight @gate: f32[12, 8] = "m#gate"
weight @down: f32[8, 12] = "m#down"
step main(%x: f32[T, 8]) {
  %n = rms_norm %x, @norm
  %g = linear %n, @gate {transpose_rhs = true}
  %u.mm = linear %n, @up {transpose_rhs = true}
  %u = add %u.mm, @up.b
  %s = silu %g
  %m = mul %s, %u
  %d = linear %m, @down {transpose_rhs = true}
  %y = add %x, %d
  return
    "y" = %y
}
)";

TEST(ScaleFolds, ANormAndTheLinearFactorOfAGate) {
  const std::unique_ptr<Model> model = Parsed(kMlp);
  std::string why;
  const std::optional<ScaleFold> norm = FoldOf(*model, "%n", &why);
  ASSERT_TRUE(norm.has_value()) << why;
  EXPECT_TRUE(norm->is_norm);
  EXPECT_THAT(TargetsOf(*norm), ElementsAre("@norm"));
  const std::optional<ScaleFold> gate = FoldOf(*model, "%m", &why);
  ASSERT_TRUE(gate.has_value()) << why;
  EXPECT_THAT(TargetsOf(*gate), ElementsAre("@up", "@up.b"));
  EXPECT_EQ(gate->sharing.count, 12);
}

TEST(ScaleFolds, NotWhereSomethingElseReadsTheInput) {
  std::string text = kMlp;
  text.replace(text.find("%y = add %x, %d"), 15, "%y = add %n, %d");
  std::string why;
  EXPECT_FALSE(FoldOf(*Parsed(text), "%n", &why).has_value());
  EXPECT_THAT(why, HasSubstr("read by something else"));
}

TEST(ScaleFolds, NotWhereNothingHoldsThem) {
  std::string text = kMlp;
  text.replace(text.find("%m = mul %s, %u"), 15, "%m = silu %u");
  std::string why;
  EXPECT_FALSE(FoldOf(*Parsed(text), "%m", &why).has_value());
  EXPECT_THAT(why, HasSubstr("nothing before it can hold"));
}

TEST(ScaleFolds, NotWhereTheWeightIsSharedByTwoNorms) {
  std::string text = kMlp;
  text.replace(text.find("%y = add %x, %d"), 15, "%z = add %x, %d\n  %y = rms_norm %z, @norm");
  std::string why;
  EXPECT_FALSE(FoldOf(*Parsed(text), "%n", &why).has_value());
}

TEST(ScaleFolds, NormsThatMultiplyBy1PlusTheWeight) {
  std::string text = kMlp;
  text.replace(text.find("%n = rms_norm %x, @norm"), 23,
               "%one = constant {value = 1} : f32[]\n  %w = add @norm, %one\n  %n = rms_norm %x, %w");
  std::string why;
  const std::optional<ScaleFold> fold = FoldOf(*Parsed(text), "%n", &why);
  ASSERT_TRUE(fold.has_value()) << why;
  EXPECT_EQ(fold->targets[0].added, 1);
}

// Of 4 heads of queries 2 each have the values of one: channels 0..3 and 4..7 are of value head 0.
TEST(ScaleFolds, HeadsThatShareValuesShareFactors) {
  const std::unique_ptr<Model> model = Parsed(R"(model "attention"
dim N <= 64
dim P <= 8
dim R <= 4
dim S <= 4
dim T <= 64
weight @v: f32[8, 8] = "m#v"
weight @o: f32[8, 16] = "m#o"
state @kv0: paged[N, 16] {k: f32[2, 4], v: f32[2, 4]}
step main(
  %x: f32[T, 8], %q: f32[T, 16], %k: f32[T, 8],
  %slots: i32[T] = slots,
  %pages: i32[S, P] = page_table,
  %lens: i32[S] = lengths,
  %starts: i32[S + 1] = starts) {
  %v = linear %x, @v {transpose_rhs = true}
  kv_write @kv0, %k, %v, %slots
  %a = paged_attention %q, @kv0, %pages, %lens, %starts
  %o = linear %a, @o {transpose_rhs = true}
  return
    "o" = %o
}
)");
  std::string why;
  const std::optional<ScaleFold> fold = FoldOf(*model, "%a", &why);
  ASSERT_TRUE(fold.has_value()) << why;
  EXPECT_THAT(TargetsOf(*fold), ElementsAre("@v"));
  EXPECT_EQ(fold->sharing.count, 8);
  EXPECT_THAT(fold->sharing.index, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7));
}

// Two experts with a gate and an up layer of 4 rows each, stored one by one.
constexpr char kExperts[] = R"(model "experts"
dim T <= 64
weight @norm: f32[8] = "m#norm"
weight @router: f32[2, 8] = "m#router"
weight @gate0: f32[4, 8] = "m#gate0.weight"
weight @up0: f32[4, 8] = "m#up0.weight"
weight @gate1: f32[4, 8] = "m#gate1.weight"
weight @up1: f32[4, 8] = "m#up1.weight"
weight @down0: f32[8, 4] = "m#down0.weight"
weight @down1: f32[8, 4] = "m#down1.weight"
step main(%x: f32[T, 8]) {
  %n = rms_norm %x, @norm
  %r = linear %n, @router {transpose_rhs = true}
  %e, %shares = route %r {top_k = 1}
  %gu.all = concat @gate0, @up0, @gate1, @up1
  %gu.w = reshape %gu.all {shape = [2, 8, 8]}
  %gu = expert_linear %n, %gu.w, %e {transpose_weight = true}
  %m = silu_mul %gu
  %down.all = concat @down0, @down1
  %down.w = reshape %down.all {shape = [2, 8, 4]}
  %d = expert_linear %m, %down.w, %e {transpose_weight = true}
  return
    "d" = %d
}
)";

TEST(ScaleFolds, EachExpertHasItsOwnRows) {
  const std::unique_ptr<Model> model = Parsed(kExperts);
  const std::vector<LinearModule> linears = FindLinearModules(*model);
  std::string why;
  const std::optional<ScaleFold> norm = FindFold(model->Find("%n"), 8, linears, &why);
  ASSERT_TRUE(norm.has_value()) << why;
  EXPECT_THAT(TargetsOf(*norm), ElementsAre("@norm"));
  EXPECT_EQ(WeightsOf(model->Find("%n"), -1, linears).size(), 5u);
  const std::optional<ScaleFold> second = FindExpertFold(model->Find("%m"), 4, 1, linears, &why);
  ASSERT_TRUE(second.has_value()) << why;
  EXPECT_THAT(TargetsOf(*second), ElementsAre("@up1"));
  EXPECT_EQ(second->targets[0].first, 0);
  EXPECT_THAT(WeightsOf(model->Find("%m"), 1, linears), ElementsAre(model->Find("@down1")));
}

TEST(ScaleFolds, NotWhereAnExpertsWeightIsNotKnownByItself) {
  std::string text = kExperts;
  text.replace(text.find("concat @gate0, @up0, @gate1, @up1"), 33, "concat @gate0, @up0, @gate0, @up1");
  const std::unique_ptr<Model> model = Parsed(text);
  std::string why;
  EXPECT_FALSE(FindExpertFold(model->Find("%m"), 4, 1, FindLinearModules(*model), &why).has_value());
  EXPECT_FALSE(FindFold(model->Find("%n"), 8, FindLinearModules(*model), &why).has_value());
}

}  // namespace
}  // namespace llmc
