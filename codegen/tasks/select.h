// Which kernels, products and copies compute a node on a device.
#pragma once

#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "codegen/tasks/kernel_call.h"
#include "ir/graph.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

using DeviceCall = std::variant<KernelCall, GemmCall, CopyCall>;

// What holds in every run of a program, which decides between kernels.
struct ProgramScope {
  DimEnv bounds;  // the largest size of each symbol
  // A language model's step of one token of each sequence, all of whose logits are asked for: T = S = R.
  bool decode = false;
  // sm_90a is a target: forms for it are worth choosing, if other GPUs can run them in some way.
  bool hopper = false;
  // All targets copy to shared memory in bulk and have 227 KiB of it: sm_90a, sm_100a.
  bool streams = false;
};

// Calls for a node, or for a group of elementwise ones (its root last), in their order; none for views and constants.
// Unimplemented: the op, or this use of it, has no kernel; the message says what is missing.
absl::StatusOr<std::vector<DeviceCall>> SelectCalls(const std::vector<const Node*>& nodes, const ProgramScope& scope);

// What draws a weight of random numbers.
KernelCall RandomWeightsCall(const Value* weight, const plan::RandomNumbers& random);

}  // namespace llmc
