// What a command's MODEL argument names: an ONNX file, a Hugging Face folder or a dump (.lir).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "files/side_files.h"
#include "frontend/import.h"
#include "frontend/import_options.h"
#include "ir/graph.h"
#include "passes/driver/ledger.h"
#include "passes/pipeline.h"
#include "runtime/device/device_choice.h"
#include "runtime/device/trace.h"
#include "tools/progress.h"

namespace llmc {

struct ModelSource {
  std::string path;
  std::string given_folder = {};                    // in which `path` is the ONNX file to take; empty: `path` was given
  std::string dtype = {};                           // f32, f16, bf16, or empty: as in the model
  std::string weights_folder = {};                  // of dumps; empty: the dump's own folder
  std::string output = {};                          // the file that the command will write, if any
  std::string device = "host";                      // where to run, as in LoadOptions
  double memory_fraction = kDefaultMemoryFraction;  // likewise
  Trace* trace = nullptr;                           // of steps on a GPU
  bool check_kernels = false;                       // as in LoadOptions
  DimEnv bounds = {};                               // of symbols, smaller than the model's
  ImportOptions fixed = {};                         // dims and inputs
  std::optional<Pagination> pagination = {};        // of decoders that take whole sequences; nothing: kWhereProven
  PageSizeWishes page_sizes = {};                   // of the KV cache
  std::string kv = {};                              // how it is stored, as PipelineOptions::kv
  bool random_weights = false;                      // of a folder's config.json, instead of its weights
  uint64_t seed = 0;                                // of those
  std::function<void(const Model&)> inspect = {};   // if set, called with what will run
  SideFiles* side_files = nullptr;                  // if set, gets those of what will run

  // Of `device`, which was checked.
  bool RunsOnGpu() const { return ParseDevice(device)->is_gpu; }
  int Gpu() const { return ParseDevice(device)->index; }
  // Where the weights are.
  std::string Folder() const;
  // Where the side files (tokenizer.json, ...) are: a folder, or a .gguf file that stands for them.
  std::string SideFolder() const;
  // Whether it is a Hugging Face folder, or a GGUF file, which is imported like one.
  bool IsHuggingFace() const;
};

// Declares MODEL, --dtype, --weights-folder, --dim and --set; MODEL is described by `what`.
void AddModelOptions(CLI::App* command, ModelSource* source, const std::string& what);

// Declares --paginate, --no-paginate, --page-size and --kv.
void AddPaginationOptions(CLI::App* command, ModelSource* source);
// --kv alone.
void AddKvOption(CLI::App* command, ModelSource* source);

// Declares --random-weights and --weights-seed.
void AddRandomWeightsOptions(CLI::App* command, ModelSource* source);

inline constexpr int64_t kMaxDumpBytes = int64_t{1} << 30;

bool IsTextFile(const std::string& path);  // *.lir
// Whether a folder has config.json but no weights.
bool HasConfigOnly(const std::string& folder);

// Imports a model, or parses a dump and finds its weights. `dtype` is the pipeline's matter.
// InvalidArgument too if the output would overwrite a file that the model is read from.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelSource& source, Progress* progress);

// LoadModel, and the pipeline with the source's dtype and bounds. Bounds of symbols that the model does not have, and
// those above its own, are errors.
absl::StatusOr<std::unique_ptr<Model>> LoadOptimized(const ModelSource& source, PipelineOptions options, Ledger* ledger,
                                                     Progress* progress);

enum class InputKind : uint8_t { kFile, kFileOrPipe };
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes, InputKind kind = InputKind::kFile);
// Of at most 1 GiB; an error unless it is UTF-8.
absl::StatusOr<std::string> ReadCorpus(const std::string& path);
absl::StatusOr<std::string> ReadStandardInput(int64_t max_bytes);

}  // namespace llmc
