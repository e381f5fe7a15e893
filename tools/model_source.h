// What a command's MODEL argument names: an ONNX file, a Hugging Face folder or a dump (.lir).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "frontend/import.h"
#include "ir/graph.h"
#include "passes/ledger.h"
#include "passes/pipeline.h"
#include "runtime/trace.h"
#include "tools/progress.h"

namespace llmc {

struct ModelSource {
  std::string path;
  std::string dtype = {};                   // f32, f16, bf16, or empty: as in the model
  std::string weights_folder = {};          // of dumps; empty: the dump's own folder
  std::string output = {};                  // the file that the command will write, if any
  std::string device = "host";              // where to run
  Trace* trace = nullptr;                   // of steps on a GPU
  bool check_kernels = false;               // as in LoadOptions
  DimEnv bounds = {};                       // of symbols, smaller than the model's
  std::optional<Promotion> promotion = {};  // of decoders that take whole sequences; nothing: kWhereProven
  bool random_weights = false;              // of a folder's config.json, instead of its weights
  uint64_t seed = 0;                        // of those

  // Where the weights and the side files (tokenizer.json, ...) are.
  std::string Folder() const;
};

// Declares MODEL, --dtype and --weights-folder; MODEL is described by `what`.
void AddModelOptions(CLI::App* command, ModelSource* source, const std::string& what);

// Declares --promote and --no-promote.
void AddPromotionOptions(CLI::App* command, ModelSource* source);

// Declares --random-weights and --weights-seed.
void AddRandomWeightsOptions(CLI::App* command, ModelSource* source);

inline constexpr int64_t kMaxDumpBytes = int64_t{1} << 30;

bool IsTextFile(const std::string& path);  // *.lir
// Whether a folder has config.json but no weights.
bool HasConfigOnly(const std::string& folder);

// Imports a model, or parses a dump and finds its weights. `dtype` is the pipeline's matter; `ignored` is as in
// ImportModel. InvalidArgument too if the output would overwrite a file that the model is read from.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelSource& source, Progress* progress,
                                                 std::vector<IgnoredTensor>* ignored = nullptr);

// LoadModel, and the pipeline with the source's dtype and bounds. Bounds of symbols that the model does not have, and
// those above its own, are errors.
absl::StatusOr<std::unique_ptr<Model>> LoadOptimized(const ModelSource& source, PipelineOptions options, Ledger* ledger,
                                                     Progress* progress);

enum class InputKind : uint8_t { kFile, kFileOrPipe };
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes, InputKind kind = InputKind::kFile);

}  // namespace llmc
