#include "tools/text_options.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "tools/fixed_options.h"
#include "tools/language_files.h"
#include "tools/output.h"
#include "tools/runnable.h"
#include "tools/sentence_settings.h"

namespace llmc {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{256} << 20;

absl::StatusOr<TextRun> Load(const TextOptions& options, Progress* progress) {
  TextRun run;
  ModelSource source = options.source;
  source.inspect = [&](const Model& model) { run.dims = model.dims; };
  source.side_files = &run.files;
  ASSIGN_OR_RETURN(run.model, LoadRunnable(source, options.tokenizer, progress));
  return run;
}

}  // namespace

void AddTextOptions(CLI::App* command, const std::string& written, TextOptions* options) {
  AddRunnableOptions(command, &options->source);
  CLI::Option* texts = command->add_option("TEXT", options->texts, "texts; else --file or standard input");
  command->add_option("--file", options->file, "a file with a text in each line; -: standard input")->excludes(texts);
  CLI::Option* prompt = command->add_option(
      "--prompt", options->prompt, "put before each text, instead of the prompt that the model's folder names");
  command->add_option("--prompt-name", options->prompt_name, "which prompt of the model's folder to put before texts")
      ->excludes(prompt);
  command->add_flag("!--no-truncate", options->truncate, "texts of too many tokens are an error, not cut");
  command
      ->add_option("--batch-tokens", options->batch_tokens,
                   "at most so many tokens are computed at once, padding among them")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer, "folder with the files of a tokenizer, or a tokenizer.json");
  command->add_option("-o,--output", options->output,
                      absl::StrCat("file to write ", written, " to: .npy, .npz, else safetensors"));
  command->add_flag("--json", options->json, "all numbers, as JSON");
}

absl::StatusOr<std::vector<std::string>> ReadTexts(const TextOptions& options) {
  if (!options.texts.empty()) return options.texts;
  const bool is_pipe = options.file.empty() || options.file == "-";
  ASSIGN_OR_RETURN(const std::string text, is_pipe ? ReadStandardInput(kMaxTextBytes)
                                                   : ReadTextFile(options.file, kMaxTextBytes, InputKind::kFileOrPipe));
  const std::string from = is_pipe ? "standard input" : options.file;
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(from, ": is empty; each of its lines is a text"));
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    lines.emplace_back(absl::StripSuffix(line, "\r"));
  }
  return lines;
}

absl::Status WithTextModel(const TextOptions& options, size_t texts,
                           const std::function<absl::StatusOr<TextCut>(TextRun& run)>& use) {
  Progress progress;
  ASSIGN_OR_RETURN(TextRun run, Load(options, &progress));
  run.batching = {.batch_tokens = options.batch_tokens,
                  .on_batch = [&](int64_t done, int64_t total) { progress.Count(done, total); }};
  const auto used = [&]() -> absl::StatusOr<TextCut> {
    run.prompt = options.prompt.value_or("");
    if (!options.prompt.has_value()) {
      ASSIGN_OR_RETURN(run.prompt, PromptOf(run.files, options.prompt_name));
    }
    progress.Stage("texts");
    return use(run);
  };
  const absl::StatusOr<TextCut> cut = used();
  progress.Clear();
  NoteLaunches(*run.model);
  if (!cut.ok()) {
    if (absl::StartsWith(cut.status().message(), options.source.path)) return cut.status();
    return absl::Status(cut.status().code(), absl::StrCat(options.source.path, ": ", cut.status().message()));
  }
  if (cut->truncated > 0) {
    std::fprintf(stderr, "note: %lld of %zu texts have more than the %lld tokens that the model takes, and were cut\n",
                 static_cast<long long>(cut->truncated), texts, static_cast<long long>(cut->max_tokens));
  }
  return absl::OkStatus();
}

}  // namespace llmc
