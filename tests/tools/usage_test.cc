// Help, exit codes, and errors for people and programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

const char* const kCommands[] = {"compile", "quantize", "run",   "generate", "chat", "perplexity", "embed",
                                 "score",   "fit",      "bench", "opt",      "show", "check",      "explain"};

TEST(Usage, HelpOfEveryCommandHasExamples) {
  const std::string all = RunLlmc({"--help"}).out;
  for (const std::string command : kCommands) {
    EXPECT_THAT(all, HasSubstr("  " + command + " "));
    const CommandResult help = RunLlmc({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr("Examples:\n  llmc " + command));
    EXPECT_THAT(all, Not(HasSubstr("llmc " + command + " model-folder"))) << "examples in the list of commands";
  }
}

// `retype` leaves numbers that count, and logits, as they are.
TEST(Usage, HelpSaysWhichFloatsKeepTheirType) {
  std::string help = RunLlmc({"compile", "--help"}).out;
  absl::RemoveExtraAsciiWhitespace(&help);
  EXPECT_THAT(help, HasSubstr("computed from integers alone) keep their type, as a language model's logits do"));
}

TEST(Usage, UnknownCommandsAreNamed) {
  const CommandResult result = RunLlmc({"comple", kModel});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("'comple'"));
  EXPECT_THAT(result.err, HasSubstr("compile, quantize, run, generate"));
  EXPECT_EQ(RunLlmc({}).exit_code, 2);
  EXPECT_THAT(RunLlmc({}).err, HasSubstr("a command is missing; there are compile, quantize, run"));
}

TEST(Usage, WrongValuesOfOptions) {
  const std::string plan = TempFolder() + "/wrong.bin";
  const std::vector<std::string> generate = {"generate", kModel, "--prompt", "a"};
  const std::vector<std::string> run = {"run", kModel, "--inputs", kModel + "/reference_logits.safetensors"};
  const std::vector<std::string> compile = {"compile", kModel, "-o", plan, "--target=host"};
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> cases = {
      {generate, {"--temperature", "nan"}},
      {generate, {"--temperature", "-1"}},
      {generate, {"--top-k", "-1"}},
      {generate, {"--top-p", "0"}},
      {generate, {"--top-p", "2"}},
      {generate, {"--stop", ""}},
      {generate, {"--seed", "-1"}},
      {generate, {"--seed", "18446744073709551616"}},
      {generate, {"--dtype=i8"}},
      {generate, {"--max-new-tokens", "0"}},
      {generate, {"--device=tpu"}},
      {generate, {"--device=cuda:"}},
      {generate, {"--device=cuda:-1"}},
      {generate, {"--memory-fraction=0"}},
      {run, {"--memory-fraction=1.1"}},
      {{"fit", kModel}, {"--memory-fraction=all"}},
      {{"generate", kModel}, {"--prompt-ids", "1,x"}},
      {{"generate", kModel}, {"--prompt-ids", "-1"}},
      {run, {"--rtol", "nan"}},
      {run, {"--atol", "inf"}},
      {run, {"--atol", "-1"}},
      {compile, {"--dtype=f64"}},
      {compile, {"--stop-after=foo"}},
      {compile, {"--weights=elsewhere"}},
      {{"opt", kModel}, {"--passes=foo"}},
      {{"opt", kModel}, {"--from=99"}},
      {{"show", kModel}, {"--ir", "--memory"}},
      {{"compile", kModel}, {}},
  };
  for (const auto& [command, extra] : cases) {
    std::vector<std::string> args = command;
    args.insert(args.end(), extra.begin(), extra.end());
    const CommandResult result = RunLlmc(args);
    EXPECT_EQ(result.exit_code, 2) << args[0] << " " << args.back() << ": " << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr("error: ")) << args.back();
    EXPECT_EQ(result.out, "") << args.back();
  }
  EXPECT_FALSE(fs::exists(plan));
  EXPECT_EQ(RunLlmc({"generate", kModel, "--prompt", "a", "--max-new-tokens", "1", "--seed", "18446744073709551615"})
                .exit_code,
            0);
}

TEST(Usage, WrongInputs) {
  for (const std::string command : {"show", "check", "opt"}) {
    const CommandResult absent = RunLlmc({command, TempFolder() + "/absent.onnx"});
    EXPECT_EQ(absent.exit_code, 1);
    EXPECT_THAT(absent.err, testing::ContainsRegex("absent.onnx: .*o such file")) << command;
  }
  EXPECT_EQ(RunLlmc({"generate", kModel, "--prompt-ids", "4096"}).exit_code, 1);
  const std::string empty = TempFolder() + "/empty";
  fs::create_directories(empty);
  EXPECT_THAT(RunLlmc({"check", empty}).err, HasSubstr("holds config.json, model.safetensors"));
  std::ofstream(empty + "/net.onnx") << "x";
  EXPECT_THAT(RunLlmc({"check", empty}).err, HasSubstr(empty + "/net.onnx: not an ONNX model"));
}

TEST(Usage, UnsupportedModels) {
  const std::string folder = TempFolder() + "/unsupported";
  fs::create_directories(folder);
  fs::copy_file(kModel + "/model.safetensors", folder + "/model.safetensors");
  std::string config = ReadFile(kModel + "/config.json");
  config.replace(config.find("LlamaForCausalLM"), 16, "GrokForCausalLM_");
  std::ofstream(folder + "/config.json") << config;
  const CommandResult unsupported = RunLlmc({"check", folder});
  EXPECT_EQ(unsupported.exit_code, 3) << unsupported.err;
  EXPECT_THAT(unsupported.err, HasSubstr("GrokForCausalLM_"));
}

TEST(Usage, PlansAreNotCompiledAgain) {
  const std::string plan = TempFolder() + "/plan.bin";
  ASSERT_EQ(RunLlmc({"compile", kModel, "-o", plan, "--target=host"}).exit_code, 0);
  EXPECT_THAT(RunLlmc({"opt", plan}).err, HasSubstr("is a plan already"));
  EXPECT_THAT(RunLlmc({"compile", plan, "-o", plan + "2", "--target=host"}).err, HasSubstr("is a plan already"));
}

TEST(Usage, ErrorsAreJsonToo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"generate", kModel, "--json"}, "USAGE"},
      {{"nothing", "--json"}, "USAGE"},
      {{"show", TempFolder() + "/absent", "--json"}, "NOT_FOUND"},
      {{"check", TempFolder() + "/\xff", "--json"}, "NOT_FOUND"},  // not UTF-8
      {{"perplexity", kModel, "--text", TempFolder() + "/absent", "--json"}, "NOT_FOUND"}};
  for (const auto& [args, code] : cases) {
    const CommandResult result = RunLlmc(args);
    EXPECT_NE(result.exit_code, 0) << args[0];
    const nlohmann::json json = result.Json();
    ASSERT_TRUE(json.is_object()) << args[0] << result.out;
    EXPECT_EQ(json["error"]["code"], code) << args[0];
    EXPECT_THAT(result.err, HasSubstr("error: "));
  }
}

}  // namespace
}  // namespace llmc
