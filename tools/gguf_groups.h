// What `llmc check` says of how a GGUF file stores its tensors.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "frontend/formats/gguf.h"

namespace llmc {

absl::StatusOr<std::vector<GgufTensorGroup>> ReadGgufGroups(const std::string& path);
// A line for each group: its type, how many tensors it has, bits of a number with its part of scales; then all
// together.
std::string GgufGroupsText(const std::vector<GgufTensorGroup>& groups);
nlohmann::ordered_json GgufGroupsJson(const std::vector<GgufTensorGroup>& groups);

}  // namespace llmc
