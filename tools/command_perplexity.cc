#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/perplexity.h"
#include "runtime/text/tokenizer.h"
#include "tools/commands.h"
#include "tools/model_source.h"
#include "tools/runnable.h"

namespace llmc {
namespace {

constexpr char kAbout[] =
    "Measures the perplexity of a language model on a text: consecutive windows without special tokens, the rest\n"
    "dropped; exp of the mean negative log-likelihood of each window's tokens after its first, given the window so "
    "far.\n"
    "\"<|endoftext|>\" in the text separates documents; a tokenizer without this token reads a blank line there.\n"
    "Examples:\n"
    "  llmc perplexity plan.bin --text valid.txt\n"
    "  llmc perplexity model-folder --dtype=f32 --text valid.txt --window 1024 --json";

struct Options {
  ModelSource source;
  std::string text, tokenizer;
  PerplexityOptions perplexity;
  bool json = false;
};

absl::StatusOr<PerplexityResult> Measure(const Options& options) {
  Progress progress;
  absl::StatusOr<std::unique_ptr<LoadedPlan>> model = LoadRunnable(options.source, options.tokenizer, &progress);
  if (!model.ok()) return model.status();
  const Tokenizer* tokenizer = (*model)->tokenizer();
  if (tokenizer == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.source.path, ": comes without tokenizer.json; give --tokenizer DIR"));
  }
  absl::StatusOr<std::string> text = ReadTextFile(options.text, int64_t{1} << 30);
  if (!text.ok()) return text.status();
  progress.Stage("tokenize");
  absl::StatusOr<std::vector<int32_t>> ids = EncodeCorpus(*tokenizer, *text);
  if (!ids.ok()) return ids.status();
  absl::StatusOr<Executor*> executor = (*model)->executor();
  if (!executor.ok()) return executor.status();
  progress.Stage("score");
  return Perplexity(*executor, *ids, options.perplexity);
}

absl::Status Run(const Options& options) {
  absl::StatusOr<PerplexityResult> result = Measure(options);
  if (!result.ok()) return result.status();
  if (options.json) {
    const nlohmann::ordered_json json = {{"perplexity", result->perplexity},
                                         {"mean_log_loss", result->mean_log_loss},
                                         {"scored_tokens", result->scored_tokens},
                                         {"windows", result->windows},
                                         {"window", options.perplexity.window}};
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    std::printf("perplexity %.4f over %lld tokens in %lld windows of %lld\n", result->perplexity,
                static_cast<long long>(result->scored_tokens), static_cast<long long>(result->windows),
                static_cast<long long>(options.perplexity.window));
  }
  return absl::OkStatus();
}

}  // namespace

void AddPerplexity(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("perplexity", kAbout);
  auto options = std::make_shared<Options>();
  AddRunnableOptions(command, &options->source);
  command->add_option("--text", options->text, "UTF-8 text file")->required();
  command->add_option("--window", options->perplexity.window, "tokens in a window")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--max-windows", options->perplexity.max_windows, "only the first ones; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer, "folder with tokenizer.json, or that file");
  command->add_flag("--json", options->json, "the result as JSON");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace llmc
