// Every rule proves itself; and the driver's contract, on rules made for the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "ir/text.h"
#include "ir/verify.h"
#include "passes/driver/match.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/driver/self_test.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

class AllRulesTest : public testing::TestWithParam<const Rule*> {};

TEST_P(AllRulesTest, SelfTest) {
  const absl::Status status = SelfTest(*GetParam());
  EXPECT_TRUE(status.ok()) << status;
}

INSTANTIATE_TEST_SUITE_P(Rules, AllRulesTest, testing::ValuesIn(AllRules()), [](const auto& info) {
  std::string name(info.param->name());
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
});

constexpr auto kWrongRules = Rules(
    // The wrong operand order: numbers differ.
    Rule("swap-sub").Find("%y = sub %x, %z").Replace("%n = neg %x\n%y = add %n, %z").Example("%x: f32[4]; %z: f32[4]"),
    // Loses an attribute.
    Rule("lose-eps")
        .Find("%s = neg %x\n%y = rms_norm %s, %w {eps = $e}")
        .Replace("%n = rms_norm %x, %w\n%y = neg %n")
        .Example("%x: f32[4, 8]; %w: f32[8]; $e = 0.5"),
    // Writes keys and values the wrong way around: only the state shows it.
    Rule("swap-kv")
        .Find("%k = neg %a\nkv_write @kv, %k, %v, %slots")
        .Replace("%k = neg %a\nkv_write @kv, %v, %k, %slots")
        .Example("%a: f32[4, 32]; %v: f32[4, 32]; %slots: i32[4] = slots; state @kv: paged[2, 16] {k: f32[2, 16], v: "
                 "f32[2, 16]}"),
    // The example cannot fire: the predicate refuses it.
    Rule("never")
        .Find("%y = neg %x")
        .Replace("%y = identity %x")
        .When("never", [](const Match&) { return false; })
        .Example("%x: f32[4]"),
    // True of 0 and 1 only.
    Rule("square").Find("%y = mul %x, %x").Replace("%y = identity %x").Example("%x: i32[4]"),
    // Another order of the sums: only the last bit shows it.
    Rule("sum-order")
        .Find("%a = add %x, %y\n%b = add %a, %z")
        .Replace("%n = neg %z\n%d = sub %y, %n\n%b = add %x, %d")
        .Example("%x: f32[64]; %y: f32[64]; %z: f32[64]"),
    // The same for all numbers but NaN.
    Rule("greater")
        .Find("%a = less_equal %x, %y\n%b = not %a")
        .Replace("%b = greater %x, %y")
        .Example("%x: f32[64]; "
                 "%y: f32[64]"),
    // Holds in f32, but not where numbers are integers.
    Rule("cancel")
        .Find("%a = div %x, %c\n%b = mul %a, %c")
        .Replace("%b = identity %x")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[64]; %c = constant {value = 2} : f32[]"),
    // Changes a type, so it may not fire.
    Rule("retype").Find("%y = neg %x").Replace("%y = cast %x {to = f16}").Example("%x: f32[4]"),
    Rule("no-input").Find("%y = neg %x").Replace("%y = neg %x").Example("%z: f32[4]"));

TEST(SelfTest, FindsWrongRules) {
  const std::map<std::string_view, std::string> wanted = {
      {"swap-sub", "changes at"},      {"lose-eps", "changes at"},
      {"swap-kv", "@kv.k changes at"}, {"never", "does not fire"},
      {"retype", "does not fire"},     {"no-input", "not defined"},
      {"square", "changes at"},        {"sum-order", "changes at"},
      {"greater", "changes at"},       {"cancel", "i32[64]; %c = constant {value = 2} : i32[]: main/b changes at"}};
  for (const Rule& rule : kWrongRules) {
    EXPECT_THAT(std::string(SelfTest(rule).message()), testing::HasSubstr(wanted.at(rule.name())));
  }
}

std::unique_ptr<Model> ParseProgram(absl::string_view text) {
  absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(text, "test");
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

constexpr auto kPingPong = Rules(Rule("ping").Find("%y = exp %x").Replace("%y = log %x").Example("%x: f32[4]"),
                                 Rule("pong").Find("%y = log %x").Replace("%y = exp %x").Example("%x: f32[4]"));

TEST(RewriteDriver, RulesThatUndoEachOtherEnd) {
  std::unique_ptr<Model> model = ParseProgram("in %x: f32[4]\n%y = exp %x");
  const absl::StatusOr<int64_t> fired = RunRules(model.get(), kPingPong, nullptr);
  ASSERT_FALSE(fired.ok());
  EXPECT_EQ(fired.status().code(), absl::StatusCode::kInternal);
}

TEST(RewriteDriver, KeepsNamesAndOutputs) {
  std::unique_ptr<Model> model = ParseProgram(
      "in %x: f32[4, 8]\nweight @g: f32[16, 8]\nweight @u: f32[16, 8]\n"
      "%a = linear %x, @g {transpose_rhs = true}\n%b = linear %x, @u {transpose_rhs = true}\n"
      "%s = silu %a\n%o = mul %s, %b");
  ASSERT_EQ(*RunRules(model.get(), FuseRules(), nullptr), 1);
  ASSERT_EQ(model->steps[0]->outputs.size(), 1u);
  EXPECT_EQ(model->steps[0]->outputs[0].name, "o");
  EXPECT_EQ(model->steps[0]->outputs[0].value, model->Find("%o"));
  EXPECT_TRUE(Verify(*model, Phase::kFused).ok());
}

TEST(Ledger, StaysSmall) {
  Ledger ledger;
  for (int i = 0; i < 100000; ++i) {
    const std::string n = std::to_string(i);
    ledger.Refused("rule", {.value = "place" + n, .op = "op", .loc = ""}, "line", "actual" + n, "expected");
    ledger.Fired("rule", "place" + n);
  }
  EXPECT_EQ(ledger.CountRefused("rule"), 100000);
  EXPECT_EQ(ledger.CountFired("rule"), 100000);
  EXPECT_LT(ledger.ToString().size(), 20000u);
}

}  // namespace
}  // namespace llmc
