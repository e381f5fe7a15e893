// The llmc command: reads the command line, runs one subcommand, prints one error.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "tools/commands.h"

namespace llmc {
namespace {

constexpr char kAbout[] =
    "llmc compiles transformer models (ONNX files, Hugging Face folders) to plans and runs them.\n"
    "Examples:\n"
    "  llmc compile model.onnx -o plan.bin --dump-ir=ir\n"
    "  llmc generate plan.bin --prompt \"Once upon a time\"\n"
    "  llmc show plan.bin\n"
    "`llmc COMMAND --help` shows the options and examples of a command.";

int Main(int argc, char** argv) {
  CLI::App app(kAbout, "llmc");
  app.require_subcommand(1);
  app.set_version_flag("--version", "llmc " LLMC_VERSION);
  Command chosen;
  AddCompile(app, &chosen);
  AddRun(app, &chosen);
  AddGenerate(app, &chosen);
  AddPerplexity(app, &chosen);
  AddOpt(app, &chosen);
  AddShow(app, &chosen);
  AddCheck(app, &chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const absl::Status status = chosen();
  if (!status.ok() && !status.message().empty())
    std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  if (status.code() == absl::StatusCode::kInternal) {
    std::fputs("This is a bug of llmc. Please report it with the model and the command.\n", stderr);
  }
  return ExitCode(status);
}

}  // namespace

int ExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kUnimplemented:
      return 3;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return 4;
    default:
      return 1;
  }
}

}  // namespace llmc

int main(int argc, char** argv) { return llmc::Main(argc, argv); }
