// What commands write: never over their own input, never half, never in place of a pipe; and errors of writing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

std::string CopyOf(const std::string& folder, const std::vector<const char*>& files) {
  const std::string copy = TempFolder() + "/" + folder;
  fs::create_directories(copy);
  for (const char* file : files) fs::copy_file(kModel + "/" + file, copy + "/" + file);
  return copy;
}

void ExpectKept(const std::string& file, const std::vector<std::string>& args) {
  const std::string before = ReadFile(file);
  const CommandResult result = RunLlmc(args);
  EXPECT_EQ(result.exit_code, 1) << args[0] << " " << file;
  EXPECT_THAT(result.err, HasSubstr("would be overwritten"));
  EXPECT_TRUE(ReadFile(file) == before) << file;
}

TEST(Output, OnnxModelsAreKept) {
  const std::string folder = CopyOf("onnx", {"model.onnx", "model.safetensors", "onnx_inputs.safetensors"});
  const std::string model = folder + "/model.onnx", inputs = folder + "/onnx_inputs.safetensors";
  ExpectKept(model, {"compile", model, "-o", model, "--target=host"});
  fs::create_symlink("model.onnx", folder + "/link");
  ExpectKept(model, {"compile", model, "-o", folder + "/link", "--target=host"});
  ExpectKept(model, {"opt", model, "--passes=none", "-o", model});
  ExpectKept(model, {"run", model, "--inputs", inputs, "--outputs", model});
  ExpectKept(inputs, {"run", model, "--inputs", inputs, "--outputs", inputs});
  const std::string dump = folder + "/x.lir", plan = folder + "/plan.bin";
  ASSERT_EQ(RunLlmc({"opt", model, "--passes=none", "-o", dump}).exit_code, 0);
  ExpectKept(model, {"opt", dump, "-o", model});
  ASSERT_EQ(RunLlmc({"compile", model, "-o", plan, "--target=host"}).exit_code, 0);
  ExpectKept(plan, {"run", plan, "--inputs", inputs, "--outputs", plan});
}

TEST(Output, FilesOfAFolderAreKept) {
  const std::string folder = CopyOf("folder", {"config.json", "model.safetensors", "tokenizer.json"});
  const std::string weights = folder + "/model.safetensors", plan = folder + "/plan.bin";
  ExpectKept(weights, {"compile", folder, "-o", weights, "--target=host", "--weights=external"});
  ExpectKept(folder + "/tokenizer.json", {"compile", folder, "-o", folder + "/tokenizer.json", "--target=host"});
  ASSERT_EQ(RunLlmc({"compile", folder, "-o", plan, "--target=host", "--weights=external"}).exit_code, 0);
  const std::string inputs = kModel + "/reference_logits.safetensors";
  ExpectKept(weights, {"run", plan, "--inputs", inputs, "--outputs", weights});
}

TEST(Output, ExternalDataIsKept) {
  const std::string folder = CopyOf("external", {"model.onnx", "model.safetensors"});
  const std::string model = folder + "/model.onnx", data = folder + "/model.safetensors";
  ExpectKept(data, {"compile", model, "-o", data, "--target=host"});
  EXPECT_EQ(RunLlmc({"compile", model, "-o", folder + "/plan.bin", "--target=host"}).exit_code, 0);
}

TEST(Output, TheResultIsNotComparedWithItself) {
  const std::string file = TempFolder() + "/same.safetensors";
  fs::copy_file(kModel + "/onnx_outputs.safetensors", file);
  ExpectKept(file, {"run", kModel + "/model.onnx", "--inputs", kModel + "/onnx_inputs.safetensors", "--outputs", file,
                    "--compare", file});
}

TEST(Output, APipeGetsTheTextAndStays) {
  const std::string pipe = TempFolder() + "/kept_pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = ReadFile(pipe); });
  const CommandResult result = RunLlmc({"opt", kModel, "--passes=none", "-o", pipe});
  reader.join();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(got == RunLlmc({"opt", kModel, "--passes=none"}).out);
  EXPECT_TRUE(fs::is_fifo(pipe));

  std::thread drain([&] { ReadFile(pipe); });
  const CommandResult plan = RunLlmc({"compile", kModel, "-o", pipe, "--target=host"});
  drain.join();
  EXPECT_EQ(plan.exit_code, 1);
  EXPECT_THAT(plan.err, HasSubstr("is a pipe"));
}

TEST(Output, PlacesThatCannotBeWritten) {
  const CommandResult absent = RunLlmc({"compile", kModel, "-o", TempFolder() + "/no/plan.bin", "--target=host"});
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_THAT(absent.err, HasSubstr("there is no folder"));
  EXPECT_THAT(RunLlmc({"compile", kModel, "-o", TempFolder(), "--target=host"}).err, HasSubstr("is a folder"));
}

TEST(Output, AFullDiskIsAnError) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"show", kModel},
                                             {"show", kModel, "--json"},
                                             {"generate", kModel, "--prompt", "Once", "--max-new-tokens", "2"}}) {
    const CommandResult result = RunLlmc(args, 120, "/dev/full");
    EXPECT_EQ(result.exit_code, 1) << args[0];
    EXPECT_THAT(result.err, HasSubstr("standard output: cannot be written")) << args[0];
  }
}

// What the command shows on a terminal.
std::string OnTerminal(const std::vector<std::string>& args, const char* no_color) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    setenv("TERM", "xterm", 1);
    no_color == nullptr ? unsetenv("NO_COLOR") : setenv("NO_COLOR", no_color, 1);
    std::vector<char*> argv{const_cast<char*>(LLMC_BINARY)};
    for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  std::string shown;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(terminal, buffer, sizeof(buffer))) > 0;) shown.append(buffer, n);
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << shown;
  return shown;
}

TEST(Output, ProgressIsForTerminals) {
  const std::string plan = TempFolder() + "/plan.bin";
  const std::vector<std::string> args = {"compile", kModel, "-o", plan, "--target=host"};
  EXPECT_EQ(RunLlmc(args).err, "");
  const std::string clear = "\r\033[K", colored = OnTerminal(args, nullptr);
  EXPECT_THAT(colored, HasSubstr("\033[1mwrite\033[0m ("));
  EXPECT_THAT(colored, HasSubstr(clear + plan + ": ")) << "the report stands on the line of the progress";
  EXPECT_THAT(OnTerminal(args, "1"), Not(HasSubstr("\033[1m")));
}

}  // namespace
}  // namespace llmc
