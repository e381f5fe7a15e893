// The target of a GPU that is here.
#pragma once

#include "absl/status/statusor.h"
#include "cubins/targets.h"
#include "runtime/device/device.h"

namespace llmc {

// What to compile for this GPU, with its own numbers, as far as the driver tells them, in place of the table's. Shared
// memory stays what every GPU of the target has: its code may run on another. FailedPrecondition: as TargetFor.
absl::StatusOr<Target> TargetOf(const DeviceInfo& device);

// That of the first GPU of this machine; without one, the table's default.
Target TargetHere();

// The targets that are those of the first GPU of this machine get its numbers.
void UseNumbersOfDevice(absl::Span<Target> targets);

}  // namespace llmc
