// `llmc run --compare` against reference outputs of the shipped and shared models.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "frontend/formats/safetensors.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

void ExpectWithin(const std::vector<std::string>& args) {
  std::vector<std::string> all = {"run"};
  all.insert(all.end(), args.begin(), args.end());
  const CommandResult result = RunLlmc(all);
  EXPECT_EQ(result.exit_code, 0) << args[0] << "\n" << result.out << result.err;
}

TEST(Compare, ShippedOnnx) {
  const std::string folder = LLMC_TEST_DATA "/tale-7m";
  ExpectWithin({folder + "/model.onnx", "--dtype=f32", "--inputs", folder + "/onnx_inputs.safetensors", "--compare",
                folder + "/onnx_outputs.safetensors", "--rtol", "0", "--atol", "5e-3"});
}

TEST(Compare, AToleranceCanBeMissed) {
  const std::string folder = LLMC_TEST_DATA "/tale-7m";
  const CommandResult result =
      RunLlmc({"run", folder + "/model.onnx", "--dtype=f32", "--inputs", folder + "/onnx_inputs.safetensors",
               "--compare", folder + "/onnx_outputs.safetensors", "--rtol", "0", "--atol", "1e-9"});
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
}

TEST(Compare, AnOutputWithoutExpectationFails) {
  const std::string folder = LLMC_TEST_DATA "/tale-7m";
  const CommandResult result = RunLlmc({"run", folder + "/model.onnx", "--inputs", folder + "/onnx_inputs.safetensors",
                                        "--compare", folder + "/onnx_inputs.safetensors", "--json"});
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_NE(result.err.find("lacks the outputs 'logits', 'present.0.key'"), std::string::npos) << result.err;
  EXPECT_EQ(result.Json()["ok"], false);
  EXPECT_EQ(result.Json()["missing"].size(), 17u);
}

TEST(Compare, IntegersAreComparedExactly) {
  const std::string stem = TempFolder() + "/integers", program = stem + ".lir";
  std::ofstream(program) << "model \"integers\"\n\nstep main(\n  %x: i64[2]\n) {\n  %y = neg %x : i64[2]\n"
                         << "  return\n    \"y\" = %y\n}\n";
  const int64_t large = int64_t{1} << 53;  // f64 has no large + 1
  const auto values = [](int64_t a, int64_t b) {
    return Tensor::FromValues(DType::kI64, {2}, std::vector<int64_t>{a, b});
  };
  ASSERT_TRUE(WriteSafetensors(stem + ".in", {{"x", values(large + 1, -5)}}).ok());
  ASSERT_TRUE(WriteSafetensors(stem + ".right", {{"y", values(-large - 1, 5)}}).ok());
  ASSERT_TRUE(WriteSafetensors(stem + ".wrong", {{"y", values(-large, 5)}}).ok());
  ExpectWithin({program, "--inputs", stem + ".in", "--compare", stem + ".right"});
  const CommandResult wrong = RunLlmc({"run", program, "--inputs", stem + ".in", "--compare", stem + ".wrong"});
  EXPECT_EQ(wrong.exit_code, 1) << wrong.out << wrong.err;
  EXPECT_NE(wrong.out.find("-9007199254740993, expected -9007199254740992"), std::string::npos) << wrong.out;
}

void ExpectReferenceLogits(const std::string& folder) {
  const std::string logits = folder + "/reference_logits.safetensors";
  ExpectWithin({folder, "--dtype=f32", "--inputs", logits, "--compare", logits, "--rtol", "0", "--atol", "2e-4"});
}

TEST(Compare, ReferenceLogits) {
  ExpectReferenceLogits(LLMC_TEST_DATA "/tale-7m");
  const std::string qwen3 = SharedData("tale-27m-qwen3");
  if (qwen3.empty()) GTEST_SKIP() << "the shared test data is not there";
  ExpectReferenceLogits(qwen3);
}

TEST(Compare, EveryExport) {
  const std::string exports = SharedData("onnx-exports");
  if (exports.empty()) GTEST_SKIP() << "the shared test data is not there";
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(exports)) {
    const std::string folder = entry.path().string();
    if (!std::filesystem::exists(folder + "/model.onnx")) continue;
    ++count;
    ExpectWithin({folder + "/model.onnx", "--inputs", folder + "/inputs.safetensors", "--compare",
                  folder + "/outputs.safetensors", "--rtol", "1e-3", "--atol", "1e-4"});
  }
  EXPECT_EQ(count, 21);
}

TEST(Compare, OtherTaleOnnx) {
  const std::string folder = SharedData("tale-7m-onnx-bf16");
  if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
  ExpectWithin({folder + "/model.onnx", "--dtype=f32", "--inputs", folder + "/inputs.safetensors", "--compare",
                folder + "/outputs.safetensors", "--rtol", "0", "--atol", "5e-3"});
}

TEST(Compare, TinyFolders) {
  const std::string tiny = SharedData("tiny-models");
  if (tiny.empty()) GTEST_SKIP() << "the shared test data is not there";
  for (const char* name : {"llama-gqa", "llama-tied-bias", "llama31-rope", "llama-rope-linear", "llama-yarn",
                           "mistral-sliding", "qwen2-bias", "qwen3"}) {
    const std::string folder = tiny + "/" + name;
    ExpectWithin({folder, "--dtype=f32", "--inputs", folder + "/reference.safetensors", "--compare",
                  folder + "/reference.safetensors", "--rtol", "0", "--atol", "1e-4"});
  }
}

// Against the numbers of the packages that made them, to which scales were widened to f32 (README.md of the data).
TEST(Compare, QuantizedFolders) {
  const std::string quant = SharedData("quant");
  if (quant.empty()) GTEST_SKIP() << "the shared test data is not there";
  for (const char* name : {"awq-w4-g128",        "bnb-int8",
                           "bnb-nf4-double",     "ct-fp8-dynamic",
                           "ct-fp8-static-kv",   "ct-mixed-ignore",
                           "ct-mixed-precision", "ct-nvfp4a16",
                           "ct-w4a16-g128",      "ct-w8a8-int8",
                           "fp8-block128",       "gptoss-mxfp4",
                           "gptq-w4-g128-sym",   "gptq-w4-g64-asym-actorder",
                           "gptq-w8-channel",    "hqq-w4-g64",
                           "modelopt-fp8",       "modelopt-nvfp4",
                           "moe-ct-w4a16-g128",  "moe-fp8-block128",
                           "moe-gptq-w4-g64",    "torchao-int4-unpacked",
                           "torchao-int8wo"}) {
    const std::string folder = absl::StrCat(quant, "/", name), reference = folder + "/reference.safetensors";
    ExpectWithin(
        {folder, "--dtype=f32", "--inputs", reference, "--compare", reference, "--rtol", "0", "--atol", "2e-3"});
  }
}

}  // namespace
}  // namespace llmc
