// A model, plan or dump, ready to run.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/llmc.h"
#include "tools/model_source.h"
#include "tools/progress.h"

namespace llmc {

// Declares MODEL (which may be a plan), --dtype, --weights-folder, --device, --memory-fraction and --check-kernels.
void AddRunnableOptions(CLI::App* command, ModelSource* source);

// Declares --trace and --trace-kernels.
void AddTraceOptions(CLI::App* command, std::string* file, bool* kernels);

// Loads a plan, imports a model and runs the passes, or reads a dump, which runs as it stands. For a GPU a model or
// dump is compiled to a plan that goes away again. `tokenizer` is a folder with files of a tokenizer, or one such
// file, to use instead of the tokenizer that came with the model; empty: that one. What cannot be read of it is an
// error for those who ask the result for its tokenizer.
absl::StatusOr<std::unique_ptr<LoadedPlan>> LoadRunnable(const ModelSource& source, const std::string& tokenizer,
                                                         Progress* progress);

// Says on standard error, if it is so, that shapes that came again were launched kernel by kernel, and why.
void NoteLaunches(const LoadedPlan& model);

}  // namespace llmc
