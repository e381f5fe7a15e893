// Which kernels, products and copies compute a node on a device.
#pragma once

#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "codegen/kernel_call.h"
#include "ir/graph.h"

namespace llmc {

using DeviceCall = std::variant<KernelCall, GemmCall, CopyCall>;

// Calls in their order; none for views and constants. `bounds` are those of the program, which decide between kernels
// for few and for many rows. Unimplemented: the op, or this use of it, has no kernel; the message says what is missing.
absl::StatusOr<std::vector<DeviceCall>> SelectCalls(const Node& node, const DimEnv& bounds);

}  // namespace llmc
