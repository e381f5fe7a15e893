// Plans with code for GPUs, made without one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cubins/nvrtc.h"
#include "runtime/device/device.h"
#include "runtime/plan/plan.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

CommandResult CompileUntuned(const std::string& model, const std::string& plan,
                             const std::vector<std::string>& extra = {}) {
  std::vector<std::string> args = {"compile", model, "-o", plan, "--no-tune"};
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
  const CommandResult result = CompileUntuned(
      kModel, plan, {"--target=sm_80,sm_86", "--target=sm_89,sm_90a,sm_100a", "--target", "sm_120", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.Json()["targets"].size(), 6u);
  const absl::StatusOr<std::unique_ptr<Plan>> loaded = Plan::Load(plan);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_GT((*loaded)->manifest().kernels_size(), 10);
  for (const plan::Kernel& kernel : (*loaded)->manifest().kernels()) {
    std::vector<std::string> targets;
    for (const plan::Cubin& cubin : kernel.cubins()) {
      targets.push_back(cubin.target());
      EXPECT_GT(cubin.bytes(), 500u);
    }
    EXPECT_THAT(targets, ElementsAre("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120"));
  }
}

TEST(Targets, TheCacheChangesNoByte) {
  LLMC_NEEDS_NVRTC();
  const std::string first = TempFolder() + "/first.bin", second = TempFolder() + "/second.bin",
                    third = TempFolder() + "/third.bin";
  ASSERT_EQ(CompileUntuned(kModel, first, {"--target=sm_90a"}).exit_code, 0);
  ASSERT_EQ(CompileUntuned(kModel, second, {"--target=sm_90a"}).exit_code, 0);
  ASSERT_EQ(CompileUntuned(kModel, third, {"--target=sm_90a", "--no-cache"}).exit_code, 0);
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
  ASSERT_EQ(RunLlmc({"compile", kModel, "-o", plan, "--target=sm_90a"}).exit_code, 0);
  ASSERT_EQ(CompileUntuned(kModel, plan + "2", {"--target=sm_90a"}).exit_code, 0);
  EXPECT_EQ(ReadFile(plan), ReadFile(plan + "2"));
}

}  // namespace
}  // namespace llmc
