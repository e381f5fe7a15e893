// Loading plans on a GPU: weights, code from source, and plans that lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "files/file_writer.h"
#include "files/mapped_file.h"
#include "ir/text.h"
#include "runtime/device/cuda_executor.h"
#include "runtime/device/cuda_run.h"
#include "runtime/host/host_tensors.h"
#include "tests/gpu/device_check.h"
#include "tests/runtime/plan_bytes.h"
#include "tests/runtime/target_programs.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Weights of several pieces, merged in `prepare`, which also makes a value for itself alone; one weight is read as it
// is.
constexpr char kProgram[] = R"(model m
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
    absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(kProgram, "m.lir");
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

// The plan was opened, and its file is cut before the weights are read.
TEST_F(LoadingTest, AFileThatIsCutWhileItIsInUseIsOneError) {
  ASSERT_TRUE(WriteWholeFile(path_, bytes_).ok());
  const absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Load(path_, {.verify_when_copied = true});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const size_t weights = (*plan)->section(plan::Section::kWeights).size();
  fs::resize_file(path_, bytes_.size() - weights / 2);
  const absl::Status status = CudaRun::Create(plan->get()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("bytes when it was opened"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("compile the model again"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
  ExpectRight(bytes_);
}

// One byte of an external file, one in each piece of it, whether a weight is there or not.
TEST_F(LoadingTest, VerifiesExternalWeightsWhileItCopiesThem) {
  std::string bytes = "before the weights";
  PlanOptions options{.compiler_version = "test", .targets = {TargetHere()}};
  const std::string file = (folder_ / "weights.bin").string();
  for (const auto& [name, tensor] : model_->data) {
    bytes.resize((bytes.size() + 15) / 16 * 16);
    options.external_weights[name] = {"weights.bin", static_cast<int64_t>(bytes.size())};
    bytes.append(tensor.raw(), static_cast<size_t>(tensor.bytes()));
  }
  options.files = {{.recorded_path = "weights.bin", .path = file, .external = true}};
  ASSERT_TRUE(WriteWholeFile(file, bytes).ok());
  ASSERT_TRUE(WritePlan(*model_, options, path_).ok());
  const std::string plan(MapFile(path_)->view());
  ExpectRight(plan);
  for (const size_t offset : {size_t{0}, size_t{20}, plan::kPieceBytes, bytes.size() / 2, bytes.size() - 1}) {
    std::string changed = bytes;
    changed[offset] = static_cast<char>(changed[offset] ^ 1);
    ASSERT_TRUE(WriteWholeFile(file, changed).ok());
    EXPECT_THAT(ErrorOf(plan), HasSubstr("its weight file \"weights.bin\" has changed since the plan was made"));
  }
  ASSERT_TRUE(WriteWholeFile(file, bytes).ok());
  ExpectRight(plan);
}

TEST_F(LoadingTest, PlansThatLieEndInOneError) {
  using M = plan::Manifest*;
  const auto launch = [](M m) -> plan::Task* {
    for (plan::Task& step : *ProgramOf(m, 0)->mutable_tasks()) {
      if (step.has_kernel()) return &step;
    }
    return nullptr;
  };
  EXPECT_THAT(ErrorOf(With([](M m) { m->mutable_kernels(0)->set_entry("k9_other"); })), HasSubstr("kernel k9_other"));
  EXPECT_THAT(ErrorOf(With([&](M m) { launch(m)->mutable_args()->RemoveLast(); })), HasSubstr("arguments of a task"));
  EXPECT_THAT(ErrorOf(With([&](M m) { launch(m)->add_args()->set_dim("T"); })), HasSubstr("arguments of a task"));
  EXPECT_THAT(ErrorOf(With([&](M m) { launch(m)->mutable_args(0)->set_number(1); })), HasSubstr("arguments of a task"));
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

// Sizes and places that go beyond the memory that is there.
// Over 60 lines: one damage after the other to the same plan.
TEST_F(LoadingTest, PlansThatReachTooFarEndInOneError) {
  using M = plan::Manifest*;
  const auto step_error = [&](const std::function<bool(const plan::Task&)>& is_it,
                              const std::function<void(plan::Task*)>& change) {
    return ErrorOf(With([&](M m) {
      bool found = false;
      for (plan::Program* program : {PrepareOf(m), ProgramOf(m, -1)}) {
        for (plan::Task& step : *program->mutable_tasks()) {
          if (found || !is_it(step)) continue;
          found = true;
          change(&step);
        }
      }
      EXPECT_TRUE(found);
    }));
  };
  const auto gemm = [](const plan::Task& step) { return step.has_gemm(); };
  const auto with_gemm = [&](const std::function<void(plan::Gemm*)>& change) {
    return step_error(gemm, [&](plan::Task* step) { change(step->mutable_gemm()); });
  };
  EXPECT_THAT(with_gemm([](plan::Gemm* g) { g->set_m("T * 1000"); }), HasSubstr("beyond the"));
  EXPECT_THAT(with_gemm([](plan::Gemm* g) { g->set_m("2147483647"); }), HasSubstr("bytes of its result"));
  EXPECT_THAT(with_gemm([](plan::Gemm* g) { g->set_n("100000"); }), HasSubstr("bytes of its result"));
  EXPECT_THAT(with_gemm([](plan::Gemm* g) { g->set_k("100000"); }), HasSubstr("bytes of its first operand"));
  EXPECT_THAT(with_gemm([](plan::Gemm* g) { g->set_batch("100"); }), HasSubstr("bytes of its result"));
  EXPECT_THAT(with_gemm([](plan::Gemm* g) {
                g->set_m("1");
                g->set_n("1");
                g->set_batch("2");
                g->set_x_stride("9000000000000000000");
              }),
              HasSubstr("bytes of its first operand"));
  EXPECT_THAT(with_gemm([](plan::Gemm* g) {
                g->set_m("1");
                g->set_n("1");
                g->set_batch("2");
                g->set_weight_stride("1000000000");
              }),
              HasSubstr("bytes of its weight"));
  const auto copy = [](const plan::Task& step) { return step.has_copy(); };
  EXPECT_THAT(step_error(copy, [](plan::Task* step) { step->mutable_copy()->set_bytes("99000000"); }),
              HasSubstr("bytes of its result"));
  EXPECT_THAT(step_error(copy, [](plan::Task* step) { step->mutable_args(0)->set_offset(4000000); }),
              HasSubstr("bytes of its result"));
  EXPECT_THAT(step_error(copy, [](plan::Task* step) { step->mutable_args(1)->set_offset(4); }),
              HasSubstr("bytes of its operand"));
  // The places of this run are smaller than those at the bounds.
  EXPECT_THAT(step_error(gemm, [](plan::Task* step) { step->mutable_args(1)->set_offset(200000); }),
              HasSubstr("an argument lies 200000 bytes into memory of 12000"));
  const auto buffer_of = [](M m, const std::string& value) -> plan::Buffer* {
    for (plan::Buffer& buffer : *ProgramOf(m, -1)->mutable_buffers()) {
      if (std::count(buffer.values().begin(), buffer.values().end(), value) > 0) return &buffer;
    }
    return nullptr;
  };
  EXPECT_THAT(ErrorOf(With([&](M m) { buffer_of(m, "%x")->set_size("16"); })),
              HasSubstr("the input x takes 12000 bytes and has a place of 16"));
  EXPECT_THAT(ErrorOf(With([&](M m) { m->mutable_entry_points(0)->mutable_outputs(2)->set_shape(0, "T * 1000000"); })),
              HasSubstr("the output s takes "));
  ExpectRight(bytes_);
}

TEST(LanguageModelPlans, ThatReachTooFarEndInOneError) {
  LLMC_NEEDS_GPU();
  const std::string path = TempFolder() + "/reaches-too-far.bin";
  const CommandResult compiled = RunLlmc({"compile", ShippedModel(), "-o", path, "--target", TargetHere().name});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  const std::string bytes = ReadFile(path);
  using M = plan::Manifest*;
  const auto error = [&](const std::function<void(M)>& change) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << AlteredPlan(bytes, change);
    const auto plan = Plan::Load(path, {.verify_weights = false});
    if (!plan.ok()) return std::string(plan.status().message());
    return std::string(CudaExecutor::Create(plan->get(), {.num_pages = 8}).status().message());
  };
  const auto with_buffer = [&](const std::string& value, const std::function<void(plan::Buffer*)>& change) {
    return error([&](M m) {
      for (plan::Buffer& buffer : *ProgramOf(m, 0)->mutable_buffers()) {
        if (std::count(buffer.values().begin(), buffer.values().end(), value) > 0) change(&buffer);
      }
      for (plan::Buffer& buffer : *FirstTarget(m)->mutable_persistent()) {
        if (buffer.name() == value) change(&buffer);
      }
    });
  };
  const auto shrink = [](plan::Buffer* buffer) { buffer->set_bytes(3); };
  EXPECT_EQ(error([](M) {}), "");
  for (const char* input : {"ids", "pos", "slots", "pages", "lens", "starts", "rows"}) {
    EXPECT_THAT(with_buffer(absl::StrCat("%", input), shrink),
                HasSubstr(absl::StrCat("the plan is damaged: the input ", input, " takes ")));
  }
  std::string logits;
  error([&](M m) { logits = m->entry_points(0).output_values(0); });
  EXPECT_THAT(with_buffer(logits, shrink), HasSubstr("the output logits takes "));
  for (const char* buffer : {"message", "sampled", "state"}) {
    EXPECT_THAT(with_buffer(buffer, shrink), HasSubstr("has no code that samples tokens")) << buffer;
  }
  EXPECT_THAT(error([](M m) { m->mutable_states(0)->set_pool("Q"); }), HasSubstr("has other pages"));
  EXPECT_THAT(error([](M m) { m->mutable_language_model()->set_vocab_size(1 << 20); }),
              HasSubstr("the output logits takes "));
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
