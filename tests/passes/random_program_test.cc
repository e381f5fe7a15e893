// Random programs keep their numbers through every pass.
#include <gtest/gtest.h>

#include <random>

#include "ir/ops.h"
#include "ir/text.h"
#include "passes/numerics.h"
#include "passes/pipeline.h"

namespace llmc {
namespace {

// Programs over f32[T, 8] values, with what the passes look for put in often: constants of 0 and 1, movement ops that
// undo each other, shapes computed at run time, gated products, sums before norms, equal ops.
class Generator {
 public:
  explicit Generator(uint32_t seed) : rng_(seed), model_(std::make_unique<Model>()) {
    model_->name = "random";
    model_->steps.push_back(std::make_unique<Step>());
    step_ = model_->steps[0].get();
    builder_ = std::make_unique<Builder>(model_.get(), &step_->block);
    const Dim t = model_->FreshDim("T", 64);
    for (const char* name : {"%x", "%y"}) values_.push_back(model_->AddParam(step_, name, {DType::kF32, {t, 8}}));
    for (int i = 0; i < 6; ++i) {
      weights_.push_back(model_->AddWeight("@l0.w" + std::to_string(i), {DType::kF32, {8, 8}}, "m#w"));
    }
    norm_ = model_->AddWeight("@l0.norm", {DType::kF32, {8}}, "m#norm");
  }

  absl::StatusOr<std::unique_ptr<Model>> Build(int ops) {
    for (int i = 0; i < ops; ++i) values_.push_back(Next());
    if (!builder_->status().ok()) return builder_->status();
    for (int i = 0; i < 3; ++i) step_->outputs.push_back({"out" + std::to_string(i), i == 0 ? values_.back() : Any()});
    return std::move(model_);
  }

 private:
  int Roll(int n) { return static_cast<int>(rng_() % n); }
  Value* Any() {
    const int recent = std::min<int>(values_.size(), 6);
    return values_[values_.size() - 1 - Roll(recent)];
  }
  Value* Number(double number) {
    return builder_->Add(Constant{.value = Tensor::FromValues<double>(DType::kF32, {}, {number})});
  }
  Value* Linear(Value* x) {
    return builder_->Add(MatMul{.lhs = x, .rhs = weights_[Roll(weights_.size())], .transpose_rhs = true});
  }
  Value* Norm(Value* x) { return builder_->Add(RmsNorm{.x = x, .weight = norm_, .eps = Roll(2) == 0 ? 1e-5 : 1e-3}); }

  // The way there and back.
  Value* Movement(Value* x) {
    const Dims there = {x->type.shape[0] * Dim(2), 4};
    switch (Roll(4)) {
      case 0:
        return builder_->Add(Reshape{.x = builder_->Add(Reshape{.x = x, .shape = there}), .shape = x->type.shape});
      case 1:
        return builder_->Add(Transpose{.x = builder_->Add(Transpose{.x = x, .perm = {1, 0}}), .perm = {1, 0}});
      case 2:
        return builder_->Add(Concat{.parts = {builder_->Add(Slice{.x = x, .axis = 1, .start = {4}, .end = {8}}),
                                              builder_->Add(Slice{.x = x, .axis = 1, .start = {0}, .end = {4}})},
                                    .axis = 1});
      default: {  // through a shape that an i64 tensor holds
        Value* shape = builder_->Add(ShapeOf{.x = x});
        Value* flat = builder_->Add(Constant{.value = Tensor::FromValues<int64_t>(DType::kI64, {1}, {-1})});
        return builder_->Add(ReshapeTo{.x = builder_->Add(ReshapeTo{.x = x, .shape = flat}), .shape = shape});
      }
    }
  }

  Value* Next() {
    Value* x = Any();
    switch (Roll(14)) {
      case 0:
        return builder_->Add(Identity{.x = x});
      case 1:
        return builder_->Add(Add{.lhs = x, .rhs = Number(0)});
      case 2:
        return builder_->Add(Mul{.lhs = Number(1), .rhs = x});
      case 3:
        return Movement(x);
      case 4:
        return Norm(builder_->Add(Add{.lhs = x, .rhs = Any()}));
      case 5:
        return builder_->Add(Mul{.lhs = builder_->Add(Silu{.x = Linear(x)}), .rhs = Linear(x)});
      case 6:
        return builder_->Add(Cast{.x = builder_->Add(Cast{.x = x, .to = DType::kF64}), .to = DType::kF32});
      case 7:
        return builder_->Add(Neg{.x = builder_->Add(Neg{.x = x})});
      case 8:
        return builder_->Add(
            Where{.condition = builder_->Add(Less{.lhs = Number(1), .rhs = Number(Roll(3))}), .x = x, .y = Any()});
      case 9:
        return Norm(Linear(x));
      case 10:
        return builder_->Add(Tanh{.x = builder_->Add(Sub{.lhs = x, .rhs = Any()})});
      case 11:
        return builder_->Add(Mul{.lhs = builder_->Add(Add{.lhs = Number(0.5), .rhs = Number(0.25)}), .rhs = x});
      case 12:
        return builder_->Add(
            MatMul{.lhs = x, .rhs = builder_->Add(Transpose{.x = weights_[Roll(weights_.size())], .perm = {1, 0}})});
      default:
        return builder_->Add(Add{.lhs = x, .rhs = Any()});
    }
  }

  std::mt19937 rng_;
  std::unique_ptr<Model> model_;
  Step* step_;
  std::unique_ptr<Builder> builder_;
  std::vector<Value*> values_, weights_;
  Value* norm_;
};

TEST(RandomPrograms, KeepTheirNumbersThroughEveryPass) {
  Ledger ledger;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    absl::StatusOr<std::unique_ptr<Model>> model = Generator(seed).Build(4 + seed % 30);
    ASSERT_TRUE(model.ok()) << model.status();
    ASSERT_TRUE(FillRandomWeights(model->get(), seed).ok());
    const std::string program = PrintModel(**model);
    NamedTensors before = EvaluateSmall(**model, seed).value();
    for (const Pass& pass : Pipeline()) {
      const std::string number = std::to_string(&pass - Pipeline().data() + 1);
      const absl::Status status =
          RunPipeline(model->get(), {.from = number, .stop_after = number, .check_numerics = true}, &ledger);
      ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status << "\n" << program;
      absl::StatusOr<NamedTensors> after = EvaluateSmall(**model, seed);
      ASSERT_TRUE(after.ok()) << after.status();
      const absl::Status same = CompareResults(before, *after);
      ASSERT_TRUE(same.ok()) << "seed " << seed << ", pass " << number << ": " << same << "\n"
                             << program << PrintModel(**model);
    }
  }
  // The programs do hold what the rules look for.
  for (const char* rule : {"fuse-add-rms-norm", "merge-gate-up", "remove-identity", "remove-add-zero", "remove-mul-one",
                           "merge-reshapes", "merge-transposes", "merge-casts", "remove-double-neg",
                           "remove-where-true", "remove-where-false", "fold-reshape-to", "transpose-into-matmul"}) {
    EXPECT_GT(ledger.CountFired(rule), 0) << rule;
  }
}

}  // namespace
}  // namespace llmc
