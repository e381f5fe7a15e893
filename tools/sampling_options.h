// Options that say how tokens are drawn, and what a model's files say where they are not given.
#pragma once

#include <cstdint>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "runtime/engine/sampler.h"

namespace llmc {

// Those that were given.
struct SamplingOptions {
  std::optional<double> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
};

void AddSamplingOptions(CLI::App* command, SamplingOptions* options);
// Wrong usage if one is out of its range.
absl::Status CheckSamplingOptions(const SamplingOptions& options);

// `defaults`, but for what was given; a new random seed if none was and there is something to draw. InvalidArgument: a
// default is out of its range.
absl::StatusOr<SamplingParams> MergeSampling(const SamplingOptions& options, const SamplingParams& defaults);

nlohmann::ordered_json SamplingJson(const SamplingParams& sampling);
// Prints what is drawn, unless it is the likeliest token, as a note on standard error.
void PrintSampling(const SamplingParams& sampling);

}  // namespace llmc
