#include "tools/commands.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "passes/pipeline.h"
#include "runtime/device/device_choice.h"

namespace llmc {

CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& summary, const std::string& details) {
  CLI::App* command = app.add_subcommand(name, summary);
  command->footer(details);
  return command;
}

void AddMemoryFractionOption(CLI::App* command, double* fraction) {
  command
      ->add_option("--memory-fraction", *fraction,
                   "of all of the GPU's memory, what weights, activations, graphs and KV cache may take together")
      ->check([](const std::string& text) -> std::string {
        double value = 0;
        if (!absl::SimpleAtod(text, &value)) return absl::StrCat("'", text, "' is no number");
        return std::string(CheckMemoryFraction(value).message());
      })
      ->capture_default_str();
}

void RequireUsage(const absl::Status& status) {
  if (!status.ok()) throw CLI::ValidationError(std::string(status.message()));
}

void RequireInput(const absl::Status& status) {
  if (!status.ok()) throw InputError{status};
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
