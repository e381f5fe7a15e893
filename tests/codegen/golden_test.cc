// What is planned for a GPU, model by model, as tests/golden/ has it: a change of a plan shows there as lines that
// moved.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "codegen/plan_writer.h"
#include "tests/bless.h"
#include "tests/codegen/plan_listing.h"
#include "tests/shared_data.h"
#include "tools/model_source.h"
#include "tools/plan_options.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

const fs::path kRepository = fs::path(LLMC_TEST_DATA).parent_path().parent_path();
const fs::path kGolden = kRepository / "tests/golden";
constexpr size_t kMostDiffLines = 60;

struct GoldenModel {
  std::string name;
  std::string path;          // in the repository, or in the shared data
  bool shared = false;       // in the latter
  bool for_several = false;  // one plan for two targets too
};

const std::vector<GoldenModel> kModels = {
    {.name = "tale-7m", .path = "tests/data/tale-7m", .for_several = true},
    {.name = "tale-7m-onnx", .path = "tests/data/tale-7m/model.onnx"},
    {.name = "llama-3.2-1b", .path = "tools/bench/configs/llama-3.2-1b"},
    {.name = "llama-3.1-8b", .path = "tools/bench/configs/llama-3.1-8b"},
    {.name = "llama-3.1-70b", .path = "tools/bench/configs/llama-3.1-70b"},
    {.name = "qwen3-0.6b", .path = "tools/bench/configs/qwen3-0.6b"},
    {.name = "qwen3-8b", .path = "tools/bench/configs/qwen3-8b"},
    {.name = "qwen3", .path = "tiny-models/qwen3", .shared = true},
    {.name = "mistral-sliding", .path = "tiny-models/mistral-sliding", .shared = true},
    {.name = "gpt2-cache", .path = "onnx-exports/gpt2-cache-dynamo18/model.onnx", .shared = true},
    {.name = "bert", .path = "onnx-exports/bert-encoder-legacy17/model.onnx", .shared = true},
    {.name = "vit", .path = "onnx-exports/vit-vit-dynamo18/model.onnx", .shared = true},
    {.name = "segformer-qdq", .path = "real-onnx/segformer.ts.qdq/model.onnx", .shared = true},
    {.name = "llama-int4", .path = "real-onnx/ga_llama.int4/model.onnx", .shared = true},
};

struct GoldenFile {
  const GoldenModel* model;
  std::vector<std::string> targets;
  std::string name() const { return absl::StrCat(model->name, ".", absl::StrJoin(targets, "+"), ".txt"); }
  friend std::ostream& operator<<(std::ostream& out, const GoldenFile& file) { return out << file.name(); }
};

constexpr char kBaseTarget[] = "sm_90a";  // files of other targets have what differs from its plan

// Ordered by model: a model is imported once for all that follow each other.
std::vector<GoldenFile> AllGoldenFiles() {
  std::vector<GoldenFile> files;
  for (const GoldenModel& model : kModels) {
    for (const char* target : {kBaseTarget, "sm_80", "sm_100a"}) files.push_back({&model, {target}});
    if (model.for_several) files.push_back({&model, {"sm_80", kBaseTarget}});
  }
  return files;
}

std::string ReadGolden(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

bool BeginsWithOneOf(absl::string_view text, const std::vector<absl::string_view>& starts) {
  return absl::c_any_of(starts, [&](absl::string_view start) { return absl::StartsWith(text, start); });
}

// Every task of a program is one of a kernel whose report says what it is made of, or one of those that each step has.
void ExpectReports(const plan::LoweredProgram& lowered, const plan::Program& program) {
  std::vector<const plan::LoweredKernel*> kernel_of(static_cast<size_t>(program.tasks_size()));
  for (const plan::LoweredKernel& kernel : lowered.kernels()) {
    EXPECT_GT(kernel.ops_size(), 0);
    EXPECT_FALSE(kernel.place().empty());
    EXPECT_GT(kernel.tasks(), 0u) << kernel.place();
    // Products have several backends: each of the others says why it is not the one.
    const int backends = absl::c_linear_search(kernel.ops(), "linear")   ? 9
                         : absl::c_linear_search(kernel.ops(), "matmul") ? 3
                                                                         : 1;
    if (backends > 1) {
      EXPECT_EQ(kernel.others_size(), backends - 1) << kernel.place();
    }
    for (const auto* reasons : {&kernel.refused(), &kernel.others()}) {
      for (const auto& reason : *reasons) EXPECT_FALSE(reason.what().empty() || reason.why().empty()) << kernel.place();
    }
    for (uint32_t i = kernel.first_task(); i < kernel.first_task() + kernel.tasks(); ++i) {
      ASSERT_LT(i, kernel_of.size());
      EXPECT_EQ(kernel_of[i], nullptr) << kernel.place();
      kernel_of[i] = &kernel;
    }
  }
  for (int i = 0; i < program.tasks_size(); ++i) {
    if (kernel_of[static_cast<size_t>(i)] != nullptr) continue;
    EXPECT_TRUE(BeginsWithOneOf(program.tasks(i).label(), {"the inputs of a step", "sampling"}))
        << program.tasks(i).label();
  }
}

class GoldenPlan : public ::testing::TestWithParam<GoldenFile> {
 protected:
  static void TearDownTestSuite() { optimized_ = {}; }

  // The text of a file. The model is at `path`.
  static absl::StatusOr<std::string> MakeGolden(const GoldenFile& file, const std::string& path) {
    if (optimized_.source.path != path) {
      if (absl::Status status = Optimize(path); !status.ok()) return status;
    }
    const Planned& base = optimized_.base;
    if (file.targets == std::vector<std::string>{kBaseTarget}) return ListingText(base.List(0, kBaseTarget), nullptr);
    const absl::StatusOr<Planned> planned = Plan(optimized_, file.targets);
    if (!planned.ok()) return planned.status();
    std::vector<std::string> parts;
    for (int i = 0; i < planned->manifest.targets_size(); ++i) {
      const std::string& target = planned->manifest.targets(i).target();
      const PlanListing listing = planned->List(i, target), base_listing = base.List(0, target);
      parts.push_back(ListingText(listing, &base_listing));
      if (target != kBaseTarget) continue;
      EXPECT_EQ(LineDiff(ListingText(base_listing, nullptr), ListingText(listing, nullptr), kMostDiffLines), "")
          << "what runs on " << kBaseTarget << " depends on the other targets of the plan";
    }
    return absl::StrJoin(parts, "\n");
  }

 private:
  struct Planned {
    plan::Manifest manifest;
    std::string sources;
    plan::Lowering lowering;
    // What is planned for a target, with floors at the rates of `rates`.
    PlanListing List(int target, absl::string_view rates) const {
      return ListPlan(manifest, target, sources, *FindTarget(rates));
    }
  };

  struct Optimized {
    ModelSource source;
    Ledger ledger;
    std::unique_ptr<Model> model;
    Planned base;
  };

  static absl::Status Optimize(const std::string& path) {
    Optimized made;
    made.source.path = path;
    made.source.random_weights = HasConfigOnly(path);
    Progress progress;
    absl::StatusOr<std::unique_ptr<Model>> model = LoadOptimized(made.source, {}, &made.ledger, &progress);
    if (!model.ok()) return model.status();
    made.model = *std::move(model);
    absl::StatusOr<Planned> base = Plan(made, {kBaseTarget});
    if (!base.ok()) return base.status();
    made.base = *std::move(base);
    optimized_ = std::move(made);
    return absl::OkStatus();
  }

  static absl::StatusOr<Planned> Plan(const Optimized& from, const std::vector<std::string>& names) {
    const absl::StatusOr<std::vector<Target>> targets = ParseTargets(names);
    if (!targets.ok()) return targets.status();
    absl::StatusOr<PlanOptions> options =
        MakePlanOptions(*from.model, from.source, {.targets = *targets, .generates = false}, from.ledger);
    if (!options.ok()) return options.status();
    options->files.clear();  // nobody asks for their checksums
    Planned planned;
    absl::StatusOr<plan::Manifest> manifest = MakeManifest(*from.model, *options, &planned.sources, &planned.lowering);
    if (!manifest.ok()) return manifest.status();
    planned.manifest = *std::move(manifest);
    int programs = 0;
    for (const plan::TargetPrograms& target : planned.manifest.targets()) programs += target.programs_size();
    EXPECT_EQ(planned.lowering.programs_size(), programs);
    for (const plan::LoweredProgram& lowered : planned.lowering.programs()) {
      SCOPED_TRACE(lowered.name());
      ExpectReports(lowered, planned.manifest.programs(static_cast<int>(lowered.program())));
    }
    return planned;
  }

  static Optimized optimized_;  // the last
};
GoldenPlan::Optimized GoldenPlan::optimized_;

TEST_P(GoldenPlan, IsAsItsFileSays) {
  const GoldenFile& file = GetParam();
  const std::string path =
      file.model->shared ? SharedData(file.model->path) : (kRepository / file.model->path).string();
  if (path.empty()) GTEST_SKIP() << "the shared test data has no " << file.model->path;
  const absl::StatusOr<std::string> text = MakeGolden(file, path);
  ASSERT_TRUE(text.ok()) << text.status();
  const fs::path golden = kGolden / file.name();
  if (Blessing()) std::ofstream(golden, std::ios::binary) << *text;
  const std::string diff = LineDiff(ReadGolden(golden), *text, kMostDiffLines);
  if (diff.empty()) return;
  ADD_FAILURE() << "tests/golden/" << file.name() << " (-) is not what is planned (+):\n"
                << diff << "If that is meant to be, write the files anew, read what moved, and commit it:\n  "
                << BlessCommand();
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenPlan, ::testing::ValuesIn(AllGoldenFiles()), [](const auto& info) {
  const std::string name = info.param.name();
  return absl::StrReplaceAll(name.substr(0, name.size() - 4), {{".", "_"}, {"-", "_"}, {"+", "_and_"}});
});

TEST(GoldenFiles, AreThoseOfTheModels) {
  std::set<std::string> expected, actual;
  for (const GoldenFile& file : AllGoldenFiles()) expected.insert(file.name());
  for (const fs::directory_entry& entry : fs::directory_iterator(kGolden)) {
    actual.insert(entry.path().filename().string());
  }
  if (Blessing()) {
    for (const std::string& name : actual) {
      if (!expected.contains(name)) fs::remove(kGolden / name);
    }
    return;
  }
  EXPECT_EQ(expected, actual) << "one file in tests/golden for each model and target:\n  " << BlessCommand();
}

TEST(LineDiff, ShowsWhatDiffersUnderItsHeading) {
  const std::string text = "a\n  1\n  2\n  3\n\nb\n  4\n  5\n  6\n";
  EXPECT_EQ(LineDiff(text, text, 9), "");
  EXPECT_EQ(LineDiff(text, absl::StrReplaceAll(text, {{"2", "two"}, {"5\n", "5\n  5.5\n"}}), 9),
            "@@ line 3: a\n   1\n-  2\n+  two\n@@ line 9: b\n   5\n+  5.5\n");
  EXPECT_EQ(LineDiff(text, "", 3), "@@ line 1: a\n-a\n-  1\n… 8 more lines\n");
  EXPECT_EQ(LineDiff("", "c\n", 3), "@@ line 1: \n+c\n");
}

}  // namespace
}  // namespace llmc
