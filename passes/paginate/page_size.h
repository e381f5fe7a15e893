// How many tokens the pages of paged states hold.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "ir/graph.h"

namespace llmc::pagination {

// Gives all paged states pages of so many tokens, and the dims that count a sequence's pages bounds for as many tokens
// as before. InvalidArgument: no state is paged, or there are no pages of that size.
absl::Status SetPageSize(int64_t tokens, Model* model);

}  // namespace llmc::pagination
