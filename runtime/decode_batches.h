// The batch sizes of decode steps that have a captured graph: smaller steps are padded to the next.
#pragma once

#include <cstdint>

namespace llmc {

inline constexpr int64_t kLargestGraph = 256;  // sequences

// The batch size of the graph that runs `sequences`.
constexpr int64_t BucketOf(int64_t sequences) {
  int64_t bucket = 1;
  while (bucket < sequences && bucket < 8) bucket *= 2;
  if (bucket >= sequences) return bucket;
  const int64_t step = sequences <= 64 ? 8 : 32;
  return (sequences + step - 1) / step * step;
}

}  // namespace llmc
