// Neighbouring nodes of a decode step that become one matrix-vector kernel: the norm before the product, and what is
// done with its sums. In a step of a few tokens each kernel less is worth one or two microseconds; in larger steps the
// nodes stay apart, because the product is cuBLASLt's.
#pragma once

#include "codegen/tasks/elementwise_groups.h"
#include "codegen/tasks/fusion.h"

namespace llmc {

// Adds to `fusion`, which may have claimed nodes before. Values between the nodes of a group are used nowhere else.
// Adds nothing to programs of many tokens.
void FuseDecodeStep(const Model& model, const Step& step, const ElementwiseGroups& groups, const ProgramScope& scope,
                    Fusion* fusion);

}  // namespace llmc
