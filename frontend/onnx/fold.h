// Values that follow from constants alone, computed at import, so that handlers find them where they ask for a
// constant.
#pragma once

#include <optional>

#include "ir/graph.h"

namespace llmc {

// The contents of a small value that small constants and known sizes alone decide; nothing of what is known as it is,
// fails to evaluate, or takes more than a few ops.
std::optional<Tensor> FoldedAtImport(const Value* value, const Model& model);

}  // namespace llmc
