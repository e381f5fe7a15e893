// What a task must move and compute at the least: floors, of which benchmarks give shares.
#pragma once

#include <vector>

#include "codegen/tasks/select.h"
#include "ir/graph.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// Of the call number `index` of `calls`, which compute `nodes`. Bytes are those of its arguments, each once, but where
// an op reads less of one (OpCost). What is computed, and what is read of states, counts for one call: the product, if
// there is one beside others that prepare it or go on with it, else the first.
plan::Cost CostOf(const std::vector<const Node*>& nodes, const std::vector<DeviceCall>& calls, size_t index);

}  // namespace llmc
