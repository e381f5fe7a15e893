// Brings the members of each kernel together in the text of a step.
#pragma once

#include "absl/status/status.h"
#include "ir/graph.h"

namespace llmc {

// A kernel goes where its last member is, or further on where it reads what comes later; other nodes keep their order
// but for those that now must wait. Uses of a state keep theirs. An error: kernels wait for each other, a bug of
// whoever formed them.
absl::Status OrderKernels(Step* step);

}  // namespace llmc
