// Attention of one token that turns its heads itself, in a launch of its own.
#pragma once

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "codegen/memory/memory_plan.h"
#include "passes/lower/lower.h"

namespace llmc {

// Of the units of a step of one token, in their order: where one turns heads (normalizes and rotates queries and keys,
// and writes keys and values to the cache) and the next is attention that alone reads them, both become one unit of one
// kernel, as they are one task of a persistent launch (codegen/run_rows.h). `reports`: of the units that are kernels,
// in their order; those of joined units become one. `outputs`: of the step.
void JoinHeads(const absl::flat_hash_set<const Value*>& outputs, std::vector<StepUnit>* units,
               std::vector<KernelReport>* reports);

}  // namespace llmc
