// Weights from the mapped files of a plan to a device, by several threads, with the copies overlapped.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/device/device.h"
#include "runtime/plan/plan.h"

namespace llmc {

struct WeightCopy {
  int weight = 0;  // of plan.manifest().weights(), in a file
  DevicePointer to = 0;
};

// Waits until all is there. With `verify` every byte of the plan's weights is read, also of those that are not copied,
// and an error says which file changed.
absl::Status CopyWeights(const Plan& plan, absl::Span<const WeightCopy> copies, bool verify, Device* device);

}  // namespace llmc
