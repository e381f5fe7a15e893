// Fixing sizes and inputs of a program.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "ir/graph.h"

namespace llmc {

// Puts numbers in place of dims of the model wherever they stand, and infers all types again. InvalidArgument if an op
// refuses such a size.
absl::Status FixDims(Model* model, const DimEnv& sizes);

// Makes a constant of the parameter `name` ("%x") of each step that has it. The types must agree.
absl::Status FixInput(Model* model, const std::string& name, const Tensor& contents);

}  // namespace llmc
