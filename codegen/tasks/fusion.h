// What becomes of the nodes of a step that are not selected one by one, because one call does the work of several.
#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "codegen/memory/memory_plan.h"
#include "codegen/tasks/select.h"
#include "ir/graph.h"

namespace llmc {

struct Fusion {
  // The calls of a group stand at its last node, the others have none.
  absl::flat_hash_map<const Node*, std::vector<DeviceCall>> calls;
  // All nodes of a group in order, by its last one; without them the last names the calls.
  absl::flat_hash_map<const Node*, std::vector<const Node*>> nodes;
  FusedMemory memory;
};

}  // namespace llmc
