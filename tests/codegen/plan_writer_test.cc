#include "codegen/plan_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "ir/ops.h"
#include "runtime/plan.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PlanWriterTest : public ::testing::Test {
 protected:
  PlanWriterTest() : folder_(fs::path(testing::TempDir()) / absl::StrCat("plan_writer_", getpid())) {
    fs::create_directories(folder_);
    model_.name = "m";
    model_.dims["T"] = 16;
    model_.steps.push_back(std::make_unique<Step>());
    Step* step = model_.steps[0].get();
    Value* x = model_.AddParam(step, "%x", {DType::kF32, {Dim::Symbol("T"), 3}});
    Value* w = model_.AddWeight("@w", {DType::kF32, {3}}, "model.safetensors#w");
    model_.AddWeight("@tied", {DType::kF32, {3}}, "model.safetensors#w");
    Builder b(&model_, &step->block);
    step->outputs = {{"y", b.Add(Add{.lhs = x, .rhs = w}, "%y")}};
    model_.data["@w"] = Tensor::FromValues<double>(DType::kF32, {3}, {1, 2, 3});
    model_.data["@tied"] = model_.data["@w"];
  }
  ~PlanWriterTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string Read(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream out;
    out << in.rdbuf();
    return out.str();
  }
  void WriteFile(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
  }

  fs::path folder_;
  Model model_;
};

TEST_F(PlanWriterTest, SameInputsGiveTheSameBytesAndNoOtherFile) {
  WriteFile("model.safetensors", "some bytes");
  PlanOptions options;
  options.compiler_version = "1.2";
  options.ledger = "fused 3";
  options.files = {{"model.safetensors", Path("model.safetensors"), false}};
  ASSERT_TRUE(WritePlan(model_, options, Path("a.bin")).ok());
  ASSERT_TRUE(WritePlan(model_, options, Path("b.bin")).ok());
  const std::string bytes = Read(Path("a.bin"));
  EXPECT_EQ(bytes, Read(Path("b.bin")));
  EXPECT_EQ(bytes.size() % 4096, 0u);
  options.ledger = "fused 4";
  ASSERT_TRUE(WritePlan(model_, options, Path("b.bin")).ok());  // over the old one
  EXPECT_NE(bytes, Read(Path("b.bin")));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 3);

  auto plan = Plan::Load(Path("a.bin"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  const plan::File& file = (*plan)->manifest().files(0);
  EXPECT_EQ(file.bytes(), 10u);
  const plan::Digest digest = plan::HashBytes("some bytes");
  EXPECT_EQ(file.sha256(), std::string(digest.begin(), digest.end()));
}

TEST_F(PlanWriterTest, EqualViewsAreStoredOnce) {
  ASSERT_TRUE(WritePlan(model_, {}, Path("a.bin")).ok());
  auto plan = Plan::Load(Path("a.bin"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->manifest().weights(0).offset(), (*plan)->manifest().weights(1).offset());
  EXPECT_EQ((*plan)->section(plan::Section::kWeights).size(), 12u);
}

TEST_F(PlanWriterTest, TokensOutsideTheVocabularyAreLeftOut) {
  PlanOptions options;
  plan::LanguageModel& lm = options.language_model.emplace();
  lm.set_vocab_size(10);
  lm.set_page_size(16);
  lm.set_max_context(32);
  for (int64_t id : {-1, 3, 10, 9}) lm.add_eos_ids(id);
  lm.set_bos_id(10);
  ASSERT_TRUE(WritePlan(model_, options, Path("a.bin")).ok());
  auto plan = Plan::Load(Path("a.bin"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT((*plan)->manifest().language_model().eos_ids(), ::testing::ElementsAre(3, 9));
  EXPECT_FALSE((*plan)->manifest().language_model().has_bos_id());
}

TEST_F(PlanWriterTest, WeightsMustHaveDataOfTheirType) {
  model_.data["@w"] = Tensor(DType::kF16, {3});
  EXPECT_THAT(WritePlan(model_, {}, Path("a.bin")).message(),
              HasSubstr("weight @w is declared f32[3], its data is f16"));
  model_.data.erase("@w");
  EXPECT_THAT(WritePlan(model_, {}, Path("a.bin")).message(), HasSubstr("model.safetensors#w"));
  EXPECT_FALSE(fs::exists(Path("a.bin")));
}

TEST_F(PlanWriterTest, AFolderThatIsNotThereIsAnError) {
  EXPECT_THAT(WritePlan(model_, {}, Path("none/a.bin")).message(), HasSubstr("none/a.bin: cannot be written"));
  PlanOptions options;
  options.files = {{"x", Path("x"), false}};
  EXPECT_THAT(WritePlan(model_, options, Path("a.bin")).message(), HasSubstr("x: cannot be read"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

class ExternalWeightsTest : public PlanWriterTest {
 protected:
  ExternalWeightsTest() {
    WriteWeights({1, 2, 3});
    options_.external_weights = {{"@w", {"model.bin", 4}}, {"@tied", {"model.bin", 4}}};
    options_.files = {{"model.bin", Path("model.bin"), true}};
  }
  // Four bytes, then @w.
  void WriteWeights(const std::vector<float>& values) const {
    WriteFile("model.bin", "abcd" + std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size()));
  }
  absl::StatusOr<std::unique_ptr<Plan>> Load(const PlanLoadOptions& options = {}) const {
    return Plan::Load(Path("a.bin"), options);
  }

  PlanOptions options_;
};

TEST_F(ExternalWeightsTest, StayInTheirFiles) {
  ASSERT_TRUE(WritePlan(model_, options_, Path("a.bin")).ok());
  auto plan = Load();
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE((*plan)->section(plan::Section::kWeights).empty());
  EXPECT_EQ(std::memcmp((*plan)->WeightBytes(0).get(), model_.data["@w"].raw(), 12), 0);
  options_.files[0].external = false;
  EXPECT_THAT(WritePlan(model_, options_, Path("a.bin")).message(), HasSubstr("which is no external input file"));
}

TEST_F(ExternalWeightsTest, ThatChangedAreAnError) {
  ASSERT_TRUE(WritePlan(model_, options_, Path("a.bin")).ok());
  WriteWeights({1, 2, 4});
  EXPECT_THAT(Load().status().message(), HasSubstr("\"model.bin\" has changed"));
  EXPECT_TRUE(Load({.verify_weights = false}).ok());
  WriteWeights({1, 2, 3, 4});
  EXPECT_THAT(Load().status().message(), HasSubstr("bytes, but had"));
  fs::remove(Path("model.bin"));
  EXPECT_THAT(Load().status().message(), HasSubstr("must lie beside the plan"));
}

TEST_F(ExternalWeightsTest, BehindLinksOutOfTheFolderAreRefused) {
  ASSERT_TRUE(WritePlan(model_, options_, Path("a.bin")).ok());
  const fs::path outside = folder_.string() + "-outside";
  fs::create_directories(outside);
  fs::rename(Path("model.bin"), outside / "model.bin");
  fs::create_symlink(outside / "model.bin", Path("model.bin"));
  EXPECT_THAT(Load().status().message(), HasSubstr("leads out of the model's folder"));
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kInvalidArgument);
  fs::remove(Path("model.bin"));
  fs::rename(outside / "model.bin", Path("real.bin"));
  fs::create_symlink("real.bin", Path("model.bin"));
  EXPECT_TRUE(Load().ok()) << Load().status();
  fs::remove_all(outside);
}

// A cache keeps contents in models--X/blobs and links to them from models--X/snapshots/REVISION.
TEST_F(ExternalWeightsTest, InTheBlobsOfAHuggingFaceCacheAreRead) {
  const fs::path model = folder_ / "models--a--b", snapshot = model / "snapshots" / "1f";
  fs::create_directories(snapshot);
  fs::create_directories(model / "blobs");
  fs::rename(Path("model.bin"), model / "blobs" / "7e");
  fs::create_symlink("../../blobs/7e", snapshot / "model.bin");
  options_.files[0].path = snapshot / "model.bin";
  ASSERT_TRUE(WritePlan(model_, options_, snapshot / "a.bin").ok());
  const auto plan = Plan::Load(snapshot / "a.bin");
  EXPECT_TRUE(plan.ok()) << plan.status();
}

TEST_F(PlanWriterTest, PathsMustStayInTheFolder) {
  WriteFile("w", "x");
  for (const char* path : {"/w", "../w", "a/../w", "", ".", "a//w"}) {
    PlanOptions options;
    options.files = {{path, Path("w"), false}};
    EXPECT_THAT(WritePlan(model_, options, Path("a.bin")).message(), HasSubstr("does not stay")) << path;
  }
}

}  // namespace
}  // namespace llmc
