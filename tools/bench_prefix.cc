#include "tools/bench_prefix.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "runtime/engine/engine.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Request> MakeLoad(const PrefixLoad& load, int64_t vocab_size) {
  std::vector<Request> requests(static_cast<size_t>(load.requests));
  for (size_t r = 0; r < requests.size(); ++r) {
    for (int64_t i = 0; i < load.prompt; ++i) {
      const int64_t number = i < load.shared ? i * 7919 : i * 7919 + static_cast<int64_t>(r + 1) * 104729;
      requests[r].prompt_ids.push_back(static_cast<int32_t>(number % vocab_size));
    }
    requests[r].max_new_tokens = 1;
    requests[r].ignore_eos = true;
  }
  return requests;
}

// Each time on an engine of its own, whose cache is empty.
absl::StatusOr<Json> TimeLoad(Executor* executor, const PrefixLoad& load, bool prefix_cache) {
  const ExecutorLimits& limits = executor->limits();
  const std::vector<Request> requests = MakeLoad(load, limits.vocab_size);
  double seconds = std::numeric_limits<double>::infinity();
  EngineStats stats;
  for (int run = 0; run <= load.runs; ++run) {
    ASSIGN_OR_RETURN(
        std::unique_ptr<Engine> engine,
        Engine::Create(executor, nullptr,
                       {.max_tokens_per_step = limits.max_step_tokens,
                        .max_sequences = std::min({load.requests, limits.max_sequences, limits.max_step_tokens}),
                        .prefix_cache = prefix_cache}));
    const auto begin = std::chrono::steady_clock::now();
    const absl::StatusOr<std::vector<Completion>> completions = Generate(engine.get(), requests);
    const double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!completions.ok()) return completions.status();
    for (const Completion& completion : *completions) {
      if (!completion.status.ok()) return completion.status;
    }
    if (run > 0) seconds = std::min(seconds, taken);
    stats = engine->stats();
  }
  return Json{{"seconds", seconds},
              {"prompt_tokens_per_s", static_cast<double>(load.requests * load.prompt) / seconds},
              {"computed", stats.prompt_tokens},
              {"found", stats.cached_prompt_tokens}};
}

}  // namespace

absl::StatusOr<Json> TimePrefixCache(Executor* executor, const PrefixLoad& load) {
  const ExecutorLimits& limits = executor->limits();
  if (load.prompt >= MaxCachedTokens(limits)) {
    return absl::ResourceExhaustedError(absl::StrCat("a prompt of ", load.prompt, " tokens and a new one do not fit"));
  }
  Json entry = {{"requests", load.requests}, {"prompt", load.prompt}, {"shared", load.shared}};
  for (const bool prefix_cache : {false, true}) {
    ASSIGN_OR_RETURN(Json times, TimeLoad(executor, load, prefix_cache));
    entry[prefix_cache ? "cached" : "uncached"] = std::move(times);
  }
  entry["speedup"] = entry["uncached"]["seconds"].get<double>() / entry["cached"]["seconds"].get<double>();
  return entry;
}

std::string PrefixCacheText(const Json& entry) {
  std::string text =
      absl::StrFormat("%d requests of %d tokens, the first %d of which are the same\n",
                      entry["requests"].get<int64_t>(), entry["prompt"].get<int64_t>(), entry["shared"].get<int64_t>());
  for (const char* name : {"uncached", "cached"}) {
    const Json& times = entry[name];
    absl::StrAppendFormat(&text, "%9s: %.3f s, %.0f prompt tokens/s; %d computed, %d found\n", name,
                          times["seconds"].get<double>(), times["prompt_tokens_per_s"].get<double>(),
                          times["computed"].get<int64_t>(), times["found"].get<int64_t>());
  }
  absl::StrAppendFormat(&text, "%9s: %.2f\n", "speedup", entry["speedup"].get<double>());
  return text;
}

}  // namespace llmc
