// A model back from a plan.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "ir/graph.h"
#include "runtime/plan/plan.h"

namespace llmc {

// Parses the plan's text and attaches its weights, as views of the mapped file that keep it alive beyond the plan. An
// error names the plan and the weight whose type in the text and in the manifest differ, or that one of them lacks.
// Weights of random numbers stay without contents.
absl::StatusOr<std::unique_ptr<Model>> ModelFromPlan(const Plan& plan);

// Gives weights of random numbers their contents. ResourceExhausted above kMaxDrawnBytes: such models are for GPUs.
inline constexpr int64_t kMaxDrawnBytes = int64_t{1} << 30;
absl::Status DrawRandomWeights(const Plan& plan, Model* model);

}  // namespace llmc
