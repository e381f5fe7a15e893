// What `raise` should have recognized and did not: ops that give such a thing away and are still there, each with the
// reason why the rules did not take it.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ir/graph.h"
#include "passes/driver/ledger.h"

namespace llmc {

// As rules of the ledger that only refuse.
inline constexpr absl::string_view kLeftAttention = "left-attention";  // a softmax in front of a product
inline constexpr absl::string_view kLeftNorm = "left-norm";            // a root of a mean
inline constexpr absl::string_view kLeftGelu = "left-gelu";            // erf or tanh as a gate
inline constexpr absl::string_view kLeftRotary = "left-rotary";        // halves that are turned
inline constexpr absl::string_view kLeftQuantized = "left-quantized";  // a product with a weight of 4 or 8 bits

// To be called when no rule of `raise` fires any more. Takes time in the order of the nodes.
absl::Status NoteMissedPatterns(Model* model, Ledger* ledger);

}  // namespace llmc
