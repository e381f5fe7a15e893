// Runs of named tensors that are repeated: replayed from a captured graph, with the numbers of a launch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "ir/eval.h"
#include "ir/text.h"
#include "runtime/device/cuda_run.h"
#include "runtime/dlpack.h"
#include "runtime/host/host_tensors.h"
#include "runtime/llmc.h"
#include "tests/gpu/device_check.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

// Products, attention, a norm and a gather, whose sizes and inputs both count.
constexpr char kEncoder[] = R"(model m
dim B <= 64
dim L <= 64
weight @words: bf16[50, 64] = "f#words"
weight @w: bf16[64, 64] = "f#w"
weight @norm: bf16[64] = "f#norm"
step main(%ids: i64[B, L]) {
  %x = gather @words, %ids
  %q = linear %x, @w {transpose_rhs = true}
  %h = reshape %q {shape = [B, L, 4, 16]}
  %t = transpose %h {perm = [0, 2, 1, 3]}
  %a = attention %t, %t, %t {scale = 0.25}
  %b = transpose %a {perm = [0, 2, 1, 3]}
  %c = reshape %b {shape = [B, L, 64]}
  %d = add %c, %x
  %n = rms_norm %d, @norm
  %y = cast %n {to = f32}
  return "y" = %y
}
)";

// A plan of the program, which stays loaded, and the evaluator.
class PreparedRunsTest : public ::testing::Test {
 protected:
  void SetUp() override { LLMC_NEEDS_GPU(); }

  void Load(bool check_kernels = false) {
    model_ = *ParseModel(kEncoder, "m.lir");
    for (const Value* weight : model_->weights) {
      Shape shape;
      for (const Dim& dim : weight->type.shape) shape.push_back(dim.value());
      model_->data[weight->name] = RandomFloats(weight->type.dtype, shape, shape.size(), 0.2);
    }
    const std::string path = absl::StrCat(TempFolder(), "/prepared_runs.bin");
    const absl::Status written = WritePlan(*model_, {.compiler_version = "test", .targets = {TargetHere()}}, path);
    ASSERT_TRUE(written.ok()) << written;
    auto plan = Plan::Load(path);
    ASSERT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
    auto run = CudaRun::Create(plan_.get(), {.check_kernels = check_kernels});
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *std::move(run);
  }

  // Ids that are drawn by `seed`, on the device: checked against the evaluator.
  std::vector<double> Run(int64_t batch, int64_t length, uint64_t seed) {
    const NamedTensors inputs = {{"ids", RandomInts(DType::kI64, {batch, length}, 0, 50, seed)}};
    const auto outputs = run_->Run({{"ids", ToHostTensor(inputs.at("ids"))}});
    EXPECT_TRUE(outputs.ok()) << outputs.status();
    if (!outputs.ok()) return {};
    const std::vector<double> got = FromHostTensor(outputs->at("y"))->ToDoubles();
    const auto evaluator = Evaluator::Create(model_.get());
    const auto expected = (*evaluator)->Run(*model_->steps.front(), inputs);
    EXPECT_TRUE(expected.ok()) << expected.status();
    const std::vector<double> want = expected->at("y").ToDoubles();
    EXPECT_EQ(got.size(), want.size());
    int64_t wrong = 0;
    for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
      if (!(std::abs(got[i] - want[i]) <= 0.05)) ++wrong;  // bf16, norms around 1
    }
    EXPECT_EQ(wrong, 0) << "of " << got.size() << " numbers of the run of [" << batch << ", " << length << "]";
    return got;
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<CudaRun> run_;
};

TEST_F(PreparedRunsTest, AReplayGivesTheNumbersOfALaunch) {
  Load();
  const std::vector<double> launched = Run(8, 40, 1);
  EXPECT_EQ(run_->num_graphs(), 0u);
  EXPECT_EQ(Run(8, 40, 1), launched);
  EXPECT_EQ(run_->num_graphs(), 1u);
  EXPECT_NE(Run(8, 40, 2), launched) << "inputs are read anew";
  EXPECT_EQ(Run(8, 40, 1), launched);
  EXPECT_TRUE(run_->graph_status().ok()) << run_->graph_status();
  const absl::StatusOr<double> seconds = run_->DeviceSeconds();
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_GT(*seconds, 0);
  EXPECT_LT(*seconds, 1);
}

TEST_F(PreparedRunsTest, ShapesTakeTurns) {
  Load();
  const std::vector<double> large = Run(16, 33, 1), wide = Run(2, 64, 2), one = Run(1, 1, 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Run(16, 33, 1), large);
    EXPECT_EQ(Run(2, 64, 2), wide);
    EXPECT_EQ(Run(1, 1, 3), one);
  }
  EXPECT_EQ(run_->num_graphs(), 3u);
}

TEST_F(PreparedRunsTest, ALargerRunMovesTheBuffers) {
  Load();
  const std::vector<double> small = Run(2, 8, 1);
  EXPECT_EQ(Run(2, 8, 1), small);
  EXPECT_EQ(run_->num_graphs(), 1u);
  Run(64, 64, 2);
  EXPECT_EQ(run_->num_graphs(), 0u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Run(2, 8, 1), small);
  EXPECT_EQ(run_->num_graphs(), 1u);
}

TEST_F(PreparedRunsTest, MoreShapesThanAreKept) {
  Load();
  for (int round = 0; round < 2; ++round) {
    for (int64_t length = 2 * static_cast<int64_t>(kMaxPreparedRuns); length > 0; --length) {
      Run(1, length, 1);
      Run(1, length, 1);
    }
    EXPECT_EQ(run_->num_graphs(), kMaxPreparedRuns);
  }
}

TEST_F(PreparedRunsTest, ADataErrorLeavesTheGraph) {
  Load();
  const std::vector<double> good = Run(2, 8, 1);
  Run(2, 8, 1);
  const Tensor bad = Tensor::FromValues(DType::kI64, {2, 8}, std::vector<int64_t>(16, 50));
  const absl::Status status = run_->Run({{"ids", ToHostTensor(bad)}}).status();
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("index 50 is not in an axis of 50"));
  EXPECT_EQ(Run(2, 8, 1), good);
  EXPECT_EQ(run_->num_graphs(), 1u);
}

// Inputs of either kind, outputs in memory of their own, which other libraries can have.
TEST_F(PreparedRunsTest, TensorsStayOnTheDevice) {
  Load();
  const auto ids_of = [](uint64_t seed) { return ToHostTensor(RandomInts(DType::kI64, {2, 8}, 0, 50, seed)); };
  std::vector<std::vector<float>> expected;
  for (const uint64_t seed : {1, 2}) expected.push_back(*run_->Run({{"ids", ids_of(seed)}})->at("y").ToFloats());
  ASSERT_NE(expected[0], expected[1]);

  const absl::StatusOr<DeviceTensor> ids = run_->ToDevice(ids_of(1));
  ASSERT_TRUE(ids.ok()) << ids.status();
  auto first = run_->RunOnDevice({{"ids", *ids}}), second = run_->RunOnDevice({{"ids", ids_of(2)}});
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*run_->ToHost(first->at("y"))->ToFloats(), expected[0]) << "the second run wrote over it";
  EXPECT_EQ(*run_->ToHost(second->at("y"))->ToFloats(), expected[1]);

  const char* const at = first->at("y").data.get();
  const auto lent = ToDlpack(first->at("y"));
  ASSERT_TRUE(lent.ok()) << lent.status();
  first->clear();
  EXPECT_NE(run_->RunOnDevice({{"ids", *ids}})->at("y").data.get(), at) << "somebody else has it";
  const auto back = FromDlpack(*lent);
  ASSERT_TRUE(back.ok()) << back.status();
  DeviceTensor kept = std::get<DeviceTensor>(*back);
  EXPECT_EQ(*run_->ToHost(kept)->ToFloats(), expected[0]);

  DeviceTensor elsewhere = *ids;
  elsewhere.device = 7;
  const absl::Status refused = run_->RunOnDevice({{"ids", elsewhere}}).status();
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("input ids lies on GPU 7"));
  run_.reset();
  EXPECT_EQ(kept.byte_size(), 2 * 8 * 64 * 4);  // and is let go of when the device is gone
}

// As programs use them: from one run to the next, and memory that is let go of is taken again.
TEST_F(PreparedRunsTest, TensorsOfALoadedPlanStayOnTheDevice) {
  Load();
  const HostTensor drawn = ToHostTensor(RandomInts(DType::kI64, {2, 8}, 0, 50, 1));
  const std::vector<float> expected = *run_->Run({{"ids", drawn}})->at("y").ToFloats();
  const auto loaded = LoadedPlan::Load(plan_->path(), {.device = "cuda"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  absl::StatusOr<HostTensor> ids = (*loaded)->NewHostTensor(DType::kI64, {2, 8});
  ASSERT_TRUE(ids.ok()) << ids.status();
  std::copy_n(drawn.values<int64_t>().begin(), 16, ids->mutable_values<int64_t>().begin());
  const char* at = nullptr;
  for (int i = 0; i < 3; ++i) {
    const auto outputs = (*loaded)->RunOnDevice({{"ids", *ids}});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    const DeviceTensor& y = outputs->at("y");
    EXPECT_TRUE(i == 0 || y.data.get() == at) << "nobody has it any more";
    at = y.data.get();
    EXPECT_EQ(*(*loaded)->ToHost(y)->ToFloats(), expected);
  }
}

TEST_F(PreparedRunsTest, PageLockedInputsAreReadAnew) {
  Load();
  absl::StatusOr<HostTensor> ids = run_->NewHostTensor(DType::kI64, {2, 8});
  ASSERT_TRUE(ids.ok()) << ids.status();
  const std::vector<float> zeros = *run_->Run({{"ids", *ids}})->at("y").ToFloats();
  const HostTensor other = ToHostTensor(RandomInts(DType::kI64, {2, 8}, 0, 50, 3));
  for (int i = 0; i < 3; ++i) {
    std::copy_n(other.values<int64_t>().begin(), 16, ids->mutable_values<int64_t>().begin());
    EXPECT_EQ(*run_->Run({{"ids", *ids}})->at("y").ToFloats(), *run_->Run({{"ids", other}})->at("y").ToFloats());
    std::fill_n(ids->mutable_values<int64_t>().begin(), 16, 0);
    EXPECT_EQ(*run_->Run({{"ids", *ids}})->at("y").ToFloats(), zeros);
  }
}

TEST_F(PreparedRunsTest, NoGraphsWhereKernelsAreChecked) {
  Load(/*check_kernels=*/true);
  for (int i = 0; i < 3; ++i) Run(2, 8, 1);
  EXPECT_EQ(run_->num_graphs(), 0u);
}

}  // namespace
}  // namespace llmc
