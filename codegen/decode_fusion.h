// Neighbouring nodes of a decode step that become one matrix-vector kernel: the norm before the product, and what is
// done with its sums. In a step of a few tokens each kernel less is worth one or two microseconds; in larger steps the
// nodes stay apart, because the product is cuBLASLt's.
#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "codegen/memory_plan.h"
#include "codegen/select.h"
#include "ir/graph.h"

namespace llmc {

struct DecodeFusion {
  // Calls of the nodes that are not selected one by one: those of a group stand at its last node, the others have none.
  absl::flat_hash_map<const Node*, std::vector<DeviceCall>> calls;
  ExtraReads reads;
};

// Values between the nodes of a group are used nowhere else. Empty for programs of many tokens.
DecodeFusion FuseDecodeStep(const Model& model, const Step& step, const ElementwiseGroups& groups,
                            const ProgramScope& scope);

}  // namespace llmc
