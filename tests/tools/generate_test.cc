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

const char* const kIds = "0,51,1302,668,263,579,464,319";

// A tokenizer that llmc cannot read stops what needs it, and nothing else.
TEST(Generate, ATokenizerThatCannotBeReadStopsOnlyText) {
  const std::string folder = ModelWithConfigs("other_tokenizer", json::object(), {{"eos_token_id", -1}});
  const std::string inputs = LLMC_TEST_DATA "/tale-7m/reference_logits.safetensors", plan = TempFolder() + "/other.bin";
  const std::vector<std::pair<std::string, std::string>> tokenizers = {
      {R"({"model": {"type": "Lattice", "vocab": {"[UNK]": 0}}})", "\"Lattice\" is not supported"},
      {"{", "tokenizer.json: not JSON"}};
  for (const auto& [text, reason] : tokenizers) {
    std::ofstream(folder + "/tokenizer.json") << text;
    const CommandResult run = RunLlmc({"run", folder, "--inputs", inputs, "--compare", inputs, "--rtol=0", "--atol=1"});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    const CommandResult compiled = RunLlmc({"compile", folder, "-o", plan, "--target=host"});
    ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
    EXPECT_NE(compiled.err.find(reason), std::string::npos) << compiled.err;
    for (const std::string& model : {folder, folder + "/model.onnx", plan}) {
      const CommandResult ids = RunLlmc({"generate", model, "--prompt-ids", kIds, "--max-new-tokens=3", "--json"});
      ASSERT_EQ(ids.exit_code, 0) << ids.err;
      EXPECT_EQ(ids.Json()["output_ids"].size(), 3u);
      for (const std::vector<std::string>& needs : {std::vector<std::string>{"generate", model, "--prompt", "Once"},
                                                    {"generate", model, "--prompt-ids", kIds, "--stop", "x"},
                                                    {"perplexity", model, "--text", folder + "/config.json"}}) {
        const CommandResult refused = RunLlmc(needs);
        EXPECT_GT(refused.exit_code, 0);
        EXPECT_LT(refused.exit_code, 4);
        EXPECT_NE(refused.err.find(reason), std::string::npos) << refused.err;
        EXPECT_NE(refused.err.find("--tokenizer DIR"), std::string::npos) << refused.err;
      }
    }
  }
  const CommandResult other =
      RunLlmc({"generate", plan, "--tokenizer", LLMC_TEST_DATA "/tale-7m", "--prompt", "Once", "--max-new-tokens=3"});
  EXPECT_EQ(other.exit_code, 0) << other.err;
}

TEST(Generate, SamplesAsTheModelAsks) {
  const std::string folder = ModelWithConfigs(
      "sampling", json::object(), {{"do_sample", true}, {"temperature", 0.7}, {"top_p", 0.9}, {"top_k", 30}});
  const std::string plan = TempFolder() + "/sampling.bin";
  ASSERT_EQ(RunLlmc({"compile", folder, "-o", plan, "--target=host"}).exit_code, 0);
  for (const std::string& model : {folder, plan}) {
    std::vector<std::string> args = {"generate", model, "--prompt-ids", kIds, "--max-new-tokens=8"};
    const CommandResult text = RunLlmc(args);
    EXPECT_EQ(text.err.find("note: sampling with temperature 0.7, top_k 30, top_p 0.9, seed "), 0u) << text.err;
    args.push_back("--json");
    const json drawn = RunLlmc(args).Json();
    EXPECT_EQ(drawn["sampling"]["temperature"], 0.7);
    EXPECT_EQ(drawn["sampling"]["top_k"], 30);
    // Another run has another seed, and the printed one gives the same again.
    EXPECT_NE(RunLlmc(args).Json()["sampling"]["seed"], drawn["sampling"]["seed"]);
    args.insert(args.end(), {"--seed", std::to_string(drawn["sampling"]["seed"].get<uint64_t>())});
    EXPECT_EQ(RunLlmc(args).Json()["output_ids"], drawn["output_ids"]);
    const json greedy = RunLlmc({"generate", model, "--prompt-ids", kIds, "--temperature=0", "--json"}).Json();
    EXPECT_EQ(greedy["sampling"]["temperature"], 0);
    EXPECT_EQ(greedy["text"].get<std::string>().find(" a great deal"), 0u) << greedy;
    const CommandResult quiet = RunLlmc({"generate", model, "--prompt-ids", kIds, "--temperature=0"});
    EXPECT_EQ(quiet.err, "");
  }
  std::ofstream(folder + "/generation_config.json") << R"({"do_sample": true, "top_p": 2})";
  const CommandResult wrong = RunLlmc({"generate", folder, "--prompt-ids", kIds});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_NE(wrong.err.find("generation_config.json: top_p"), std::string::npos) << wrong.err;
  EXPECT_EQ(RunLlmc({"generate", folder, "--prompt-ids", kIds, "--top-p=1", "--max-new-tokens=1"}).exit_code, 0);
}

TEST(Generate, SeveralPrompts) {
  const std::string model = LLMC_TEST_DATA "/tale-7m", lines = TempFolder() + "/lines.txt";
  const std::vector<std::string> texts = {"Once upon a time", "The king said", "In the dark wood"};
  std::ofstream(lines) << texts[1] << "\r\n\n" << texts[2] << "\n";
  std::vector<std::string> args = {"generate",          model,     "--prompt", texts[0],
                                   "--prompt-file",     "-",       "--lines",  "--max-new-tokens=6",
                                   "--temperature=0.8", "--seed=5"};
  const CommandResult text = RunLlmc(args, 120, "", lines);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  args.push_back("--json");
  const json results = RunLlmc(args, 120, "", lines).Json()["results"];
  ASSERT_EQ(results.size(), 3u);
  std::string shown;
  for (size_t i = 0; i < 3; ++i) {
    const std::string seed = std::to_string(5 + i);
    const json alone = RunLlmc({"generate", model, "--prompt", texts[i], "--max-new-tokens=6", "--temperature=0.8",
                                "--seed", seed, "--json"})
                           .Json();
    EXPECT_EQ(results[i]["prompt_ids"], alone["prompt_ids"]);
    EXPECT_EQ(results[i]["output_ids"], alone["output_ids"]);
    EXPECT_EQ(results[i]["seed"], 5 + i);
    shown += (i > 0 ? "\n==> prompt " : "==> prompt ") + std::to_string(i + 1) + " <==\n";
    shown += alone["text"].get<std::string>() + "\n";
  }
  EXPECT_EQ(text.out, shown);
  // Without --lines a file is one prompt.
  const json whole = RunLlmc({"generate", model, "--prompt-file", lines, "--max-new-tokens=1", "--json"}).Json();
  const json same =
      RunLlmc({"generate", model, "--prompt", texts[1] + "\r\n\n" + texts[2], "--max-new-tokens=1", "--json"}).Json();
  EXPECT_EQ(whole["prompt_ids"], same["prompt_ids"]);
  const CommandResult wrong = RunLlmc({"generate", model, "--prompt-ids", "1", "--prompt-ids", "9999999"});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_NE(wrong.err.find("prompt 2: "), std::string::npos) << wrong.err;
}

// Three prompts of 40 tokens, of which the first 36 are the same: two whole pages are computed once.
TEST(Generate, PromptsThatBeginAlikeShareThePrefixCache) {
  std::string common;
  for (int i = 0; i < 36; ++i) common += std::to_string(100 + i) + ",";
  std::vector<std::string> args = {"generate", LLMC_TEST_DATA "/tale-7m", "--dtype=f32", "--max-new-tokens=6"};
  for (const char* own : {"7,8,9,10", "11,12,13,14", "7,8,9,11"})
    args.insert(args.end(), {"--prompt-ids", common + own});
  std::vector<std::string> whole = args;
  whole.push_back("--no-prefix-cache");
  EXPECT_EQ(RunLlmc(args).err, "note: 56 prompt tokens computed, 64 shared with others\n");
  EXPECT_EQ(RunLlmc(whole).err, "note: 120 prompt tokens computed, 0 shared with others\n");
  args.push_back("--json");
  whole.push_back("--json");
  const json cached = RunLlmc(args).Json(), uncached = RunLlmc(whole).Json();
  EXPECT_EQ(cached["prompt_tokens"], (json{{"computed", 56}, {"cached", 64}}));
  EXPECT_EQ(uncached["prompt_tokens"], (json{{"computed", 120}, {"cached", 0}}));
  EXPECT_EQ(cached["results"], uncached["results"]);
}

// Each gives what its seed gives alone; all but the last token of the prompt is computed once.
TEST(Generate, SamplesOfOnePrompt) {
  const std::vector<std::string> args = {"generate",           LLMC_TEST_DATA "/tale-7m",          "--dtype=f32",
                                         "--max-new-tokens=6", "--prompt-ids=100,101,102,103,104", "--temperature=0.8"};
  std::vector<std::string> all = args;
  all.insert(all.end(), {"--seed=5", "--samples=3"});
  const CommandResult text = RunLlmc(all);
  all.push_back("--json");
  const json samples = RunLlmc(all).Json();
  EXPECT_EQ(samples["prompt_tokens"], (json{{"computed", 7}, {"cached", 8}}));
  ASSERT_EQ(samples["results"].size(), 3);
  std::string shown;
  for (int i = 0; i < 3; ++i) {
    std::vector<std::string> one = args;
    one.insert(one.end(), {"--seed=" + std::to_string(5 + i), "--json"});
    const json alone = RunLlmc(one).Json();
    EXPECT_EQ(samples["results"][i]["output_ids"], alone["output_ids"]);
    shown += (i > 0 ? "\n==> sample " : "==> sample ") + std::to_string(i + 1) + " <==\n";
    shown += alone["text"].get<std::string>() + "\n";
  }
  EXPECT_EQ(text.out, shown);
}

TEST(Generate, SpecialTokensInPrompts) {
  const std::string model = LLMC_TEST_DATA "/tale-7m";
  const auto ids = [&](const std::string& prompt, const std::vector<std::string>& extra) {
    std::vector<std::string> args = {"generate", model, "--prompt", prompt, "--max-new-tokens=1", "--json"};
    args.insert(args.end(), extra.begin(), extra.end());
    return RunLlmc(args).Json()["prompt_ids"].get<std::vector<int>>();
  };
  EXPECT_EQ(ids("<|begin_of_text|>Once", {}), ids("Once", {}));
  // As in tests/runtime/text/golden/shipped.json.
  EXPECT_EQ(ids("<|im_start|>user\nHi<|im_end|>", {}), (std::vector<int>{0, 2, 468, 274, 203, 44, 77, 3}));
  const std::vector<int> plain = ids("<|im_end|>  <|im_end|>", {"--plain-prompt"});
  EXPECT_EQ(plain, (std::vector<int>{0, 32, 96, 316, 67, 700, 96, 34, 225, 225, 32, 96, 316, 67, 700, 96, 34}));
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
  ExpectReferenceTokens(folder, folder + "/reference.json", 0, {"--dtype=f32"});
  const std::string plan = TempFolder() + "/bf16.bin";
  const CommandResult compiled = RunLlmc({"compile", onnx + "/model.onnx", "-o", plan, "--target=host", "--dtype=f32"});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  ExpectReferenceTokens(plan, LLMC_TEST_DATA "/tale-7m/reference.json", 0.01, {});
}

}  // namespace
}  // namespace llmc
