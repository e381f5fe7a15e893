// Which of the ONNX project's node tests have kernels for a GPU, without one: each model that the importer takes has a
// plan, or is refused as tests/gpu/onnx_node_refusals.txt says. tests/gpu runs them.
#include "tests/gpu/onnx_node_plans.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "codegen/plan_writer.h"
#include "cubins/nvrtc.h"
#include "tests/bless.h"
#include "tests/frontend/onnx_node_cases.h"
#include "tests/shared_data.h"

namespace llmc {
namespace {

// Of the 1,765 tests of onnx 1.22.0.
constexpr int kLeastPlans = 1100;

struct Outcome {
  bool imported = false;
  std::string refused, wrong;
};

// With `compile`, kernels are compiled and the plan is written.
Outcome Try(const std::filesystem::path& folder, bool compile) {
  const auto model = OptimizedNodeModel(folder);
  if (absl::IsUnimplemented(model.status())) return {};
  if (!model.ok()) return {.wrong = model.status().ToString()};
  const PlanOptions options = {.compiler_version = "test",
                               .targets = {*FindTarget("sm_90a")},
                               .compile = {.cache_folder = LLMC_CUBINS, .fast_compile = true}};
  const std::string path = absl::StrCat(testing::TempDir(), "/llmc-", getpid(), "-", folder.filename().string());
  const absl::Status status = compile ? WritePlan(**model, options, path) : MakeManifest(**model, options).status();
  std::filesystem::remove(path);
  if (absl::IsUnimplemented(status)) return {.imported = true, .refused = NoPlanReasons(status)};
  if (!status.ok()) return {.imported = true, .wrong = status.ToString()};
  return {.imported = true};
}

TEST(OnnxNodePlans, ArePlannedOrRefused) {
  const auto folders = OnnxNodeFolders();
  if (folders.empty()) GTEST_SKIP() << "no tests in " << OnnxNodeFolder();
  // Takes minutes.
  const bool compile = std::getenv("LLMC_COMPILE_NODES") != nullptr && NvrtcVersion().ok();
  std::vector<Outcome> outcomes(folders.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < folders.size(); i = next++) outcomes[i] = Try(folders[i], compile);
  };
  std::thread other(work);
  work();
  other.join();
  std::set<std::string> refusals;
  std::map<std::string, int> reasons;
  int imported = 0, planned = 0;
  for (size_t i = 0; i < folders.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    const std::string name = folders[i].filename().string();
    EXPECT_EQ(outcome.wrong, "") << name;
    imported += outcome.imported;
    planned += outcome.imported && outcome.refused.empty() && outcome.wrong.empty();
    if (outcome.refused.empty()) continue;
    refusals.insert(absl::StrCat(name, " | ", outcome.refused));
    ++reasons[outcome.refused];
  }
  std::cout << imported << " imported, " << planned << " planned for a GPU\n";
  for (const auto& [reason, count] : reasons) std::cout << count << "  " << reason << "\n";
  EXPECT_GE(planned, kLeastPlans);
  if (Blessing()) std::ofstream(kNodeRefusals) << absl::StrJoin(refusals, "\n") << "\n";
  EXPECT_EQ(refusals, ReadNodeRefusals(kNodeRefusals)) << kNodeRefusals << " is written anew by " << BlessCommand();
}

// Files of the shared data (real-onnx) without a form: sizes of olmoe depend on data.
const std::set<std::string> kWithoutForm = {"olmoe.dyn"};

// What the importer takes of files that other programs wrote has a form for a GPU.
TEST(RealFilePlans, AreMade) {
  const std::string shared = SharedData("real-onnx");
  if (shared.empty()) GTEST_SKIP() << "no real-onnx in the shared test data";
  int planned = 0;
  for (const auto& entry : std::filesystem::directory_iterator(shared)) {
    const std::string name = entry.path().filename().string();
    if (!std::filesystem::exists(entry.path() / "model.onnx")) continue;
    const auto model = OptimizedNodeModel(entry.path());
    if (!model.ok()) continue;  // tests/tools/real_files_test.cc says why
    const PlanOptions options = {.compiler_version = "test", .targets = {*FindTarget("sm_90a")}};
    const absl::Status status = MakeManifest(**model, options).status();
    EXPECT_EQ(status.ok(), !kWithoutForm.contains(name)) << name << ": " << status;
    planned += status.ok();
  }
  EXPECT_GE(planned, 30);
}

}  // namespace
}  // namespace llmc
