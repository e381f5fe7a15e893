// The llmc command: reads the command line, runs one subcommand, prints one error.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "absl/strings/str_cat.h"
#include "tools/commands.h"
#include "tools/output.h"

namespace llmc {
namespace {

constexpr char kAbout[] =
    "llmc compiles transformer models (ONNX files, Hugging Face folders, GGUF files) to plans and runs them.\n"
    "Examples:\n"
    "  llmc compile model.onnx -o plan.bin --dump-ir=ir\n"
    "  llmc generate plan.bin --prompt \"Once upon a time\"\n"
    "  llmc show plan.bin\n"
    "`llmc COMMAND --help` shows the options and examples of a command.";
constexpr char kUsage[] = "USAGE";
constexpr int kUsageExitCode = 2;

// Errors of the command line must be JSON too, and then the parser has not told of the flag.
bool WantsJson(int argc, char** argv) {
  return std::any_of(argv + 1, argv + argc, [](const char* arg) { return absl::string_view(arg) == "--json"; });
}

void PrintError(absl::string_view code, absl::string_view message, bool json) {
  if (json && !JsonIsPrinted()) {
    PrintJson({{"error", {{"code", std::string(code)}, {"message", std::string(message)}}}});
  }
  std::fprintf(stderr, "error: %s\n", std::string(message).c_str());
}

int Finish(absl::Status status, bool json) {
  if (!status.ok()) PrintError(absl::StatusCodeToString(status.code()), status.message(), json);
  if (absl::Status flushed = FlushOutput(); status.ok() && !flushed.ok()) {
    status = flushed;
    PrintError("", status.message(), false);
  }
  if (ExitCode(status) == 4) {
    std::fputs("This is a bug of llmc. Please report it with the model and the command.\n", stderr);
  }
  return ExitCode(status);
}

int EndOfParsing(const CLI::App& app, const CLI::ParseError& error, bool json) {
  if (error.get_exit_code() == 0) {  // --help, --version
    app.exit(error);
    return Finish(absl::OkStatus(), json);
  }
  PrintError(kUsage, error.what(), json);
  const std::vector<CLI::App*> commands = app.get_subcommands();
  std::fprintf(stderr, "`llmc %s--help` tells more.\n",
               commands.empty() ? "" : absl::StrCat(commands[0]->get_name(), " ").c_str());
  return kUsageExitCode;
}

// The parser itself would say only that a command is required.
void RequireKnownCommand(const CLI::App& app, int argc, char** argv) {
  const std::string given = argc < 2 ? "" : argv[1];
  if (given[0] == '-') return;
  std::string names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == given) return;
    absl::StrAppend(&names, names.empty() ? "" : ", ", command->get_name());
  }
  RequireUsage(absl::InvalidArgumentError(
      absl::StrCat(given.empty() ? "a command is missing" : absl::StrCat("there is no command '", given, "'"),
                   "; there are ", names)));
}

absl::Status RunCommand(const Command& command) {
  try {
    return command();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

int Main(int argc, char** argv) {
  CLI::App app(kAbout, "llmc");
  app.require_subcommand(1);
  app.set_version_flag("--version", "llmc " LLMC_VERSION);
  Command chosen;
  AddCompile(app, &chosen);
  AddQuantize(app, &chosen);
  AddRun(app, &chosen);
  AddGenerate(app, &chosen);
  AddChat(app, &chosen);
  AddPerplexity(app, &chosen);
  AddEmbed(app, &chosen);
  AddScore(app, &chosen);
  AddOpt(app, &chosen);
  AddFit(app, &chosen);
  AddBench(app, &chosen);
  AddShow(app, &chosen);
  AddCheck(app, &chosen);
  AddExplain(app, &chosen);
  const bool json = WantsJson(argc, argv);
  try {
    RequireKnownCommand(app, argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return EndOfParsing(app, error, json);
  } catch (const InputError& error) {
    return Finish(error.status, json);
  }
  return Finish(RunCommand(chosen), json);
}

}  // namespace
}  // namespace llmc

int main(int argc, char** argv) {
  try {
    return llmc::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\nThis is a bug of llmc. Please report it with the command.\n", error.what());
    return llmc::ExitCode(absl::InternalError(""));
  }
}
