#include <chrono>
#include <cstdio>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "files/file_writer.h"
#include "nlohmann/json.hpp"
#include "runtime/engine.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/runnable.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr char kSummary[] = "Generates text with a model or a plan.";
constexpr char kDetails[] =
    "Text goes to standard output as it comes.\n"
    "Examples:\n"
    "  llmc generate plan.bin --prompt \"Once upon a time\" --max-new-tokens 64\n"
    "  llmc generate model-folder --dtype=f32 --prompt-ids 0,51,1302 --json\n"
    "  llmc generate plan.bin --prompt Hello --temperature 0.8 --top-p 0.95 --seed 7\n"
    "  llmc generate plan.bin --prompt Hello --device=cuda --trace trace.json     for https://ui.perfetto.dev";

struct Options {
  ModelSource source;
  std::string prompt, tokenizer;
  std::vector<int32_t> prompt_ids;
  std::vector<std::string> stop;
  int64_t max_new_tokens = 128;
  SamplingParams sampling;
  std::string trace;
  bool has_prompt = false, ignore_eos = false, json = false, trace_kernels = false;
};

absl::StatusOr<std::vector<int32_t>> PromptIds(const Options& options, const Tokenizer* tokenizer) {
  if (options.has_prompt) {
    if (tokenizer == nullptr) {
      return absl::InvalidArgumentError(
          "--prompt needs a tokenizer, and the model comes without one: give --tokenizer DIR or --prompt-ids");
    }
    return tokenizer->Encode(options.prompt, /*add_special_tokens=*/true);
  }
  return options.prompt_ids;
}

// Adds to `ids`; an error message, or "".
std::string ParseIds(const std::string& text, std::vector<int32_t>* ids) {
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(part, &id) || id < 0) return absl::StrCat("'", part, "' is not a token id");
    ids->push_back(id);
  }
  return "";
}

std::string CheckSeed(const std::string& text) {
  uint64_t seed = 0;
  return absl::SimpleAtoi(text, &seed) ? "" : absl::StrCat("'", text, "' is not a number from 0 to 2^64 - 1");
}

std::string CheckStop(const std::string& text) {
  if (text.empty()) return "the text that ends the generation is empty";
  return IsValidUtf8(text) ? "" : "the text that ends the generation is not valid UTF-8";
}

struct Timings {
  double load_s = 0, first_token_s = 0, decode_s = 0;
};

Json ResultJson(const std::vector<int32_t>& prompt, const Completion& completion, const Timings& timings) {
  const auto later = static_cast<double>(completion.tokens.size()) - 1;
  return {{"prompt_ids", prompt},
          {"output_ids", completion.tokens},
          {"text", completion.text},
          {"finish_reason", FinishReasonName(completion.finish.value_or(FinishReason::kError))},
          {"timings",
           {{"load_s", timings.load_s},
            {"time_to_first_token_s", timings.first_token_s},
            {"decode_tokens_per_s", timings.decode_s > 0 ? later / timings.decode_s : 0.0}}}};
}

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

Request MakeRequest(const Options& options, std::vector<int32_t> prompt) {
  Request request;
  request.prompt_ids = std::move(prompt);
  request.max_new_tokens = options.max_new_tokens;
  request.sampling = options.sampling;
  request.stop_strings = options.stop;
  request.ignore_eos = options.ignore_eos;
  return request;
}

absl::Status Run(const Options& options) {
  if (absl::Status status = CheckOutput(options.trace, {options.source.path}); !status.ok()) return status;
  const Clock::time_point start = Clock::now();
  auto progress = std::make_unique<Progress>();
  Trace trace(options.trace_kernels);
  ModelSource source = options.source;
  source.trace = options.trace.empty() ? nullptr : &trace;
  absl::StatusOr<std::unique_ptr<LoadedPlan>> model = LoadRunnable(source, options.tokenizer, progress.get());
  if (!model.ok()) return model.status();
  const Tokenizer* tokenizer = (*model)->tokenizer();
  absl::StatusOr<std::vector<int32_t>> prompt = PromptIds(options, tokenizer);
  if (!prompt.ok()) return prompt.status();
  absl::StatusOr<Executor*> executor = (*model)->executor();
  if (!executor.ok()) return executor.status();
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      (*model)->NewEngine({.max_tokens_per_step = (*executor)->limits().max_step_tokens, .max_sequences = 1});
  if (!engine.ok()) return engine.status();
  progress.reset();

  const Clock::time_point loaded = Clock::now();
  Clock::time_point first = loaded;
  Completion completion;
  auto on_event = [&](const TokenEvent& event) {
    if (completion.tokens.empty()) first = Clock::now();
    completion.Add(event);
    if (options.json) return;
    PrintText(event.text);
    if (tokenizer == nullptr && event.token.has_value()) std::printf("%d ", *event.token);
    std::fflush(stdout);
  };
  absl::StatusOr<RequestId> id = (*engine)->AddRequest(MakeRequest(options, *prompt), on_event);
  if (!id.ok()) return id.status();
  if (absl::Status status = (*engine)->RunUntilIdle(); !status.ok()) return status;
  if (!completion.status.ok()) return completion.status;
  const Timings timings{Seconds(start, loaded), Seconds(loaded, first), Seconds(first, Clock::now())};
  if (options.json) {
    PrintJson(ResultJson(*prompt, completion, timings));
  } else {
    std::printf("\n");
  }
  return options.trace.empty() ? absl::OkStatus() : WriteWholeFile(options.trace, trace.ToJson());
}

}  // namespace

void AddGenerate(CLI::App& app, Command* chosen) {
  CLI::App* command = AddCommand(app, "generate", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddRunnableOptions(command, &options->source);
  AddPromotionOptions(command, &options->source);
  CLI::Option_group* prompts = command->add_option_group("prompt");
  CLI::Option* text = prompts->add_option("--prompt", options->prompt, "text to continue");
  prompts
      ->add_option_function<std::string>(
          "--prompt-ids", [options](const std::string& text) { ParseIds(text, &options->prompt_ids); },
          "token ids to continue, with commas")
      ->check([](const std::string& text) {
        std::vector<int32_t> ids;
        return ParseIds(text, &ids);
      });
  prompts->require_option(1);
  command->add_option("--max-new-tokens", options->max_new_tokens, "at most so many")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  SamplingParams& sampling = options->sampling;
  command->add_option("--temperature", sampling.temperature, "0 takes the likeliest token")->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "only the k likeliest tokens; 0: all")->capture_default_str();
  command->add_option("--top-p", sampling.top_p, "only the likeliest tokens up to this probability")
      ->capture_default_str();
  command->add_option("--min-p", sampling.min_p, "only tokens at least so probable, relative to the likeliest")
      ->capture_default_str();
  command->add_option("--repetition-penalty", sampling.repetition_penalty, "weakens tokens of the prompt and the text")
      ->capture_default_str();
  command->add_option("--presence-penalty", sampling.presence_penalty, "subtracted from logits of generated tokens")
      ->capture_default_str();
  command->add_option("--frequency-penalty", sampling.frequency_penalty, "likewise, once for each time")
      ->capture_default_str();
  command->add_option("--seed", sampling.seed, "of the random draws")->check(CheckSeed)->capture_default_str();
  command->add_option("--stop", options->stop, "text that ends the generation; may be given several times")
      ->allow_extra_args(false)
      ->check(CheckStop);
  command->add_flag("--ignore-eos", options->ignore_eos, "go on after an end-of-sequence token");
  command->add_option("--tokenizer", options->tokenizer, "folder with tokenizer.json, or that file");
  AddTraceOptions(command, &options->trace, &options->trace_kernels);
  command->add_flag("--json", options->json, "prompt_ids, output_ids, text, finish_reason, timings");
  command->callback([options, chosen, text] {
    RequireUsage(CheckSamplingParams(options->sampling));
    if (!options->trace.empty() && options->source.device != "cuda") {
      RequireUsage(absl::InvalidArgumentError("--trace shows what runs on a GPU: it needs --device=cuda"));
    }
    options->has_prompt = text->count() > 0;
    *chosen = [options] { return Run(*options); };
  });
}

}  // namespace llmc
