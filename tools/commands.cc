#include "tools/commands.h"

#include "passes/pipeline.h"

namespace llmc {

CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& summary, const std::string& details) {
  CLI::App* command = app.add_subcommand(name, summary);
  command->footer(details);
  return command;
}

void RequireUsage(const absl::Status& status) {
  if (!status.ok()) throw CLI::ValidationError(std::string(status.message()));
}

std::string CheckFirstPassName(const std::string& text) {
  return std::string(ParseFirstPassNumber(text).status().message());
}
std::string CheckPassName(const std::string& text) { return std::string(ParsePassNumber(text).status().message()); }

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
