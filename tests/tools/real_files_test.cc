// ONNX files that other programs wrote, as a user runs them: each folder of real-onnx in the shared data holds a model,
// and inputs with outputs of ONNX Runtime. A file agrees with it, or is refused with a reason that is written here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

// What is expected of a file that does not simply agree.
struct Exception {
  absl::string_view name;
  absl::string_view refusal = "";  // a part of the message that refuses it; empty: it agrees within `atol`
  double atol = 1e-4;
};

constexpr double kRtol = 1e-3;

// Numbers of 16 bits are rounded at other places here and there: by a few of their last digits. With accuracy_level 4
// ONNX Runtime quantizes what weights of 4 bits are multiplied with, too, and llmc does not.
constexpr double kHalf = 3e-3, kQuantized = 5e-2;

constexpr Exception kExceptions[] = {
    {.name = "dit.ts.f16", .atol = kHalf},
    {.name = "ga11_llama.int4", .atol = kQuantized},
    {.name = "ga_llama.int4", .atol = kQuantized},
    {.name = "ga_phi3.fp16", .atol = kHalf},
    {.name = "ga_qwen2.int4", .atol = kQuantized},
    {.name = "merged_decoder_false_branch", .refusal = "--set use_cache_branch=0 for the first one"},
    {.name = "o_marian.decoder_model_merged", .refusal = "--set use_cache_branch=0 for the first one"},
    {.name = "o_t5.decoder_model_merged", .refusal = "--set use_cache_branch=0 for the first one"},
    {.name = "tv_nms.ts", .refusal = "NonMaxSuppression: this op is not supported"},
    {.name = "vit.dyn.ortall", .refusal = "com.microsoft.nchwc.Conv: ops of this domain are not supported"},
    {.name = "wav2vec2.ts.f16io", .atol = kHalf},
};

Exception ExpectedOf(const std::string& name) {
  const auto* found = std::find_if(std::begin(kExceptions), std::end(kExceptions),
                                   [&](const Exception& exception) { return exception.name == name; });
  return found == std::end(kExceptions) ? Exception{.name = name} : *found;
}

std::vector<fs::path> Folders() {
  std::vector<fs::path> folders;
  const std::string shared = FindSharedData("real-onnx");
  if (shared.empty()) return folders;
  for (const auto& entry : fs::directory_iterator(shared)) {
    if (fs::exists(entry.path() / "model.onnx")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

class RealFiles : public testing::TestWithParam<fs::path> {};

// Where ONNX Runtime runs no such file there are no outputs: then it is imported only.
TEST_P(RealFiles, AgreesOrIsRefused) {
  const std::string folder = GetParam().string(), model = folder + "/model.onnx";
  const Exception expected = ExpectedOf(GetParam().filename().string());
  std::vector<std::string> args = {"check", model};
  if (fs::exists(GetParam() / "outputs.safetensors")) {
    args = {"run",       model,
            "--inputs",  folder + "/inputs.safetensors",
            "--rtol",    absl::StrCat(kRtol),
            "--atol",    absl::StrCat(expected.atol),
            "--compare", folder + "/outputs.safetensors"};
  }
  const CommandResult result = RunLlmc(args);
  if (expected.refusal.empty()) {
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  } else {
    EXPECT_THAT(result.exit_code, ::testing::AnyOf(1, 3));
    EXPECT_THAT(result.out + result.err, HasSubstr(expected.refusal));
  }
}

std::string TestName(const testing::TestParamInfo<fs::path>& info) {
  std::string name = info.param.filename().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RealFiles);
INSTANTIATE_TEST_SUITE_P(All, RealFiles, testing::ValuesIn(Folders()), TestName);

// Decoders of onnxruntime-genai's model builder.
std::vector<fs::path> BuiltFolders() {
  std::vector<fs::path> folders = Folders();
  folders.erase(std::remove_if(folders.begin(), folders.end(),
                               [](const fs::path& path) { return path.filename().string().rfind("ga", 0) != 0; }),
                folders.end());
  return folders;
}

class BuiltDecoders : public testing::TestWithParam<fs::path> {};

TEST_P(BuiltDecoders, ArePaginatedScoreAndGenerate) {
  const std::string folder = GetParam().string(), plan = TempFolder() + "/built.bin";
  const CommandResult compiled =
      RunLlmc({"compile", folder + "/model.onnx", "--paginate", "--target=host", "-o", plan});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  if (fs::exists(GetParam() / "outputs.safetensors")) {
    const Exception expected = ExpectedOf(GetParam().filename().string());
    const CommandResult scored =
        RunLlmc({"run", plan, "--inputs", folder + "/inputs.safetensors", "--compare", folder + "/outputs.safetensors",
                 "--rtol", absl::StrCat(kRtol), "--atol", absl::StrCat(expected.atol)});
    EXPECT_EQ(scored.exit_code, 0) << scored.out << scored.err;
  }
  const CommandResult generated = RunLlmc({"generate", plan, "--prompt-ids", "5,7,9", "--max-new-tokens", "12",
                                           "--temperature", "0", "--ignore-eos", "--json"});
  ASSERT_EQ(generated.exit_code, 0) << generated.err;
  EXPECT_EQ(generated.Json()["output_ids"].size(), 12u) << generated.out;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BuiltDecoders);
INSTANTIATE_TEST_SUITE_P(All, BuiltDecoders, testing::ValuesIn(BuiltFolders()), TestName);

// The first step of a merged encoder-decoder takes no cache: that of the encoder may be empty, or of any length.
TEST(MergedDecoders, FirstStepsAgree) {
  for (const char* name :
       {"merged_decoder_false_branch", "o_marian.decoder_model_merged", "o_t5.decoder_model_merged"}) {
    const std::string folder = SharedData(absl::StrCat("real-onnx/", name));
    if (folder.empty()) GTEST_SKIP() << "no real-onnx in the shared test data";
    const CommandResult run = RunLlmc({"run", folder + "/model.onnx", "--set", "use_cache_branch=0", "--inputs",
                                       folder + "/inputs.safetensors", "--compare", folder + "/outputs.safetensors",
                                       "--rtol", "1e-3", "--atol", "1e-4"});
    EXPECT_EQ(run.exit_code, 0) << name << ": " << run.out << run.err;
  }
}

TEST(RealFileData, IsThere) {
  if (SharedData("real-onnx").empty()) GTEST_SKIP() << "no real-onnx in the shared test data";
  const std::vector<fs::path> folders = Folders();
  EXPECT_GE(folders.size(), 54u);
  for (const Exception& exception : kExceptions) {
    const auto is_named = [&](const fs::path& folder) { return folder.filename().string() == exception.name; };
    EXPECT_TRUE(std::any_of(folders.begin(), folders.end(), is_named)) << exception.name;
  }
}

TEST(RealFileWarnings, GoToStandardErrorAndIntoTheReport) {
  const std::string folder = SharedData("real-onnx/min_not_sorted"), many = SharedData("real-onnx/ga_qwen3.fp32");
  if (folder.empty() || many.empty()) GTEST_SKIP() << "no real-onnx in the shared test data";
  const CommandResult run = RunLlmc({"run", folder + "/model.onnx", "--inputs", folder + "/inputs.safetensors"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("warning: " + folder + "/model.onnx: nodes are not in topological order"));
  EXPECT_THAT(run.out, Not(HasSubstr("warning")));
  const CommandResult check = RunLlmc({"check", many + "/model.onnx", "--json"});
  EXPECT_EQ(check.exit_code, 0) << check.err;
  EXPECT_EQ(check.Json()["warnings"].size(), 5u);
  const CommandResult show = RunLlmc({"show", many + "/model.onnx", "--json"});
  EXPECT_THAT(show.err, HasSubstr("is declared with rank 0"));
  EXPECT_THAT(show.err, HasSubstr("warning: 2 more; `llmc check " + many));
  EXPECT_FALSE(show.Json().is_discarded()) << show.out;
}

}  // namespace
}  // namespace llmc
