// `llmc quantize` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string OutputPath(const std::string& name) { return TempFolder() + "/" + name; }

double PerplexityOf(const std::string& model, const std::string& text) {
  const CommandResult result =
      RunLlmc({"perplexity", model, "--text", text, "--window=64", "--max-windows=2", "--dtype=f32", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.Json().value("perplexity", 0.0);
}

std::string CalibrationText() {
  const std::string path = OutputPath("text.txt");
  std::ofstream file(path);
  for (int i = 0; i < 40; ++i)
    file << "Once upon a time there was a king who had three daughters, " << i << " of them.\n";
  return path;
}

// A folder is read as what it was written as: the same as one of what its codes stand for.
TEST(QuantizeCommand, FoldersAreReadAsTheyWereWritten) {
  const std::string text = CalibrationText();
  for (const std::string scheme : {"int4:g64:asym", "int8", "fp8-block", "nvfp4", "mxfp4", "nf4", "nf4:double",
                                   "llm.int8", "q_proj|k_proj=fp8:weight-only,*=int4:g128"}) {
    const std::string codes = OutputPath("codes-" + scheme), decoded = OutputPath("decoded-" + scheme);
    const CommandResult made = RunLlmc({"quantize", kModel, "-o", codes, "--scheme=" + scheme, "--json"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_EQ(made.Json()["modules"].size(), 56u);
    ASSERT_EQ(RunLlmc({"quantize", kModel, "-o", decoded, "--scheme=" + scheme, "--decoded=f32"}).exit_code, 0);
    EXPECT_NEAR(PerplexityOf(codes, text) / PerplexityOf(decoded, text), 1, 1e-5) << scheme;
  }
}

TEST(QuantizeCommand, APlanIsOfTheSameWeights) {
  const std::string text = CalibrationText(), plan = OutputPath("plan.bin"), folder = OutputPath("quantized_folder");
  std::ofstream(plan) << "a file that the plan replaces, as `compile` does";
  const CommandResult made =
      RunLlmc({"quantize", kModel, "-o", plan, "--scheme=int4:g64", "--target=sm_80", "--fast-compile"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  ASSERT_EQ(RunLlmc({"quantize", kModel, "-o", folder, "--scheme=int4:g64"}).exit_code, 0);
  EXPECT_EQ(RunLlmc({"show", plan, "--json"}).Json()["targets"], nlohmann::json{"sm_80"});
  const CommandResult of_plan =
      RunLlmc({"perplexity", plan, "--text", text, "--window=64", "--max-windows=2", "--json"});
  const CommandResult of_folder =
      RunLlmc({"perplexity", folder, "--text", text, "--window=64", "--max-windows=2", "--json"});
  ASSERT_EQ(of_plan.exit_code, 0) << of_plan.err;
  EXPECT_EQ(of_plan.Json()["perplexity"], of_folder.Json()["perplexity"]);
  for (const auto& entry : fs::directory_iterator(TempFolder())) {
    EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr(".tmp-"))) << "something is left";
  }
}

TEST(QuantizeCommand, TheReportComparesOutputs) {
  const CommandResult result =
      RunLlmc({"quantize", kModel, "-o", OutputPath("gptq"), "--scheme=layers.0.*=gptq", "--calibration",
               CalibrationText(), "--samples=4", "--sample-tokens=64", "--kv=fp8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("by nearest  by scheme"));
  EXPECT_THAT(result.out, HasSubstr("int4:g128:gptq"));
  EXPECT_THAT(result.out, HasSubstr("as it was: no scheme is given for it"));
}

TEST(QuantizeCommand, ErrorsSayWhatToDo) {
  const auto run = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"quantize", kModel, "-o", OutputPath("none")});
    return RunLlmc(arguments);
  };
  EXPECT_THAT(run({"--scheme=int4", "--target=sm_80"}).err, HasSubstr("--target says how a plan is compiled, and "));
  const CommandResult unknown = run({"--scheme=int3"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("'int3' is unknown; there are int8"));
  const CommandResult uncalibrated = run({"--scheme=awq"});
  EXPECT_EQ(uncalibrated.exit_code, 1);
  EXPECT_THAT(uncalibrated.err, HasSubstr("needs a calibration text: give --calibration=FILE"));
  EXPECT_THAT(run({"--scheme=awq", "--calibration=/no/such"}).err, HasSubstr("/no/such: is not a file"));
  EXPECT_THAT(run({"--scheme=awq", "--calibration", CalibrationText(), "--sample-tokens=2000"}).err,
              HasSubstr("give a longer text, or --sample-tokens"));
  EXPECT_THAT(run({"--scheme=int8", "--kv=fp8"}).err, HasSubstr("--kv needs a calibration text"));
  EXPECT_THAT(run({"--scheme=int8", "--kv=fp8", "--decoded=f32"}).err, HasSubstr("leave one of them away"));
  for (const std::string option : {"--samples", "--sample-tokens"}) {
    EXPECT_THAT(run({"--scheme=int8", option + "=4"}).err, HasSubstr(option + " requires --calibration"));
  }
  const std::string mixed = "--scheme=q_proj=nf4,*=int8";
  EXPECT_THAT(run({mixed}).err, HasSubstr("choose schemes that one of them has, or --decoded=f32|f16|bf16"));
  EXPECT_EQ(RunLlmc({"quantize", kModel, "-o", OutputPath("plain"), mixed, "--decoded=bf16"}).exit_code, 0);
  const CommandResult file = RunLlmc({"quantize", kModel + "/model.onnx", "-o", OutputPath("none"), "--scheme=int8"});
  EXPECT_EQ(file.exit_code, 1);
  EXPECT_THAT(file.err, HasSubstr("is no Hugging Face folder"));
  EXPECT_FALSE(fs::exists(OutputPath("none")));
}

TEST(QuantizeCommand, DeviceNeedsATextAndAGpu) {
  const std::string out = OutputPath("on_device");
  EXPECT_THAT(RunLlmc({"quantize", kModel, "-o", out, "--scheme=int4", "--device=cuda"}).err,
              HasSubstr("give --calibration=FILE, or leave --device away"));
  const CommandResult run = RunLlmc({"quantize", kModel, "-o", out, "--scheme=int4", "--device=cuda:77",
                                     "--calibration", CalibrationText(), "--sample-tokens=64"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("run with --device=host"));
  EXPECT_FALSE(fs::exists(out));
}

TEST(QuantizeCommand, CalibrationIsUtf8) {
  const std::string text = OutputPath("latin1.txt"), out = OutputPath("of-latin1");
  std::ofstream(text, std::ios::binary) << "a caf\xe9 " << ReadFile(CalibrationText());
  const CommandResult run =
      RunLlmc({"quantize", kModel, "-o", out, "--scheme=awq", "--calibration", text, "--sample-tokens=64"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("latin1.txt: is not valid UTF-8 at byte 5; convert it to UTF-8"));
  EXPECT_FALSE(fs::exists(out));
}

std::set<std::string> TemporaryFoldersIn(const std::string& folder) {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (path.find(".tmp-") != std::string::npos) found.insert(path);
  }
  return found;
}

// A run that would take minutes, stopped when its folder is there.
TEST(QuantizeCommand, AnInterruptLeavesNothing) {
  const std::string text = CalibrationText();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (const std::string name : {"folder", "plan.bin"}) {
      const std::string folder = OutputPath("interrupted-" + std::to_string(signal) + name);
      fs::create_directory(folder);
      const pid_t child = fork();
      if (child == 0) {
        const std::string command = Environment("LLMC_COMMAND", LLMC_BINARY), output = folder + "/" + name;
        alarm(120);
        execl(command.c_str(), "llmc", "quantize", kModel.c_str(), "-o", output.c_str(), "--scheme=awq",
              "--calibration", text.c_str(), "--sample-tokens=64", "--samples=1000", nullptr);
        _exit(127);
      }
      while (TemporaryFoldersIn(folder).empty() && waitpid(child, nullptr, WNOHANG) == 0) usleep(1000);
      usleep(100000);
      ASSERT_FALSE(TemporaryFoldersIn(folder).empty());
      kill(child, signal);
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
      EXPECT_TRUE(fs::is_empty(folder)) << "something is left";
    }
  }
}

// Whatever `prefix` says before the command, by a shell.
std::string ErrorBehind(const std::string& prefix, const std::string& model, const std::string& output,
                        const std::string& options) {
  const std::string errors = OutputPath("errors.txt");
  const std::string command = prefix + " exec '" + Environment("LLMC_COMMAND", LLMC_BINARY) + "' quantize '" + model +
                              "' -o '" + output + "' " + options + " >/dev/null 2>'" + errors + "'";
  const int status = std::system(("bash -c \"" + command + "\"").c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  return ReadFile(errors);
}

TEST(QuantizeCommand, ADiskThatIsFullAndFoldersThatCannotBeWritten) {
  const std::string folder = OutputPath("no_room");
  fs::create_directory(folder);
  for (const std::string name : {"folder", "plan.bin"}) {
    const std::string error = ErrorBehind("ulimit -f 3000;", kModel, folder + "/" + name, "--scheme=int8");
    EXPECT_THAT(error, HasSubstr("cannot be written: File too large")) << name;
    EXPECT_TRUE(fs::is_empty(folder)) << "something is left";
  }
  EXPECT_THAT(ErrorBehind("", kModel, "/proc/none", "--scheme=int8"), HasSubstr("/proc/none: cannot be made"));
  EXPECT_THAT(ErrorBehind("", kModel, kModel + "/inside", "--scheme=int8"),
              HasSubstr("is inside of the model's folder"));
  EXPECT_FALSE(fs::exists(kModel + "/inside"));
  // Where nothing of the output's path exists yet.
  const std::string copy = OutputPath("surrounding");
  fs::copy(kModel, copy);
  EXPECT_THAT(ErrorBehind("cd '" + copy + "' &&", ".", "quantized", "--scheme=int8"),
              HasSubstr("is inside of the model's folder"));
  EXPECT_FALSE(fs::exists(copy + "/quantized"));
}

// One weight is NaN, or the file was cut off.
TEST(QuantizeCommand, DamagedWeightsAreNamed) {
  const std::string model = OutputPath("damaged_model"), file = model + "/model.safetensors";
  fs::copy(kModel, model, fs::copy_options::recursive);
  std::string bytes = ReadFile(file);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof(length));
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const nlohmann::json tensor = nlohmann::json::parse(bytes.substr(8, length))[name];
  ASSERT_EQ(tensor["dtype"], "BF16");
  bytes.replace(8 + length + tensor["data_offsets"][0].get<size_t>() + 100, 2, "\xc0\x7f");
  std::ofstream(file, std::ios::binary) << bytes;
  const std::string text = " --calibration='" + CalibrationText() + "' --sample-tokens=64 --samples=2";
  for (const std::string& options : {std::string("--scheme=int4"), "--scheme=gptq" + text, "--scheme=awq" + text}) {
    EXPECT_THAT(ErrorBehind("", model, OutputPath("of_damaged"), options),
                HasSubstr(name + ": quantize: not all numbers"));
  }
  std::ofstream(file, std::ios::binary) << bytes.substr(0, bytes.size() - 1000);
  EXPECT_THAT(ErrorBehind("", model, OutputPath("of_damaged"), "--scheme=int4"), HasSubstr("it may be cut off"));
  EXPECT_FALSE(fs::exists(OutputPath("of_damaged")));
  EXPECT_THAT(TemporaryFoldersIn(TempFolder()), testing::IsEmpty());
}

// Inputs of 4 bits are in the folder, and are computed where that is asked for.
TEST(QuantizeCommand, InputsOfFourBitsAreRead) {
  const std::string text = CalibrationText();
  for (const auto& [scheme, limit] : {std::pair<std::string, std::string>("nvfp4:local", "as = \"nvfp4\", limit = 6}"),
                                      {"mxfp4:dynamic", "as = \"mxfp4\", limit = 7}"}}) {
    const std::string folder = OutputPath("inputs-" + scheme);
    const CommandResult made = RunLlmc({"quantize", kModel, "-o", folder, "--scheme=" + scheme, "--calibration", text,
                                        "--samples=4", "--sample-tokens=64"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const CommandResult by_weights =
        RunLlmc({"perplexity", folder, "--text", text, "--window=64", "--max-windows=2", "--dtype=f32", "--json"});
    const CommandResult by_both = RunLlmc({"perplexity", folder, "--text", text, "--window=64", "--max-windows=2",
                                           "--dtype=f32", "--quantize-activations", "--json"});
    ASSERT_EQ(by_both.exit_code, 0) << by_both.err;
    const double weights = by_weights.Json()["perplexity"], both = by_both.Json()["perplexity"];
    EXPECT_NE(both, weights) << scheme;
    EXPECT_NEAR(both / weights, 1, 0.15) << scheme;
    const std::string dump = OutputPath("inputs-" + scheme + ".lir");
    ASSERT_EQ(RunLlmc({"opt", folder, "--quantize-activations", "--stop-after=import", "-o", dump}).exit_code, 0);
    EXPECT_TRUE(absl::StrContains(ReadFile(dump), limit)) << scheme;
  }
}

TEST(QuantizeCommand, FoldersAndFilesThatAreThereStay) {
  const std::string folder = OutputPath("taken.bin");
  fs::create_directory(folder);
  EXPECT_THAT(RunLlmc({"quantize", kModel, "-o", folder, "--scheme=int8"}).err, HasSubstr("is a folder, not a file"));
  const std::string file = OutputPath("taken");
  std::ofstream(file) << "something else";
  EXPECT_THAT(RunLlmc({"quantize", kModel, "-o", file, "--scheme=int8"}).err, HasSubstr("is there already"));
  EXPECT_EQ(ReadFile(file), "something else");
}

}  // namespace
}  // namespace llmc
