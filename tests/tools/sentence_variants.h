// Folders of tests/families/data/poolings.json.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace llmc {

// The file.
nlohmann::json SentenceVariants();

// Makes the folder of a variant anew, and gives its path.
std::string FolderOfVariant(const nlohmann::json& variant);

// What `embed`, `score` and `compile` need of a variant: f32 as its reference, --prompt-name.
std::vector<std::string> RunArguments(const nlohmann::json& variant);
std::vector<std::string> CompileArguments(const nlohmann::json& variant);

std::vector<std::string> With(std::vector<std::string> args, const std::vector<std::string>& more);
void WriteText(const std::string& path, const std::string& text);

}  // namespace llmc
