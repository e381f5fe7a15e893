// Loading plans on a GPU: weights, code from source, and plans that lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "ir/text.h"
#include "runtime/cuda_run.h"
#include "runtime/host/host_tensors.h"
#include "tests/gpu/device_check.h"
#include "tests/runtime/plan_bytes.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Weights of several pieces, merged in `prepare`, which also makes a value for itself alone; one weight is read as it
// is.
constexpr char kModel[] = R"(model m
dim T <= 64
weight @a: f32[1100, 1000] = "f#a"
weight @b: f32[700, 1000] = "f#b"
weight @c: f32[9, 1000] = "f#c"
weight @d: f32[1000] = "f#d"
prepare {
  @ab = concat @a, @b
  @e = add @c, @d
  @ce = concat @e, @c
}
step main(%x: f32[T, 1000]) {
  %n = rms_norm %x, @d
  %p = matmul %n, @ab {transpose_rhs = true}
  %q = matmul %n, @ce {transpose_rhs = true}
  %s = add %n, %x
  return "p" = %p, "q" = %q, "s" = %s
}
)";

class LoadingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    LLMC_NEEDS_GPU();
    fs::create_directories(folder_);
    absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(kModel, "m.lir");
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    uint64_t seed = 0;
    for (const Value* weight : model_->weights) {
      Shape shape;
      for (const Dim& dim : weight->type.shape) shape.push_back(dim.value());
      model_->data[weight->name] = RandomFloats(weight->type.dtype, shape, ++seed, 0.1);
    }
    inputs_["x"] = RandomFloats(DType::kF32, {3, 1000}, 77);
    const absl::Status written = WritePlan(*model_, {.compiler_version = "test", .targets = {TargetHere()}}, path_);
    ASSERT_TRUE(written.ok()) << written;
    std::ifstream in(path_, std::ios::binary);
    std::stringstream bytes;
    bytes << in.rdbuf();
    bytes_ = bytes.str();
  }
  ~LoadingTest() override { fs::remove_all(folder_); }

  absl::StatusOr<NamedHostTensors> Run(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    const absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Load(path_, {.verify_when_copied = true});
    if (!plan.ok()) return plan.status();
    const absl::StatusOr<std::unique_ptr<CudaRun>> run = CudaRun::Create(plan->get());
    if (!run.ok()) return run.status();
    NamedHostTensors inputs;
    for (const auto& [name, tensor] : inputs_) inputs.emplace(name, ToHostTensor(tensor));
    return (*run)->Run(inputs);
  }
  void ExpectRight(const std::string& bytes) const {
    const absl::StatusOr<NamedHostTensors> outputs = Run(bytes);
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    const absl::StatusOr<std::unique_ptr<Evaluator>> evaluator = Evaluator::Create(model_.get());
    ASSERT_TRUE(evaluator.ok()) << evaluator.status();
    const absl::StatusOr<NamedTensors> expected = (*evaluator)->Run(*model_->steps.front(), inputs_);
    ASSERT_TRUE(expected.ok()) << expected.status();
    for (const auto& [name, want] : *expected) {
      const absl::StatusOr<Tensor> got = FromHostTensor(outputs->at(name));
      ASSERT_TRUE(got.ok()) << got.status();
      const std::vector<double> a = got->ToDoubles(), b = want.ToDoubles();
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4) << name << "[" << i << "]";
    }
  }
  std::string With(const std::function<void(plan::Manifest*)>& change) const { return AlteredPlan(bytes_, change); }
  std::string ErrorOf(const std::string& bytes) const {
    const absl::Status status = Run(bytes).status();
    EXPECT_NE(status.code(), absl::StatusCode::kInternal) << status;
    return std::string(status.message());
  }

  const fs::path folder_ = fs::path(testing::TempDir()) / absl::StrCat("loading_", getpid());
  const std::string path_ = (folder_ / "plan.bin").string();
  std::unique_ptr<Model> model_;
  NamedTensors inputs_;
  std::string bytes_;
};

TEST_F(LoadingTest, PutsWeightsWhereTheyAreRead) { ExpectRight(bytes_); }

TEST_F(LoadingTest, CompilesSourcesWhereThereIsNoCode) {
  ExpectRight(With([](plan::Manifest* m) {
    for (plan::Kernel& kernel : *m->mutable_kernels()) kernel.clear_cubins();
  }));
}

TEST_F(LoadingTest, VerifiesWeightsWhileItCopiesThem) {
  const std::vector<PlanPart> parts = PartsOfFile(bytes_);
  const size_t at = Get<uint64_t>(bytes_, plan::kHeaderBytes + (parts.size() - 1) * plan::kEntryBytes + 8);
  for (const size_t offset : {size_t{0}, parts.back().contents.size() / 2, parts.back().contents.size() - 1}) {
    std::string bytes = bytes_;
    bytes[at + offset] = static_cast<char>(bytes[at + offset] ^ 1);
    EXPECT_THAT(ErrorOf(bytes), HasSubstr("the checksum of section \"weights\" does not match"));
  }
  ExpectRight(bytes_);
}

TEST_F(LoadingTest, PlansThatLieEndInOneError) {
  using M = plan::Manifest*;
  const auto launch = [](M m) -> plan::Step* {
    for (plan::Step& step : *m->mutable_programs(0)->mutable_steps()) {
      if (step.has_launch()) return &step;
    }
    return nullptr;
  };
  EXPECT_THAT(ErrorOf(With([](M m) { m->mutable_kernels(0)->set_entry("k9_other"); })), HasSubstr("kernel k9_other"));
  EXPECT_THAT(ErrorOf(With([&](M m) { launch(m)->mutable_args()->RemoveLast(); })), HasSubstr("arguments of a step"));
  EXPECT_THAT(ErrorOf(With([&](M m) { launch(m)->add_args()->set_dim("T"); })), HasSubstr("arguments of a step"));
  EXPECT_THAT(ErrorOf(With([&](M m) { launch(m)->mutable_args(0)->set_number(1); })), HasSubstr("arguments of a step"));
  // The code of each kernel in the place of another's.
  EXPECT_THAT(ErrorOf(With([](M m) {
                m->mutable_kernels(0)->mutable_cubins(0)->set_offset(m->kernels(1).cubins(0).offset());
                m->mutable_kernels(0)->mutable_cubins(0)->set_bytes(m->kernels(1).cubins(0).bytes());
              })),
              HasSubstr(": kernel k0_"));
  std::vector<PlanPart> parts = PartsOfFile(bytes_);
  for (PlanPart& part : parts) {
    if (part.kind == static_cast<uint32_t>(plan::Section::kCubins)) part.contents[2] = 'X';  // of "\177ELF"
  }
  EXPECT_THAT(ErrorOf(Assemble(parts)), HasSubstr(": kernel k0_"));
  ExpectRight(bytes_);
}

TEST_F(LoadingTest, KernelsThatCannotBeLaunchedEndInOneError) {
  const auto error = [&](const std::function<void(plan::Kernel*)>& change) {
    return ErrorOf(With([&](plan::Manifest* m) {
      for (plan::Kernel& kernel : *m->mutable_kernels()) change(&kernel);
    }));
  };
  EXPECT_THAT(error([](plan::Kernel* kernel) { kernel->set_threads(1024); }), HasSubstr("and not 1024"));
  EXPECT_THAT(error([](plan::Kernel* kernel) { kernel->set_shared_bytes(232448); }),
              HasSubstr("use 232448 bytes of shared memory"));
  ExpectRight(bytes_);
}

}  // namespace
}  // namespace llmc
