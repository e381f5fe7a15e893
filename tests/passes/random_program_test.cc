// Random programs keep their numbers through every pass.
#include <gtest/gtest.h>

#include <random>

#include "ir/ops.h"
#include "ir/text.h"
#include "passes/driver/numerics.h"
#include "passes/lower/lower.h"
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
    const NamedTensors inputs = SmallInputs(**model, seed).value();
    NamedTensors before = EvaluateSmall(**model, inputs).value();
    for (const Pass& pass : Pipeline()) {
      const std::string number = std::to_string(&pass - Pipeline().data() + 1);
      const absl::Status status =
          RunPipeline(model->get(), {.from = number, .stop_after = number, .check_numerics = true}, &ledger);
      ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status << "\n" << program;
      absl::StatusOr<NamedTensors> after = EvaluateSmall(**model, inputs);
      ASSERT_TRUE(after.ok()) << after.status();
      const absl::Status same = CompareResults(before, *after, DType::kF32);
      ASSERT_TRUE(same.ok()) << "seed " << seed << ", pass " << number << ": " << same << "\n"
                             << program << PrintModel(**model);
    }
  }
  // The programs do hold what the rules look for.
  for (const char* rule : {"merge-gate-up", "remove-identity", "remove-add-zero", "remove-mul-one", "merge-reshapes",
                           "merge-transposes", "merge-casts", "remove-double-neg", "remove-where-true",
                           "remove-where-false", "fold-reshape-to", "transpose-into-matmul"}) {
    EXPECT_GT(ledger.CountFired(rule), 0) << rule;
  }
}

// Takes whatever fits in so many nodes, and gives any number of results.
Backend GreedyBackend(std::string name, size_t most, bool is_root) {
  return {.name = std::move(name),
          .begins = {AllOpDefs().begin(), AllOpDefs().end()},
          .is_root = is_root,
          .misfit = [most](const KernelBody& body) -> std::optional<Misfit> {
            if (body.nodes.size() <= most) return std::nullopt;
            return Misfit{"more nodes", "fewer"};
          },
          .microseconds = [](const KernelBody&) { return 1.0; }};
}

// Kernels of any shape, whose order has to be found.
TEST(RandomPrograms, KeepTheirNumbersInKernels) {
  Ledger ledger;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    absl::StatusOr<std::unique_ptr<Model>> model = Generator(seed).Build(4 + seed % 30);
    ASSERT_TRUE(model.ok()) << model.status();
    ASSERT_TRUE(FillRandomWeights(model->get(), seed).ok());
    ASSERT_TRUE(RunPipeline(model->get(), {}, nullptr).ok());
    const NamedTensors inputs = SmallInputs(**model, seed).value();
    const NamedTensors before = EvaluateSmall(**model, inputs).value();
    for (const bool is_root : {false, true}) {
      for (const size_t most : {2, 5, 40}) {
        const absl::StatusOr<LoweredStep> lowered =
            LowerStep(**model, *(*model)->steps[0], {GreedyBackend("any", most, is_root)}, {});
        ASSERT_TRUE(lowered.ok()) << lowered.status();
        ASSERT_TRUE(Verify(*lowered->model, Phase::kFused).ok()) << Verify(*lowered->model, Phase::kFused);
        ASSERT_TRUE(CheckKernels(*lowered->step, /*all=*/true).ok()) << PrintModel(*lowered->model);
        ledger.Merge(lowered->ledger);
        lowered->model->data = (*model)->data;
        const absl::StatusOr<NamedTensors> after = EvaluateSmall(*lowered->model, inputs);
        ASSERT_TRUE(after.ok()) << after.status();
        const absl::Status same = CompareResults(before, *after);
        ASSERT_TRUE(same.ok()) << "seed " << seed << ": " << same << "\n" << PrintModel(*lowered->model);
      }
    }
  }
  for (const char* rule : {"absorb-add", "absorb-gate", "absorb-norm", "absorb-sum", "absorb-elementwise"}) {
    EXPECT_GT(ledger.CountFired(rule), 0) << rule;
  }
}

// Programs over the small integers that shapes are computed with: what is known of them by name must be what they are.
class ShapeGenerator {
 public:
  explicit ShapeGenerator(uint32_t seed) : rng_(seed), model_(std::make_unique<Model>()) {
    model_->name = "shapes";
    model_->steps.push_back(std::make_unique<Step>());
    step_ = model_->steps[0].get();
    builder_ = std::make_unique<Builder>(model_.get(), &step_->block);
    const Dim a = model_->FreshDim("A", 64), b = model_->FreshDim("B", 64);
    values_.push_back(builder_->Add(ShapeOf{.x = model_->AddParam(step_, "%x", {DType::kF32, {a, b}})}));
    scalars_.push_back(model_->AddParam(step_, "%n", {DType::kI64, {}}));
    lengths_.push_back(values_[0]);
    one_ = model_->AddParam(step_, "%one", {DType::kF32, {1}});
  }

  absl::StatusOr<std::unique_ptr<Model>> Build(int ops) {
    for (int i = 0; i < ops; ++i) Next();
    if (!builder_->status().ok()) return builder_->status();
    for (const auto& node : step_->block.nodes) {
      step_->outputs.push_back({node->results[0]->name.substr(1), node->results[0]});
    }
    return std::move(model_);
  }

 private:
  int Roll(int n) { return static_cast<int>(rng_() % n); }
  Value* Of(const std::vector<Value*>& list) { return list[Roll(list.size())]; }
  Value* Number(int64_t number) {
    return builder_->Add(Constant{.value = Tensor::FromValues<int64_t>(DType::kI64, {}, {number})});
  }
  void AddScalar(Value* value) { scalars_.push_back(value); }

  void Next() {
    Value* s = Of(scalars_);
    switch (Roll(9)) {
      case 0:
        return AddScalar(builder_->Add(Gather{.x = Of(values_), .indices = Number(0)}));
      case 1:
        return AddScalar(builder_->Add(Add{.lhs = s, .rhs = Of(scalars_)}));
      case 2:
        return AddScalar(builder_->Add(Mul{.lhs = s, .rhs = Number(Roll(4))}));
      case 3:
        return AddScalar(builder_->Add(Sub{.lhs = s, .rhs = Number(Roll(4))}));
      case 4:
        return AddScalar(builder_->Add(Cast{.x = builder_->Add(Cast{.x = s, .to = DType::kI32}), .to = DType::kI64}));
      case 5:
        return AddScalar(builder_->Add(
            Where{.condition = builder_->Add(Less{.lhs = s, .rhs = Of(scalars_)}), .x = s, .y = Number(Roll(4))}));
      case 6: {
        Value* range = builder_->Add(Range{.start = Number(Roll(2)), .limit = s, .delta = Number(1)});
        lengths_.push_back(builder_->Add(ShapeOf{.x = range}));
        values_.push_back(lengths_.back());
        return;
      }
      case 7: {
        Value* row = builder_->Add(Concat{.parts = {Of(lengths_), Of(lengths_)}, .axis = 0});
        values_.push_back(row);
        return;
      }
      default: {
        Value* expanded = builder_->Add(ExpandTo{.x = one_, .shape = Of(lengths_)});
        values_.push_back(builder_->Add(ShapeOf{.x = expanded}));
        return;
      }
    }
  }

  std::mt19937 rng_;
  std::unique_ptr<Model> model_;
  Step* step_;
  std::unique_ptr<Builder> builder_;
  std::vector<Value*> scalars_;
  std::vector<Value*> values_;   // vectors of one element or more
  std::vector<Value*> lengths_;  // those that can be a shape
  Value* one_;
};

// What the model says of its results, against what they were.
void ExpectContents(const Model& model, const NamedTensors& results) {
  DimEnv dims = SmallDims(model);
  std::erase_if(dims, [](const auto& item) { return item.first != "A" && item.first != "B"; });
  for (const Output& output : model.steps[0]->outputs) {
    const Tensor& tensor = results.at("main/" + output.name);
    const Dims& shape = output.value->type.shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d].is_symbol()) dims[shape[d].Symbols()[0]] = tensor.shape()[d];
    }
    if (!output.value->contents.has_value()) continue;
    ASSERT_EQ(static_cast<int64_t>(output.value->contents->size()), tensor.size()) << output.name;
    for (int64_t i = 0; i < tensor.size(); ++i) {
      const Dim& known = (*output.value->contents)[i];
      const absl::StatusOr<int64_t> number = known.Evaluate(dims);
      if (!number.ok()) continue;  // the size of a value that is no output
      EXPECT_EQ(*number, tensor.GetInt(i)) << output.name << " " << known.ToString();
    }
  }
}

TEST(RandomPrograms, KeepTheirShapes) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    absl::StatusOr<std::unique_ptr<Model>> model = ShapeGenerator(seed).Build(3 + seed % 10);
    ASSERT_TRUE(model.ok()) << model.status();
    const std::string program = PrintModel(**model);
    const NamedTensors inputs = SmallInputs(**model, seed).value();
    absl::StatusOr<NamedTensors> before = EvaluateSmall(**model, inputs);
    ASSERT_TRUE(before.ok()) << before.status() << "\n" << program;
    ExpectContents(**model, *before);
    std::vector<Output>& outputs = (*model)->steps[0]->outputs;
    outputs.erase(outputs.begin(), outputs.end() - std::min<size_t>(3, outputs.size()));
    const absl::Status status = RunPipeline(model->get(), {}, nullptr);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status << "\n" << program;
    absl::StatusOr<NamedTensors> after = EvaluateSmall(**model, inputs);
    ASSERT_TRUE(after.ok()) << "seed " << seed << ": " << after.status() << "\n" << program << PrintModel(**model);
    ExpectContents(**model, *after);
    std::erase_if(*before, [&](const auto& item) { return !after->contains(item.first); });
    const absl::Status same = CompareResults(*before, *after);
    ASSERT_TRUE(same.ok()) << "seed " << seed << ": " << same << "\n" << program << PrintModel(**model);
  }
}

}  // namespace
}  // namespace llmc
