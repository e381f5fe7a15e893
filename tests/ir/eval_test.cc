#include "ir/eval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ir/component_view.h"
#include "ir/op.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

// Ops of the test's own, so that their results can be wrong on purpose. Each operand is counted while it lives.
absl::StatusOr<Types> SameType(const Node& node, SizeCollector& /*sizes*/) { return Types{node.operands.back()->type}; }

OpDef MakeOp(absl::string_view name, size_t operands, absl::StatusOr<Tensors> (*eval)(const Node&, const EvalArgs&)) {
  OpDef def{.info = {name, ""}};
  def.min_operands = def.max_operands = operands;
  def.infer_with = SameType;
  def.eval = eval;
  def.contents = [](const Node&) -> std::optional<Dims> { return std::nullopt; };
  return def;
}

Tensor PlusOne(const Tensor& x) {
  Tensor y(x.dtype(), x.shape());
  for (int64_t i = 0; i < x.size(); ++i) y.SetFloat(i, x.GetFloat(i) + 1);
  return y;
}

const OpDef kInc = MakeOp(
    "inc", 1, [](const Node&, const EvalArgs& args) -> absl::StatusOr<Tensors> { return Tensors{PlusOne(args[0])}; });
const OpDef kFail = MakeOp("fail", 1, [](const Node&, const EvalArgs&) -> absl::StatusOr<Tensors> {
  return absl::OutOfRangeError("index 9 is not below 4");
});
const OpDef kGrow = MakeOp("grow", 1, [](const Node&, const EvalArgs& args) -> absl::StatusOr<Tensors> {
  return Tensors{Tensor(args[0].dtype(), {args[0].size() + 1})};
});
const OpDef kHuge = MakeOp("huge", 1, [](const Node&, const EvalArgs&) -> absl::StatusOr<Tensors> {
  return Tensors{Tensor(DType::kF32, {int64_t{1} << 58})};
});
// Adds its second operand to the state in place, gives the second operand.
const OpDef kAccumulate = [] {
  OpDef def = MakeOp("accumulate", 2, [](const Node& node, const EvalArgs& args) -> absl::StatusOr<Tensors> {
    const StateType& type = *node.operands[0]->state;
    ComponentView view(type, type.components[0], *args.state);
    for (int64_t i = 0; i < args[1].size(); ++i) {
      const int64_t at = view.At(i / view.row(), 0, 0) + i % view.row();
      view.elements().SetFloat(at, view.elements().GetFloat(at) + args[1].GetFloat(i));
    }
    return Tensors{args[1]};
  });
  def.info.flags = kWritesState;
  return def;
}();
// Keeps the owners of what it saw: tells whether the evaluator still holds them.
std::vector<std::weak_ptr<const char>>* g_watched = nullptr;
const OpDef kWatch = MakeOp("watch", 1, [](const Node&, const EvalArgs& args) -> absl::StatusOr<Tensors> {
  int64_t alive = 0;
  for (const auto& owner : *g_watched) alive += owner.expired() ? 0 : 1;
  Tensor y = PlusOne(args[0]);
  if (alive > 1) return absl::InternalError(absl::StrCat(alive, " operands are still alive"));
  g_watched->push_back(args[0].owner());
  return Tensors{y};
});

struct Fixture {
  Model model;
  Step* step;
  Fixture() {
    model.name = "m";
    model.dims["T"] = 8;
    model.dims["S"] = 4;
    model.steps.push_back(std::make_unique<Step>());
    step = model.steps[0].get();
  }
  Value* Add(const OpDef& op, std::vector<Value*> operands, absl::string_view loc = "here", Block* block = nullptr) {
    auto node = model.AddNode(block == nullptr ? &step->block : block, nullptr, &op, std::move(operands), {}, {}, loc);
    EXPECT_TRUE(node.ok()) << node.status();
    return (*node)->results[0];
  }
};

TensorType F32(Dims shape) { return {DType::kF32, std::move(shape)}; }
Tensor Filled(Shape shape, double value) {
  Tensor t(DType::kF32, std::move(shape));
  for (int64_t i = 0; i < t.size(); ++i) t.SetFloat(i, value);
  return t;
}
const Dim kT = Dim::Symbol("T");
const Dim kS = Dim::Symbol("S");

TEST(EvaluatorTest, RunsPrepareOnceAndStepsByName) {
  Fixture f;
  Value* w = f.model.AddWeight("@w", F32({2}), "");
  f.model.data["@w"] = Filled({2}, 5);
  Value* prepared = f.Add(kInc, {f.Add(kInc, {w}, "", &f.model.prepare)}, "", &f.model.prepare);
  Value* read = f.Add(kInc, {f.Add(kInc, {w}, "", &f.model.prepare)}, "", &f.model.prepare);  // by a step's node only
  Value* x = f.model.AddParam(f.step, "%x", F32({kT}));
  f.step->outputs = {{"y", f.Add(kInc, {f.Add(kInc, {x})})}, {"w+2", prepared}, {"x", x}, {"w+3", f.Add(kInc, {read})}};
  auto evaluator = Evaluator::Create(&f.model);
  ASSERT_TRUE(evaluator.ok()) << evaluator.status();
  for (int64_t t : {3, 8, 0, 3}) {
    auto out = (*evaluator)->Run(*f.step, {{"x", Filled({t}, 1)}});
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ(out->at("y"), Filled({t}, 3));
    EXPECT_EQ(out->at("x"), Filled({t}, 1));
    EXPECT_EQ(out->at("w+2"), Filled({2}, 7));
    EXPECT_EQ(out->at("w+3"), Filled({2}, 8));
  }
}

TEST(EvaluatorTest, FreesTensorsAfterTheirLastUse) {
  Fixture f;
  Value* v = f.model.AddParam(f.step, "%x", F32({kT}));
  v = f.Add(kInc, {v});
  for (int i = 0; i < 6; ++i) v = f.Add(kWatch, {v});
  f.step->outputs = {{"y", v}};
  auto evaluator = Evaluator::Create(&f.model);
  ASSERT_TRUE(evaluator.ok());
  std::vector<std::weak_ptr<const char>> watched;
  g_watched = &watched;
  auto out = (*evaluator)->Run(*f.step, {{"x", Filled({3}, 1)}});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->at("y"), Filled({3}, 8));
  EXPECT_EQ(watched.size(), 6u);
}

TEST(EvaluatorTest, ChecksInputs) {
  Fixture f;
  // An expression before the symbol it needs.
  f.model.AddParam(f.step, "%starts", F32({kS + Dim(1)}));
  Value* x = f.model.AddParam(f.step, "%x", F32({kS, kT, 2}));
  f.step->outputs = {{"y", x}};
  auto evaluator = Evaluator::Create(&f.model);
  ASSERT_TRUE(evaluator.ok());
  const auto run = [&](Shape starts, Tensor x) {
    return (*evaluator)->Run(*f.step, {{"starts", Filled(std::move(starts), 0)}, {"x", std::move(x)}}).status();
  };
  EXPECT_TRUE(run({4}, Filled({3, 8, 2}, 0)).ok());
  EXPECT_THAT(run({3}, Filled({3, 8, 2}, 0)).message(),
              HasSubstr("input \"starts\" must be f32[S + 1], got f32[3]: dim 0 is 3, but S + 1 is 4"));
  EXPECT_THAT(run({4}, Filled({3, 9, 2}, 0)).message(), HasSubstr("T would be 9, but its bound is 8"));
  EXPECT_THAT(run({4}, Filled({3, 8, 3}, 0)).message(), HasSubstr("dim 2 is 3, not 2"));
  EXPECT_THAT(run({4}, Filled({3, 8}, 0)).message(), HasSubstr("it has 2 dims, not 3"));
  EXPECT_THAT(run({4}, Tensor(DType::kF16, {3, 8, 2})).message(), HasSubstr("got f16[3, 8, 2]"));
  EXPECT_THAT((*evaluator)->Run(*f.step, {{"starts", Filled({1}, 0)}}).status().message(),
              HasSubstr("input \"x\" is missing"));
  EXPECT_THAT((*evaluator)
                  ->Run(*f.step, {{"starts", Filled({4}, 0)}, {"x", Filled({3, 1, 2}, 0)}, {"z", Filled({}, 0)}})
                  .status()
                  .message(),
              HasSubstr("there is no input \"z\"; step main takes starts: f32[S + 1], x: f32[S, T, 2]"));
}

TEST(EvaluatorTest, SolvesALinearDimThatNothingElseTells) {
  Fixture f;
  Value* x = f.model.AddParam(f.step, "%x", F32({kT * Dim(2) + Dim(1)}));
  Value* y = f.model.AddParam(f.step, "%y", F32({kT}));
  f.step->params.pop_back();  // T occurs in x only
  (void)y;
  f.step->outputs = {{"y", f.Add(kInc, {x})}};
  auto evaluator = Evaluator::Create(&f.model);
  ASSERT_TRUE(evaluator.ok());
  EXPECT_TRUE((*evaluator)->Run(*f.step, {{"x", Filled({7}, 0)}}).ok());
  EXPECT_THAT((*evaluator)->Run(*f.step, {{"x", Filled({6}, 0)}}).status().message(), HasSubstr("no size of T"));
  EXPECT_THAT((*evaluator)->Run(*f.step, {{"x", Filled({19}, 0)}}).status().message(), HasSubstr("its bound is 8"));
}

TEST(EvaluatorTest, OpErrorsNameTheNodeAndItsPlace) {
  Fixture f;
  Value* x = f.model.AddParam(f.step, "%x", F32({kT}));
  f.step->outputs = {{"y", f.Add(kFail, {x}, "/layer/Gather_3")}};
  auto evaluator = Evaluator::Create(&f.model);
  const absl::Status status = (*evaluator)->Run(*f.step, {{"x", Filled({4}, 0)}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("while running \"%fail = fail %x"));
  EXPECT_THAT(status.message(), HasSubstr("/layer/Gather_3"));
  EXPECT_THAT(status.message(), HasSubstr("index 9 is not below 4"));
}

TEST(EvaluatorTest, AResultOfAnotherShapeIsInternal) {
  Fixture f;
  Value* x = f.model.AddParam(f.step, "%x", F32({kT}));
  f.step->outputs = {{"y", f.Add(kGrow, {x}, "/bad")}};
  auto evaluator = Evaluator::Create(&f.model);
  const absl::Status status = (*evaluator)->Run(*f.step, {{"x", Filled({4}, 0)}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("gave f32[5] for f32[T]: dim 0 is 5, but T is 4"));
  EXPECT_THAT(status.message(), HasSubstr("/bad"));
}

TEST(EvaluatorTest, BindsASymbolAtFirstSight) {
  Fixture f;
  Value* x = f.model.AddParam(f.step, "%x", F32({kT}));
  Value* y = f.Add(kGrow, {x});
  y->type.shape = {f.model.FreshDim("u", 100)};
  Value* z = f.Add(kInc, {y});
  f.step->outputs = {{"z", z}};
  auto evaluator = Evaluator::Create(&f.model);
  auto out = (*evaluator)->Run(*f.step, {{"x", Filled({4}, 0)}});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->at("z").shape(), (Shape{5}));
  z->type.shape = {kT};  // now grow's symbol stays, inc's is wrong
  evaluator = Evaluator::Create(&f.model);
  EXPECT_EQ((*evaluator)->Run(*f.step, {{"x", Filled({4}, 0)}}).status().code(), absl::StatusCode::kInternal);
}

TEST(EvaluatorTest, MemoryThatCannotBeHadIsAnError) {
  Fixture f;
  Value* x = f.model.AddParam(f.step, "%x", F32({kT}));
  f.step->outputs = {{"y", f.Add(kHuge, {x})}};
  auto evaluator = Evaluator::Create(&f.model);
  EXPECT_EQ((*evaluator)->Run(*f.step, {{"x", Filled({4}, 0)}}).status().code(), absl::StatusCode::kResourceExhausted);

  Fixture g;
  g.model.dims["T"] = int64_t{1} << 40;
  Value* p = g.model.AddParam(g.step, "%p", F32({kT}));
  Value* q = g.Add(kHuge, {p});
  q->type.shape = {kT, kT};
  g.step->outputs = {{"q", q}};
  evaluator = Evaluator::Create(&g.model);
  // An empty view: only its shape counts.
  Tensor view(DType::kF32, {int64_t{1} << 40}, nullptr);
  EXPECT_THAT((*evaluator)->Run(*g.step, {{"p", view}}).status().message(), HasSubstr("is too large"));
}

StateType PerSequence(const Dim& count) { return {StateKind::kPerSequence, count, 0, {{"x", F32({2})}}}; }

// What the state holds, without what fills its records up.
Tensor StateOf(Evaluator& evaluator) {
  const StateType type = PerSequence(Dim::Symbol("N"));
  return ComponentView(type, type.components[0], *evaluator.FindState("@s")).Contents();
}

TEST(EvaluatorTest, StatesOutliveSteps) {
  Fixture f;
  f.model.dims["N"] = 10;
  const Dim n = Dim::Symbol("N");
  Value* state = f.model.AddState("@s", PerSequence(n));
  Value* x = f.model.AddParam(f.step, "%x", F32({n, 2}));
  f.step->outputs = {{"y", f.Add(kAccumulate, {state, x})}};
  auto evaluator = Evaluator::Create(&f.model);
  ASSERT_TRUE(evaluator.ok());
  EXPECT_EQ((*evaluator)->Run(*f.step, {{"x", Filled({3, 2}, 1)}}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*evaluator)->FindState("@s"), nullptr);
  EXPECT_THAT((*evaluator)->AllocateStates({}).message(), HasSubstr("state @s"));
  EXPECT_THAT((*evaluator)->AllocateStates({{"N", 11}}).message(), HasSubstr("bound is 10"));
  ASSERT_TRUE((*evaluator)->AllocateStates({{"N", 3}}).ok());
  EXPECT_EQ(StateOf(**evaluator), Filled({3, 1, 1, 2}, 0));
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE((*evaluator)->Run(*f.step, {{"x", Filled({3, 2}, 2)}}).ok());
    EXPECT_EQ(StateOf(**evaluator), Filled({3, 1, 1, 2}, 2 * i));
  }
  EXPECT_THAT((*evaluator)->Run(*f.step, {{"x", Filled({4, 2}, 1)}}).status().message(),
              HasSubstr("dim 0 is 4, but N is 3"));
}

TEST(EvaluatorTest, WeightsMustHaveDataOfTheirType) {
  Fixture f;
  f.model.AddWeight("@w", F32({2}), "model.safetensors#w");
  EXPECT_THAT(Evaluator::Create(&f.model).status().message(), HasSubstr("model.safetensors#w"));
  f.model.data["@w"] = Filled({3}, 0);
  EXPECT_THAT(Evaluator::Create(&f.model).status().message(), HasSubstr("declared f32[2], its data is f32[3]"));
}

TEST(EvalNodeTest, RunsOneNode) {
  Fixture f;
  Value* x = f.model.AddParam(f.step, "%x", F32({kT}));
  Value* y = f.Add(kInc, {x});
  Value* bad = f.Add(kGrow, {x});
  Value* state = f.model.AddState("@s", PerSequence(kT));
  Value* write = f.Add(kAccumulate, {state, x});
  const Tensor two = Filled({2}, 2);
  const Tensor* operands[] = {&two};
  auto results = EvalNode(*y->def, operands, {{"T", 2}});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_EQ((*results)[0], Filled({2}, 3));
  EXPECT_EQ(EvalNode(*y->def, operands, {{"T", 3}}).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(EvalNode(*bad->def, operands, {{"T", 2}}).status().code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(EvalNode(*write->def, operands, {{"T", 2}}).ok());
}

}  // namespace
}  // namespace llmc
