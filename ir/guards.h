// What need not be computed: nodes that only one side of a `choose` needs.
#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/graph.h"

namespace llmc {

// Holds if the outer guard does and the condition, a bool[], is as wanted.
struct Guard {
  int outer = -1;  // an index; -1: none
  int depth = 1;
  const Value* condition = nullptr;
  bool wanted = false;
};

struct GuardedNodes {
  std::vector<Guard> guards;
  absl::flat_hash_map<const Node*, int> of;  // those of nodes that have any; their conditions come before them
};

GuardedNodes FindGuards(const Step& step);

}  // namespace llmc
