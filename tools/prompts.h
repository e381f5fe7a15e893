// What `llmc generate` is asked to continue.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "runtime/llmc.h"

namespace llmc {

struct PromptOptions {
  std::vector<std::string> texts;
  std::vector<std::string> files;  // "-": standard input
  bool lines = false;              // each line of a file is a prompt
  bool plain = false;              // special tokens spelled out in a text are text
  std::vector<std::vector<int32_t>> ids;
};

// Declares --prompt, --prompt-file, --lines, --plain-prompt and --prompt-ids, at least one prompt of which must be
// given.
void AddPromptOptions(CLI::App* command, PromptOptions* options);

// The ids of all prompts: of texts, then of files, then those given as ids. An error names what no tokenizer could be
// had for, and why.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadPrompts(const PromptOptions& options, const LoadedPlan& model);

}  // namespace llmc
