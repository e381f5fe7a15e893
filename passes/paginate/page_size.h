// How many tokens the pages of paged states hold.
#pragma once

#include "absl/status/status.h"
#include "ir/graph.h"
#include "passes/pipeline.h"

namespace llmc::pagination {

// Gives paged states pages of these sizes, and the dims that count a sequence's pages bounds for as many tokens as
// before, where pages are smallest. InvalidArgument: no state is paged, there is no pool of a name, or there are no
// pages of a size.
absl::Status SetPageSizes(const PageSizeWishes& sizes, Model* model);

}  // namespace llmc::pagination
