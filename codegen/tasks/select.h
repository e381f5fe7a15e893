// Which kernels, products and copies compute a node on a device.
#pragma once

#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "codegen/tasks/kernel_call.h"
#include "cubins/targets.h"
#include "ir/graph.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

using DeviceCall = std::variant<KernelCall, GemmCall, CopyCall>;

// What holds in every run of a program, which decides between kernels.
struct ProgramScope {
  Target target;  // whose features and numbers decide
  DimEnv bounds;  // the largest size of each symbol
  // A language model's step of one token of each sequence, all of whose logits are asked for: T = S = R.
  bool decode = false;
};

// Calls for a node, or for a group of elementwise ones (its root last), in their order; none for views and constants.
// Unimplemented: the op, or this use of it, has no kernel; the message says what is missing.
absl::StatusOr<std::vector<DeviceCall>> SelectCalls(const std::vector<const Node*>& nodes, const ProgramScope& scope);

// What draws a weight of random numbers.
KernelCall RandomWeightsCall(const Value* weight, const plan::RandomNumbers& random);

}  // namespace llmc
