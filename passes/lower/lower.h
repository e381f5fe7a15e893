// Puts the nodes of a step into kernels, for one target and one range of sizes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph.h"
#include "passes/driver/ledger.h"
#include "passes/lower/backend.h"
#include "passes/rules/rule_lists.h"

namespace llmc {

// Why a kernel is as it is.
struct KernelReport {
  struct Reason {
    std::string what, why;  // a rule or backend with the place, and what it found and expected
  };
  std::string backend;
  std::vector<std::string> absorbed;  // "absorb-norm: %n0"
  std::vector<Reason> refused;        // what rules would have had join it
  std::vector<Reason> others;         // backends that could not run it, or took longer
};

struct LoweredStep {
  std::unique_ptr<Model> model;  // with this step only, whose nodes stand in kernels
  Step* step = nullptr;
  Ledger ledger;
  std::vector<KernelReport> reports;  // of the kernels in their order in the text
  std::vector<std::string> missing;   // why no backend takes a node, for each such node
};

struct LowerOptions {
  DimEnv bounds;  // of the sizes; the dims of the result get them
  // Evaluates a small instance before and after, and compares. Needs the contents of weights.
  bool check_numerics = false;
  RuleSpan rules = LowerRules();
};

// Lowers a step of a copy of `model`. Kernels that the step has already stay, and may grow; if
// all nodes stand in one, as in a dump, nothing changes.
// Nodes that no backend takes stand in no kernel.
absl::StatusOr<LoweredStep> LowerStep(const Model& model, const Step& step, const Backends& backends,
                                      const LowerOptions& options);

}  // namespace llmc
