// What `llmc show` prints of a plan.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "runtime/plan/plan.h"

namespace llmc {

// The targets that a plan has code for, as text: none for the host.
std::vector<std::string> TargetsOf(const plan::Manifest& manifest);

// `model` is the program that the plan holds. SummaryJson, and compiler_version, targets, flags, files, language_model,
// memory.
nlohmann::ordered_json PlanJson(const Plan& plan, const Model& model);
std::string PlanText(const Plan& plan, const Model& model);

}  // namespace llmc
