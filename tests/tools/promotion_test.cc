// Decoders of ONNX files, compiled with --promote, generate the tokens that they generate when their cache goes in and
// out as tensors, and score texts alike.
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

std::string Compile(const std::string& model, const std::vector<std::string>& extra, const std::string& name) {
  const std::string plan = TempFolder() + "/" + name;
  std::vector<std::string> args = {"compile", model, "--dtype=f32", "--target=host", "-o", plan};
  args.insert(args.end(), extra.begin(), extra.end());
  const CommandResult result = RunLlmc(args);
  EXPECT_EQ(result.exit_code, 0) << model << ": " << result.err;
  return plan;
}

nlohmann::json Generate(const std::string& plan, const std::string& prompt) {
  const CommandResult result = RunLlmc({"generate", plan, "--prompt-ids", prompt, "--max-new-tokens", "20",
                                        "--temperature", "0", "--ignore-eos", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.Json()["output_ids"];
}

TEST(Promotion, ExportsGenerateTheSameTokens) {
  const std::string exports = SharedData("onnx-exports");
  if (exports.empty()) GTEST_SKIP() << "the shared test data is not there";
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(exports)) {
    const std::string name = entry.path().filename(), folder = entry.path();
    if (!absl::StrContains(name, "cache")) continue;  // encoders
    SCOPED_TRACE(name);
    const std::string paged = Compile(folder + "/model.onnx", {"--promote"}, "paged.bin");
    const std::string plain = Compile(folder + "/model.onnx", {}, "plain.bin");
    EXPECT_TRUE(absl::StrContains(RunLlmc({"show", paged}).out, "paged_attention x2")) << "it was not promoted";
    for (const char* prompt : {"5,7,9,11", "1,2,3,200,17,4,250,33,12", "90"}) {
      EXPECT_EQ(Generate(paged, prompt), Generate(plain, prompt)) << prompt;
    }
    ++count;
    if (!absl::StrContains(name, "nocache")) continue;
    const CommandResult scored = RunLlmc({"run", paged, "--inputs", folder + "/inputs.safetensors", "--compare",
                                          folder + "/outputs.safetensors", "--rtol", "1e-3", "--atol", "1e-4"});
    EXPECT_EQ(scored.exit_code, 0) << scored.out << scored.err;
  }
  EXPECT_EQ(count, 17);
}

TEST(Promotion, ShippedOnnxGivesTheReferenceTokens) {
  const std::string folder = ShippedModel();
  ExpectReferenceTokens(Compile(folder + "/model.onnx", {"--promote"}, "tale.bin"), folder + "/reference.json", 0.01,
                        {});
}

}  // namespace
}  // namespace llmc
