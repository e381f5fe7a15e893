// What the kernels of language models take of a GPU, as tests/resources/ has it: more registers, memory that they spill
// into, or more code show there, with the kernel that takes it. And what their steps read.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "codegen/device_plan.h"
#include "codegen/plan_writer.h"
#include "cubins/compile.h"
#include "cubins/nvrtc.h"
#include "runtime/plan/target_code.h"
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

// How long NVRTC takes for kernels of a plan, in times of what it takes for a yardstick.
class KernelTimer {
 public:
  KernelTimer(const plan::Manifest& manifest, absl::string_view sources, KernelSource yardstick)
      : yardstick_(std::move(yardstick)) {
    for (const plan::Header& header : manifest.headers()) {
      headers_.push_back({header.name(), sources.substr(header.offset(), header.bytes())});
    }
  }

  // The least of some tries, as many as it takes to be at most `enough`; the yardstick is timed before and after each.
  absl::StatusOr<double> TimesOf(const KernelSource& kernel, double enough) {
    constexpr int kTries = 4;
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kTries && least > enough; ++i) {
      if (before_ == 0) {
        ASSIGN_OR_RETURN(before_, Seconds(yardstick_));
      }
      ASSIGN_OR_RETURN(const double own, Seconds(kernel));
      ASSIGN_OR_RETURN(const double after, Seconds(yardstick_));
      least = std::min(least, own / ((before_ + after) / 2));
      before_ = after;
    }
    return least;
  }

 private:
  // Of this thread's own time.
  absl::StatusOr<double> Seconds(const KernelSource& kernel) const {
    const auto now = [] {
      timespec time;
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    const double begin = now();
    RETURN_IF_ERROR(CompileToCubin(std::string(kernel.text), kernel.entry, kernel.target, headers_).status());
    return now() - begin;
  }
  std::vector<SourceFile> headers_;
  KernelSource yardstick_;
  double before_ = 0;  // what the yardstick took last
};

// Of each kind of kernels, the one with the most code.
std::map<std::string, KernelSource> LargestKernels(const plan::Manifest& manifest, absl::string_view sources) {
  std::map<std::string, KernelSource> largest;
  std::map<std::string, uint64_t> bytes;
  for (const int index : TargetCode(manifest, 0).Kernels()) {
    const plan::Kernel& kernel = manifest.kernels(index);
    const std::string kind = kernel.entry().substr(kernel.entry().find('_') + 1);
    if (kernel.cubins(0).bytes() <= bytes[kind]) continue;
    bytes[kind] = kernel.cubins(0).bytes();
    largest[kind] = {kernel.entry(), sources.substr(kernel.source_offset(), kernel.source_bytes()), kResourcesTarget};
  }
  return largest;
}

// Sources, but for the names of their kernels, that have been timed: models have some in common.
std::set<std::string>& Timed() {
  static auto* timed = new std::set<std::string>();
  return *timed;
}

// How long NVRTC takes, by kinds of kernels, in times of what it takes for a yardstick, so that machines and their load
// count for little: a new template that is unrolled too often shows here.
TEST_P(KernelsOf, AreCompiledInTheTimeTheyTook) {
  const auto version = NvrtcVersion();
  if (!version.ok()) GTEST_SKIP() << version.status().message();
  constexpr double kMostTimesLonger = 1.6, kLeastOfFile = 4;  // what takes less is not worth a line
  const std::filesystem::path path = kTree / "tests/resources" / absl::StrCat(GetParam().name(), ".nvrtc.txt");
  const std::string head = absl::StrCat("NVRTC ", *version, ", ", kResourcesTarget, ", times of what gather takes");
  std::map<std::string, double> expected;
  if (!Blessing()) {
    std::ifstream file(path);
    std::string line;
    ASSERT_TRUE(std::getline(file, line)) << path << " is not there:\n  " << BlessCommand();
    if (line != head) GTEST_SKIP() << "of another compiler: " << line;
    std::string kind;
    for (double times = 0; file >> kind >> times;) expected[kind] = times;
    ASSERT_FALSE(expected.empty()) << path;
  }
  DeviceCode code;
  absl::StatusOr<plan::Manifest> manifest = ManifestOf(GetParam(), &code);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const absl::Status compiled = CompileDevicePlan({.cache_folder = LLMC_CUBINS}, &*manifest, &code);
  ASSERT_TRUE(compiled.ok()) << compiled;
  const std::map<std::string, KernelSource> kernels = LargestKernels(*manifest, code.sources);
  ASSERT_TRUE(kernels.contains("gather"));
  KernelTimer timer(*manifest, code.sources, kernels.at("gather"));
  if (Blessing()) {
    std::ofstream file(path);
    file << head << "\n\n";
    for (const auto& [kind, kernel] : kernels) {
      const absl::StatusOr<double> times = timer.TimesOf(kernel, 0);
      ASSERT_TRUE(times.ok()) << times.status();
      if (*times >= kLeastOfFile) file << absl::StrFormat("%s %.1f\n", kind, *times);
    }
    return;
  }
  for (const auto& [kind, times] : expected) EXPECT_TRUE(kernels.contains(kind)) << path << " has " << kind;
  for (const auto& [name, kernel] : kernels) {
    if (!Timed().insert(absl::StrReplaceAll(kernel.text, {{kernel.entry, name}})).second) continue;
    const auto found = expected.find(name);
    const double most = kMostTimesLonger * (found == expected.end() ? kLeastOfFile : found->second);
    const absl::StatusOr<double> times = timer.TimesOf(kernel, most);
    ASSERT_TRUE(times.ok()) << times.status();
    EXPECT_LE(*times, most) << name << " (" << kernel.entry << ") takes longer to compile than it did; if it must:\n  "
                            << BlessCommand();
  }
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
