// What the prefix cache is worth: requests that begin alike, through the engine.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/engine/executor.h"

namespace llmc {

struct PrefixLoad {
  int64_t requests = 64;
  int64_t prompt = 2048;  // tokens of each
  int64_t shared = 1843;  // of these, that all have in common
  int runs = 3;           // after one that is not counted; the fastest is told
};

// Runs the load, each request for one new token, without the prefix cache and with it: an entry with the load, and for
// "uncached" and "cached" seconds, prompt tokens a second (all of them, found or computed), and how many were computed
// and found; "speedup". ResourceExhausted: a prompt does not fit.
absl::StatusOr<nlohmann::ordered_json> TimePrefixCache(Executor* executor, const PrefixLoad& load);
std::string PrefixCacheText(const nlohmann::ordered_json& entry);

}  // namespace llmc
