// Folders that hold ONNX files: as onnxruntime-genai and optimum write them.
#pragma once

#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "files/side_files.h"

namespace llmc {

// The ONNX file that a folder is there for: the one that genai_config.json names, or the only one in it or in its
// folder onnx/. Nothing if `path` is no folder, if it has none, or if it holds a Hugging Face checkpoint.
// InvalidArgument if there are several: it lists them.
absl::StatusOr<std::optional<std::string>> OnnxFileOf(const std::string& path);

// ReadSideFiles; what genai_config.json says of tokens, context and sampling stands in for configs that are absent.
SideFiles SideFilesOf(const std::string& folder);

// Declares MODEL, described by `what`. For a folder with one ONNX file `path` becomes that file, and `folder`, if not
// null, the folder, where tokenizer and configs are; else `path` is what was given.
void AddModelPath(CLI::App* command, std::string* path, std::string* folder, const std::string& what);

}  // namespace llmc
