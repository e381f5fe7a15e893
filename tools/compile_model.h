// From a model to a plan file: passes, kernels, weights.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/gpu_form.h"
#include "tools/model_source.h"
#include "tools/plan_options.h"
#include "tools/progress.h"
#include "tools/tune.h"

namespace llmc {

struct CompileRequest {
  PlanRequest plan;
  std::string dump_dir;  // empty: no dump
  DevicePlanOptions device;
  Requirements requirements;
  bool use_cache = true;                              // of compiled kernels
  TuneOptions tune = {.wanted = false, .sizes = {}};  // time products
};

// What a part of the compilation took: "import", each pass, "plan" (kernels, memory and the file).
struct StageTime {
  std::string name;
  double seconds = 0;
};

struct CompileReport {
  size_t ops = 0, prepare_ops = 0;
  std::vector<StageTime> stages;
  absl::Status host_only;  // why the plan has no code for a GPU although one was wished for
  TuneReport tuning;
};

absl::StatusOr<CompileReport> CompileModel(const ModelSource& source, const CompileRequest& request,
                                           Progress* progress);

// TargetHere().
void SetDefaultTarget(PlanRequest* request);

// Declares --target, --no-cache and --fast-compile.
void AddTargetOptions(CLI::App* command, CompileRequest* request);

}  // namespace llmc
