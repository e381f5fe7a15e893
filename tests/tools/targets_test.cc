// Plans with code for GPUs, made without one.
#include "cubins/targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cubins/nvrtc.h"
#include "runtime/device/device.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/target_code.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

// Up to 8, so that there are fewer programs to compile.
constexpr char kFewSequences[] = "--bound=S=8";

// Kernels of these plans are not run.
CommandResult CompileUntuned(const std::string& model, const std::string& plan,
                             const std::vector<std::string>& extra = {}) {
  std::vector<std::string> args = {"compile", model, "-o", plan, "--no-tune", "--fast-compile"};
  args.insert(args.end(), extra.begin(), extra.end());
  return RunLlmc(args, /*limit_seconds=*/800);
}

#define LLMC_NEEDS_NVRTC()                                                       \
  do {                                                                           \
    if (!NvrtcVersion().ok()) GTEST_SKIP() << NvrtcVersion().status().message(); \
  } while (false)

// The size of its result depends on what a kernel computes, which only the host follows.
std::string ModelForTheHost() {
  const std::string path = TempFolder() + "/host.lir";
  // How many rows there are depends on a tensor of any length, which no size rule reads.
  std::ofstream(path)
      << "model m\ndim T <= 4\nstep main(%x: f32[T, 4], %ends: i64[T]) {\n"
         "  %none = constant {value = [0]} : i64[1]\n  %end = reduce_max %ends {axes = [0], keep_dims = true}\n"
         "  %y = slice_by %x, %none, %end\n  return \"y\" = %y\n}\n";
  return path;
}

TEST(Targets, AllOfThemAreCompiled) {
  LLMC_NEEDS_NVRTC();
  const std::string plan = TempFolder() + "/six.bin";
  const std::vector<std::string> names = NamesOf(Targets());
  std::vector<std::string> options = {"--target", names[0], "--json", kFewSequences};
  options.push_back("--target=" + absl::StrJoin(names.begin() + 1, names.end(), ","));
  const CommandResult result = CompileUntuned(kModel, plan, options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.Json()["targets"], names);
  const absl::StatusOr<std::unique_ptr<Plan>> loaded = Plan::Load(plan);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const plan::Manifest& manifest = (*loaded)->manifest();
  EXPECT_GT(manifest.kernels_size(), 10);
  ASSERT_EQ(manifest.targets_size(), static_cast<int>(names.size()));
  for (int i = 0; i < manifest.targets_size(); ++i) {
    EXPECT_EQ(manifest.targets(i).target(), names[static_cast<size_t>(i)]);
    for (const int kernel : TargetCode(manifest, i).Kernels()) {
      const auto& cubins = manifest.kernels(kernel).cubins();
      const auto cubin = std::find_if(cubins.begin(), cubins.end(),
                                      [&](const plan::Cubin& c) { return c.target() == manifest.targets(i).target(); });
      ASSERT_NE(cubin, cubins.end());
      EXPECT_GT(cubin->bytes(), 500u);
    }
  }
  EXPECT_THAT(RunLlmc({"show", plan, "--json"}).Json()["flags"], Contains("--fast-compile"));
  const std::string shown = RunLlmc({"show", plan}).out;
  EXPECT_THAT(shown, HasSubstr(absl::StrCat(", for ", absl::StrJoin(names, ","), ", by llmc")));
  EXPECT_THAT(shown, HasSubstr("decode, R <= 4, S <= 4, T <= 4, for sm_80"));
  for (const std::string& name : names) {
    EXPECT_THAT(RunLlmc({"check", plan, "--target", name, "--require=gpu"}).out,
                HasSubstr("and on its " + name + ", with its code for " + name));
    EXPECT_EQ(RunLlmc({"fit", plan, "--target", name, "--gpu-memory=8GiB", "--json"}).Json()["target"], name);
  }
}

// A second target costs its own programs and kernels; weights, and what both run, are there once.
TEST(Targets, OnePlanForTwoIsSmallerThanTwo) {
  LLMC_NEEDS_NVRTC();
  const auto size_of = [](const std::string& targets) {
    const std::string plan = TempFolder() + "/" + targets + ".bin";
    EXPECT_EQ(CompileUntuned(kModel, plan, {"--target=" + targets, kFewSequences}).exit_code, 0);
    return fs::file_size(plan);
  };
  const uintmax_t a = size_of("sm_80"), b = size_of("sm_90a"), both = size_of("sm_80,sm_90a");
  const uintmax_t weights = fs::file_size(kModel + "/model.safetensors");
  EXPECT_GT(both, std::max(a, b));
  EXPECT_LT(both, a + b - weights);
}

TEST(Targets, APlanWithoutOneSaysWhatItHas) {
  LLMC_NEEDS_NVRTC();
  const std::string plan = TempFolder() + "/hopper.bin";
  ASSERT_EQ(CompileUntuned(kModel, plan, {"--target=sm_90a"}).exit_code, 0);
  const CommandResult check = RunLlmc({"check", plan, "--target=sm_80", "--require=gpu"});
  EXPECT_EQ(check.exit_code, 3);
  EXPECT_THAT(check.out, HasSubstr("has code for sm_90a, but none for sm_80; compile it with --target=sm_80"));
  EXPECT_THAT(RunLlmc({"check", plan, "--target=sm_100a"}).out,
              HasSubstr("compiles its sources, with programs for sm_90a"));
  const CommandResult fit = RunLlmc({"fit", plan, "--target=sm_80", "--gpu-memory=8GiB"});
  EXPECT_EQ(fit.exit_code, 1);
  EXPECT_THAT(fit.err, HasSubstr("has code for sm_90a, but none for sm_80; compile it with --target=sm_80"));
}

TEST(Targets, TheCacheChangesNoByte) {
  LLMC_NEEDS_NVRTC();
  const std::string first = TempFolder() + "/first.bin", second = TempFolder() + "/second.bin",
                    third = TempFolder() + "/third.bin";
  ASSERT_EQ(CompileUntuned(kModel, first, {"--target=sm_90a", kFewSequences}).exit_code, 0);
  ASSERT_EQ(CompileUntuned(kModel, second, {"--target=sm_90a", kFewSequences}).exit_code, 0);
  ASSERT_EQ(CompileUntuned(kModel, third, {"--target=sm_90a", kFewSequences, "--no-cache"}).exit_code, 0);
  EXPECT_EQ(ReadFile(first), ReadFile(second));
  EXPECT_EQ(ReadFile(first), ReadFile(third));
}

TEST(Targets, DefaultToAGpuWhereThatIsPossible) {
  LLMC_NEEDS_NVRTC();
  const std::string plan = TempFolder() + "/default.bin";
  const nlohmann::json whole = CompileUntuned(kModel, plan, {"--json"}).Json();
  EXPECT_EQ(whole["targets"].size(), 1u) << whole;
  EXPECT_FALSE(whole.contains("host_only"));
  EXPECT_THAT(RunLlmc({"show", plan}).out, HasSubstr("decode, R <= 8"));
  const std::string model = ModelForTheHost();
  const CommandResult part = CompileUntuned(model, plan, {"--json"});
  ASSERT_EQ(part.exit_code, 0) << part.err;
  EXPECT_TRUE(part.Json()["targets"].empty());
  EXPECT_THAT(part.Json()["host_only"].get<std::string>(), HasSubstr("slice_by"));
  EXPECT_THAT(CompileUntuned(model, plan).out,
              testing::AllOf(HasSubstr("for the host only, as there is no form for a GPU: "), HasSubstr("(slice_by")));
  EXPECT_EQ(CompileUntuned(model, plan, {"--target=sm_90a"}).exit_code, 3);
  EXPECT_THAT(CompileUntuned(model, plan, {"--target=host"}).out, HasSubstr("for the host\n"));
}

TEST(Targets, ThatThereAreNotAreWrongUsage) {
  const CommandResult result = CompileUntuned(kModel, TempFolder() + "/none.bin", {"--target=sm_90"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("'sm_90' is no target; there are sm_80"));
}

TEST(Targets, KernelsAreDumpedAndShown) {
  LLMC_NEEDS_NVRTC();
  const fs::path folder = fs::path(TempFolder()) / "dump";
  const std::string plan = TempFolder() + "/dumped.bin";
  ASSERT_EQ(CompileUntuned(kModel, plan, {"--target=sm_90a", "--dump-ir=" + folder.string()}).exit_code, 0);
  const std::string text = ReadFile(folder / "plan.txt");
  EXPECT_THAT(text, HasSubstr("program prepare\n"));
  EXPECT_THAT(text, HasSubstr("program main, decode\n"));
  EXPECT_EQ(RunLlmc({"show", plan, "--memory"}).out, text);
  std::vector<std::string> norms;
  for (const fs::directory_entry& file : fs::directory_iterator(folder / "kernels")) {
    const std::string entry = file.path().stem(), source = ReadFile(file.path());
    EXPECT_TRUE(absl::StartsWith(source, "// ")) << entry;
    EXPECT_THAT(source, HasSubstr(absl::StrCat("void ", entry, "(")));
    EXPECT_THAT(text, HasSubstr(absl::StrCat("  ", entry, " on (")));
    EXPECT_EQ(RunLlmc({"show", plan, "--kernel", entry}).out, source);
    if (absl::EndsWith(entry, "_rms_norm")) norms.push_back(entry);
  }
  EXPECT_FALSE(norms.empty());
  EXPECT_THAT(RunLlmc({"show", plan, "--kernel", "rms_norm"}).out, HasSubstr("%n0a = rms_norm"));
  const CommandResult none = RunLlmc({"show", plan, "--kernel", "nothing"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("has no kernel nothing; it has k0_"));
  // The next dump leaves none of them behind.
  ASSERT_EQ(CompileUntuned(kModel, plan, {"--target=host", "--dump-ir=" + folder.string()}).exit_code, 0);
  EXPECT_TRUE(fs::is_empty(folder / "kernels"));
  EXPECT_THAT(RunLlmc({"show", plan, "--kernel", "rms_norm"}).err, HasSubstr("it has none"));
}

TEST(Targets, CheckSaysWhatAPlanRunsOn) {
  LLMC_NEEDS_NVRTC();
  const std::string plan = TempFolder() + "/checked.bin";
  ASSERT_EQ(CompileUntuned(kModel, plan, {"--target=host"}).exit_code, 0);
  const CommandResult host = RunLlmc({"check", plan});
  EXPECT_EQ(host.exit_code, 0) << host.err;
  EXPECT_THAT(host.out, HasSubstr("whole; runs on this machine's processor\nbut not on a GPU: "));
  const nlohmann::json json = RunLlmc({"check", plan, "--json"}).Json();
  EXPECT_EQ(json["host"], true);
  EXPECT_EQ(json["gpu"], false);
  std::string bytes = ReadFile(plan);
  bytes[bytes.size() - 5000] ^= 1;  // in the weights
  std::ofstream(plan, std::ios::binary) << bytes;
  EXPECT_EQ(RunLlmc({"check", plan}).exit_code, 1);
  EXPECT_THAT(RunLlmc({"check", plan, "--quick"}).out, HasSubstr("whole but for the weights, which were not read"));
}

TEST(Targets, ProductsAreTimedOnlyWhereThereIsAGpu) {
  LLMC_NEEDS_NVRTC();
  if (DescribeDevice().ok()) GTEST_SKIP() << "there is a GPU on this machine";
  const std::string plan = TempFolder() + "/tuned.bin";
  const CommandResult refused = RunLlmc({"compile", kModel, "-o", plan, "--target=sm_90a", "--tune"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--tune needs a GPU: there is no NVIDIA driver"));
  EXPECT_FALSE(fs::exists(plan));
  const CommandResult other =
      RunLlmc({"compile", kModel + "/model.onnx", "--no-paginate", "-o", plan, "--target=sm_90a", "--tune"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("only of language models with a paged cache"));
  ASSERT_EQ(RunLlmc({"compile", kModel, "-o", plan, "--target=sm_90a", "--fast-compile"}).exit_code, 0);
  ASSERT_EQ(CompileUntuned(kModel, plan + "2", {"--target=sm_90a"}).exit_code, 0);
  EXPECT_EQ(ReadFile(plan), ReadFile(plan + "2"));
}

}  // namespace
}  // namespace llmc
