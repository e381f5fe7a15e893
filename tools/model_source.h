// Where a command's MODEL argument comes from: an ONNX file, a Hugging Face folder or a dump (.lir).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ir/graph.h"
#include "passes/ledger.h"
#include "passes/pipeline.h"
#include "tools/progress.h"

namespace llmc {

// Whether a file begins as a plan does.
bool IsPlanFile(const std::string& path);
bool IsTextFile(const std::string& path);  // *.lir

// Imports a model, or parses a dump and finds its weights relative to `weights_folder` (the dump's folder if empty).
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& path, const std::string& weights_folder,
                                                 Progress* progress);

// LoadModel and the whole pipeline.
absl::StatusOr<std::unique_ptr<Model>> LoadOptimized(const std::string& path, const PipelineOptions& options,
                                                     Ledger* ledger, Progress* progress);

// The folder in which a model's side files (tokenizer.json, …) are: the model's own folder, or the file's.
std::string FolderOf(const std::string& path);

// "f32", "f16" or "bf16"; nothing for "".
absl::StatusOr<std::optional<DType>> ParseDtypeOption(const std::string& text);

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes);
absl::Status WriteTextFile(const std::string& path, absl::string_view text);

}  // namespace llmc
