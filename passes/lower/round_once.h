// Writes into the types what a backend does not round.
#pragma once

#include "absl/status/status.h"
#include "ir/graph.h"
#include "passes/lower/backend.h"

namespace llmc {

// Kernels of backends with `rounds_once` that have several nodes in 16-bit types: these compute in f32, from what the
// kernel reads, cast, and the last result is cast back.
absl::Status RoundOnce(Model* model, Step* step, const Backends& backends);

}  // namespace llmc
