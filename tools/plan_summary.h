// What `llmc show` prints of a plan.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/plan.h"

namespace llmc {

nlohmann::ordered_json PlanJson(const Plan& plan);
std::string PlanText(const Plan& plan);

}  // namespace llmc
