// The passes that are functions. Each leaves dead ops behind: the driver removes them.
#pragma once

#include "passes/pipeline.h"

namespace llmc {

// f64, f32, f16 and bf16 become context.options->dtype; nothing without it. See retype.cc for what keeps its type.
absl::Status Retype(Model* model, const PassContext& context);
absl::Status FoldConstants(Model* model, const PassContext& context);
// SimplifyRules and MergeEqualOps in turns, to a fixed point.
absl::Status Simplify(Model* model, const PassContext& context);
// The rules of rules/raise_*.cc, with those of simplify.
absl::Status Raise(Model* model, const PassContext& context);
// A decoder over whole sequences becomes a token-major program with a paged cache, as options->pagination says; see
// paginate/paginate.cc.
absl::Status Paginate(Model* model, const PassContext& context);
// A part of Paginate: products with weights [k, n] get them as [n, k], turned in `prepare`.
absl::Status TransposeWeights(Model* model);
// A part of Raise and of HoistWeights, which make weights: products with them become linear.
absl::Status RaiseLinear(Model* model, const PassContext& context);
absl::Status Fuse(Model* model, const PassContext& context);
// A part of Raise: encodings of weights, and what they are made of, and weights of floats that are cast move to
// `prepare`, so that rules see weights.
absl::Status HoistEncodings(Model* model);
absl::Status HoistWeights(Model* model, const PassContext& context);

// Common subexpressions of one block: of equal pure ops, the first stays. Returns how many were merged.
int64_t MergeEqualOps(Model* model, Block* block, Ledger* ledger);

}  // namespace llmc
