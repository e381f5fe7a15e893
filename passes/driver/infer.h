// Types after a change: what operands now tell flows on to their users.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "ir/graph.h"

namespace llmc {

// Infers the types of all nodes again, `prepare` first, in their order, and calls `visit` (if any) with each right
// after; it may remove the node and put others before it. Where a dim that only a run could tell comes out as something
// known, its symbol is replaced wherever the block uses it. Errors name the node.
absl::Status InferAgain(Model* model, absl::FunctionRef<void(Node*)> visit);
absl::Status InferAgain(Model* model);

}  // namespace llmc
