// What MODEL names: a path, or a model in the Hugging Face cache; and folders that hold ONNX files, as
// onnxruntime-genai and optimum write them.
#pragma once

#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "files/side_files.h"

namespace llmc {

// `given`, if there is such a file or folder or it has not the form of a name on the Hugging Face hub; else the
// snapshot of "org/name" or "org/name@revision" in the cache, with the errors of FindInHubCache (files/hub_cache.h).
absl::StatusOr<std::string> PathOfModel(const std::string& given);

// Whether `path` is a folder with config.json and without a single ONNX file that stands for it.
bool IsHuggingFaceFolder(const std::string& path);

// The ONNX file that a folder is there for: the one that genai_config.json names, or the only one in it or in its
// folder onnx/. Nothing if `path` is no folder, if it has none, or if it holds a Hugging Face checkpoint.
// InvalidArgument if there are several: it lists them.
absl::StatusOr<std::optional<std::string>> OnnxFileOf(const std::string& path);

// ReadSideFiles of a folder, or what a .gguf file says itself; what genai_config.json says of tokens, context and
// sampling stands in for configs that are absent, and what sentence-transformers says of texts is added
// (sentence_settings.h).
SideFiles SideFilesOf(const std::string& folder);

// Declares MODEL, described by `what`. For a folder with one ONNX file `path` becomes that file, and `folder`, if not
// null, the folder, where tokenizer and configs are; else `path` is what PathOfModel says of what was given.
void AddModelPath(CLI::App* command, std::string* path, std::string* folder, const std::string& what);
// The same for an option that may be left out.
CLI::Option* AddModelPathOption(CLI::App* command, const std::string& name, std::string* path, std::string* folder,
                                const std::string& what);

}  // namespace llmc
