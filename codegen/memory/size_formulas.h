// Ops as functions of sizes: what select*.cc are for kernels. An op without a formula has kernels only, so a size that
// depends on it is not known before a run.
#pragma once

#include <optional>

#include "ir/graph.h"
#include "ir/size.h"

namespace llmc {

// An element of the result from those of the operands; of a reduction, what two elements become. Nothing where there is
// no formula for the op or its types.
std::optional<Size> ApplySizeFormula(const Node& node, const SizeList& operands);

}  // namespace llmc
