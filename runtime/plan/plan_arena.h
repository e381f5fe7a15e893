// Places in one arena for buffers of known sizes and lifetimes: of a plan when it is made, or of a run whose sizes only
// the run can tell.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace llmc {

inline constexpr int64_t kBufferAlignment = 256;

// A range of the arena and the steps during which it holds something: written at or before `first`, read until `last`,
// both included. Parameters live from step 0, outputs until one past the last step.
struct BufferRange {
  int64_t bytes = 0;
  int64_t first = 0;
  int64_t last = 0;
  int64_t offset = 0;
  bool is_scratch = false;  // placed after all others, whose places then do not depend on it
};

// Sets offsets, the largest buffers first, each at the lowest place that fits its size best; returns the arena's size.
// Buffers of size 0 take no place. The sum of all sizes must not overflow.
int64_t AssignOffsets(std::vector<BufferRange>* buffers);
// The most aligned bytes alive at one step: no arena is smaller.
int64_t LowerBound(const std::vector<BufferRange>& buffers);
// An error if two buffers that live at once overlap, or one is not aligned.
absl::Status CheckNoOverlap(const std::vector<BufferRange>& buffers);

}  // namespace llmc
