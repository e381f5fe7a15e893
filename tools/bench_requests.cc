#include "tools/bench_requests.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "runtime/engine/engine.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kPromptRuns = 3;
constexpr int64_t kPromptTokens = 65;

double SecondsAfter(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct RequestsPhase {
  double seconds = 0;
  std::vector<double> steps;
  void Add(double step) {
    seconds += step;
    steps.push_back(step);
  }
  double median() {
    if (steps.empty()) return 0;
    const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
    std::nth_element(steps.begin(), middle, steps.end());
    return *middle;
  }
};

// One run on an engine of its own.
struct RequestsRun {
  int64_t unanswered = 0, unfinished = 0;  // requests without a first token, without a last one
  int64_t tokens = 0, preemptions = 0;
  double seconds = 0;
  RequestsPhase prompts, full, rest;
  absl::Status status;

  absl::Status Add(Engine* engine, const RequestsLoad& load, int64_t vocab_size) {
    std::mt19937 random(11);
    for (int64_t r = 0; r < load.requests; ++r) {
      Request request{.max_new_tokens = load.answer, .ignore_eos = true};
      for (int64_t i = 0; i < load.prompt; ++i)
        request.prompt_ids.push_back(static_cast<int32_t>(random() % vocab_size));
      const auto take = [this, first = true](const TokenEvent& event) mutable {
        status.Update(event.status);
        tokens += event.token.has_value() ? 1 : 0;
        if (std::exchange(first, false)) --unanswered;
        if (event.finish.has_value()) --unfinished;
      };
      RETURN_IF_ERROR(engine->AddRequest(std::move(request), take).status());
    }
    unanswered = unfinished = load.requests;
    return absl::OkStatus();
  }

  absl::Status Run(Engine* engine, int64_t requests) {
    const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
    for (std::chrono::steady_clock::time_point last = begin; !engine->idle();) {
      RETURN_IF_ERROR(engine->Step());
      const std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
      RequestsPhase& phase = unanswered > 0 ? prompts : unfinished == requests ? full : rest;
      phase.Add(std::chrono::duration<double>(now - last).count());
      last = now;
    }
    seconds = SecondsAfter(begin);
    preemptions = engine->stats().preemptions;
    return status;
  }
};

using Runs = std::vector<RequestsRun>;

// The least and the greatest of what runs have.
template <class Figure>
Json Spread(Runs* runs, const Figure& figure) {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (RequestsRun& run : *runs) {
    least = std::min(least, figure(&run));
    most = std::max(most, figure(&run));
  }
  return {least, most};
}

// Of run `told`.
Json RequestsPhaseJson(Runs* runs, size_t told, RequestsPhase RequestsRun::*phase) {
  RequestsPhase& own = (*runs)[told].*phase;
  const auto milliseconds = [&](RequestsRun* run) { return (run->*phase).median() * 1e3; };
  return {{"steps", own.steps.size()},
          {"seconds", own.seconds},
          {"median_ms", own.median() * 1e3},
          {"median_ms_spread", Spread(runs, milliseconds)}};
}

double TokensPerSecond(RequestsRun* run) { return static_cast<double>(run->tokens) / run->seconds; }

}  // namespace

absl::StatusOr<Json> TimeOnePrompt(LoadedPlan* plan, int64_t prompt) {
  ASSIGN_OR_RETURN(Executor * executor, plan->executor());
  const ExecutorLimits& limits = executor->limits();
  if (prompt + kPromptTokens > MaxCachedTokens(limits)) {
    return absl::ResourceExhaustedError("the prompt and what is generated do not fit");
  }
  std::vector<double> first_token, per_token;
  for (int run = 0; run < kPromptRuns; ++run) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                     plan->NewEngine({.max_tokens_per_step = limits.max_step_tokens, .max_sequences = 1}));
    Request request{.max_new_tokens = kPromptTokens, .ignore_eos = true};
    for (int64_t i = 0; i < prompt; ++i) {
      request.prompt_ids.push_back(static_cast<int32_t>((i * 7919 + run) % limits.vocab_size));
    }
    const auto begin = std::chrono::steady_clock::now();
    auto first = begin;
    Completion completion;
    const auto id = engine->AddRequest(std::move(request), [&](const TokenEvent& event) {
      if (completion.tokens.empty()) first = std::chrono::steady_clock::now();
      completion.Add(event);
    });
    if (!id.ok()) return id.status();
    RETURN_IF_ERROR(engine->RunUntilIdle());
    if (!completion.status.ok()) return completion.status;
    first_token.push_back(std::chrono::duration<double>(first - begin).count());
    per_token.push_back(SecondsAfter(first) / static_cast<double>(kPromptTokens - 1));
  }
  return Json{{"prompt", prompt},
              {"first_token_ms", *std::min_element(first_token.begin() + 1, first_token.end()) * 1e3},
              {"first_time_ms", first_token[0] * 1e3},
              {"token_us", *std::min_element(per_token.begin() + 1, per_token.end()) * 1e6}};
}

std::string OnePromptText(const Json& entry) {
  return absl::StrFormat("%8d %15.2f ms %15.2f ms %15.1f us\n", entry["prompt"].get<int64_t>(),
                         entry["first_token_ms"].get<double>(), entry["first_time_ms"].get<double>(),
                         entry["token_us"].get<double>());
}

absl::StatusOr<RequestsLoad> ParseRequestsLoad(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ',');
  RequestsLoad load;
  int64_t* const numbers[] = {&load.requests, &load.prompt, &load.answer};
  bool is_load = parts.size() == std::size(numbers);
  for (size_t i = 0; is_load && i < parts.size(); ++i) {
    is_load = absl::SimpleAtoi(parts[i], numbers[i]) && *numbers[i] > 0;
  }
  if (is_load) return load;
  return absl::InvalidArgumentError(absl::StrCat("'", text,
                                                 "' is not COUNT,PROMPT,ANSWER: three positive numbers, of "
                                                 "requests, of tokens of each, and of tokens of its answer"));
}

absl::StatusOr<Json> TimeRequests(Executor* executor, const RequestsLoad& load) {
  const ExecutorLimits& limits = executor->limits();
  Json entry = {{"requests", load.requests}, {"prompt", load.prompt}, {"answer", load.answer}};
  if (load.requests > std::min(limits.max_sequences, limits.max_step_tokens) ||
      load.prompt + load.answer > MaxCachedTokens(limits)) {
    return absl::ResourceExhaustedError(absl::StrCat(load.requests, " requests of ", load.prompt, " and ", load.answer,
                                                     " tokens do not run at once in this plan"));
  }
  Runs runs;
  double seconds = 0;
  for (int i = 0; i <= load.most_runs && (i <= 1 || seconds < load.enough); ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Create(executor, nullptr,
                                                                    {.max_tokens_per_step = limits.max_step_tokens,
                                                                     .max_sequences = load.requests,
                                                                     .prefix_cache = false}));
    RequestsRun run;
    RETURN_IF_ERROR(run.Add(engine.get(), load, limits.vocab_size));
    RETURN_IF_ERROR(run.Run(engine.get(), load.requests));
    if (i == 0) continue;
    seconds += run.seconds;
    runs.push_back(std::move(run));
  }
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  const size_t told = runs.size() / 2;
  entry.update({{"runs", runs.size()},
                {"seconds", runs[told].seconds},
                {"tokens_per_s", TokensPerSecond(&runs[told])},
                {"tokens_per_s_spread", Spread(&runs, TokensPerSecond)},
                {"preemptions", runs[told].preemptions},
                {"prompts", RequestsPhaseJson(&runs, told, &RequestsRun::prompts)},
                {"full", RequestsPhaseJson(&runs, told, &RequestsRun::full)},
                {"rest", RequestsPhaseJson(&runs, told, &RequestsRun::rest)}});
  return entry;
}

std::string RequestsText(const Json& entry) {
  std::string text = absl::StrFormat(
      "%d requests of %d and %d tokens at once: %.3f s, %.0f tokens/s (%d runs: %.0f to "
      "%.0f), %d preemptions\n",
      entry["requests"].get<int64_t>(), entry["prompt"].get<int64_t>(), entry["answer"].get<int64_t>(),
      entry["seconds"].get<double>(), entry["tokens_per_s"].get<double>(), entry["runs"].get<int64_t>(),
      entry["tokens_per_s_spread"][0].get<double>(), entry["tokens_per_s_spread"][1].get<double>(),
      entry["preemptions"].get<int64_t>());
  for (const char* name : {"prompts", "full", "rest"}) {
    const Json& phase = entry[name];
    absl::StrAppendFormat(&text, "%9s: %4d steps, %.3f s, the median step %.3f ms\n", name,
                          phase["steps"].get<int64_t>(), phase["seconds"].get<double>(),
                          phase["median_ms"].get<double>());
  }
  return text;
}

}  // namespace llmc
