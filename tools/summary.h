// What `llmc show` prints of a model.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"
#include "ir/graph.h"

namespace llmc {

// name, dims, weights {count, bytes, dtypes}, states, steps [{name, inputs, outputs, ops {name: count}}], prepare_ops.
nlohmann::ordered_json SummaryJson(const Model& model);
// The same for people, below a line with `title`.
std::string SummaryText(const Model& model, absl::string_view title);

std::string HumanBytes(int64_t bytes);  // "13.9 MiB"

}  // namespace llmc
