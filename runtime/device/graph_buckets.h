// Which decode steps are captured graphs: a step of fewer sequences is filled up to one of some batch sizes.
#pragma once

#include <algorithm>
#include <cstdint>

namespace llmc {

inline constexpr int64_t kLargestGraph = 256;  // sequences
inline constexpr int64_t kGraphKinds = 4;      // of a batch size: nothing, a choice, draws or log-probabilities follow

// The batch size of the graph that runs `sequences`: 1, 2, 4, 8, steps of 8 to 64, then of 32.
inline int64_t GraphBucketOf(int64_t sequences) {
  int64_t bucket = 1;
  while (bucket < sequences && bucket < 8) bucket *= 2;
  if (bucket >= sequences) return bucket;
  const int64_t step = sequences <= 64 ? 8 : 32;
  return (sequences + step - 1) / step * step;
}

// The most graphs of steps of up to `sequences` sequences.
inline int64_t MostGraphs(int64_t sequences) {
  const int64_t most = std::min(sequences, kLargestGraph);
  int64_t sizes = 0;
  for (int64_t size = 1; size <= most; size = GraphBucketOf(size) + 1) ++sizes;
  return sizes * kGraphKinds;
}

}  // namespace llmc
