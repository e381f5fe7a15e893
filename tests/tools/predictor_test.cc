// `--form`: decoders over whole sequences that give hidden states, and the layer that predicts one token further,
// against what tests/families/make_predictor.py computes by the papers' formulas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/families.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// The unpacked archive.
const std::string& PredictorsFolder() {
  static const std::string folder = [] {
    std::string path = TempFolder() + "/predictors";
    fs::create_directories(path);
    const std::string archive = LLMC_TEST_DATA "/../families/data/predictors.tar.gz";
    EXPECT_EQ(std::system(absl::StrCat("tar -xzf '", archive, "' -C '", path, "'").c_str()), 0);
    return path;
  }();
  return folder;
}

CommandResult RunForm(const std::string& model, const std::string& form, const std::string& files) {
  std::vector<std::string> args = {"run", model, "--inputs", files + "_inputs.safetensors"};
  if (!form.empty()) args.push_back("--form=" + form);
  // The references are of f64.
  args.insert(args.end(), {"--compare", files + "_outputs.safetensors", "--rtol", "0", "--atol", "2e-5"});
  return RunLlmc(args);
}

TEST(Predictor, GivesWhatThePapersSay) {
  for (const char* name : {"deepseek_v3", "deepseek_v3-own", "glm4_moe"}) {
    SCOPED_TRACE(name);
    const std::string folder = absl::StrCat(PredictorsFolder(), "/", name);
    const CommandResult model = RunForm(folder, "hidden-states", folder + "/model");
    EXPECT_EQ(model.exit_code, 0) << model.out << model.err;
    const CommandResult predictor = RunForm(folder, "predictor", folder + "/predictor");
    EXPECT_EQ(predictor.exit_code, 0) << predictor.out << predictor.err;
  }
}

TEST(Predictor, IsAPlanToo) {
  const std::string folder = PredictorsFolder() + "/deepseek_v3", plan = TempFolder() + "/predictor.bin";
  const CommandResult compiled = RunLlmc({"compile", folder, "-o", plan, "--form=predictor", "--target=host"});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  EXPECT_EQ(RunForm(plan, "", folder + "/predictor").exit_code, 0);
  EXPECT_THAT(RunForm(plan, "predictor", folder + "/predictor").err, HasSubstr("whose form is as it was compiled"));
}

TEST(Predictor, FormsThatAModelLacksAreRefused) {
  const auto error = [](const std::string& model, const std::string& form) {
    const CommandResult result = RunLlmc({"compile", model, "-o", TempFolder() + "/none.bin", "--form=" + form});
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  };
  EXPECT_THAT(error(kModel, "predictor"), HasSubstr("config.json tells of no layer that predicts further tokens"));
  // The same model, saved by transformers without that layer.
  EXPECT_THAT(error(FamiliesFolder() + "/glm4_moe", "predictor"),
              HasSubstr("the checkpoint has no model.layers.2.eh_proj.weight"));
  EXPECT_THAT(error(FamiliesFolder() + "/mistral", "hidden-states"), HasSubstr("model.layers.0 has a window"));
  EXPECT_THAT(error(FamiliesFolder() + "/llama-dynamic", "hidden-states"), HasSubstr("by the length of the sequence"));
  EXPECT_THAT(error(FamiliesFolder() + "/bert", "hidden-states"), HasSubstr("--form is for decoders"));
  EXPECT_THAT(error(std::string(kModel) + "/model.onnx", "predictor"), HasSubstr("--form is for Hugging Face folders"));
}

}  // namespace
}  // namespace llmc
