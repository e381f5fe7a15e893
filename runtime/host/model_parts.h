// What LoadedPlan is made of, for code that has a model but no plan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph.h"
#include "runtime/engine/generation_config.h"
#include "runtime/plan/plan.h"

namespace llmc {

struct ModelParts {
  std::string path;  // for messages
  std::unique_ptr<Model> model;
  std::shared_ptr<const Plan> plan;  // where the model is from one; devices other than the host need it
  SideFiles files;
  std::optional<std::vector<int32_t>> eos_token_ids;  // as recorded in a plan; else as the files say
  // Tokens of a sequence; 0: what the model's dims allow. An error: why it cannot be known.
  absl::StatusOr<int64_t> max_context = 0;
  // Of a model with a paged cache: tokens that attention_mask hides are left out; else such a mask is an error.
  bool skips_hidden = false;
};

absl::StatusOr<ModelParts> PartsOfPlan(std::shared_ptr<const Plan> plan);

}  // namespace llmc
