// Decoders of ONNX files get a paged cache: then they generate the tokens that the same model gives from its Hugging
// Face folder, eight requests at once, and score texts alike. With --no-promote their cache goes in and out as tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/tools/run_command.h"
#include "tests/tools/serve_plan.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTokens = 32;

std::string Compile(const std::string& model, const std::vector<std::string>& extra, const std::string& name) {
  const std::string plan = TempFolder() + "/" + name;
  std::vector<std::string> args = {"compile", model, "--dtype=f32", "--target=host", "-o", plan};
  args.insert(args.end(), extra.begin(), extra.end());
  const CommandResult result = RunLlmc(args);
  EXPECT_EQ(result.exit_code, 0) << model << ": " << result.err;
  return plan;
}

TEST(Promotion, ExportsServeTheTokensOfTheFolder) {
  if (SharedData("onnx-exports").empty() || SharedData("tiny-models").empty()) {
    GTEST_SKIP() << "the shared test data is not there";
  }
  const auto compile = [](const std::string& model, const std::vector<std::string>& options) {
    return Compile(model, options, "served.bin");
  };
  EXPECT_EQ(ExpectExportsTogether(compile, "host"), 17);
}

// Exported from bf16 weights in f16: a few of the smallest differ.
TEST(Promotion, TrainedModelServesTheTokensOfTheFolder) {
  const std::string folder = ShippedModel();
  const std::vector<Continuation> expected =
      ContinueAlone(Compile(folder, {}, "folder.bin"), "host", EightPrompts(4096), kTokens);
  ExpectTogether(Compile(folder + "/model.onnx", {}, "shipped.bin"), "host", expected, 0.01);
  for (const char* name : {"tale-7m-onnx-fp16", "tale-7m-onnx-bf16"}) {
    const std::string onnx = SharedData(name);
    if (onnx.empty()) GTEST_SKIP() << "the shared test data is not there";
    SCOPED_TRACE(name);
    ExpectTogether(Compile(onnx + "/model.onnx", {"--promote"}, "tale.bin"), "host", expected, 0.01);
  }
}

TEST(Promotion, ShippedOnnxGivesTheReferenceTokens) {
  const std::string folder = ShippedModel();
  ExpectReferenceTokens(Compile(folder + "/model.onnx", {}, "tale.bin"), folder + "/reference.json", 0.01, {});
}

TEST(Promotion, ScoresWhatPyTorchDoes) {
  int count = 0;
  for (const char* name :
       {"llama-gqa-nocache-dynamo18", "llama-gqa-nocache-dynamo23", "qwen3-nocache-dynamo18", "qwen3-nocache-dynamo23",
        "gpt2-nocache-dynamo18", "gpt2-nocache-dynamo23", "gemma2-nocache-dynamo18"}) {
    const std::string folder = SharedData(absl::StrCat("onnx-exports/", name));
    if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
    const CommandResult scored =
        RunLlmc({"run", Compile(folder + "/model.onnx", {}, "scored.bin"), "--inputs", folder + "/inputs.safetensors",
                 "--compare", folder + "/outputs.safetensors", "--rtol", "1e-3", "--atol", "1e-4"});
    EXPECT_EQ(scored.exit_code, 0) << scored.out << scored.err;
    ++count;
  }
  EXPECT_EQ(count, 7);
}

// A plan that keeps its cache does not drop one that it is given.
TEST(Promotion, ACacheIsFedToPlansThatTakeOne) {
  const std::string folder = ShippedModel(), inputs = folder + "/onnx_inputs.safetensors";
  const std::vector<std::string> compare = {"--inputs", inputs, "--compare", folder + "/onnx_outputs.safetensors",
                                            "--rtol",   "0",    "--atol",    "5e-3"};
  const auto run = [&](const std::vector<std::string>& model) {
    std::vector<std::string> args = {"run"};
    args.insert(args.end(), model.begin(), model.end());
    args.insert(args.end(), compare.begin(), compare.end());
    return RunLlmc(args);
  };
  const CommandResult paged = run({Compile(folder + "/model.onnx", {}, "paged.bin")});
  EXPECT_EQ(paged.exit_code, 1);
  EXPECT_THAT(paged.err, HasSubstr("holds 'past_key_values.0.key'"));
  EXPECT_THAT(paged.err, HasSubstr("--no-promote"));
  const CommandResult plain = run({Compile(folder + "/model.onnx", {"--no-promote"}, "plain.bin")});
  EXPECT_EQ(plain.exit_code, 0) << plain.out << plain.err;
  const CommandResult file = run({folder + "/model.onnx", "--dtype=f32"});
  EXPECT_EQ(file.exit_code, 0) << file.out << file.err;
}

TEST(Promotion, DemandedButNotProvenIsAnError) {
  const std::string file = TempFolder() + "/mixes.lir";
  std::ofstream(file) << "model \"m\"\ndim B <= 8\ndim S <= 64\nstep main(%input_ids: i64[B, S]) {\n"
                         "  %x = cast %input_ids {to = f32}\n  %y = reshape %x {shape = [B, S, 1]}\n"
                         "  %logits = cumsum %y {axis = 1}\n  return \"logits\" = %logits\n}\n";
  const CommandResult demanded = RunLlmc({"compile", file, "--promote", "--target=host", "-o", file + ".bin"});
  EXPECT_EQ(demanded.exit_code, 1);
  EXPECT_THAT(demanded.err, HasSubstr("cumsum"));
  EXPECT_THAT(demanded.err, HasSubstr("leave --promote out"));
  EXPECT_EQ(RunLlmc({"compile", file, "--target=host", "-o", file + ".bin"}).exit_code, 0);
  EXPECT_EQ(RunLlmc({"compile", file, "--promote", "--no-promote", "-o", file + ".bin"}).exit_code, 2);
}

// The bounds of the file's dims are those of the sequences that the plan serves.
TEST(Promotion, BoundsHoldForSequences) {
  const std::string model = ShippedModel() + "/model.onnx";
  const nlohmann::json dims = RunLlmc({"show", model, "--json"}).Json()["dims"];
  std::vector<std::string> bounds;
  for (const auto& [name, max] : dims.items()) {
    bounds.push_back("--bound");
    bounds.push_back(name + "=32");
  }
  const nlohmann::json bounded = RunLlmc({"show", Compile(model, bounds, "bounded.bin"), "--json"}).Json()["dims"];
  EXPECT_EQ(bounded["S"], 32);
  EXPECT_EQ(bounded["T"], 32 * 32);
  EXPECT_EQ(bounded["P"], 4) << "32 tokens behind 32, in pages of 16";
}

}  // namespace
}  // namespace llmc
