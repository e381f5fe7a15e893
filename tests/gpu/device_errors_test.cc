// Data that has no result ends a run on a GPU in the error that the evaluator gives, and harms no other run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "codegen/plan_writer.h"
#include "ir/text.h"
#include "runtime/device/cuda_executor.h"
#include "runtime/device/cuda_run.h"
#include "runtime/engine/engine.h"
#include "runtime/host/host_tensors.h"
#include "runtime/plan/step_programs.h"
#include "tests/gpu/device_check.h"
#include "tests/runtime/plan_bytes.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A model on the GPU and in the evaluator.
class Both {
 public:
  explicit Both(const std::string& text) : model_(*ParseModel(text, "m.lir")) {
    evaluator_ = *Evaluator::Create(model_.get());
    const std::string path = absl::StrCat(TempFolder(), "/device_errors.bin");
    const absl::Status written = WritePlan(*model_, {.compiler_version = "test", .targets = {TargetHere()}}, path);
    EXPECT_TRUE(written.ok()) << written;
    plan_ = *Plan::Load(path);
    run_ = *CudaRun::Create(plan_.get());
  }
  absl::Status RunHost(const NamedTensors& inputs) { return evaluator_->Run(*model_->steps.front(), inputs).status(); }
  absl::Status RunDevice(const NamedTensors& inputs) {
    NamedHostTensors host_inputs;
    for (const auto& [name, tensor] : inputs) host_inputs.emplace(name, ToHostTensor(tensor));
    return run_->Run(host_inputs).status();
  }

 private:
  std::unique_ptr<Model> model_;
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<CudaRun> run_;
};

// `what` on both with `bad`, nothing with `good`, in any order.
void ExpectDeviceError(Both* both, const NamedTensors& good, const NamedTensors& bad, const std::string& what,
                       const std::string& line) {
  SCOPED_TRACE(line);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(both->RunHost(good).ok()) << both->RunHost(good);
    const absl::Status fine = both->RunDevice(good);
    EXPECT_TRUE(fine.ok()) << fine;
    EXPECT_THAT(std::string(both->RunHost(bad).message()), HasSubstr(what));
    const absl::Status status = both->RunDevice(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), AllOf(StartsWith(what), HasSubstr(absl::StrCat("\n  at: ", line, " "))));
  }
}

Tensor Indices(DType dtype, Shape shape, const std::vector<int64_t>& values) {
  return Tensor::FromValues(dtype, std::move(shape), values);
}

// With another element at a flat index of an input; tensors share their bytes, so that it needs its own.
NamedTensors With(NamedTensors inputs, const std::string& name, int64_t at, int64_t value) {
  Tensor& tensor = inputs.at(name);
  tensor = IsFloat(tensor.dtype()) ? Tensor::FromValues(tensor.dtype(), tensor.shape(), tensor.ToDoubles())
                                   : Tensor::FromValues(tensor.dtype(), tensor.shape(), tensor.ToInts());
  tensor.SetInt(at, value);
  return inputs;
}

TEST(DataDeviceErrors, Indices) {
  LLMC_NEEDS_GPU();
  for (const DType dtype : {DType::kI32, DType::kI64}) {
    // `indices` are right until the one at `place` is wrong.
    const auto check = [&](const std::string& op, const std::string& params, const Tensor& indices, int64_t place) {
      const std::string line = absl::StrCat("%y = ", op);
      Both both(absl::StrCat("model m\nstep main(%x: bf16[3, 5, 24], %i: ", DTypeName(dtype),
                             ShapeToString(indices.shape()), params, ") {\n  ", line, "\n  return \"y\" = %y\n}\n"));
      NamedTensors good = {{"x", RandomFloats(DType::kBF16, {3, 5, 24}, 1)}, {"i", indices}};
      if (!params.empty()) good["u"] = RandomFloats(DType::kBF16, {2, 24}, 3);
      for (const int64_t wrong : {5, -6, 2000000000}) {
        const std::string what = absl::StrCat(": index ", wrong, " is not in an axis of 5");
        ExpectDeviceError(&both, good, With(good, "i", place, wrong), absl::StrCat(op.substr(0, op.find(' ')), what),
                          line);
      }
    };
    check("gather %x, %i {axis = 1}", "", Indices(dtype, {2, 2}, {0, 4, -5, -1}), 2);
    std::vector<int64_t> elements(3 * 2 * 24);
    for (size_t e = 0; e < elements.size(); ++e) elements[e] = static_cast<int64_t>(e % 10) - 5;
    check("gather_elements %x, %i {axis = 1}", "", Indices(dtype, {3, 2, 24}, elements), 77);
    check("gather_nd %x, %i", "", Indices(dtype, {2, 2}, {-3, 4, 2, -5}), 3);
    check("scatter_nd %x, %i, %u", ", %u: bf16[2, 24]", Indices(dtype, {2, 2}, {-3, 4, 2, -5}), 1);
  }
}

// On tensor cores and without.
TEST(DataDeviceErrors, StartsOfPackedTexts) {
  LLMC_NEEDS_GPU();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string line = "%y = packed_attention %x, %x, %x, %starts {head_dim = 8}";
    Both both(absl::StrCat("model m\nstep main(%x: ", DTypeName(dtype), "[300, 16], %starts: i32[5]) {\n  ", line,
                           "\n  return \"y\" = %y\n}\n"));
    const NamedTensors good = {{"x", RandomFloats(dtype, {300, 16}, 1)},
                               {"starts", Ints(DType::kI32, {0, 150, 150, 299, 300})}};
    const std::vector<int64_t> all_bad[] = {{1, 150, 150, 299, 300},
                                            {0, 150, 150, 299, 299},
                                            {0, 150, 140, 299, 300},
                                            {0, -2000000000, 150, 2000000000, 300},
                                            {0, 150, 150, 299, 2000000000}};
    for (const std::vector<int64_t>& starts : all_bad) {
      NamedTensors bad = good;
      bad["starts"] = Ints(DType::kI32, starts);
      ExpectDeviceError(&both, good, bad, "packed_attention: starts are not in order from 0 to 300", line);
    }
  }
}

TEST(DataDeviceErrors, AnAxisThatIsEmptyHasNoIndex) {
  LLMC_NEEDS_GPU();
  Both both(R"(model m
dim N <= 8
step main(%x: f32[N, 4], %i: i64[3]) {
  %y = gather %x, %i
  return "y" = %y
}
)");
  const Tensor indices = Indices(DType::kI64, {3}, {0, 0, 0});
  ExpectDeviceError(&both, {{"x", RandomFloats(DType::kF32, {1, 4}, 1)}, {"i", indices}},
                    {{"x", RandomFloats(DType::kF32, {0, 4}, 1)}, {"i", indices}},
                    "gather: index 0 is not in an axis of 0", "%y = gather %x, %i");
}

// Of a group of nodes that are one kernel, the one that has no result is named.
TEST(DataDeviceErrors, Integers) {
  LLMC_NEEDS_GPU();
  for (const DType dtype : {DType::kI64, DType::kI32, DType::kI8, DType::kU8}) {
    Both both(absl::StrReplaceAll(R"(model m
step main(%x: TYPE[40, 33], %a: TYPE[33], %b: TYPE[40, 1], %c: TYPE[]) {
  %three = constant {value = 3} : TYPE[]
  %thirds = div %x, %three
  %d = div %thirds, %a
  %m = mod %d, %b
  %f = fmod %x, %c
  %y = add %m, %f
  return "y" = %y
}
)",
                                  {{"TYPE", DTypeName(dtype)}}));
    const NamedTensors good = {{"x", RandomInts(dtype, {40, 33}, 0, 100, 1)},
                               {"a", RandomInts(dtype, {33}, 1, 9, 2)},
                               {"b", RandomInts(dtype, {40, 1}, 1, 9, 3)},
                               {"c", RandomInts(dtype, {}, 1, 9, 4)}};
    const struct {
      const char *input, *op, *line;
    } cases[] = {
        {"a", "div", "%d = div %thirds, %a"}, {"b", "mod", "%m = mod %d, %b"}, {"c", "fmod", "%f = fmod %x, %c"}};
    for (const auto& c : cases) {
      const NamedTensors bad = With(good, c.input, good.at(c.input).size() - 1, 0);
      ExpectDeviceError(&both, good, bad, absl::StrCat(c.op, ": division of an integer by zero"), c.line);
    }
  }
}

TEST(DataDeviceErrors, Powers) {
  LLMC_NEEDS_GPU();
  Both both(R"(model m
step main(%x: i32[7], %e: i32[7], %f: f32[7]) {
  %y = pow %x, %e
  %z = pow %x, %f
  return "y" = %y, "z" = %z
}
)");
  const NamedTensors good = {{"x", Indices(DType::kI32, {7}, {1, 2, 3, -4, 5, 6, 7})},
                             {"e", Indices(DType::kI32, {7}, {0, 1, 2, 3, 4, -5, -1})},
                             {"f", Indices(DType::kF32, {7}, {0, 1, 2, 3, 4, 2, -1})}};
  ExpectDeviceError(&both, good, With(With(good, "x", 6, 0), "f", 6, 1), "pow: zero to a negative power",
                    "%y = pow %x, %e");
  const NamedTensors bad = With(good, "f", 4, 1000);
  EXPECT_THAT(std::string(both.RunHost(bad).message()), HasSubstr("out of the range of i32"));
  EXPECT_THAT(std::string(both.RunDevice(bad).message()),
              AllOf(StartsWith("pow: an element is out of the range of i32"), HasSubstr("at: %z = pow %x, %f ")));
}

// What `prepare` computes from weights.
TEST(DataDeviceErrors, WeightsEndLoading) {
  LLMC_NEEDS_GPU();
  auto model = *ParseModel(R"(model m
weight @x: f32[5, 4] = "f#x"
weight @i: i64[2] = "f#i"
prepare {
  @y = gather @x, @i
}
step main(%a: f32[2, 4]) {
  %b = add %a, @y
  return "b" = %b
}
)",
                           "m.lir");
  model->data["@x"] = RandomFloats(DType::kF32, {5, 4}, 1);
  model->data["@i"] = Indices(DType::kI64, {2}, {1, 5});
  EXPECT_THAT(std::string(RunOnDevice(*model, {{"a", RandomFloats(DType::kF32, {2, 4}, 2)}}).status().message()),
              StartsWith("gather: index 5 is not in an axis of 5\n  at: @y = gather @x, @i"));
}

// A language model whose embedding has fewer rows than the tokens that it is given.
TEST(DataDeviceErrors, LanguageModelsEndTheStep) {
  LLMC_NEEDS_GPU();
  const std::string path = TempFolder() + "/device_errors-lm.bin";
  const CommandResult compiled =
      RunLlmc({"compile", ShippedModel(), "-o", path, "--dtype=f32", "--target", TargetHere().name});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  const std::string altered = AlteredPlan(ReadFile(path), [](plan::Manifest* m) {
    for (plan::Program& program : *m->mutable_programs()) {
      for (plan::Task& task : *program.mutable_tasks()) {
        if (PartOf(task) != StepPart::kModel) continue;
        for (plan::Arg& arg : *task.mutable_args()) {
          if (arg.dim() == "4096") arg.set_dim("100");
        }
        break;  // the first is the gather of embeddings
      }
    }
  });
  std::ofstream(path, std::ios::binary | std::ios::trunc) << altered;
  const auto plan = *Plan::Load(path);
  auto executor = *CudaExecutor::Create(plan.get(), {.num_pages = 64});
  auto engine = *Engine::Create(executor.get(), nullptr, {.max_tokens_per_step = 512, .max_sequences = 4});
  for (const int32_t id : {99, 100, 7}) {
    absl::Status ended;
    const auto added = engine->AddRequest({.prompt_ids = {1, id}, .max_new_tokens = 1, .ignore_eos = true},
                                          [&](const TokenEvent& event) { ended.Update(event.status); });
    ASSERT_TRUE(added.ok()) << added.status();
    const absl::Status status = engine->RunUntilIdle();
    if (id < 100) {
      EXPECT_TRUE(status.ok() && ended.ok()) << status << ended;
    } else {
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("gather: index 100 is not in an axis of 100\n  at: "), HasSubstr("= gather")));
      EXPECT_FALSE(ended.ok());
    }
  }
}

}  // namespace
}  // namespace llmc
