// What commands print to standard output, and which files they may write.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace llmc {

void PrintText(absl::string_view text);
// Bytes of names that are not UTF-8 become U+FFFD.
void PrintJson(const nlohmann::ordered_json& json);
// Whether PrintJson was called: standard output holds at most one JSON text.
bool JsonIsPrinted();
// An error if not all of standard output could be written.
absl::Status FlushOutput();

// InvalidArgument if `path` cannot become a file, or is the same file as one of `inputs`, by whatever name. Nothing is
// wrong with an empty path.
absl::Status CheckOutput(const std::string& path, const std::vector<std::string>& inputs);

}  // namespace llmc
