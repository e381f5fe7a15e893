// What `llmc show` prints of a model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ir/graph.h"

namespace llmc {

// name, dims, weights {count, bytes, dtypes}, states, steps [{name, inputs, outputs, ops {name: count}}], prepare_ops.
nlohmann::ordered_json SummaryJson(const Model& model);
std::string SummaryText(const Model& model);

std::string HumanBytes(int64_t bytes);  // "13.9 MiB"

}  // namespace llmc
