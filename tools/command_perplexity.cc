#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "runtime/engine/perplexity.h"
#include "runtime/plan/plan.h"
#include "runtime/text/tokenizer.h"
#include "tools/commands.h"
#include "tools/model_folder.h"
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
    "--base compares with another model of the same tokens, such as the one that MODEL was quantized from: the mean "
    "KL\n"
    "divergence KL(base || MODEL) of the scored tokens in nats, and the share of them that are the likeliest of both.\n"
    "Examples:\n"
    "  llmc perplexity plan.bin --text valid.txt\n"
    "  llmc perplexity model-folder --dtype=f32 --text valid.txt --window 1024 --json\n"
    "  llmc perplexity model-int4 --base model-folder --text valid.txt --dtype=f32\n"
    "  llmc perplexity model-folder --kv int8 --base model-folder --text valid.txt";

struct Options {
  ModelSource source;
  std::string text, tokenizer;
  std::string base, base_dtype;   // empty: none; as --dtype
  std::string given_base_folder;  // of AddModelPath
  PerplexityOptions perplexity;
  bool json = false;
};

absl::StatusOr<Executor*> Scorer(const Options& options, const std::string& path, LoadedPlan* model) {
  absl::StatusOr<Executor*> executor = model->executor();
  if (!executor.ok() || options.perplexity.window <= (*executor)->limits().max_context) return executor;
  return absl::InvalidArgumentError(absl::StrCat("--window ", options.perplexity.window, ": ", path,
                                                 " has a context of ", (*executor)->limits().max_context, " tokens"));
}

absl::StatusOr<std::vector<int32_t>> Encode(const LoadedPlan& model, const std::string& path, const std::string& text) {
  const Tokenizer* tokenizer = model.tokenizer();
  if (tokenizer != nullptr) return EncodeCorpus(*tokenizer, text);
  const absl::Status status = model.tokenizer_status();
  return absl::Status(
      absl::IsNotFound(status) ? absl::StatusCode::kInvalidArgument : status.code(),
      absl::StrCat(path, ": has no tokenizer that can be used; give --tokenizer DIR: ", status.message()));
}

// The base runs where the model does; how inputs of layers and the cache are stored is the model's matter. On a GPU it
// gets half of the memory: its cache would take all that is left.
ModelSource BaseSource(const Options& options) {
  ModelSource base = {.path = options.base,
                      .given_folder = options.given_base_folder,
                      .dtype = options.base_dtype.empty() ? options.source.dtype : options.base_dtype,
                      .device = options.source.device,
                      .memory_fraction = options.source.memory_fraction / 2,
                      .check_kernels = options.source.check_kernels,
                      .pagination = options.source.pagination};
  const bool is_plan = Plan::IsPlan(base.path);
  if ((is_plan || IsTextFile(base.path)) && options.base_dtype.empty()) base.dtype.clear();
  if (is_plan) {
    base.pagination.reset();
  } else {
    base.fixed = options.source.fixed;
    base.fixed.quantized = {};
  }
  return base;
}

absl::StatusOr<PerplexityResult> Measure(const Options& options) {
  Progress progress;
  std::unique_ptr<LoadedPlan> base;
  if (!options.base.empty()) {
    ASSIGN_OR_RETURN(base, LoadRunnable(BaseSource(options), options.tokenizer, &progress));
  }
  PerplexityOptions perplexity = options.perplexity;
  if (base != nullptr) {
    ASSIGN_OR_RETURN(perplexity.base, Scorer(options, options.base, base.get()));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedPlan> model, LoadRunnable(options.source, options.tokenizer, &progress));
  ASSIGN_OR_RETURN(std::string text, ReadCorpus(options.text));
  progress.Stage("tokenize");
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, Encode(*model, options.source.path, text));
  if (base != nullptr) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> base_ids, Encode(*base, options.base, text));
    if (base_ids != ids) {
      return absl::InvalidArgumentError(absl::StrCat("--base ", options.base, ": its tokenizer makes other tokens of ",
                                                     options.text, " than that of ", options.source.path,
                                                     "; compare models with the same tokenizer"));
    }
  }
  progress.Stage("prepare");
  ASSIGN_OR_RETURN(Executor * executor, Scorer(options, options.source.path, model.get()));
  progress.Stage("score");
  perplexity.on_window = [&](int64_t done, int64_t total) { progress.Count(done, total); };
  return Perplexity(executor, ids, perplexity);
}

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(PerplexityResult result, Measure(options));
  if (options.json) {
    nlohmann::ordered_json json = {{"perplexity", result.perplexity},
                                   {"mean_log_loss", result.mean_log_loss},
                                   {"scored_tokens", result.scored_tokens},
                                   {"windows", result.windows},
                                   {"window", options.perplexity.window}};
    if (result.comparison.has_value()) {
      json["base"] = {{"perplexity", result.comparison->base_perplexity},
                      {"mean_kl", result.comparison->mean_kl},
                      {"agreement", result.comparison->agreement}};
    }
    PrintJson(json);
  } else {
    std::printf("perplexity %.4f over %lld tokens in %lld windows of %lld\n", result.perplexity,
                static_cast<long long>(result.scored_tokens), static_cast<long long>(result.windows),
                static_cast<long long>(options.perplexity.window));
    if (result.comparison.has_value()) {
      std::printf("base perplexity %.4f (%+.3f %%), KL divergence %.6f nats, the same likeliest token %.3f %%\n",
                  result.comparison->base_perplexity,
                  100 * (result.perplexity / result.comparison->base_perplexity - 1), result.comparison->mean_kl,
                  100 * result.comparison->agreement);
    }
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
  CLI::Option* base = AddModelPathOption(
      command, "--base", &options->base, &options->given_base_folder,
      "a model to compare with on the same windows, run as MODEL is, but for --kv and --quantize-activations");
  command->add_option("--base-dtype", options->base_dtype, "of the base's activations, if not --dtype")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->needs(base);
  command->add_flag("--json", options->json, "the result as JSON");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace llmc
