// Checks of a model after import and after each pass.
#pragma once

#include "absl/status/status.h"
#include "ir/graph.h"

namespace llmc {

// How far a model has come; each phase allows what the phases before it allow, less what their passes remove.
enum class Phase { kImported, kRaised, kFused };

// Structure (at least one step, definitions before uses, users lists, nodes of a kernel together, unique names of
// values, steps and outputs), types (each equals what Infer gives), states touched only by ops that may, dim symbols
// declared and bound before they are read. An error is a bug of whoever made the model.
absl::Status Verify(const Model& model, Phase phase);

// A part of that: the nodes of each kernel stand together. `all`: every node that needs one is in one.
absl::Status CheckKernels(const Step& step, bool all);

}  // namespace llmc
