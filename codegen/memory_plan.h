// Where each value of a step lives in one arena, at the bounds of the dims.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/graph.h"
#include "runtime/plan.pb.h"

namespace llmc {

inline constexpr int64_t kBufferAlignment = 256;

// A range of the arena and the steps during which it holds something: written at or before `first`, read until `last`,
// both included. Parameters live from step 0, outputs until one past the last step.
struct BufferRange {
  int64_t bytes = 0;
  int64_t first = 0;
  int64_t last = 0;
  int64_t offset = 0;
};

// Sets offsets, the largest buffers first, each at the lowest place that fits its size best; returns the arena's size.
// Buffers of size 0 take no place. The sum of all sizes must not overflow.
int64_t AssignOffsets(std::vector<BufferRange>* buffers);
// The most aligned bytes alive at one step: no arena is smaller.
int64_t LowerBound(const std::vector<BufferRange>& buffers);
// An error if two buffers that live at once overlap, or one is not aligned.
absl::Status CheckNoOverlap(const std::vector<BufferRange>& buffers);

// Steps are the nodes in their order. Views (reshape, identity) share their operand's buffer, results of elementwise
// ops and of residual additions take the buffer of an operand that dies with them and has the same size. Weights,
// states and prepared values are not in the arena. `bounds` gives each symbol's largest size. If a size is over
// kMaxBytes there, the plan is a sample for smaller bounds, at most the first of kSampleBounds that is small enough,
// and says so in `sample`; if none is, there are buffers without offsets and `unplanned` says why. An error is a bug of
// the planner.
inline constexpr int64_t kMaxBytes = int64_t{1} << 40;
inline constexpr int64_t kSampleBounds[] = {128, 16, 2};
absl::StatusOr<plan::Program> PlanMemory(const Step& step, const DimEnv& bounds);

// The contents of plan.txt: steps, buffers with their place and lifetime, peak, lower bound and their ratio.
std::string MemoryPlanText(const plan::Program& program);

}  // namespace llmc
