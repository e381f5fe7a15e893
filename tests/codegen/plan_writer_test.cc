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
  // A safetensors file with tensor "w" = `values`, after another tensor.
  void WriteWeights(const std::string& name, std::vector<float> values) const {
    const std::string header =
        R"({"__metadata__":{"a":"b"},"v":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})";
    const uint64_t length = header.size();
    std::string bytes(reinterpret_cast<const char*>(&length), 8);
    bytes += header + "\1\2\3\4";
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    WriteFile(name, bytes);
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

TEST_F(PlanWriterTest, ExternalWeightsStayInTheirFiles) {
  WriteWeights("model.safetensors", {1, 2, 3});
  auto located = LocateExternalWeights(model_, folder_.string(), "");
  ASSERT_TRUE(located.ok()) << located.status();
  ASSERT_EQ(located->size(), 2u);
  PlanOptions options;
  options.external_weights = *located;
  EXPECT_THAT(WritePlan(model_, options, Path("a.bin")).message(), HasSubstr("which is no external input file"));
  options.files = {{"model.safetensors", Path("model.safetensors"), true}};
  ASSERT_TRUE(WritePlan(model_, options, Path("a.bin")).ok());
  auto plan = Plan::Load(Path("a.bin"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE((*plan)->Verify().ok());
  EXPECT_TRUE((*plan)->section(plan::Section::kWeights).empty());
  EXPECT_EQ(std::memcmp((*plan)->WeightBytes(0).get(), model_.data["@w"].raw(), 12), 0);

  WriteWeights("model.safetensors", {1, 2, 4});
  plan = Plan::Load(Path("a.bin"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT((*plan)->Verify().message(), HasSubstr("\"model.safetensors\" has changed"));
  WriteWeights("model.safetensors", {1, 2, 3, 4});
  EXPECT_THAT(Plan::Load(Path("a.bin")).status().message(), HasSubstr("bytes, but had"));
  fs::remove(Path("model.safetensors"));
  EXPECT_THAT(Plan::Load(Path("a.bin")).status().message(), HasSubstr("must lie beside the plan"));
}

TEST_F(PlanWriterTest, OnlyTheSameBytesAreLocated) {
  WriteWeights("model.safetensors", {1, 2, 9});
  auto located = LocateExternalWeights(model_, folder_.string(), "");
  ASSERT_TRUE(located.ok());
  EXPECT_TRUE(located->empty());
  WriteFile("model.safetensors", "short");
  EXPECT_FALSE(LocateExternalWeights(model_, folder_.string(), "").ok());
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
