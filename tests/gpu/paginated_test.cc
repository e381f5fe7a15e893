// ONNX decoders with a paged cache on a GPU: eight requests at once give the tokens of the same model's folder.
#include <gtest/gtest.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/gpu/device_check.h"
#include "tests/tools/run_command.h"
#include "tests/tools/serve_plan.h"

namespace llmc {
namespace {

constexpr int64_t kTokens = 32;

std::string CompileForCuda(const std::string& model, const std::vector<std::string>& extra) {
  static int plans = 0;
  const std::string plan = absl::StrCat(TempFolder(), "/paginated", ++plans, ".bin");
  std::vector<std::string> args = {"compile",         model,      "-o", plan, "--dtype=f32", "--target",
                                   TargetHere().name, "--no-tune"};
  args.insert(args.end(), extra.begin(), extra.end());
  const CommandResult compiled = RunLlmc(args);
  EXPECT_EQ(compiled.exit_code, 0) << compiled.err;
  return plan;
}

TEST(Paginated, ShippedOnnxServesTheTokensOfTheFolder) {
  LLMC_NEEDS_GPU();
  const std::string folder = ShippedModel();
  if (!std::filesystem::exists(folder + "/model.onnx")) GTEST_SKIP() << "the shipped ONNX file is not there";
  const std::vector<Continuation> expected =
      ContinueAlone(CompileForCuda(folder, {}), "cuda", EightPrompts(4096), kTokens);
  ExpectTogether(CompileForCuda(folder + "/model.onnx", {"--paginate"}), "cuda", expected, 0.01);
}

TEST(Greedy, TinyModelsGoOnAsTransformersDoes) {
  LLMC_NEEDS_GPU();
  if (SharedData("tiny-models").empty()) GTEST_SKIP() << "the shared test data is not there";
  EXPECT_EQ(ExpectTokensOfTransformers(TinyModels(), CompileForCuda, "cuda"), 15);
}

TEST(Paginated, ExportsServeTheTokensOfTheFolder) {
  LLMC_NEEDS_GPU();
  if (SharedData("onnx-exports").empty() || SharedData("tiny-models").empty()) {
    GTEST_SKIP() << "the shared test data is not there";
  }
  EXPECT_EQ(ExpectExportsTogether(CompileForCuda, "cuda"), 17);
}

}  // namespace
}  // namespace llmc
