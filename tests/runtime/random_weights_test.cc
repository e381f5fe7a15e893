// Plans whose weights are random numbers: small, and the same numbers at every load.
#include "runtime/device/random_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "frontend/import.h"
#include "runtime/host/plan_model.h"
#include "runtime/llmc.h"
#include "runtime/plan/plan_check.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class RandomWeightsTest : public ::testing::Test {
 protected:
  ~RandomWeightsTest() override { fs::remove(path_); }

  std::unique_ptr<Plan> Write(const std::string& folder, uint64_t seed) {
    auto model = ImportHuggingFaceConfig(folder, {.seed = seed});
    EXPECT_TRUE(model.ok()) << model.status();
    const absl::Status written = WritePlan(**model, {}, path_);
    EXPECT_TRUE(written.ok()) << written;
    auto plan = Plan::Load(path_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }

  const std::string path_ = (fs::path(testing::TempDir()) / absl::StrCat("random_weights_", getpid())).string();
};

TEST_F(RandomWeightsTest, AreAroundTheirMean) {
  plan::RandomNumbers random;
  random.set_key(17);
  random.set_mean(1);
  random.set_width(0.035);
  std::vector<float> values(100003);
  DrawRandomNumbers(random, absl::MakeSpan(values));
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += value;
    squares += (value - 1) * (value - 1);
    ASSERT_LE(std::abs(value - 1), 0.0351);
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 1, 5 * 0.0202 / std::sqrt(n)) << "five deviations of the mean";
  EXPECT_NEAR(std::sqrt(squares / n), 0.0202, 0.0003);
}

TEST_F(RandomWeightsTest, TheHostRunsSmallModels) {
  const auto plan = Write(LLMC_TEST_DATA "/tale-7m", 5);
  EXPECT_LT(fs::file_size(path_), 100000u);
  EXPECT_EQ(plan->WeightBytes(0), nullptr);
  const absl::StatusOr<HostTensor> ids = HostTensor::FromInts({5, 6, 7, 8}, {1, 4});
  ASSERT_TRUE(ids.ok());
  std::vector<NamedHostTensors> logits;
  for (int i = 0; i < 2; ++i) {
    auto loaded = LoadedPlan::Load(path_, {});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    auto outputs = (*loaded)->Run({{"input_ids", *ids}});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    logits.push_back(*std::move(outputs));
  }
  EXPECT_EQ(logits[0].at("logits").values<float>(), logits[1].at("logits").values<float>());
  EXPECT_NE(plan->manifest().weights(0).random().key(),
            Write(LLMC_TEST_DATA "/tale-7m", 6)->manifest().weights(0).random().key());
}

TEST_F(RandomWeightsTest, LargeModelsAreForGpus) {
  Write(LLMC_TEST_DATA "/../../tools/bench/configs/qwen3-0.6b", 0);
  auto loaded = LoadedPlan::Load(path_, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const absl::Status refused = (*loaded)->executor().status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("run it with --device=cuda"));
}

TEST_F(RandomWeightsTest, ManifestsAreChecked) {
  const plan::Manifest whole = Write(LLMC_TEST_DATA "/tale-7m", 0)->manifest();
  const auto accepted = [&](auto change) {
    plan::Manifest manifest = whole;
    change(manifest.mutable_weights(3));
    return plan::CheckManifest(manifest, {}).ok();
  };
  using W = plan::Weight*;
  EXPECT_TRUE(accepted([](W) {}));
  EXPECT_FALSE(accepted([](W w) { w->clear_random(); })) << "it has no bytes anywhere";
  EXPECT_FALSE(accepted([](W w) { w->set_external(true); }));
  EXPECT_FALSE(accepted([](W w) { w->set_offset(256); }));
  EXPECT_FALSE(accepted([](W w) { w->set_bytes(w->bytes() + 2); }));
  EXPECT_FALSE(accepted([](W w) { w->mutable_random()->set_key(uint64_t{1} << 63); }));
  EXPECT_FALSE(accepted([](W w) { w->mutable_random()->set_width(NAN); }));
  EXPECT_FALSE(accepted([](W w) { w->set_dtype("i16"); }));
}

}  // namespace
}  // namespace llmc
