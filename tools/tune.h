// Timing the products of a plan on the GPU that is here, while the plan is made.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "codegen/plan_writer.h"
#include "runtime/plan/dim_expression.h"
#include "tools/progress.h"

namespace llmc {

struct TuneOptions {
  std::optional<bool> wanted;   // nothing: if it can be done
  std::vector<StepDims> sizes;  // of runs, for models that are no language models
};

// Declares --tune, --no-tune and, if `has_sizes`, --tune-at.
void AddTuneOption(CLI::App* command, bool has_sizes, TuneOptions* options);

struct TuneReport {
  double seconds = 0;
  int64_t timed = 0, kept = 0;  // products: all, and those for which another proposal than the first is used
};

// "timed 86 products in 2.1 s, …\n"
std::string TuningText(const TuneReport& report);

// Sets plan->tune if that is wanted and can be done: the model is a language model with a paged cache, or there are
// sizes, and the GPU that is here is one of the plan's targets. It fills `report` as the plan is written; all must live
// until then. An error if it is `wanted` explicitly and cannot be done.
absl::Status SetTuning(const TuneOptions& options, Progress* progress, PlanOptions* plan, TuneReport* report);

}  // namespace llmc
