// Where each value of a step lives in one arena, at the bounds of the dims.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "codegen/tasks/elementwise_groups.h"
#include "ir/graph.h"
#include "ir/size.h"
#include "runtime/plan/plan.pb.h"
#include "runtime/plan/plan_arena.h"

namespace llmc {

// Whether the result is the first operand under another shape.
bool IsViewOp(const Node& node);
// The value whose contents `value` shows, through any number of views.
const Value* ViewedValue(const Value* value);
// The values that hold what `value` shows: that, or of an encoded value its components, which are read in its place. An
// encoded value has no memory of its own.
std::vector<const Value*> StoredValues(const Value* value);

// Tasks are the nodes in their order. Views (reshape, identity) share their operand's buffer, results of elementwise
// ops and of residual additions take the buffer of an operand that dies with them and has the same size. Weights,
// states and prepared values are not in the arena, nor is what stays inside of a group that is one kernel. `bounds`
// gives each symbol's largest size. If a size is over kMaxBytes there, the plan is a sample for smaller bounds, at most
// the first of kSampleBounds that is small enough, and says so in `sample`; if none is, there are buffers without
// offsets and `unplanned` says why. An error is a bug of the planner.
inline constexpr int64_t kMaxBytes = int64_t{1} << 40;
inline constexpr int64_t kSampleBounds[] = {128, 16, 2};
// Where one call does the work of several nodes, the last of which it stands for.
struct FusedMemory {
  // What it reads besides that node's operands. Its result does not take their place.
  absl::flat_hash_map<const Node*, std::vector<const Value*>> reads;
  absl::flat_hash_set<const Value*> unmade;  // values within, which get no memory
  // Bytes that the calls of a node need for themselves: a buffer that is named ScratchName and lives as long as they
  // run.
  absl::flat_hash_map<const Node*, Size> scratch;
};
std::string ScratchName(const Node& node);
absl::StatusOr<plan::Program> PlanMemory(const Step& step, const DimEnv& bounds, const ElementwiseGroups& groups = {},
                                         const FusedMemory& fused = {});

// " + bias + residual, gelu_tanh": what a product includes.
std::string PartsText(const plan::Gemm& gemm);

// The products for which a proposal of cuBLASLt other than its first is used.
std::string TunedText(const plan::TunedProducts& tuned);

// The contents of plan.txt: tasks, buffers with their place and lifetime, peak, lower bound and their ratio. Tasks of a
// device plan say what runs.
std::string MemoryPlanText(const plan::Program& program,
                           const plan::Manifest& manifest = plan::Manifest::default_instance());

}  // namespace llmc
