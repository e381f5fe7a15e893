// What `embed` and `score` have in common: which texts, and with what model.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "tools/model_source.h"
#include "tools/progress.h"
#include "tools/text_model.h"

namespace llmc {

struct TextOptions {
  ModelSource source;
  std::vector<std::string> texts;
  std::string file, output, tokenizer;
  std::optional<std::string> prompt, prompt_name;
  bool truncate = true;
  int64_t batch_tokens = 16384;
  bool json = false;
};

// Declares MODEL, TEXT and the options of both commands. `written` is what --output writes.
void AddTextOptions(CLI::App* command, const std::string& written, TextOptions* options);

// The texts of the command line, else the lines of the file or of standard input.
absl::StatusOr<std::vector<std::string>> ReadTexts(const TextOptions& options);

// A model that is loaded to read texts.
struct TextRun {
  std::unique_ptr<LoadedPlan> model;
  DimEnv dims;
  SideFiles files;
  std::string prompt;  // to put before each text
  TextBatching batching;
};
// Runs `use` with the model; errors name it. Notes how many texts were cut: `use` gives that.
struct TextCut {
  int64_t truncated = 0;
  int64_t max_tokens = 0;
};
absl::Status WithTextModel(const TextOptions& options, size_t texts,
                           const std::function<absl::StatusOr<TextCut>(TextRun& run)>& use);

}  // namespace llmc
