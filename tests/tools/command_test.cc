// What every command promises: exit codes, start-up time, identical plans, external weights, JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

const char* const kCommands[] = {"compile", "run", "generate", "perplexity", "opt", "show", "check"};
const std::string kModel = LLMC_TEST_DATA "/tale-7m";

// A copy of the Hugging Face folder of the shipped model (which also holds an ONNX file).
std::string CopyOfModel(const std::string& name) {
  const std::string folder = TempFolder() + "/" + name;
  fs::create_directories(folder);
  for (const char* file : {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}) {
    fs::copy_file(kModel + "/" + file, folder + "/" + file, fs::copy_options::overwrite_existing);
  }
  return folder;
}

CommandResult Compile(const std::string& model, const std::string& plan, const std::vector<std::string>& extra = {}) {
  std::vector<std::string> args = {"compile", model, "-o", plan};
  args.insert(args.end(), extra.begin(), extra.end());
  CommandResult result = RunLlmc(args);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result;
}

TEST(Command, HelpOfEveryCommandHasExamples) {
  const std::string all = RunLlmc({"--help"}).out;
  for (const std::string command : kCommands) {
    EXPECT_THAT(all, HasSubstr("  " + command + " "));
    const CommandResult help = RunLlmc({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr("Examples:\n  llmc " + command));
  }
}

TEST(Command, ExitCodes) {
  EXPECT_EQ(RunLlmc({}).exit_code, 2);
  EXPECT_EQ(RunLlmc({"comple"}).exit_code, 2);
  EXPECT_EQ(RunLlmc({"compile", kModel}).exit_code, 2);
  for (const std::string command : {"show", "check", "opt"}) {
    const CommandResult absent = RunLlmc({command, TempFolder() + "/absent.onnx"});
    EXPECT_EQ(absent.exit_code, 1);
    EXPECT_THAT(absent.err, HasSubstr("absent.onnx"));
  }
  const std::string folder = CopyOfModel("unsupported");
  std::string config = ReadFile(folder + "/config.json");
  config.replace(config.find("LlamaForCausalLM"), 16, "GrokForCausalLM_");
  std::ofstream(folder + "/config.json") << config;
  const CommandResult unsupported = RunLlmc({"check", folder});
  EXPECT_EQ(unsupported.exit_code, 3) << unsupported.err;
  EXPECT_THAT(unsupported.err, HasSubstr("GrokForCausalLM_"));
}

// What a plan would carry along is checked with the model.
TEST(Command, CheckReadsWhatIsNextToTheWeights) {
  for (const auto& [file, text] :
       {std::pair("tokenizer.json", "{\"model\": 1}"), std::pair("generation_config.json", "{")}) {
    const std::string folder = CopyOfModel("broken_side_file");
    std::ofstream(folder + "/" + file) << text;
    const std::vector<std::string> commands[] = {{"check", folder}, {"compile", folder, "-o", folder + "/plan.bin"}};
    for (const std::vector<std::string>& args : commands) {
      const CommandResult result = RunLlmc(args);
      EXPECT_EQ(result.exit_code, 1) << args[0] << result.out;
      EXPECT_THAT(result.err, HasSubstr(file));
    }
  }
  const CommandResult lone = RunLlmc({"check", kModel + "/model.safetensors"});
  EXPECT_EQ(lone.exit_code, 1);
  EXPECT_THAT(lone.err, HasSubstr("give the folder that holds them"));
}

double FastestOf(int runs, const std::vector<std::string>& args) {
  double fastest = 1e9;
  for (int i = 0; i < runs; ++i) {
    const CommandResult result = RunLlmc(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    fastest = std::min(fastest, result.seconds);
  }
  return fastest;
}

TEST(Command, StartsInTwentyMilliseconds) {
  const std::string plan = TempFolder() + "/start.bin";
  Compile(kModel + "/model.onnx", plan);
  EXPECT_LT(FastestOf(20, {"--help"}), 0.020);
  EXPECT_LT(FastestOf(20, {"show", plan}), 0.020);
}

TEST(Command, NeedsNoCudaLibraries) {
  FILE* ldd = popen("ldd " LLMC_BINARY, "r");
  ASSERT_NE(ldd, nullptr);
  std::string libraries;
  for (int c = fgetc(ldd); c != EOF; c = fgetc(ldd)) libraries += static_cast<char>(c);
  ASSERT_EQ(pclose(ldd), 0);
  EXPECT_THAT(libraries, HasSubstr("libc.so"));
  for (const char* name : {"libcuda", "libnvrtc", "libcublas", "libnvidia"})
    EXPECT_THAT(libraries, Not(HasSubstr(name)));
}

// Runs on one core for as long as it lives; the commands that it starts too.
class OneCore {
 public:
  OneCore() {
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
      if (CPU_ISSET(core, &before_)) CPU_SET(core, &one);
    }
    EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  }
  ~OneCore() { sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

TEST(Command, PlansAreTheSameFromEverywhere) {
  for (const std::string weights : {"inside", "external"}) {
    std::vector<std::string> plans;
    for (const std::string& folder : {CopyOfModel("here"), CopyOfModel("elsewhere/deep")}) {
      plans.push_back(folder + "/plan.bin");
      Compile(folder, plans.back(), {"--dtype=f16", "--weights=" + weights});
    }
    plans.push_back(plans[0] + "2");
    const OneCore one_core;
    Compile(fs::path(plans[0]).parent_path(), plans[2], {"--dtype=f16", "--weights=" + weights});
    const std::string first = ReadFile(plans[0]);
    ASSERT_FALSE(first.empty());
    EXPECT_TRUE(ReadFile(plans[1]) == first) << "another folder";
    EXPECT_TRUE(ReadFile(plans[2]) == first) << "another number of threads";
    EXPECT_EQ(first.find(TempFolder()), std::string::npos) << "the plan names the folder";
  }
}

TEST(Command, ExternalWeights) {
  const std::string folder = CopyOfModel("external"), plan = folder + "/plan.bin";
  const std::string logits = kModel + "/reference_logits.safetensors";
  Compile(folder, plan, {"--weights=external"});
  EXPECT_LT(fs::file_size(plan), 2u << 20);
  const std::vector<std::string> run = {"run",  plan,     "--inputs", logits,   "--compare",
                                        logits, "--rtol", "0",        "--atol", "0.5"};
  EXPECT_EQ(RunLlmc(run).exit_code, 0) << RunLlmc(run).err;
  EXPECT_EQ(RunLlmc({"check", plan}).exit_code, 0);

  // The plan is found with its folder, wherever that is.
  fs::rename(folder, folder + "-moved");
  const std::string moved = folder + "-moved", weights = moved + "/model.safetensors";
  EXPECT_EQ(RunLlmc({"check", moved + "/plan.bin"}).exit_code, 0);

  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-100, std::ios::end);
  file.write("changed", 7);
  file.close();
  const CommandResult changed = RunLlmc({"check", moved + "/plan.bin"});
  EXPECT_EQ(changed.exit_code, 1);
  EXPECT_THAT(changed.err, HasSubstr("model.safetensors"));
  fs::resize_file(weights, fs::file_size(weights) - 1);
  const CommandResult cut = RunLlmc({"generate", moved + "/plan.bin", "--prompt", "x"});
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_THAT(cut.err, HasSubstr("model.safetensors"));
  fs::remove(weights);
  const CommandResult gone = RunLlmc({"run", moved + "/plan.bin", "--inputs", logits});
  EXPECT_EQ(gone.exit_code, 1);
  EXPECT_THAT(gone.err, HasSubstr("model.safetensors"));

  const CommandResult outside = RunLlmc({"compile", kModel, "-o", plan, "--weights=external"});
  EXPECT_EQ(outside.exit_code, 1);
}

TEST(Command, GenerateTellsAllInJson) {
  const std::vector<std::string> args = {"generate",         kModel, "--prompt",      "Once upon a time",
                                         "--max-new-tokens", "12",   "--temperature", "0.8",
                                         "--seed",           "7",    "--json"};
  const CommandResult result = RunLlmc(args);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "") << "progress in a pipe";
  const nlohmann::json json = result.Json();
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["output_ids"].size(), 12u);
  EXPECT_GT(json["prompt_ids"].size(), 3u);
  EXPECT_GT(json["timings"]["decode_tokens_per_s"], 0);
  EXPECT_EQ(RunLlmc(args).Json()["output_ids"], json["output_ids"]) << "the seed decides";
  std::vector<std::string> other = args;
  other[9] = "8";
  EXPECT_NE(RunLlmc(other).Json()["output_ids"], json["output_ids"]);
  // Text and ids are the same thing twice, and the text on a terminal is that of the JSON.
  std::vector<std::string> plain(args.begin(), args.end() - 1);
  EXPECT_EQ(RunLlmc(plain).out, json["text"].get<std::string>() + "\n");
}

TEST(Command, GenerateStops) {
  const std::vector<std::string> args = {"generate", kModel,  "--prompt", "Once upon a time there was",
                                         "--json",   "--stop"};
  std::vector<std::string> stopping = args;
  stopping.push_back("great deal");
  const nlohmann::json json = RunLlmc(stopping).Json();
  EXPECT_EQ(json["finish_reason"], "stop") << json;
  EXPECT_EQ(json["text"], " a ");
}

TEST(Command, GenerateRefusesWhatItCannotDo) {
  const std::vector<std::vector<std::string>> bad = {{"--prompt-ids", "1,x"},
                                                     {"--prompt-ids", "4096"},
                                                     {"--prompt-ids", "-1"},
                                                     {"--prompt", "a", "--temperature", "-1"},
                                                     {"--prompt", "a", "--top-p", "2"},
                                                     {"--prompt", "a", "--temperature", "nan"}};
  for (const std::vector<std::string>& extra : bad) {
    std::vector<std::string> args = {"generate", kModel};
    args.insert(args.end(), extra.begin(), extra.end());
    const CommandResult result = RunLlmc(args);
    EXPECT_TRUE(result.exit_code == 1 || result.exit_code == 2)
        << extra.back() << ": " << result.exit_code << result.out;
    EXPECT_THAT(result.err, HasSubstr("error")) << extra.back();
  }
}

TEST(Command, ShowAndCheckSpeakJson) {
  const std::string plan = TempFolder() + "/show.bin";
  Compile(kModel + "/model.onnx", plan);
  for (const std::string& path : {plan, kModel, kModel + "/model.onnx"}) {
    const nlohmann::json shown = RunLlmc({"show", path, "--json"}).Json();
    EXPECT_TRUE(shown.is_object()) << path;
    const nlohmann::json checked = RunLlmc({"check", path, "--json"}).Json();
    EXPECT_EQ(checked["ok"], true) << path;
  }
  EXPECT_THAT(RunLlmc({"show", plan, "--memory"}).out, HasSubstr("peak"));
}

// The tales' perplexity as reference.json defines it, on their validation text.
void ExpectPerplexity(const std::string& folder, double expected, const std::string& text) {
  const CommandResult result = RunLlmc({"perplexity", folder, "--dtype=f32", "--text", text, "--json"}, 600);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NEAR(result.Json()["perplexity"].get<double>(), expected, 0.01);
  EXPECT_EQ(result.Json()["scored_tokens"], 96579);
}

TEST(Command, Perplexity) {
  const std::string text = SharedData("text/books-valid.txt"), qwen3 = SharedData("tale-27m-qwen3");
  if (text.empty() || qwen3.empty()) GTEST_SKIP() << "the shared test data is not there";
  ExpectPerplexity(kModel, 32.587, text);
  ExpectPerplexity(qwen3, 33.542, text);
}

}  // namespace
}  // namespace llmc
