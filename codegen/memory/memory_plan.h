// Where each value of a step lives in one arena, at the bounds of the dims.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "codegen/tasks/select.h"
#include "ir/graph.h"
#include "ir/size.h"
#include "runtime/plan/plan.pb.h"
#include "runtime/plan/plan_arena.h"

namespace llmc {

// What one task, or several after each other, compute: the nodes of a kernel, or one that stands in none.
struct StepUnit {
  std::vector<const Node*> nodes;
  std::vector<DeviceCall> calls = {};  // that compute them; none of a host's
  bool keeps_rows = false;             // the calls read rows whole before they write them
  const Kernel* kernel() const { return nodes.back()->kernel; }
};
std::vector<StepUnit> UnitsOf(const Step& step);  // without calls

// The scratch memory that the calls of a unit share, and the name of its buffer, which lives as long as they run.
std::optional<Size> ScratchOf(const StepUnit& unit);
std::string ScratchName(const StepUnit& unit);

// Replaces those in a manifest.
void SetBounds(const DimEnv& bounds, google::protobuf::RepeatedPtrField<plan::DimBound>* to);

// Tasks are the units in their order. Views (reshape, identity) share their operand's buffer. A result takes the buffer
// of an operand that dies with the unit and has the same size, if all nodes that read the operand lead to the result
// element by element, or if the unit keeps rows. Weights, states and prepared values are not in the arena, nor is what
// only nodes of the same kernel read. `bounds` gives each symbol's largest size. If a size is over kMaxBytes there, the
// plan is a sample for smaller bounds, at most the first of kSampleBounds that is small enough, and says so in
// `sample`; if none is, there are buffers without offsets and `unplanned` says why. An error is a bug of the planner.
inline constexpr int64_t kMaxBytes = int64_t{1} << 40;
inline constexpr int64_t kSampleBounds[] = {128, 16, 2};
absl::StatusOr<plan::Program> PlanMemory(const Step& step, const DimEnv& bounds, absl::Span<const StepUnit> units);

}  // namespace llmc
