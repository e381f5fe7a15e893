#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "runtime/engine/perplexity.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8.h"
#include "tools/commands.h"
#include "tools/model_source.h"
#include "tools/output.h"
#include "tools/runnable.h"

namespace llmc {
namespace perplexity_command {
namespace {

constexpr char kSummary[] = "Measures the perplexity of a language model on a text.";
constexpr char kDetails[] =
    "The text is cut into consecutive windows without special tokens, the rest dropped. The result is exp of the mean\n"
    "negative log-likelihood of each window's tokens after its first, given the window so far.\n"
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

absl::StatusOr<std::string> ReadCorpus(const std::string& path) {
  absl::StatusOr<std::string> text = ReadTextFile(path, int64_t{1} << 30, InputKind::kFileOrPipe);
  if (!text.ok()) return text;
  for (absl::string_view rest = *text; !rest.empty();) {
    const Utf8Char c = ReadUtf8(rest);
    if (c.kind != Utf8Char::kValid) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is not valid UTF-8 at byte ", text->size() - rest.size(), "; convert it to UTF-8"));
    }
    rest.remove_prefix(c.bytes);
  }
  return text;
}

absl::StatusOr<Executor*> Scorer(const Options& options, LoadedPlan* model) {
  absl::StatusOr<Executor*> executor = model->executor();
  if (!executor.ok() || options.perplexity.window <= (*executor)->limits().max_context) return executor;
  return absl::InvalidArgumentError(absl::StrCat("--window ", options.perplexity.window, ": ", options.source.path,
                                                 " has a context of ", (*executor)->limits().max_context, " tokens"));
}

absl::StatusOr<PerplexityResult> Measure(const Options& options) {
  Progress progress;
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedPlan> model, LoadRunnable(options.source, options.tokenizer, &progress));
  const Tokenizer* tokenizer = model->tokenizer();
  if (tokenizer == nullptr) {
    const absl::Status status = model->tokenizer_status();
    return absl::Status(absl::IsNotFound(status) ? absl::StatusCode::kInvalidArgument : status.code(),
                        absl::StrCat(options.source.path,
                                     ": has no tokenizer that can be used; give --tokenizer DIR: ", status.message()));
  }
  ASSIGN_OR_RETURN(std::string text, ReadCorpus(options.text));
  progress.Stage("prepare");
  ASSIGN_OR_RETURN(Executor * executor, Scorer(options, model.get()));
  progress.Stage("tokenize");
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeCorpus(*tokenizer, text));
  progress.Stage("score");
  PerplexityOptions perplexity = options.perplexity;
  perplexity.on_window = [&](int64_t done, int64_t total) { progress.Count(done, total); };
  return Perplexity(executor, ids, perplexity);
}

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(PerplexityResult result, Measure(options));
  if (options.json) {
    const nlohmann::ordered_json json = {{"perplexity", result.perplexity},
                                         {"mean_log_loss", result.mean_log_loss},
                                         {"scored_tokens", result.scored_tokens},
                                         {"windows", result.windows},
                                         {"window", options.perplexity.window}};
    PrintJson(json);
  } else {
    std::printf("perplexity %.4f over %lld tokens in %lld windows of %lld\n", result.perplexity,
                static_cast<long long>(result.scored_tokens), static_cast<long long>(result.windows),
                static_cast<long long>(options.perplexity.window));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace perplexity_command

void AddPerplexity(CLI::App& app, Command* chosen) {
  using namespace perplexity_command;
  CLI::App* command = AddCommand(app, "perplexity", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddRunnableOptions(command, &options->source);
  AddPaginationOptions(command, &options->source);
  command->add_option("--text", options->text, "UTF-8 text, a file or a pipe")->required();
  command->add_option("--window", options->perplexity.window, "tokens in a window")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--max-windows", options->perplexity.max_windows, "only the first ones; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer, "folder with the files of a tokenizer, or a tokenizer.json");
  command->add_flag("--json", options->json, "the result as JSON");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace llmc
