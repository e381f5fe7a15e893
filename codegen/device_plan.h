// The device's part of a plan: programs of launches, products and copies, and the kernels that they need.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cubins/compile.h"
#include "ir/graph.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

struct DeviceCode {
  std::string sources, cubins;  // sections of the plan, to which manifest.kernels() point
};

// Fills programs, prepare, kernels, headers and constants of `manifest`, whose weights and states are those of `model`
// in their order, and the sources of `code`. Which kernels are chosen depends on `targets` ("sm_90a"), of which there
// is at least one. Unimplemented: an op has no kernel; all such ops are listed.
absl::Status PlanDevice(const Model& model, const std::vector<std::string>& targets, plan::Manifest* manifest,
                        DeviceCode* code);

// Compiles what PlanDevice planned for the same targets: the cubins of `manifest` and `code`. No GPU is needed.
// NotFound: there is no NVRTC.
absl::Status CompileDevicePlan(const std::vector<std::string>& targets, const CompileOptions& options,
                               plan::Manifest* manifest, DeviceCode* code);

}  // namespace llmc
