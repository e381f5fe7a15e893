// What LoadedPlan is made of, for code that has a model but no plan.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph.h"
#include "runtime/plan.h"

namespace llmc {

struct ModelParts {
  std::string path;  // for messages
  std::unique_ptr<Model> model;
  std::shared_ptr<const Plan> plan;  // where the model is from one; devices other than the host need it
  std::string tokenizer_json;        // empty: there is none
  std::vector<int32_t> eos_token_ids;
  int64_t max_context = 0;  // tokens of a sequence; 0: what the model's dims allow
};

absl::StatusOr<ModelParts> PartsOfPlan(std::shared_ptr<const Plan> plan);

}  // namespace llmc
