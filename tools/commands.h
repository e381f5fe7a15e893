// The subcommands of `llmc`. Each Add function declares its options on `app` and what runs when it is chosen; a run's
// status decides the exit code: 0 done, 1 the input is wrong, 2 wrong usage, 3 unsupported, 4 a bug of llmc.
#pragma once

#include <functional>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace llmc {

using Command = std::function<absl::Status()>;

void AddCompile(CLI::App& app, Command* chosen);
void AddRun(CLI::App& app, Command* chosen);
void AddGenerate(CLI::App& app, Command* chosen);
void AddPerplexity(CLI::App& app, Command* chosen);
void AddOpt(CLI::App& app, Command* chosen);
void AddShow(CLI::App& app, Command* chosen);
void AddCheck(CLI::App& app, Command* chosen);

int ExitCode(const absl::Status& status);

}  // namespace llmc
