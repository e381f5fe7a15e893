#include "ir/text.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "ir/verify.h"

namespace llmc {
namespace {

constexpr absl::string_view kModel = R"(model "tiny"

dim T <= 8
weight @w: f32[64, 32] = "model.safetensors#w"
weight @g: f32[64]

prepare {
  %one = constant {value = 1} : f32[64]
  @g1 = add @g, %one : f32[64]
}

step main(
  %x: f32[T, 32]
) {
  %y = matmul %x, @w {transpose_rhs = true} : f32[T, 64]  loc "layers.0 \"q\""
  %z = rms_norm %y, @g1 {eps = 1e-06} : f32[T, 64]
  return
    "z" = %z
}
)";

TEST(Text, PrintsWhatItParses) {
  auto model = ParseModel(kModel, "m.lir");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(Verify(**model, Phase::kImported).ok()) << Verify(**model, Phase::kImported);
  const std::string text = PrintModel(**model);
  auto again = ParseModel(text, "again.lir");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(PrintModel(**again), text);
  EXPECT_NE(text.find(R"(loc "layers.0 \"q\"")"), std::string::npos) << text;
  EXPECT_NE(text.find("eps = 1e-06"), std::string::npos) << text;
}

std::string ErrorOf(absl::string_view text) {
  auto model = ParseFragment(text, "f.lir");
  return model.ok() ? "no error" : std::string(model.status().message());
}

TEST(Text, ErrorsPointAtTheirPlace) {
  EXPECT_EQ(ErrorOf("in %x: f32[4, 8]\nin %w: f32[9]\n%o = rms_norm %x, %w : f32[4, 8]\n").substr(0, 20),
            "f.lir:3: rms_norm: r");
  const std::string unknown = ErrorOf("in %x: f32[4]\n%o = foo %x\n");
  EXPECT_EQ(unknown, "f.lir:2: unknown op 'foo'\n    2 |%o = foo %x\n      |     ^");
}

TEST(Text, RefusesWhatDoesNotFit) {
  const std::string x = "in %x: f32[4]\n";
  EXPECT_NE(ErrorOf(absl::StrCat(x, "%y = add %x, %z")).find("%z is not defined above"), std::string::npos);
  EXPECT_NE(ErrorOf(absl::StrCat(x, "%x = neg %x")).find("defined twice"), std::string::npos);
  EXPECT_NE(ErrorOf(absl::StrCat(x, "%y = neg %x : f32[5]")).find("inferred f32[4]"), std::string::npos);
  EXPECT_NE(ErrorOf(absl::StrCat(x, "%y, %z = neg %x")).find("has 1 results"), std::string::npos);
  EXPECT_NE(ErrorOf(absl::StrCat(x, "%y = add %x")).find("takes 2 operands"), std::string::npos);
  EXPECT_NE(ErrorOf(absl::StrCat(x, "%y = neg %x {axis = 1}")).find("no attribute 'axis'"), std::string::npos);
  EXPECT_NE(ErrorOf(absl::StrCat(x, "%y = softmax %x {axis = one}")).find("not an integer"), std::string::npos);
  EXPECT_NE(ErrorOf("%c = constant {value = [1, 2]} : f32[3]").find("has 2 numbers"), std::string::npos);
  EXPECT_NE(ErrorOf("%c = constant {value = 300} : i8[]").find("within i8"), std::string::npos);
  EXPECT_NE(ErrorOf("%c = constant {value = 1} : f32[99999999999, 99999999999]").find("f.lir:1"), std::string::npos);
  EXPECT_NE(ErrorOf("%s = \"open").find("f.lir:1"), std::string::npos);
  EXPECT_NE(ErrorOf("in %y: f32[$key]").find("the name of dim $key begins with $"), std::string::npos);
}

TEST(Text, InputsHaveRoles) {
  const std::string params = "\n  %a: i32[T] = token_ids,\n  %b: i32[T] = slots(full),\n  %c: i32[T] = slots(window)";
  auto model = ParseModel(absl::StrCat("model m dim T <= 8 step main(", params, ",\n  %d: i32[T]) {}"), "m.lir");
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<Value*>& values = (*model)->steps[0]->params;
  EXPECT_EQ(values[0]->role, (StepRoleRef{.role = StepRole::kTokenIds}));
  EXPECT_EQ(values[2]->role, (StepRoleRef{.role = StepRole::kSlots, .pool = "window"}));
  EXPECT_EQ(values[3]->role, StepRoleRef());
  EXPECT_TRUE(Verify(**model, Phase::kImported).ok()) << Verify(**model, Phase::kImported);
  const std::string text = PrintModel(**model);
  EXPECT_NE(text.find(params), std::string::npos) << text;
  EXPECT_EQ(PrintModel(**ParseModel(text, "again.lir")), text);

  EXPECT_EQ(ErrorOf("in %x: i32[4] = token_id\n"),
            "f.lir:1: 'token_id' is no role of an input; there are token_ids, positions, slots, page_table, lengths, "
            "starts, rows\n    1 |in %x: i32[4] = token_id\n      |                ^");
  EXPECT_NE(ErrorOf("in %x: i32[4] = token_ids(full)").find("is of no pool"), std::string::npos);
  EXPECT_NE(ErrorOf("in %x: i32[4] = slots(a-b)").find("expected the name of a pool"), std::string::npos);
  EXPECT_NE(ErrorOf("in %x: i32[4] = slots(a").find("expected ')'"), std::string::npos);
}

TEST(Text, NamesWithOtherCharactersAreQuoted) {
  const std::string text = R"(model "m"

weight @"w\"\x0a": f32[2]

step main(
  %"in:0": f32[2],
  %in_0: f32[2]) {
  %y = add %"in:0", %in_0                                              : f32[2]
  %z = add %y, @"w\"\x0a"                                              : f32[2]
  return
    "y:0" = %z
}
)";
  const auto model = ParseModel(text, "m.lir");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->steps[0]->params[0]->name, "%in:0");
  EXPECT_EQ((*model)->weights[0]->name, "@w\"\n");
  EXPECT_EQ(PrintModel(**model), text);
  EXPECT_FALSE(ParseModel("model m\nstep main(%\"\": f32[2]) { return }", "m.lir").ok());
}

TEST(Text, LiteralsKeepEveryBit) {
  const std::string text =
      "%i = constant {value = [9223372036854775807, -9223372036854775808]} : i64[2]\n"
      "%f = constant {value = [0.1, -0, inf, 1e-45]} : f32[4]\n"
      "%b = constant {value = [true, false]} : bool[2]\n"
      "%n = constant {value = []} : i64[0]\n";
  auto model = ParseFragment(text, "f.lir");
  ASSERT_TRUE(model.ok()) << model.status();
  auto again = ParseModel(PrintModel(**model), "again.lir");
  ASSERT_TRUE(again.ok()) << again.status() << PrintModel(**model);
  auto& first = (*model)->steps[0]->block.nodes;
  auto& second = (*again)->steps[0]->block.nodes;
  for (auto a = first.begin(), b = second.begin(); a != first.end(); ++a, ++b) EXPECT_EQ((*a)->attrs, (*b)->attrs);
  EXPECT_EQ(std::get<Tensor>(first.front()->attrs.at("value")).GetInt(1), INT64_MIN);
}

TEST(Text, EveryPrefixParsesOrFailsCleanly) {
  for (size_t n = 0; n < kModel.size(); ++n) {
    auto model = ParseModel(kModel.substr(0, n), "cut.lir");
    EXPECT_TRUE(model.ok() || model.status().message().substr(0, 8) == "cut.lir:") << n;
  }
}

}  // namespace
}  // namespace llmc
