// What runs kernels, as the pass `lower` sees it: codegen says what each can run, and how long that takes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "ir/graph.h"
#include "ir/op.h"
#include "passes/driver/match.h"

namespace llmc {

// Nodes that are one kernel, or would be.
struct KernelBody {
  std::vector<const Node*> nodes;     // in their order in the step
  std::vector<const Value*> results;  // that are read outside of it
};
// Of nodes in their order, in a step with these outputs.
KernelBody BodyOf(absl::Span<const Node* const> nodes, const absl::flat_hash_set<const Value*>& outputs);
absl::flat_hash_set<const Value*> OutputsOf(const Step& step);

// For one target and one range of sizes.
struct Backend {
  std::string name;                  // "gemv"
  std::vector<const OpDef*> begins;  // ops of which it makes kernels
  // Its kernels begin before all others, so that these may join them.
  bool is_root = false;
  // It rounds once what its nodes round one after the other in 16-bit types: `lower` writes that into the types.
  bool rounds_once = false;
  // Why it cannot run a kernel; nothing if it can.
  std::function<std::optional<Misfit>(const KernelBody&)> misfit;
  // How long it takes at the largest sizes: roughly, to compare backends.
  std::function<double(const KernelBody&)> microseconds;

  bool Begins(const OpDef* op) const;
};

// The backend of kernels that are several, none of which needs another (side_by_side.h).
inline constexpr char kSideBySide[] = "side_by_side";

// The first is preferred where two take equally long.
using Backends = std::vector<Backend>;

}  // namespace llmc
