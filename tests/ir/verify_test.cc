#include "ir/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "ir/ops.h"
#include "ir/text.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Model> Parse(absl::string_view text) {
  auto model = ParseModel(absl::StrCat("model \"m\"\n", text), "m.lir");
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? *std::move(model) : nullptr;
}

std::string VerifierError(const Model& model) {
  const absl::Status status = Verify(model, Phase::kImported);
  return status.ok() ? "no error" : std::string(status.message());
}
std::string VerifierError(absl::string_view text) { return VerifierError(*Parse(text)); }

TEST(VerifyTest, ModelsHaveSteps) { EXPECT_EQ(VerifierError("weight @w: f32[2]\n"), "the model has no step"); }

TEST(VerifyTest, SymbolsAreBoundBeforeTheyAreRead) {
  // By a parameter, of which an expression binds a symbol too; by a state; by a result.
  EXPECT_EQ(VerifierError("dim S <= 8 dim P <= 8\nstep a(%m: bool[P + S], %x: f32[S]) {\n"
                          "  %d = dims {values = [P, S]}\n  return \"d\" = %d }\n"),
            "no error");
  EXPECT_EQ(VerifierError("dim P <= 8\nstate @s: per_sequence[P] {x: f32[4]}\nstep a() {\n  %d = dims {values = [P]}\n "
                          " return \"d\" = %d }\n"),
            "no error");
  EXPECT_EQ(VerifierError("dim u <= 8\nstep a(%n: i64[]) {\n  %one = constant {value = 1} : i64[]\n"
                          "  %r = range %one, %n, %one : i64[u]\n  %d = dims {values = [u]}\n  return \"d\" = %d }\n"),
            "no error");
  EXPECT_THAT(
      VerifierError("dim u <= 8\nstep a(%x: f32[1]) {\n  %y = expand %x {shape = [u]}\n  return \"y\" = %y }\n"),
      HasSubstr("dim u is bound by no parameter, state or earlier result\n  in: %y = expand %x"));
  EXPECT_THAT(VerifierError("dim P <= 8 dim S <= 8\nstep a(%m: bool[P + S]) {\n  return \"m\" = %m }\n"),
              HasSubstr("step a: no parameter binds dim P of %m: bool[P + S]"));
}

TEST(VerifyTest, InputsAreWhatTheirRolesSay) {
  const auto error = [](absl::string_view params) {
    return VerifierError(absl::StrCat("dim S <= 8 dim T <= 8\nstep a(", params, ") {}\n"));
  };
  EXPECT_EQ(error("%t: i32[T] = token_ids, %p: i32[T] = positions, %l: i32[S] = lengths, %s: i32[S + 1] = starts"),
            "no error");
  EXPECT_EQ(error("%l: i32[3] = lengths, %s: i32[4] = starts, %p: i32[3, T] = page_table"), "no error");
  EXPECT_EQ(error("%t: i64[T] = token_ids"), "step a: the input t: i64[T] = token_ids: must be of i32");
  EXPECT_THAT(error("%t: i32[S, T] = token_ids"), HasSubstr("must have 1 axis"));
  EXPECT_THAT(error("%t: i32[T] = page_table"), HasSubstr("must have 2 axes"));
  EXPECT_THAT(error("%t: i32[T] = token_ids, %u: i32[T] = token_ids"), HasSubstr("t has this role, too"));
  EXPECT_EQ(error("%t: i32[T] = slots(a), %u: i32[T] = slots(b)"), "no error");
  EXPECT_THAT(error("%t: i32[T] = token_ids, %p: i32[S] = positions"),
              HasSubstr("the input p: i32[S] = positions: axis 0 counts what another input has T of"));
  EXPECT_THAT(error("%l: i32[S] = lengths, %s: i32[S] = starts"), HasSubstr("must have one more than the S sequences"));
}

TEST(VerifyTest, StepsDoNotBindEachOthersSymbols) {
  EXPECT_THAT(VerifierError("dim S <= 8\nstep a(%x: f32[S]) {\n  return \"x\" = %x }\n"
                            "step b() {\n  %d = dims {values = [S]}\n  return \"d\" = %d }\n"),
              HasSubstr("dim S is bound by no"));
  EXPECT_THAT(
      VerifierError("dim S <= 8\nstate @s: per_sequence[S] {x: f32[1]}\nprepare {\n  %d = dims {values = [S]}\n}\n"
                    "step a() {\n  return \"d\" = %d }\n"),
      HasSubstr("dim S is bound by no"));
}

TEST(VerifyTest, SymbolsAreDeclared) {
  const std::unique_ptr<Model> model = Parse("dim S <= 8\nstep a(%x: f32[S]) {\n  return \"x\" = %x }\n");
  model->dims.clear();
  EXPECT_EQ(VerifierError(*model), "%x: dim S is not declared");
}

TEST(VerifyTest, NamesOfStepsAndOutputsAreUnique) {
  const std::unique_ptr<Model> model =
      Parse("step a(%x: f32[2]) {\n  return \"x\" = %x, \"y\" = %x }\nstep b() {\n  return }\n");
  EXPECT_EQ(VerifierError(*model), "no error");
  model->steps[0]->outputs[1].name = "x";
  EXPECT_EQ(VerifierError(*model), "step a: two outputs are named 'x'");
  model->steps[0]->outputs.pop_back();
  model->steps[1]->name = "a";
  EXPECT_EQ(VerifierError(*model), "two steps are named a");
}

TEST(VerifyTest, StatesOfOnePoolHaveRecordsOfOneKind) {
  const auto error = [](absl::string_view other) {
    return VerifierError(absl::StrCat("dim N <= 8 dim M <= 8\nstate @a: paged[N, 16] {k: f32[4]}\nstate @b: ", other,
                                      "\nstep a() {}\n"));
  };
  EXPECT_EQ(error("paged[N, 16] {k: bf16[8], v: f32[2]}"), "no error");
  EXPECT_EQ(error("paged[M, 64] {k: f32[4]}"), "no error");
  EXPECT_EQ(error("per_sequence[M] {conv: f32[4], ssm: f32[2, 2]}"), "no error");
  EXPECT_EQ(error("paged[N, 64] {k: f32[4]}"),
            "state @b: is paged[N, 64] {k: f32[4]}, but @a of the same pool is paged[N, 16] {k: f32[4]}");
  EXPECT_THAT(error("per_sequence[N] {conv: f32[4]}"), HasSubstr("of the same pool is paged[N, 16]"));
}

TEST(VerifyTest, MemoryOfAStateIsThatOfItsType) {
  const std::unique_ptr<Model> model = Parse("state @s: per_sequence[2] {x: f32[4]}\nstep a() {}\n");
  model->states[0]->type.dtype = DType::kF32;
  EXPECT_EQ(VerifierError(*model), "state @s: its memory is not that of its type");
}

TEST(VerifyTest, StatesAreOperandsOnlyOfOpsThatTouchStates) {
  const std::unique_ptr<Model> model =
      Parse("state @s: per_sequence[2] {x: f32[1]}\nstep a(%x: f32[2]) {\n  %y = neg %x\n  return \"y\" = %y }\n");
  model->SetOperand(model->steps[0]->block.nodes.front().get(), 0, model->Find("@s"));
  EXPECT_THAT(VerifierError(*model), HasSubstr("neg: does not take the state @s"));
}

// In every step, not only in the last one.
TEST(VerifyTest, ListsOfUsersAreRight) {
  for (const char* name : {"%a", "%b"}) {
    const std::unique_ptr<Model> model =
        Parse("step a(%a: f32[2]) {\n  return \"y\" = %a }\nstep b(%b: f32[2]) {\n  return \"y\" = %b }\n");
    model->Find(name)->users.push_back(nullptr);
    EXPECT_EQ(VerifierError(*model), absl::StrCat(name, " has 0 uses, but its list 1"));
  }
}

// A literal is there even if it equals the default of its attribute.
TEST(VerifyTest, EmptyLiteralsAreKept) {
  Model model;
  model.steps.push_back(std::make_unique<Step>());
  Builder builder(&model, &model.steps[0]->block);
  const Value* empty = builder.Add(Constant{.value = Tensor(DType::kF32, {0})}, "%c");
  ASSERT_TRUE(builder.status().ok());
  EXPECT_EQ(std::get<Tensor>(empty->def->attrs.at("value")).size(), 0);
  EXPECT_THAT(PrintNode(*empty->def), HasSubstr("{value = []}"));
}

}  // namespace
}  // namespace llmc
