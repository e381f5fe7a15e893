// Checkpoints made by the formats' own packages, against those packages' numbers: weights alone, with the inputs of
// layers quantized as they ask for, and with keys and values cached so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/formats/safetensors.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

// The largest difference of each row of logits; empty after a failure.
std::vector<double> RowDifferences(const std::string& folder, const std::string& reference,
                                   const std::vector<std::string>& options) {
  const std::string file = absl::StrCat(folder, "/", reference, ".safetensors");
  const std::string out = absl::StrCat(TempFolder(), "/", reference, "-out.safetensors");
  std::vector<std::string> args = {"run", folder, "--dtype=f32", "--inputs", file, "--outputs", out};
  args.insert(args.end(), options.begin(), options.end());
  const CommandResult result = RunLlmc(args);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  if (result.exit_code != 0) return {};
  const auto expected = ReadSafetensors(file), actual = ReadSafetensors(out);
  EXPECT_TRUE(expected.ok() && actual.ok());
  if (!expected.ok() || !actual.ok()) return {};
  const Tensor &a = actual->at("logits"), &b = expected->at("logits");
  EXPECT_EQ(a.size(), b.size());
  const int64_t columns = b.shape().back();
  std::vector<double> rows(static_cast<size_t>(b.size() / columns));
  for (int64_t i = 0; i < b.size(); ++i) {
    double& row = rows[static_cast<size_t>(i / columns)];
    const double d = std::abs(a.GetFloat(i) - b.GetFloat(i));
    if (!(d <= row)) row = d;  // keeps a NaN
  }
  return rows;
}

std::vector<std::string> FoldersWith(const std::string& reference) {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(SharedData("quant"))) {
    if (!entry.is_directory() || std::filesystem::exists(entry.path() / "model.gguf")) continue;
    if (std::filesystem::exists(entry.path() / (reference + ".safetensors"))) folders.push_back(entry.path().string());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

TEST(QuantizedFolders, WeightsAreThoseOfThePackages) {
  if (SharedData("quant").empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::vector<std::string> folders = FoldersWith("reference");
  EXPECT_GE(folders.size(), 20u);
  for (const std::string& folder : folders) {
    SCOPED_TRACE(folder);
    for (const double d : RowDifferences(folder, "reference", {})) EXPECT_LE(d, 2e-3);
  }
}

// `least`: rows of the 48 that must be within 1e-2, all where nothing else is said. A number between two codes may
// become the other one where it was summed in another order: then a row differs by some steps, and with it those behind
// it in its text, by attention. So the packages' own arithmetic is not the reference, either: PyTorch 2.15 with it has
// in f64 47 rows of ct-fp8-static-kv, 4 of ct-w8a8-int8, whose codes are as dense for large numbers as for small ones,
// 48 of fp8-block128 and 32 of moe-fp8-block128 within 1e-2, and in f32, by processor, all, or 48, 35, 47 and 32. Here
// 44, 25, 47 and 32 are (docs/quantized.md).
void ExpectRows(const std::string& name, const std::string& reference, const std::vector<std::string>& options,
                int least, double most) {
  SCOPED_TRACE(absl::StrCat(name, " ", reference));
  const std::vector<double> rows = RowDifferences(absl::StrCat(SharedData("quant"), "/", name), reference, options);
  ASSERT_EQ(rows.size(), 48u);
  EXPECT_GE(std::count_if(rows.begin(), rows.end(), [](double d) { return d <= 1e-2; }), least);
  EXPECT_LE(*std::max_element(rows.begin(), rows.end()), most);
}

TEST(QuantizedFolders, InputsAreThoseOfThePackages) {
  if (SharedData("quant").empty()) GTEST_SKIP() << "the shared test data is not there";
  struct Case {
    const char* name;
    int least;
    double most;  // what quantized inputs change in the package's own numbers; in one of experts a route may change
  };
  for (const auto& [name, least, most] : {Case{"ct-fp8-dynamic", 48, 1e-2},
                                          {"ct-fp8-static-kv", 36, 1.6},
                                          {"ct-mixed-precision", 48, 1e-2},
                                          {"ct-w8a8-int8", 16, 0.8},
                                          {"fp8-block128", 46, 3e-2},
                                          {"modelopt-fp8", 48, 1e-2},
                                          {"modelopt-nvfp4", 48, 1e-2},
                                          {"moe-fp8-block128", 30, 0.8}}) {
    ExpectRows(name, "reference_act", {"--quantize-activations"}, least, most);
  }
}

TEST(QuantizedFolders, CachesAreThoseOfThePackage) {
  if (SharedData("quant").empty()) GTEST_SKIP() << "the shared test data is not there";
  for (const char* kv : {"--kv=checkpoint", "--kv=f8e4m3:tensor"}) {
    ExpectRows("ct-fp8-static-kv", "reference_kv", {kv}, 44, 0.5);
  }
  ExpectRows("ct-fp8-static-kv", "reference_act_kv", {"--kv=checkpoint", "--quantize-activations"}, 32, 1.6);
}

std::string ErrorOf(const std::string& name, const std::string& option) {
  const CommandResult result = RunLlmc({"compile", absl::StrCat(SharedData("quant"), "/", name), "--target=host", "-o",
                                        TempFolder() + "/no.bin", option});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  return result.err;
}

TEST(QuantizedFolders, SayWhatTheyDoNotAskFor) {
  if (SharedData("quant").empty()) GTEST_SKIP() << "the shared test data is not there";
  EXPECT_THAT(ErrorOf("ct-w4a16-g128", "--quantize-activations"), HasSubstr("no inputs of layers can be quantized"));
  EXPECT_THAT(ErrorOf("bnb-int8", "--quantize-activations"), HasSubstr("no inputs of layers can be quantized"));
  EXPECT_THAT(ErrorOf("ct-fp8-dynamic", "--kv=checkpoint"), HasSubstr("says nothing of a cache"));
  EXPECT_THAT(ErrorOf("gguf-q8_0/model.gguf", "--quantize-activations"), HasSubstr("is for Hugging Face folders"));
}

TEST(QuantizedFolders, ChecksAndPlansSayHowInputsAre) {
  const std::string data = SharedData("quant");
  if (data.empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::string folder = data + "/ct-fp8-static-kv", plan = TempFolder() + "/act.bin";
  const CommandResult check = RunLlmc({"check", folder});
  EXPECT_THAT(check.out, HasSubstr("inputs of layers were quantized: f8e4m3, one scale for all, from the checkpoint"));
  EXPECT_THAT(check.out, HasSubstr("keys and values were cached in f8e4m3, with scales from the checkpoint"));
  EXPECT_THAT(check.out, HasSubstr("not used: model.layers.*.self_attn.k_scale (2): "));
  const CommandResult nested = RunLlmc({"check", data + "/bnb-nf4-double"});
  EXPECT_THAT(nested.out, testing::Not(HasSubstr("not used")));
  EXPECT_THAT(nested.out, HasSubstr("every tensor is used"));
  EXPECT_THAT(RunLlmc({"check", data + "/bnb-int8"}).out, HasSubstr("they stay floats, since LLM.int8() chooses"));
  const CommandResult compiled =
      RunLlmc({"compile", folder, "--quantize-activations", "--kv=checkpoint", "--target=host", "-o", plan});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  EXPECT_EQ(RunLlmc({"show", plan, "--json"}).Json()["flags"],
            (nlohmann::json{"--kv=checkpoint", "--quantize-activations"}));
  const CommandResult again = RunLlmc({"generate", plan, "--quantize-activations", "--prompt", "x"});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("is a plan"));
}

// Queries, keys and values share their input's codes, and are one product.
TEST(QuantizedFolders, ProductsOfOneInputAreMerged) {
  const std::string data = SharedData("quant");
  if (data.empty()) GTEST_SKIP() << "the shared test data is not there";
  for (const char* name : {"ct-fp8-dynamic", "ct-fp8-static-kv", "ct-w8a8-int8", "fp8-block128", "modelopt-fp8"}) {
    SCOPED_TRACE(name);
    const std::string plan = TempFolder() + "/merged.bin";
    const CommandResult compiled =
        RunLlmc({"compile", absl::StrCat(data, "/", name), "--quantize-activations", "--target=host", "-o", plan});
    ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
    const std::string text = RunLlmc({"show", plan, "--ir"}).out;
    int linear = 0, quantize = 0;
    for (size_t at = 0; (at = text.find(" = linear ", at)) != std::string::npos; ++at) ++linear;
    for (size_t at = 0; (at = text.find(" = quantize ", at)) != std::string::npos; ++at) ++quantize;
    EXPECT_EQ(linear, 2 * 4 + 1) << text;  // of each layer qkv, o, gate and up, down; and the head
    EXPECT_EQ(quantize, 2 * 4) << text;
  }
}

}  // namespace
}  // namespace llmc
