// The device's part of a plan: programs of launches, products and copies, and the kernels that they need.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cubins/compile.h"
#include "cubins/targets.h"
#include "ir/graph.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// How decode steps of one sequence run.
enum class StepForm {
  kLaunches,    // each task is a launch
  kPersistent,  // many tasks are one launch, wherever they can be
  kAuto,        // that where persistent_runs.h chooses it
};

struct DevicePlanOptions {
  // A small instance of each step is evaluated before and after it is lowered, which needs the contents of weights.
  bool check_numerics = false;
  StepForm steps = StepForm::kAuto;
  bool tf32 = false;  // products of f32 that cuBLASLt computes are of factors in TF32
};

struct DeviceCode {
  std::string sources, cubins;  // sections of the plan, to which manifest.kernels() point
  plan::Lowering lowering;      // a section too
};

// Fills targets, programs, kernels, headers and constants of `manifest`, whose weights and states are those of `model`
// in their order, and the sources of `code`. There is at least one target, and what is chosen for one does not depend
// on the others. Unimplemented: an op has no kernel; all such ops are listed.
absl::Status PlanDevice(const Model& model, absl::Span<const Target> targets, plan::Manifest* manifest,
                        DeviceCode* code, const DevicePlanOptions& options = {});

// Compiles what PlanDevice planned, each kernel for the targets that launch it: the cubins of `manifest` and `code`. No
// GPU is needed. NotFound: there is no NVRTC.
absl::Status CompileDevicePlan(const CompileOptions& options, plan::Manifest* manifest, DeviceCode* code);

}  // namespace llmc
