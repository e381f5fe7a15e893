// Requests through the engine: one alone, and a full batch, which come all at once, to their last token.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/engine/executor.h"
#include "runtime/llmc.h"

namespace llmc {

// One prompt and some tokens after it, several times: milliseconds to the first token, the first time and the fastest
// later, and microseconds of each token then. ResourceExhausted: they do not fit.
absl::StatusOr<nlohmann::ordered_json> TimeOnePrompt(LoadedPlan* plan, int64_t prompt);
std::string OnePromptText(const nlohmann::ordered_json& entry);

struct RequestsLoad {
  int64_t requests = 0;
  int64_t prompt = 0;  // random tokens of each
  int64_t answer = 0;  // tokens of each, greedy
  int runs = 1;        // after one that is not counted; the fastest is told
};

// Runs the load without the prefix cache: an entry with the load, seconds, answers' tokens a second, and of the run's
// phases (until each request has its first token, while all generate, while fewer and fewer do) steps, seconds and, of
// the second, the median step. ResourceExhausted: there are more of them than a step may have, or one does not fit;
// where the cache has no room for all at once, fewer run together.
absl::StatusOr<nlohmann::ordered_json> TimeRequests(Executor* executor, const RequestsLoad& load);
std::string RequestsText(const nlohmann::ordered_json& entry);

}  // namespace llmc
