// Makes one kernel of several small ones that do not need each other.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph.h"
#include "passes/driver/ledger.h"
#include "passes/lower/backend.h"

namespace llmc {

// A kernel and another one that has joined it.
using JoinedKernels = std::vector<std::pair<const Kernel*, const Kernel*>>;

// Of a step whose kernels are in order. A kernel takes those that come up to kMostBetween kernels later, need nothing
// of it or of what waits for it, and fit beside it, as the backend kSideBySide says. What is not the longest part of
// such a kernel reads no more than takes kMostBesideMicroseconds: it is hidden behind that. Where the backends have
// none of that name, nothing changes. Kernels that joined others stay in `kernels` of the step, without nodes.
inline constexpr size_t kMostBetween = 12;
inline constexpr double kMostBesideMicroseconds = 6;
absl::StatusOr<JoinedKernels> JoinSideBySide(Step* step, const Backends& backends, Ledger* ledger);

}  // namespace llmc
