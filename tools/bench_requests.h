// Requests through the engine: one alone, and a full batch, which come all at once, to their last token.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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
  int most_runs = 5;   // after one that is not counted; the median is told
  double enough = 10;  // seconds, after which no further run begins
};

// Of COUNT,PROMPT,ANSWER, such as 256,1024,256.
absl::StatusOr<RequestsLoad> ParseRequestsLoad(absl::string_view text);

// Runs the load without the prefix cache: an entry with the load and, of the run of median seconds, its seconds,
// answers' tokens a second, and of its phases (until each request has its first token, while all generate, while fewer
// and fewer do) steps, seconds and the median step. Beside tokens a second and median steps stand the least and the
// greatest of all runs. ResourceExhausted: there are more requests than a step may have, or one does not fit; where the
// cache has no room for all at once, fewer run together.
absl::StatusOr<nlohmann::ordered_json> TimeRequests(Executor* executor, const RequestsLoad& load);
std::string RequestsText(const nlohmann::ordered_json& entry);

}  // namespace llmc
