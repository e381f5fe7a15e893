// Timing the products of a plan on the GPU that is here, while the plan is made.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "codegen/plan_writer.h"
#include "tools/progress.h"

namespace llmc {

// Declares --tune and --no-tune.
void AddTuneOption(CLI::App* command, std::optional<bool>* tune);

struct TuneReport {
  double seconds = 0;
  int64_t timed = 0, kept = 0;  // products: all, and those for which another proposal than the first is used
};

// "timed 86 products in 2.1 s, …\n"
std::string TuningText(const TuneReport& report);

// Sets plan->tune if that is wanted and can be done: the model is a language model with a paged cache, and the GPU that
// is here one of the plan's targets. It fills `report` as the plan is written; all must live until then. An error if it
// is `wanted` explicitly and cannot be done.
absl::Status SetTuning(std::optional<bool> wanted, Progress* progress, PlanOptions* plan, TuneReport* report);

}  // namespace llmc
