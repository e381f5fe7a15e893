// From a model to what a plan of it needs beside it: options of the plan writer, and options of commands that compile.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "codegen/plan_writer.h"
#include "ir/graph.h"
#include "passes/driver/ledger.h"
#include "tools/model_source.h"

namespace llmc {

// What to make of a model.
struct PlanRequest {
  std::string output;              // the plan
  std::vector<Target> targets;     // GPUs; none: the host
  bool default_targets = false;    // nobody asked for those: a plan for the host will do
  std::string stop_after;          // the last pass
  std::string weights = "inside";  // or "external"
  // For this process alone: weights stay where they are if they can, named from the model's folder, and no file is
  // hashed.
  bool temporary = false;
  // Without, nobody will generate text with the plan: end tokens and the tokenizer are not read.
  bool generates = true;
  bool fast_compile = false;  // as CompileOptions
};

// With the tokenizer and the other files next to the model, and the language model's sizes.
absl::StatusOr<PlanOptions> MakePlanOptions(const Model& model, const ModelSource& source, const PlanRequest& request,
                                            const Ledger& ledger);

// Declares --steps and --tf32.
void AddDeviceOptions(CLI::App* command, DevicePlanOptions* options);

// Declares --bound, which fills source->bounds.
void AddBoundOption(CLI::App* command, ModelSource* source);

}  // namespace llmc
