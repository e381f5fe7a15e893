// The time of all passes grows with the number of nodes, not with its square.
#include <gtest/gtest.h>

#include <functional>

#include "ir/ops.h"
#include "passes/lower/lower.h"
#include "passes/pipeline.h"
#include "tests/growth.h"

namespace llmc {
namespace {

constexpr int kSizes[] = {5000, 10000, 20000, 40000};  // nodes

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

// Seconds of the processor for all passes over a program of about `nodes` nodes.
double SecondsOf(const std::function<Value*(Program&, int)>& make, int nodes, double rewrites_wanted) {
  Program p;
  Value* output = make(p, nodes);
  EXPECT_TRUE(p.builder->status().ok()) << p.builder->status();
  p.step->outputs.push_back({"out", output});
  const double start = ProcessorSeconds();
  Ledger ledger;
  const absl::Status status = RunPipeline(&p.model, {}, &ledger);
  const double seconds = ProcessorSeconds() - start;
  EXPECT_TRUE(status.ok()) << status;
  int64_t fired = 0;
  for (const auto& [rule, count] : ledger.FiredCounts()) fired += count;
  EXPECT_GE(static_cast<double>(fired), rewrites_wanted * nodes - 1);
  return seconds;
}

// `rewrites_wanted` for each node.
void ExpectLinear(double rewrites_wanted, const std::function<Value*(Program&, int)>& make) {
  std::vector<std::pair<double, double>> points;
  for (const int nodes : kSizes) points.emplace_back(nodes, SecondsOf(make, nodes, rewrites_wanted));
  EXPECT_LT(GrowthExponent(points), kMostGrowth) << testing::PrintToString(points);
}

TEST(LinearTime, AQuadraticStepShows) {
  std::vector<std::pair<double, double>> linear, quadratic, both;
  for (const double n : kSizes) {
    linear.emplace_back(n, 1e-4 * n);
    quadratic.emplace_back(n, 1e-8 * n * n);
    both.emplace_back(n, 5e-5 * n + 1e-8 * n * n);
  }
  EXPECT_NEAR(GrowthExponent(linear), 1, 1e-9);
  EXPECT_NEAR(GrowthExponent(quadratic), 2, 1e-9);
  EXPECT_GT(GrowthExponent(both), kMostGrowth);
}

TEST(LinearTime, ManyRewrites) {
  ExpectLinear(0.2, [](Program& p, int nodes) -> Value* {
    Value* x = p.x;
    for (int i = 0; i < nodes / 5; ++i) {
      x = p.builder->Add(Add{.lhs = x, .rhs = p.y});
      x = p.builder->Add(RmsNorm{.x = x, .weight = p.norm});
      x = p.builder->Add(Neg{.x = p.builder->Add(Identity{.x = x})});
      x = p.builder->Add(Tanh{.x = x});
    }
    return x;
  });
}

// Kernels of up to 8 nodes, whose results others read too.
TEST(LinearTime, ManyKernels) {
  std::vector<std::pair<double, double>> points;
  for (const int nodes : kSizes) {
    Program p;
    Value* x = p.x;
    for (int i = 0; i < nodes / 4; ++i) {
      Value* sum = p.builder->Add(Add{.lhs = x, .rhs = p.y});
      Value* norm = p.builder->Add(RmsNorm{.x = sum, .weight = p.norm});
      x = p.builder->Add(Add{.lhs = sum, .rhs = p.builder->Add(Tanh{.x = norm})});
    }
    p.step->outputs.push_back({"out", x});
    Backend backend = {.name = "any",
                       .begins = {AllOpDefs().begin(), AllOpDefs().end()},
                       .misfit = [](const KernelBody& body) -> std::optional<Misfit> {
                         if (body.nodes.size() <= 8) return std::nullopt;
                         return Misfit{"more nodes", "at most 8"};
                       }};
    const double start = ProcessorSeconds();
    const absl::StatusOr<LoweredStep> lowered = LowerStep(p.model, *p.step, {backend}, {});
    points.emplace_back(nodes, ProcessorSeconds() - start);
    ASSERT_TRUE(lowered.ok()) << lowered.status();
    EXPECT_LT(lowered->step->kernels.size(), nodes / 3);
  }
  EXPECT_LT(GrowthExponent(points), kMostGrowth) << testing::PrintToString(points);
}

TEST(LinearTime, ChainsThatCollapse) {
  ExpectLinear(0.5, [](Program& p, int nodes) -> Value* {
    Value* x = p.x;
    for (int i = 0; i < nodes; ++i) x = p.builder->Add(Transpose{.x = x, .perm = {1, 0}});
    return x;
  });
}

// One value with many users, each of which could be part of a match.
TEST(LinearTime, ManyUsersOfOneValue) {
  ExpectLinear(0, [](Program& p, int nodes) -> Value* {
    Value* gate = p.model.AddWeight("@gate", {DType::kF32, {8, 8}}, "m#gate");
    std::vector<Value*> parts;
    for (int i = 0; i < nodes / 4; ++i) {
      Value* up = p.model.AddWeight("@up", {DType::kF32, {8, 8}}, "m#up");
      Value* a = p.builder->Add(Silu{.x = p.builder->Add(MatMul{.lhs = p.x, .rhs = gate, .transpose_rhs = true})});
      Value* b = p.builder->Add(MatMul{.lhs = p.x, .rhs = up, .transpose_rhs = true});
      parts.push_back(p.builder->Add(Mul{.lhs = a, .rhs = b}));
    }
    return p.builder->Add(Concat{.parts = parts, .axis = 1});
  });
}

// Equal ops of one value: all but the first leave its list of users.
TEST(LinearTime, ManyEqualOps) {
  ExpectLinear(1, [](Program& p, int nodes) -> Value* {
    std::vector<Value*> parts;
    for (int i = 0; i < nodes; ++i) parts.push_back(p.builder->Add(Neg{.x = p.x}));
    return p.builder->Add(Concat{.parts = parts, .axis = 1});
  });
}

// Attention with one causal mask of them all: it is proven for each, and dies with the last.
TEST(LinearTime, ManyAttentions) {
  ExpectLinear(0.4, [](Program& p, int nodes) -> Value* {
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
    for (int i = 0; i < nodes / 5; ++i) {
      Value* scores = p.builder->Add(MatMul{.lhs = x, .rhs = x, .transpose_rhs = true});
      Value* weights = p.builder->Add(Softmax{.x = p.builder->Add(Add{.lhs = scores, .rhs = mask}), .axis = 3});
      x = p.builder->Add(Tanh{.x = p.builder->Add(MatMul{.lhs = weights, .rhs = x})});
    }
    return x;
  });
}

TEST(LinearTime, ManyDeadOps) {
  ExpectLinear(0, [](Program& p, int nodes) -> Value* {
    for (int i = 0; i < nodes; ++i) p.builder->Add(Add{.lhs = p.x, .rhs = p.y});
    return p.builder->Add(Neg{.x = p.x});
  });
}

}  // namespace
}  // namespace llmc
