// The options that fix dims and inputs of a model when it is imported.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "frontend/import_options.h"
#include "ir/graph.h"

namespace llmc {

// Declares --dim and --set.
void AddFixedOptions(CLI::App* command, ImportOptions* fixed);
// --quantize-activations.
void AddQuantizedOption(CLI::App* command, QuantizedUse* use);

// Declares --pool and --normalize.
void AddPoolingOptions(CLI::App* command, PoolingChoice* pooling);

// Declares --form.
void AddFormOption(CLI::App* command, DecoderForm* form);
// "predictor"
std::string FormName(DecoderForm form);

// The same options again, for dumps and plans: "--dim=batch=1", "--set=x=contents.npy". Of files the name, or the path
// if `with_paths`.
std::vector<std::string> FixedFlags(const ImportOptions& fixed, bool with_paths);

// With the contents of the .npy files that --set names.
absl::StatusOr<ImportOptions> WithFiles(ImportOptions fixed);

// A dump: what it has of the names in `fixed` becomes numbers and constants. A name that it does not have and that
// `fixed.known` does not hold is an error.
absl::Status FixDump(const ImportOptions& fixed, Model* model);

// InvalidArgument if something is fixed of a plan, which was compiled before.
absl::Status CheckNothingFixed(const std::string& plan, const ImportOptions& fixed);

}  // namespace llmc
