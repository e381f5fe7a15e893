// The subcommands of `llmc`. Each Add function declares its options on `app` and what runs when it is chosen; a run's
// status decides the exit code: 0 done, 1 the input is wrong, 2 wrong usage, 3 unsupported, 4 a bug of llmc.
#pragma once

#include <functional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace llmc {

using Command = std::function<absl::Status()>;

void AddCompile(CLI::App& app, Command* chosen);
void AddQuantize(CLI::App& app, Command* chosen);
void AddRun(CLI::App& app, Command* chosen);
void AddGenerate(CLI::App& app, Command* chosen);
void AddChat(CLI::App& app, Command* chosen);
void AddPerplexity(CLI::App& app, Command* chosen);
void AddEmbed(CLI::App& app, Command* chosen);
void AddScore(CLI::App& app, Command* chosen);
void AddOpt(CLI::App& app, Command* chosen);
void AddBench(CLI::App& app, Command* chosen);
void AddFit(CLI::App& app, Command* chosen);
void AddShow(CLI::App& app, Command* chosen);
void AddCheck(CLI::App& app, Command* chosen);
void AddExplain(CLI::App& app, Command* chosen);

// `summary` is one line of `llmc --help`; `details`, with examples, ends `llmc NAME --help`.
CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& summary, const std::string& details);

// For callbacks of the parser: an error is wrong usage (exit code 2). Throws what the parser expects.
void RequireUsage(const absl::Status& status);

// For callbacks of the parser: an error of the input, with the exit code that its status has (InputError).
void RequireInput(const absl::Status& status);
struct InputError {
  absl::Status status;
};

// Declares --memory-fraction, as in LoadOptions.
void AddMemoryFractionOption(CLI::App* command, double* fraction);

// Checks of single options: an error message, or "".
std::string CheckPassName(const std::string& text);
std::string CheckFirstPassName(const std::string& text);

int ExitCode(const absl::Status& status);

}  // namespace llmc
