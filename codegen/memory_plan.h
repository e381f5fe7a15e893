// Where each value of a step lives in one arena, at the bounds of the dims.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "codegen/elementwise_groups.h"
#include "ir/graph.h"
#include "runtime/plan.pb.h"
#include "runtime/plan_arena.h"

namespace llmc {

// Whether the result is the first operand under another shape.
bool IsViewOp(const Node& node);
// The value whose contents `value` shows, through any number of views.
const Value* ViewedValue(const Value* value);

// Steps are the nodes in their order. Views (reshape, identity) share their operand's buffer, results of elementwise
// ops and of residual additions take the buffer of an operand that dies with them and has the same size. Weights,
// states and prepared values are not in the arena, nor is what stays inside of a group that is one kernel. `bounds`
// gives each symbol's largest size. If a size is over kMaxBytes there, the plan is a sample for smaller bounds, at most
// the first of kSampleBounds that is small enough, and says so in `sample`; if none is, there are buffers without
// offsets and `unplanned` says why. An error is a bug of the planner.
inline constexpr int64_t kMaxBytes = int64_t{1} << 40;
inline constexpr int64_t kSampleBounds[] = {128, 16, 2};
// What a node's kernels read besides its operands, because they do the work of nodes before it.
using ExtraReads = absl::flat_hash_map<const Node*, std::vector<const Value*>>;
absl::StatusOr<plan::Program> PlanMemory(const Step& step, const DimEnv& bounds, const ElementwiseGroups& groups = {},
                                         const ExtraReads& reads = {});

// The contents of plan.txt: steps, buffers with their place and lifetime, peak, lower bound and their ratio. Steps of a
// device plan say what runs.
std::string MemoryPlanText(const plan::Program& program,
                           const plan::Manifest& manifest = plan::Manifest::default_instance());

}  // namespace llmc
