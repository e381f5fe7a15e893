// Whether GPUs can run a model, found without compiling for one; and what commands require of a model.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cubins/targets.h"
#include "ir/graph.h"

namespace llmc {

// OK, or Unimplemented with all that has no form for a GPU, of a model that the passes have left. No kernel is
// compiled: it takes the time of planning.
absl::Status GpuForm(const Model& model, absl::Span<const Target> targets);

// The reasons of such an error, of whatever size, in one line: equal ones together, with how often each op has them.
std::string GpuReasonsText(const absl::Status& status);
// "gpu: …\n", in a report.
std::string GpuLine(const absl::Status& status);
// A list of `reason`, `ops` (how many of each).
nlohmann::ordered_json GpuReasonsJson(const absl::Status& status);

// Declares --target for commands that plan for one GPU, and sets `target` where it is given.
void AddOneTargetOption(CLI::App* command, std::optional<Target>* target, const std::string& what);

// What `check` and `compile` can require: "gpu".
struct Requirements {
  std::vector<std::string> names;
  bool gpu() const;
};
// Declares --require.
void AddRequireOption(CLI::App* command, Requirements* requirements);

// The error of a model without a form for a GPU, if one is required: exit code 3.
absl::Status CheckRequired(const Requirements& requirements, const std::string& path, const absl::Status& gpu);

}  // namespace llmc
