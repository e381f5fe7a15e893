// GEMM with its epilogue: cuBLASLt adds a bias and a residual to the sums and takes an activation
// of them before they are rounded. What lies between is neither rounded nor written.
#pragma once

#include "codegen/tasks/fusion.h"

namespace llmc {

// Values between the nodes of a group are used nowhere else. The sum of an add_rms_norm goes into the product before
// it, which leaves a norm: the product reads one tensor more, the norm one less, and it writes none but its result.
Fusion FuseProducts(const Model& model, const Step& step, const ProgramScope& scope);

}  // namespace llmc
