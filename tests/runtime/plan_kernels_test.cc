// Which code of a plan a GPU gets.
#include "runtime/device/plan_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "cubins/nvrtc.h"
#include "ir/text.h"
#include "tests/runtime/plan_bytes.h"
#include "tests/runtime/target_programs.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kModel[] = R"(model m
dim T <= 16
weight @w: f32[8] = "f#w"
step main(%x: f32[T, 8]) {
  %n = rms_norm %x, @w
  %y = add %n, %x
  return "y" = %y
}
)";

class PlanKernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!NvrtcVersion().ok()) GTEST_SKIP() << NvrtcVersion().status();
    fs::create_directories(folder_);
    absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(kModel, "m.lir");
    ASSERT_TRUE(model.ok()) << model.status();
    (*model)->data["@w"] = Tensor(DType::kF32, {8});
    const absl::Status status =
        WritePlan(**model, {.compiler_version = "1", .targets = {*FindTarget("sm_80"), *FindTarget("sm_90a")}}, path_);
    ASSERT_TRUE(status.ok()) << status;
    std::ifstream in(path_, std::ios::binary);
    std::stringstream bytes;
    bytes << in.rdbuf();
    bytes_ = bytes.str();
  }
  ~PlanKernelsTest() override { fs::remove_all(folder_); }

  std::unique_ptr<Plan> Load(const std::function<void(plan::Manifest*)>& change = [](plan::Manifest*) {}) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << AlteredPlan(bytes_, change);
    absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Load(path_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *std::move(plan) : nullptr;
  }

  const fs::path folder_ = fs::path(testing::TempDir()) / absl::StrCat("plan_kernels_", getpid());
  const std::string path_ = (folder_ / "plan.bin").string();
  std::string bytes_;
};

TEST_F(PlanKernelsTest, ArePickedForTheGpu) {
  const std::unique_ptr<Plan> plan = Load();
  const auto choice = [&](int capability) { return *ChooseKernels(*plan, {"GPU", capability}); };
  EXPECT_EQ(choice(80).architecture, "sm_80");
  EXPECT_EQ(choice(86).architecture, "sm_80");
  EXPECT_EQ(choice(90).architecture, "sm_90a");
  EXPECT_FALSE(choice(90).from_sources);
  EXPECT_TRUE(choice(120).from_sources);
  EXPECT_EQ(choice(120).architecture, "sm_120");
  EXPECT_EQ(choice(120).target, 0) << "its blocks have not the shared memory that programs for sm_90a count on";
  EXPECT_EQ(choice(100).target, 1);
  EXPECT_THAT(std::string(ChooseKernels(*plan, {"Old GPU", 75}).status().message()),
              HasSubstr("Old GPU: llmc needs a GPU of compute capability 8.0"));
}

TEST_F(PlanKernelsTest, AreCompiledWhereThereIsNoCode) {
  const std::unique_ptr<Plan> plan = Load();
  const auto stored = KernelImages(*plan, {"GPU", 90}, "");
  ASSERT_TRUE(stored.ok()) << stored.status();
  ASSERT_EQ(stored->size(), 2u);
  // Without its code the plan gives the same, with what it says itself and not what this program knows of headers.
  const auto compiled = KernelImages(*Load([](plan::Manifest* m) {
    for (plan::Kernel& kernel : *m->mutable_kernels()) kernel.clear_cubins();
  }),
                                     {"GPU", 90}, "");
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  EXPECT_EQ(*compiled, *stored);
  const std::unique_ptr<Plan> cut = Load([](plan::Manifest* m) {
    for (plan::Kernel& kernel : *m->mutable_kernels()) kernel.set_source_bytes(kernel.source_bytes() - 3);
  });
  const absl::Status wrong = KernelImages(*cut, {"GPU", 120}, "").status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("its sources cannot be compiled for GPU (sm_120): NVRTC cannot"));
}

TEST_F(PlanKernelsTest, AreMissedWithARemedy) {
  const auto error = [&](const std::function<void(plan::Manifest*)>& change) {
    return std::string(ChooseKernels(*Load(change), {"GPU", 89}).status().message());
  };
  EXPECT_THAT(error([](plan::Manifest* m) {
                m->clear_targets();
                m->clear_programs();
              }),
              HasSubstr("compile it with --target"));
  EXPECT_THAT(error([](plan::Manifest* m) {
                for (plan::Kernel& kernel : *m->mutable_kernels()) {
                  kernel.set_source_bytes(0);
                  kernel.clear_cubins();
                }
              }),
              HasSubstr("has code for sm_80, sm_90a, but none for GPU; compile it with --target=sm_89"));
}

TEST_F(PlanKernelsTest, OfADamagedPlanAreRefused) {
  std::vector<PlanPart> parts = PartsOfFile(bytes_);
  for (size_t part = 0; part < parts.size(); ++part) {
    if (parts[part].kind != static_cast<uint32_t>(plan::Section::kCubins) &&
        parts[part].kind != static_cast<uint32_t>(plan::Section::kSources)) {
      continue;
    }
    std::string bytes = bytes_;
    const size_t at = Get<uint64_t>(bytes, plan::kHeaderBytes + part * plan::kEntryBytes + 8) + 100;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    EXPECT_THAT(std::string(Plan::Load(path_).status().message()), HasSubstr("the checksum of section"));
  }
  using M = plan::Manifest*;
  const auto loads = [&](const std::function<void(M)>& change) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << AlteredPlan(bytes_, change);
    return Plan::Load(path_).ok();
  };
  EXPECT_TRUE(loads([](M) {}));
  EXPECT_FALSE(loads([](M m) { m->mutable_headers(0)->set_offset(uint64_t{1} << 40); }));
  EXPECT_FALSE(loads([](M m) { m->mutable_headers(0)->set_name(""); }));
  EXPECT_FALSE(loads([](M m) { m->mutable_kernels(0)->set_source_bytes(uint64_t{1} << 40); }));
  EXPECT_FALSE(loads([](M m) { m->mutable_kernels(0)->set_shared_bytes(1 << 20); }));
  EXPECT_FALSE(loads([](M m) { m->mutable_kernels(0)->mutable_cubins(0)->set_offset(uint64_t{1} << 40); }));
  EXPECT_FALSE(loads([](M m) { PrepareOf(m)->set_temporary_bytes(1); }));
}

// What a kernel takes as a map of tiles is memory, in rows that the driver can map.
TEST_F(PlanKernelsTest, MapsOfTilesThatNoDriverMakesAreRefused) {
  const auto loads = [&](bool of_memory, const std::string& rows, uint64_t row_bytes, uint32_t tile_rows,
                         bool all_rows = false) {
    const auto change = [&](plan::Manifest* m) {
      for (plan::Program& program : *m->mutable_programs()) {
        for (plan::Task& task : *program.mutable_tasks()) {
          for (plan::Arg& arg : *task.mutable_args()) {
            const bool is_memory = !arg.has_dim() && !arg.has_number() && !arg.has_device_error_record();
            if (!task.has_kernel() || is_memory != of_memory) continue;
            arg.mutable_tiles()->set_rows(rows);
            arg.mutable_tiles()->set_row_bytes(row_bytes);
            arg.mutable_tiles()->set_tile_rows(tile_rows);
            arg.mutable_tiles()->set_all_rows(all_rows);
            return;
          }
        }
      }
      FAIL() << "no kernel takes such an argument";
    };
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << AlteredPlan(bytes_, change);
    return Plan::Load(path_).ok();
  };
  EXPECT_TRUE(loads(true, "64", 128, 64));
  EXPECT_FALSE(loads(false, "64", 128, 64));
  EXPECT_FALSE(loads(true, "no size", 128, 64));
  EXPECT_FALSE(loads(true, "", 128, 64));
  EXPECT_FALSE(loads(true, "64", 0, 64));
  EXPECT_FALSE(loads(true, "64", 120, 64));
  EXPECT_FALSE(loads(true, "64", uint64_t{1} << 40, 64));
  EXPECT_FALSE(loads(true, "64", 128, 0));
  EXPECT_FALSE(loads(true, "64", 128, 257));
  EXPECT_TRUE(loads(true, "", 128, 64, /*all_rows=*/true));
  EXPECT_FALSE(loads(true, "64", 128, 64, /*all_rows=*/true));
  EXPECT_FALSE(loads(false, "", 128, 64, /*all_rows=*/true));
}

}  // namespace
}  // namespace llmc
