#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/file_writer.h"
#include "nlohmann/json.hpp"
#include "runtime/engine/engine.h"
#include "runtime/text/utf8.h"
#include "tools/commands.h"
#include "tools/language_run.h"
#include "tools/output.h"
#include "tools/prompts.h"
#include "tools/runnable.h"
#include "tools/sampling_options.h"

namespace llmc {
namespace generate_command {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr char kSummary[] = "Generates text with a model or a plan.";
constexpr char kDetails[] =
    "Text goes to standard output as it comes; of several prompts in their order, though they run together.\n"
    "Special tokens that are spelled out in a prompt become those tokens, unless --plain-prompt is given.\n"
    "Examples:\n"
    "  llmc generate plan.bin --prompt \"Once upon a time\" --max-new-tokens 64\n"
    "  llmc generate plan.bin --prompt \"Once upon a time\" --prompt \"It was a dark night\" --json\n"
    "  llmc generate plan.bin --prompt-file questions.txt --lines\n"
    "  llmc generate model-folder --dtype=f32 --prompt-ids 0,51,1302 --json\n"
    "  llmc generate plan.bin --prompt Hello --temperature 0.8 --top-p 0.95 --seed 7\n"
    "  llmc generate plan.bin --prompt Hello --temperature 1 --samples 4\n"
    "  llmc generate plan.bin --prompt Hello --device=cuda --trace trace.json     for https://ui.perfetto.dev";

struct Options {
  ModelSource source;
  std::string tokenizer;
  PromptOptions prompts;
  std::vector<std::string> stop;
  int64_t samples = 1, max_new_tokens = 128;
  SamplingOptions sampling;
  std::string trace;
  bool prefix_cache = true, ignore_eos = false, json = false, trace_kernels = false;
};

std::string CheckStop(const std::string& text) {
  if (text.empty()) return "the text that ends the generation is empty";
  return IsValidUtf8(text) ? "" : "the text that ends the generation is not valid UTF-8";
}

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// What one prompt was continued with, once.
struct Answer {
  Request request;
  Completion completion;
  std::string unprinted;  // text that waits for that of the prompts before
};

// The answers of a run. Prints each as it comes when those before it are finished.
class Answers {
 public:
  // `requests` are `samples` times the same prompt, then as often the next.
  Answers(std::vector<Request> requests, size_t samples, bool has_text, bool prints)
      : samples_(samples), has_text_(has_text), prints_(prints) {
    for (Request& request : requests) answers_.push_back({.request = std::move(request)});
    if (prints_) PrintHead();
  }

  void Take(size_t index, const TokenEvent& event) {
    if (first_token_ == Clock::time_point()) first_token_ = Clock::now();
    Answer& answer = answers_[index];
    answer.completion.Add(event);
    answer.unprinted += event.text;
    if (!has_text_ && event.token.has_value()) absl::StrAppend(&answer.unprinted, *event.token, " ");
    if (prints_) Print();
  }

  absl::Status status() const {
    for (size_t i = 0; i < answers_.size(); ++i) {
      const absl::Status& status = answers_[i].completion.status;
      if (!status.ok()) return OfPrompt(i, status);
    }
    return absl::OkStatus();
  }
  // `status` with the number of the prompt, where there are several.
  absl::Status OfPrompt(size_t index, const absl::Status& status) const {
    if (answers_.size() == 1) return status;
    return absl::Status(status.code(), absl::StrCat(NameOf(index), ": ", status.message()));
  }
  // The first sample of the same prompt.
  size_t ParentOf(size_t index) const { return index / samples_ * samples_; }
  const std::vector<Answer>& answers() const { return answers_; }
  Clock::time_point first_token() const { return first_token_; }

 private:
  void PrintHead() const {
    if (answers_.size() > 1) PrintText(absl::StrCat(shown_ > 0 ? "\n" : "", "==> ", NameOf(shown_), " <==\n"));
  }
  std::string NameOf(size_t index) const {
    std::vector<std::string> parts;
    if (answers_.size() > samples_) parts.push_back(absl::StrCat("prompt ", index / samples_ + 1));
    if (samples_ > 1) parts.push_back(absl::StrCat("sample ", index % samples_ + 1));
    return absl::StrJoin(parts, ", ");
  }
  void Print() {
    while (shown_ < answers_.size()) {
      PrintText(std::exchange(answers_[shown_].unprinted, ""));
      if (!answers_[shown_].completion.finish.has_value()) break;
      PrintText("\n");
      if (++shown_ < answers_.size()) PrintHead();
    }
    std::fflush(stdout);
  }

  std::vector<Answer> answers_;
  const size_t samples_;
  const bool has_text_, prints_;
  size_t shown_ = 0;  // those before are printed
  Clock::time_point first_token_;
};

Json AnswerJson(const Answer& answer) {
  const FinishReason reason = answer.completion.finish.value_or(FinishReason::kError);
  return {{"prompt_ids", answer.request.prompt_ids},
          {"output_ids", answer.completion.tokens},
          {"text", answer.completion.text},
          {"finish_reason", FinishReasonName(reason)}};
}

Json ResultJson(const Answers& answers, const SamplingParams& sampling, const EngineStats& stats,
                Clock::time_point start, Clock::time_point loaded) {
  Json json = AnswerJson(answers.answers()[0]);
  if (answers.answers().size() > 1) {
    json = {{"results", Json::array()}};
    for (const Answer& answer : answers.answers()) {
      json["results"].push_back(AnswerJson(answer));
      json["results"].back()["seed"] = answer.request.sampling.seed;
    }
  }
  size_t later = 0;  // tokens after the first of their prompt
  for (const Answer& answer : answers.answers()) later += std::max<size_t>(answer.completion.tokens.size(), 1) - 1;
  const double decode_s = Seconds(answers.first_token(), Clock::now());
  json["sampling"] = SamplingJson(sampling);
  json["prompt_tokens"] = {{"computed", stats.prompt_tokens}, {"cached", stats.cached_prompt_tokens}};
  json["timings"] = {{"load_s", Seconds(start, loaded)},
                     {"time_to_first_token_s", Seconds(loaded, answers.first_token())},
                     {"decode_tokens_per_s", decode_s > 0 ? static_cast<double>(later) / decode_s : 0.0}};
  return json;
}

std::vector<Request> MakeRequests(const Options& options, const SamplingParams& sampling,
                                  const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<Request> requests;
  for (size_t i = 0; i < prompts.size() * options.samples; ++i) {
    Request request;
    request.prompt_ids = prompts[i / options.samples];
    request.max_new_tokens = options.max_new_tokens;
    request.sampling = sampling;
    request.sampling.seed += requests.size();
    request.stop_strings = options.stop;
    request.ignore_eos = options.ignore_eos;
    requests.push_back(std::move(request));
  }
  return requests;
}

// Who gives ids and has no tokenizer gets ids.
absl::Status CheckTokenizer(const Options& options, const LoadedPlan& model) {
  const absl::Status status = model.tokenizer_status();
  if (status.ok()) return status;
  if (!options.stop.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--stop needs a tokenizer; give --tokenizer DIR: ", status.message()));
  }
  if (!absl::IsNotFound(status)) {
    std::fprintf(stderr, "note: ids in place of text: %s\n", std::string(status.message()).c_str());
  }
  return absl::OkStatus();
}

absl::Status Continue(Engine* engine, Answers* answers) {
  std::vector<RequestId> ids;
  for (size_t i = 0; i < answers->answers().size(); ++i) {
    const size_t parent = answers->ParentOf(i);
    const absl::StatusOr<RequestId> id = engine->AddRequest(
        answers->answers()[i].request, [answers, i](const TokenEvent& event) { answers->Take(i, event); },
        parent < i ? std::optional(ids[parent]) : std::nullopt);
    if (!id.ok()) return answers->OfPrompt(i, id.status());
    ids.push_back(*id);
  }
  RETURN_IF_ERROR(engine->RunUntilIdle());
  return answers->status();
}

absl::Status Run(const Options& options) {
  RETURN_IF_ERROR(CheckOutput(options.trace, {options.source.path}));
  const Clock::time_point start = Clock::now();
  auto progress = std::make_unique<Progress>();
  Trace trace(options.trace_kernels);
  ModelSource source = options.source;
  source.trace = options.trace.empty() ? nullptr : &trace;
  ASSIGN_OR_RETURN(const LanguageRun run, LoadLanguage(source, options.tokenizer, options.sampling, progress.get()));
  const auto& [model, sampling] = run;
  ASSIGN_OR_RETURN(std::vector<std::vector<int32_t>> prompts, ReadPrompts(options.prompts, *model));
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                   NewEngineFor(prompts.size() * options.samples, options.prefix_cache, model.get()));
  progress.reset();
  RETURN_IF_ERROR(CheckTokenizer(options, *model));
  if (!options.json) PrintSampling(sampling);

  const Clock::time_point loaded = Clock::now();
  Answers answers(MakeRequests(options, sampling, prompts), options.samples, model->tokenizer() != nullptr,
                  !options.json);
  RETURN_IF_ERROR(Continue(engine.get(), &answers));
  const EngineStats stats = engine->stats();
  if (options.json) PrintJson(ResultJson(answers, sampling, stats, start, loaded));
  if (!options.json && answers.answers().size() > 1) {
    std::fprintf(stderr, "note: %s prompt tokens computed, %s shared with others\n",
                 absl::StrCat(stats.prompt_tokens).c_str(), absl::StrCat(stats.cached_prompt_tokens).c_str());
  }
  return options.trace.empty() ? absl::OkStatus() : WriteWholeFile(options.trace, trace.ToJson());
}

}  // namespace
}  // namespace generate_command

void AddGenerate(CLI::App& app, Command* chosen) {
  using namespace generate_command;
  CLI::App* command = AddCommand(app, "generate", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddRunnableOptions(command, &options->source);
  AddPaginationOptions(command, &options->source);
  AddPromptOptions(command, &options->prompts);
  command->add_option("--max-new-tokens", options->max_new_tokens, "at most so many")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  command->add_option("--samples", options->samples, "of each prompt; the i-th of all draws by the seed plus i")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  AddSamplingOptions(command, &options->sampling);
  command->add_option("--stop", options->stop, "text that ends the generation; may be given several times")
      ->allow_extra_args(false)
      ->check(CheckStop);
  command->add_flag("--ignore-eos", options->ignore_eos, "go on after an end-of-sequence token");
  command->add_option("--tokenizer", options->tokenizer, "folder with the files of a tokenizer, or a tokenizer.json");
  command->add_flag("!--no-prefix-cache", options->prefix_cache,
                    "compute each prompt whole, also where it begins as another did; samples of one share it even so");
  AddTraceOptions(command, &options->trace, &options->trace_kernels);
  command->add_flag("--json", options->json,
                    "prompt_ids, output_ids, text, finish_reason, sampling, prompt_tokens (computed, and cached: "
                    "shared with others), timings; of several prompts or samples a list of results");
  command->callback([options, chosen] {
    RequireUsage(CheckSamplingOptions(options->sampling));
    if (!options->trace.empty() && !options->source.RunsOnGpu()) {
      RequireUsage(absl::InvalidArgumentError("--trace shows what runs on a GPU: it needs --device=cuda"));
    }
    *chosen = [options] { return Run(*options); };
  });
}

}  // namespace llmc
