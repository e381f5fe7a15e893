// Models on the host, run by the language's evaluator.
#pragma once

#include <memory>

#include "ir/graph.h"
#include "runtime/model_parts.h"

namespace llmc {

// InvalidArgument: it is no sound model with a paged cache, although its step is of such a one.
absl::StatusOr<ModelDescription> Describe(const Model& model);

// Takes the model; `path` is for messages. Errors are those of Describe.
absl::StatusOr<ModelParts> PartsOfModel(std::string path, std::unique_ptr<Model> model);

}  // namespace llmc
