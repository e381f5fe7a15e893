// Every form of tokenizer that a folder may have is used from the folder and from its plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "runtime/llmc.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

json GoldenFormats() { return json::parse(ReadFile(LLMC_TEST_DATA "/../runtime/text/golden/formats.json")); }

// A small decoder without a tokenizer. Its context is that of all texts of the golden file.
std::string DecoderFolder(const std::string& name) {
  std::string folder = TempFolder() + "/" + name;
  fs::create_directories(folder);
  json config = json::parse(ReadFile(kModel + "/config.json"));
  config.update({{"hidden_size", 32},
                 {"head_dim", 16},
                 {"num_attention_heads", 2},
                 {"num_key_value_heads", 2},
                 {"intermediate_size", 32},
                 {"num_hidden_layers", 1},
                 {"vocab_size", 200100}});
  std::ofstream(folder + "/config.json") << config;
  return folder;
}

void AddFormat(const json& format, const std::string& folder) {
  for (const auto& [name, base64] : format["files"].items()) {
    std::string text;
    ASSERT_TRUE(absl::Base64Unescape(base64.get<std::string>(), &text)) << name;
    std::ofstream(folder + "/" + name, std::ios::binary) << text;
  }
}

std::string PlanOf(const std::string& folder) {
  std::string plan = folder + ".plan";
  const CommandResult compiled = RunLlmc({"compile", folder, "-o", plan, "--target=host", "--random-weights"});
  EXPECT_EQ(compiled.exit_code, 0) << compiled.err;
  EXPECT_THAT(compiled.err, testing::Not(HasSubstr("tokenizer")));
  return plan;
}

TEST(TokenizerFiles, PlansKeepTheTokenizerOfTheFolder) {
  const json formats = GoldenFormats();
  ASSERT_GE(formats.size(), 21u);
  for (size_t i = 0; i < formats.size(); ++i) {
    SCOPED_TRACE(formats[i]["name"]);
    const std::string folder = DecoderFolder("format" + std::to_string(i));
    ASSERT_NO_FATAL_FAILURE(AddFormat(formats[i], folder));
    const std::string path = PlanOf(folder);
    const auto plan = LoadedPlan::Load(path, {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const Tokenizer* tokenizer = (*plan)->tokenizer();
    ASSERT_NE(tokenizer, nullptr) << (*plan)->tokenizer_status();
    for (const json& c : formats[i]["cases"]) {
      const auto ids = tokenizer->Encode(c["text"].get<std::string>(), {.add_special_tokens = false});
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, c["ids"].get<Ids>()) << c["text"];
    }
    EXPECT_GT(formats[i]["cases"].size(), 40u);
  }
}

TEST(TokenizerFiles, CommandsReadTextWithThem) {
  const json formats = GoldenFormats();
  for (const std::string name : {"vocab.txt with case", "Qwen2", "unigram with rules", "tekken", "own pattern"}) {
    SCOPED_TRACE(name);
    const auto format = std::find_if(formats.begin(), formats.end(), [&](const json& f) { return f["name"] == name; });
    ASSERT_NE(format, formats.end());
    const std::string folder = DecoderFolder("command " + name), bare = DecoderFolder("bare " + name);
    const std::string tokenizer = TempFolder() + "/tokenizer " + name;
    fs::create_directories(tokenizer);
    for (const std::string& to : {folder, tokenizer}) {
      ASSERT_NO_FATAL_FAILURE(AddFormat(*format, to));
      std::ofstream(to + "/chat_template.jinja") << "{{ messages[0].content }}";
    }
    const std::string text = "Hello, WORLD of the tokens";
    std::ofstream(folder + ".txt") << text;
    const std::string plan = PlanOf(folder), bare_plan = PlanOf(bare);
    const auto expected = (*LoadedPlan::Load(plan, {}))->tokenizer()->Encode(text, {.parse_special_tokens = true});
    ASSERT_TRUE(expected.ok()) << expected.status();
    // Templates write the special tokens around texts themselves, and this one writes none.
    const auto ids = (*LoadedPlan::Load(plan, {}))->tokenizer()->Encode(text, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok()) << ids.status();
    const CommandResult answer =
        RunLlmc({"generate", plan, "--prompt-ids", absl::StrJoin(*ids, ","), "--max-new-tokens=1", "--json"});
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    const std::vector<std::vector<std::string>> forms = {{plan}, {bare_plan, "--tokenizer", tokenizer}};
    for (const std::vector<std::string>& form : forms) {
      std::vector<std::string> args = {"generate", "--prompt", text, "--max-new-tokens=1", "--json"};
      args.insert(args.end(), form.begin(), form.end());
      const CommandResult result = RunLlmc(args);
      ASSERT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(result.Json()["prompt_ids"], json(*expected));
      args = {"perplexity", "--text", folder + ".txt", "--window=4", "--json"};
      args.insert(args.end(), form.begin(), form.end());
      EXPECT_EQ(RunLlmc(args).exit_code, 0) << RunLlmc(args).err;
      args = {"chat", "--max-new-tokens=1"};
      args.insert(args.end(), form.begin(), form.end());
      const CommandResult chat = RunLlmc(args, 120, "", folder + ".txt");
      EXPECT_EQ(chat.exit_code, 0) << chat.err;
      EXPECT_EQ(chat.out, answer.Json()["text"].get<std::string>() + "\n");
    }
  }
}

TEST(TokenizerFiles, WithoutAnyTheErrorSaysWhatWasLookedFor) {
  const std::string folder = DecoderFolder("none"), text = folder + ".txt";
  std::ofstream(text) << "text";
  const std::string plan = PlanOf(folder);
  const std::string looked_for =
      "holds no tokenizer: looked for tokenizer.json, tekken.json, *.model, *.tiktoken, vocab.json with merges.txt, "
      "and "
      "vocab.txt";
  for (const std::vector<std::string>& args : {std::vector<std::string>{"generate", plan, "--prompt", "text"},
                                               {"generate", plan, "--prompt-ids", "5", "--stop", "text"},
                                               {"generate", plan, "--prompt", "text", "--tokenizer", folder},
                                               {"perplexity", plan, "--text", text}}) {
    const CommandResult result = RunLlmc(args);
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_THAT(result.err, HasSubstr((args.back() == folder ? folder : plan) + ": " + looked_for));
  }
}

TEST(TokenizerFiles, OneFileAloneMayBeGiven) {
  const json formats = GoldenFormats();
  const std::string plan = PlanOf(DecoderFolder("alone"));
  const std::string files = TempFolder() + "/alone_files";
  fs::create_directories(files);
  for (const json& format : formats) ASSERT_NO_FATAL_FAILURE(AddFormat(format, files));
  fs::copy_file(kModel + "/tokenizer.json", files + "/other.json");
  for (const char* name : {"tekken.json", "vocab.txt", "cl100k_base.tiktoken", "other.json"}) {
    const CommandResult result = RunLlmc(
        {"generate", plan, "--prompt", "Hello", "--max-new-tokens=1", "--tokenizer", files + "/" + std::string(name)});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  const CommandResult half = RunLlmc({"generate", plan, "--prompt", "Hello", "--tokenizer", files + "/vocab.json"});
  EXPECT_EQ(half.exit_code, 1);
  EXPECT_THAT(half.err, HasSubstr("vocab.json: needs merges.txt beside it"));
}

}  // namespace
}  // namespace llmc
