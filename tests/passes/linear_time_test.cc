// Passes over 10^5 nodes take seconds. A quadratic step anywhere takes minutes, and fails.
#include <gtest/gtest.h>

#include <ctime>

#include "ir/ops.h"
#include "passes/pipeline.h"

namespace llmc {
namespace {

constexpr int kNodes = 100000;
constexpr double kSeconds = 60;  // of the processor, in a debug build; about a tenth of it is normal

struct Program {
  Model model;
  Step* step;
  Value* x;
  Value* y;
  Value* norm;
  std::unique_ptr<Builder> builder;

  Program() {
    model.name = "large";
    model.steps.push_back(std::make_unique<Step>());
    step = model.steps[0].get();
    const Dim t = model.FreshDim("T", 64);
    x = model.AddParam(step, "%x", {DType::kF32, {t, 8}});
    y = model.AddParam(step, "%y", {DType::kF32, {t, 8}});
    norm = model.AddWeight("@norm", {DType::kF32, {8}}, "m#norm");
    builder = std::make_unique<Builder>(&model, &step->block);
  }
};

void ExpectFast(Program& p, Value* output, int64_t rewrites_wanted) {
  ASSERT_TRUE(p.builder->status().ok()) << p.builder->status();
  p.step->outputs.push_back({"out", output});
  const std::clock_t start = std::clock();
  Ledger ledger;
  const absl::Status status = RunPipeline(&p.model, {}, &ledger);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(status.ok()) << status;
  int64_t fired = 0;
  for (const auto& [rule, count] : ledger.FiredCounts()) fired += count;
  EXPECT_GE(fired, rewrites_wanted);
  EXPECT_LT(seconds, kSeconds);
  testing::Test::RecordProperty("milliseconds", static_cast<int>(seconds * 1e3));
}

TEST(LinearTime, ManyRewrites) {
  Program p;
  Value* x = p.x;
  for (int i = 0; i < kNodes / 5; ++i) {
    x = p.builder->Add(Add{.lhs = x, .rhs = p.y});
    x = p.builder->Add(RmsNorm{.x = x, .weight = p.norm});
    x = p.builder->Add(Neg{.x = p.builder->Add(Identity{.x = x})});
    x = p.builder->Add(Tanh{.x = x});
  }
  ExpectFast(p, x, kNodes / 5 * 2);
}

TEST(LinearTime, ChainsThatCollapse) {
  Program p;
  Value* x = p.x;
  for (int i = 0; i < kNodes; ++i) x = p.builder->Add(Transpose{.x = x, .perm = {1, 0}});
  ExpectFast(p, x, kNodes / 2);
}

// One value with many users, each of which could be part of a match.
TEST(LinearTime, ManyUsersOfOneValue) {
  Program p;
  Value* gate = p.model.AddWeight("@gate", {DType::kF32, {8, 8}}, "m#gate");
  std::vector<Value*> parts;
  for (int i = 0; i < kNodes / 4; ++i) {
    Value* up = p.model.AddWeight("@up", {DType::kF32, {8, 8}}, "m#up");
    Value* a = p.builder->Add(Silu{.x = p.builder->Add(MatMul{.lhs = p.x, .rhs = gate, .transpose_rhs = true})});
    Value* b = p.builder->Add(MatMul{.lhs = p.x, .rhs = up, .transpose_rhs = true});
    parts.push_back(p.builder->Add(Mul{.lhs = a, .rhs = b}));
  }
  ExpectFast(p, p.builder->Add(Concat{.parts = parts, .axis = 1}), 0);
}

// Equal ops of one value: all but the first leave its list of users.
TEST(LinearTime, ManyEqualOps) {
  Program p;
  std::vector<Value*> parts;
  for (int i = 0; i < kNodes; ++i) parts.push_back(p.builder->Add(Neg{.x = p.x}));
  ExpectFast(p, p.builder->Add(Concat{.parts = parts, .axis = 1}), kNodes - 1);
}

// Attention with one causal mask of them all: it is proven for each, and dies with the last.
TEST(LinearTime, ManyAttentions) {
  Program p;
  const Dim b = p.model.FreshDim("B", 64), length = p.model.FreshDim("L", 64);
  Value* x = p.model.AddParam(p.step, "%q", {DType::kF32, {b, 2, length, 8}});
  const auto number = [&](int64_t value) {
    return p.builder->Add(Constant{.value = Tensor::FromValues<int64_t>(DType::kI64, {}, {value})});
  };
  Value* end = p.builder->Add(DimsOf{.values = {length}, .scalar = true});
  Value* keys = p.builder->Add(Range{.start = number(0), .limit = end, .delta = number(1)});
  Value* queries = p.builder->Add(Reshape{.x = keys, .shape = {length, 1}});
  Value* see = p.builder->Add(Constant{.value = Tensor::FromValues<double>(DType::kF32, {}, {0})});
  Value* hide = p.builder->Add(Constant{.value = Tensor::FromValues<double>(DType::kF32, {}, {-3.4e38})});
  Value* mask =
      p.builder->Add(Where{.condition = p.builder->Add(LessEqual{.lhs = keys, .rhs = queries}), .x = see, .y = hide});
  for (int i = 0; i < kNodes / 5; ++i) {
    Value* scores = p.builder->Add(MatMul{.lhs = x, .rhs = x, .transpose_rhs = true});
    Value* weights = p.builder->Add(Softmax{.x = p.builder->Add(Add{.lhs = scores, .rhs = mask}), .axis = 3});
    x = p.builder->Add(Tanh{.x = p.builder->Add(MatMul{.lhs = weights, .rhs = x})});
  }
  ExpectFast(p, x, kNodes / 5 * 2);
}

TEST(LinearTime, ManyDeadOps) {
  Program p;
  for (int i = 0; i < kNodes; ++i) p.builder->Add(Add{.lhs = p.x, .rhs = p.y});
  ExpectFast(p, p.builder->Add(Neg{.x = p.x}), 0);
}

}  // namespace
}  // namespace llmc
