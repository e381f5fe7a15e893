#include "runtime/device/device_target.h"

#include "base/status_macros.h"

namespace llmc {

absl::StatusOr<Target> TargetOf(const DeviceInfo& device) {
  ASSIGN_OR_RETURN(Target target, TargetFor(device.capability));
  if (device.multiprocessors > 0) target.sms = device.multiprocessors;
  if (device.l2_bytes > 0) target.l2_bytes = device.l2_bytes;
  if (device.bandwidth > 0) target.bandwidth = device.bandwidth;
  return target;
}

Target TargetHere() {
  const absl::StatusOr<DeviceInfo> device = DescribeDevice();
  return device.ok() ? TargetOf(*device).value_or(DefaultTarget()) : DefaultTarget();
}

void UseNumbersOfDevice(absl::Span<Target> targets) {
  const Target here = TargetHere();
  for (Target& target : targets) {
    if (target.name == here.name) target = here;
  }
}

}  // namespace llmc
