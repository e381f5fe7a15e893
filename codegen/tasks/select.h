// Which kernels, products and copies compute a node on a device.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "codegen/tasks/kernel_call.h"
#include "cubins/targets.h"
#include "files/random_source.h"
#include "ir/graph.h"
#include "passes/lower/backend.h"

namespace llmc {

using DeviceCall = std::variant<KernelCall, GemmCall, CopyCall>;

// What holds in every run of a program, which decides between kernels.
struct ProgramScope {
  Target target;  // whose features and numbers decide
  DimEnv bounds;  // the largest size of each symbol
  // Of a language model's step of one token of each sequence, all of whose logits are asked for (T = S = R): how many
  // sequences it has at the most; 0 for other programs.
  int64_t decode = 0;
  // Of a language model's step of few tokens of any sequences: how many at the most; 0 for other programs.
  int64_t tokens = 0;
  // Values that are written and read in the order of products with an encoded weight (kernels/linear/x_order.cuh), with
  // the type of its codes.
  absl::flat_hash_map<const Value*, std::string> ordered = {};
};

// What can run kernels of such a program, as the pass `lower` asks. It must not outlive `scope`.
Backends BackendsFor(const ProgramScope& scope);

// Calls for a kernel, in their order. Unimplemented: there are none; the message says what is missing.
absl::StatusOr<std::vector<DeviceCall>> SelectKernel(absl::string_view backend, const KernelBody& body,
                                                     const ProgramScope& scope);
// For a node by itself, by the first backend that takes it; none for views and constants.
absl::StatusOr<std::vector<DeviceCall>> SelectNode(const Node& node, const ProgramScope& scope);
// Whether a result of the kernel may lie where an operand was that it reads: it reads rows whole before it writes them.
bool KeepsRows(absl::string_view backend, const KernelBody& body);

// What draws a weight of random numbers.
KernelCall RandomWeightsCall(const Value* weight, const RandomNumbers& random);

}  // namespace llmc
