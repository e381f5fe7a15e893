// What `llmc show` prints of a plan.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ir/graph.h"
#include "runtime/plan/plan.h"

namespace llmc {

// `model` is the program that the plan holds. SummaryJson, and compiler_version, target, flags, files, language_model,
// memory.
nlohmann::ordered_json PlanJson(const Plan& plan, const Model& model);
std::string PlanText(const Plan& plan, const Model& model);

}  // namespace llmc
