// Which code of a plan a GPU runs: the programs of a target, with cubins that were made for it, or else with the
// sources, compiled here and now.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/device/device.h"
#include "runtime/plan/plan.h"

namespace llmc {

// FailedPrecondition: the plan is for the host only.
absl::Status CheckHasDeviceCode(const Plan& plan);

struct KernelChoice {
  int target = 0;  // whose programs run: an index of manifest().targets()
  bool from_sources = false;
  std::string architecture;  // of the cubins, or to compile for: "sm_90a"
};
// FailedPrecondition: nothing in the plan runs on that GPU; the message says what the plan has and what to do. Whether
// sources can be compiled here is not asked.
absl::StatusOr<KernelChoice> ChooseKernels(const Plan& plan, const DeviceInfo& device);

// The code of manifest().kernels(), in their order; "" for those that the target's programs do not launch.
// `cache_folder` keeps what is compiled; empty: nothing does.
absl::StatusOr<std::vector<std::string>> KernelImages(const Plan& plan, const DeviceInfo& device,
                                                      const std::string& cache_folder);

}  // namespace llmc
