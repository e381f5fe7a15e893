// Greedy text of trained models equals the published references, from folders, ONNX files and plans.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/tools/run_command.h"

namespace llmc {
namespace {

using nlohmann::json;

TEST(Generate, ShippedFolder) {
  const std::string folder = LLMC_TEST_DATA "/tale-7m";
  const std::string plan = TempFolder() + "/folder.bin";
  std::filesystem::create_directories(TempFolder() + "/hf");
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}) {
    std::filesystem::copy_file(folder + "/" + name, TempFolder() + "/hf/" + name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  ExpectReferenceTokens(TempFolder() + "/hf", folder + "/reference.json", 0, {"--dtype=f32"});
  const CommandResult compiled = RunLlmc({"compile", TempFolder() + "/hf", "-o", plan, "--target=host", "--dtype=f32"});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  ExpectReferenceTokens(plan, folder + "/reference.json", 0, {});
}

// A copy of the shipped model, as a folder and as an ONNX file beside its configs, with changed configs.
std::string ModelWithConfigs(const std::string& name, const json& config, const json& generation_config) {
  const std::string folder = TempFolder() + "/" + name;
  std::filesystem::create_directories(folder);
  for (const char* file : {"model.safetensors", "model.onnx", "tokenizer.json", "config.json"}) {
    std::filesystem::copy_file(LLMC_TEST_DATA "/tale-7m/" + std::string(file), folder + "/" + file);
  }
  json merged = json::parse(ReadFile(folder + "/config.json"));
  merged.update(config);
  std::ofstream(folder + "/config.json") << merged;
  std::ofstream(folder + "/generation_config.json") << generation_config;
  return folder;
}

// Runs the folder, the ONNX file in it, and the plans of both.
void ExpectInEveryForm(const std::string& folder, const std::string& finish_reason, const json& output_ids) {
  for (const std::string& model : {folder, folder + "/model.onnx"}) {
    const std::string plan = TempFolder() + "/form.bin";
    const CommandResult compiled = RunLlmc({"compile", model, "-o", plan, "--target=host", "--dtype=f32"});
    ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
    for (const std::string& form : {model, plan}) {
      const CommandResult result =
          RunLlmc({"generate", form, "--prompt-ids", "0,51,1302,668,263,579,464,319", "--json"});
      ASSERT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(result.Json()["finish_reason"], finish_reason) << form << " of " << model;
      EXPECT_EQ(result.Json()["output_ids"], output_ids) << form << " of " << model;
    }
  }
}

TEST(Generate, EveryFormStopsAtTheEndToken) {
  const json reference = json::parse(ReadFile(LLMC_TEST_DATA "/tale-7m/reference.json"))["greedy"][0]["output_ids"];
  const json first(std::vector<int>(reference.begin(), reference.begin() + 3));
  ExpectInEveryForm(ModelWithConfigs("ends", json::object(), {{"eos_token_id", {5, reference[2]}}}), "stop", first);
}

TEST(Generate, EveryFormEndsWithTheContext) {
  const json reference = json::parse(ReadFile(LLMC_TEST_DATA "/tale-7m/reference.json"))["greedy"][0]["output_ids"];
  const json first(std::vector<int>(reference.begin(), reference.begin() + 4));
  ExpectInEveryForm(ModelWithConfigs("short", {{"max_position_embeddings", 12}}, json::object()), "length", first);
}

TEST(Generate, ShippedOnnxThroughAPlan) {
  const std::string folder = LLMC_TEST_DATA "/tale-7m";
  const std::string plan = TempFolder() + "/onnx.bin";
  const CommandResult compiled =
      RunLlmc({"compile", folder + "/model.onnx", "-o", plan, "--target=host", "--dtype=f32"});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  ExpectReferenceTokens(plan, folder + "/reference.json", 0.01, {});
}

TEST(Generate, OtherTrainedModels) {
  const std::string folder = SharedData("tale-27m-qwen3");
  const std::string onnx = SharedData("tale-7m-onnx-bf16");
  if (folder.empty() || onnx.empty()) GTEST_SKIP() << "the shared test data is not there";
  ExpectReferenceTokens(WriteProgramOfReferences(folder), folder + "/reference.json", 0,
                        {"--weights-folder=" + folder});
  // Exact frequencies change the logits by up to 0.013; one token has a margin of 0.0004.
  ExpectReferenceTokens(folder, folder + "/reference.json", 0.01, {"--dtype=f32"});
  const std::string plan = TempFolder() + "/bf16.bin";
  const CommandResult compiled = RunLlmc({"compile", onnx + "/model.onnx", "-o", plan, "--target=host", "--dtype=f32"});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  ExpectReferenceTokens(plan, LLMC_TEST_DATA "/tale-7m/reference.json", 0.01, {});
}

}  // namespace
}  // namespace llmc
