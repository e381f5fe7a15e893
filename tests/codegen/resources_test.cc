// What the kernels of language models take of a GPU, as tests/resources/ has it: more registers, memory that they spill
// into, or more code show there, with the kernel that takes it. And what their steps read.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "codegen/device_plan.h"
#include "codegen/plan_writer.h"
#include "cubins/nvrtc.h"
#include "tests/bless.h"
#include "tests/codegen/plan_listing.h"
#include "tools/model_source.h"
#include "tools/plan_options.h"

namespace llmc {
namespace {

const std::filesystem::path kTree = std::filesystem::path(LLMC_TEST_DATA).parent_path().parent_path();
constexpr char kResourcesTarget[] = "sm_90a";

struct ResourcesModel {
  std::string config;  // of tools/bench/configs
  bool quantized_inputs = false;
  std::string name() const { return absl::StrCat(config, quantized_inputs ? "-inputs" : ""); }
};

// The plan of a model, and the sources of its kernels.
absl::StatusOr<plan::Manifest> ManifestOf(const ResourcesModel& chosen, DeviceCode* code) {
  ModelSource source = {.path = kTree / "tools/bench/configs" / chosen.config, .random_weights = true};
  source.fixed.quantized.activations = chosen.quantized_inputs;
  Progress progress;
  Ledger ledger;
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                   LoadOptimized(source, {.target = kResourcesTarget}, &ledger, &progress));
  ASSIGN_OR_RETURN(
      PlanOptions options,
      MakePlanOptions(*model, source, {.targets = {*FindTarget(kResourcesTarget)}, .generates = false}, ledger));
  return MakeManifest(*model, options, &code->sources);
}

// The lines of all kernels that the plan of a model launches.
absl::StatusOr<std::string> ResourcesText(const ResourcesModel& chosen) {
  DeviceCode code;
  ASSIGN_OR_RETURN(plan::Manifest manifest, ManifestOf(chosen, &code));
  RETURN_IF_ERROR(CompileDevicePlan({.cache_folder = LLMC_CUBINS}, &manifest, &code));
  return absl::StrJoin(ListResources(manifest, 0, code.sources, code.cubins), "\n") + "\n";
}

class KernelsOf : public ::testing::TestWithParam<ResourcesModel> {};

TEST_P(KernelsOf, TakeWhatTheyTook) {
  const auto version = NvrtcVersion();
  if (!version.ok()) GTEST_SKIP() << version.status().message();
  const std::filesystem::path path = kTree / "tests/resources" / absl::StrCat(GetParam().name(), ".txt");
  const absl::StatusOr<std::string> resources = ResourcesText(GetParam());
  ASSERT_TRUE(resources.ok()) << resources.status();
  const std::string head = absl::StrCat("NVRTC ", *version, ", ", kResourcesTarget, "\n\n");
  if (Blessing()) {
    std::ofstream(path) << head << *resources;
    return;
  }
  std::ifstream file(path, std::ios::binary);
  const std::string expected = {std::istreambuf_iterator<char>(file), {}};
  ASSERT_TRUE(expected.starts_with("NVRTC ")) << path << " is not there:\n  " << BlessCommand();
  const size_t end = expected.find("\n\n") + 2;
  if (expected.substr(0, end) != head) {
    GTEST_SKIP() << "of another compiler: " << expected.substr(0, end) << "here is " << head;
  }
  EXPECT_EQ(LineDiff(expected.substr(end), *resources, 40), "")
      << "if this is what a change was to do:\n  " << BlessCommand();
}

INSTANTIATE_TEST_SUITE_P(Models, KernelsOf,
                         ::testing::Values(ResourcesModel{"llama-3.1-8b"}, ResourcesModel{"llama-3.1-8b-int4"},
                                           ResourcesModel{"llama-3.1-8b-fp8", true}),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param.name(), {{"-", "_"}, {".", "_"}});
                         });

// The floor of a decode step is the time to read each weight of its linear layers and of the head once
// (docs/performance.md). Whatever kernels compute it, they read no more.
TEST(DecodeSteps, ReadEachWeightOnce) {
  constexpr double kLayers = 32, kHidden = 4096, kHeads = 32, kKvHeads = 8, kHeadDim = 128, kMlp = 14336,
                   kVocab = 128256, kElement = 2;
  constexpr double kLayer =
      kHidden * (kHeads + 2 * kKvHeads) * kHeadDim + kHeads * kHeadDim * kHidden + 3 * kHidden * kMlp;
  constexpr double kFloor = (kLayers * kLayer + kVocab * kHidden) * kElement;
  DeviceCode code;
  const absl::StatusOr<plan::Manifest> manifest = ManifestOf({"llama-3.1-8b"}, &code);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  int steps = 0;
  for (const plan::Program& program : manifest->programs()) {
    if (!program.decode()) continue;
    ++steps;
    double read = 0, bytes = 0;
    for (const plan::Task& task : program.tasks()) {
      // Rows of the embedding depend on the step, and are little.
      if (absl::SimpleAtod(task.cost().weight_bytes(), &bytes)) read += bytes;
    }
    EXPECT_GE(read, kFloor) << program.entry_point();
    EXPECT_LE(read, 1.03 * kFloor) << program.entry_point();
  }
  EXPECT_GE(steps, 6) << "1, 2, 4, 8, 32 and up to 256 sequences";
}

}  // namespace
}  // namespace llmc
