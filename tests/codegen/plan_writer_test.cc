#include "codegen/plan_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cubins/nvrtc.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "runtime/plan/plan.h"

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

// Products and attention have kernels of their own for sm_90a.
constexpr char kForTargets[] = R"(model "m"
dim N <= 64
dim P <= 8
dim R <= 1
dim S <= 1
dim T <= 32
weight @embed: bf16[128, 256] = "random(seed=7, mean=0, width=0.035)#e"
weight @w: bf16[256, 256] = "random(seed=7, mean=0, width=0.035)#w"
state @kv0: paged[N, 16] {k: bf16[2, 64], v: bf16[2, 64]}
step main(%ids: i32[T] = token_ids, %pos: i32[T] = positions, %slots: i32[T] = slots, %pages: i32[S, P] = page_table, %lens: i32[S] = lengths, %starts: i32[S + 1] = starts, %rows: i32[R] = rows) {
  %x = gather @embed, %ids
  %q = matmul %x, @w {transpose_rhs = true}
  %a = paged_attention %q, @kv0, %pages, %lens, %starts {scale = 0.125}
  %r = gather %a, %rows
  %logits = matmul %r, @embed {transpose_rhs = true}
  return "logits" = %logits
}
)";

TEST_F(PlanWriterTest, WhatIsNotCompiledIsPlannedForItsTargetsToo) {
  const auto model = ParseModel(kForTargets, "m.lir");
  ASSERT_TRUE(model.ok()) << model.status();
  std::map<std::string, std::string> sources;  // by target
  for (const std::string target : {"sm_80", "sm_90a"}) {
    PlanOptions options = {.compiler_version = "1.2",
                           .targets = {*FindTarget(target)},
                           .compile = {.cache_folder = LLMC_CUBINS, .fast_compile = true}};
    const absl::StatusOr<plan::Manifest> planned = MakeManifest(**model, options, &sources[target]);
    ASSERT_TRUE(planned.ok()) << planned.status();
    if (!NvrtcVersion().ok()) continue;
    const absl::Status written = WritePlan(**model, options, Path("a.bin"));
    ASSERT_TRUE(written.ok()) << written;
    const auto plan = Plan::Load(Path("a.bin"));
    ASSERT_TRUE(plan.ok()) << plan.status();
    plan::Manifest compiled = (*plan)->manifest();
    for (plan::Kernel& kernel : *compiled.mutable_kernels()) {
      EXPECT_EQ(kernel.cubins_size(), 1);
      kernel.clear_cubins();
    }
    EXPECT_EQ(planned->SerializeAsString(), compiled.SerializeAsString()) << target;
  }
  for (const char* form : {"kHopper = 1", "kChunk = 256"}) {
    EXPECT_TRUE(absl::StrContains(sources["sm_90a"], form)) << form;
    EXPECT_FALSE(absl::StrContains(sources["sm_80"], form)) << form;
  }
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
  plan::LanguageModel::Pool* pool = lm.add_pools();
  pool->set_dim("N");
  pool->set_page_size(16);
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

// Another file with the checksum that weights in a plan have: a word of it is changed, and the next of that lane such
// that the hash of both is the same.
std::string WithTheSameChecksum(std::string bytes) {
  const auto word = [&](size_t at) {
    uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return value;
  };
  const auto mix = [](uint64_t value) {
    const uint64_t mixed = (1 ^ value) * 0x9e3779b97f4a7c15;
    return (mixed ^ mixed >> 32) * 0xbf58476d1ce4e5b9;
  };
  const uint64_t changed = word(0) ^ 0xff, next = word(32) ^ mix(word(0)) ^ mix(changed);
  std::memcpy(bytes.data(), &changed, sizeof(changed));
  std::memcpy(bytes.data() + 32, &next, sizeof(next));
  return bytes;
}

TEST_F(ExternalWeightsTest, AreComparedBySha256) {
  std::string bytes(100, 'a');
  const std::string forged = WithTheSameChecksum(bytes);
  const auto checksum = [](absl::string_view of) { return plan::HashPieces(of, plan::PieceDigest::kChecksum); };
  ASSERT_NE(bytes, forged);
  ASSERT_EQ(checksum(bytes), checksum(forged)) << "forging is wrong";
  WriteFile("model.bin", bytes);
  std::memcpy(model_.data["@w"].mutable_raw(), bytes.data() + 4, 12);
  ASSERT_TRUE(WritePlan(model_, options_, Path("a.bin")).ok());
  ASSERT_TRUE(Load().ok()) << Load().status();
  EXPECT_EQ((*Load())->manifest().files(0).sha256(), "") << "nothing is recorded that is not checked";
  WriteFile("model.bin", forged);
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Load().status().message(),
              HasSubstr("its weight file \"model.bin\" has changed since the plan was made: compile the model again"));
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] ^= 1;
    WriteFile("model.bin", changed);
    EXPECT_EQ(Load().status().code(), absl::StatusCode::kFailedPrecondition) << at;
  }
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
