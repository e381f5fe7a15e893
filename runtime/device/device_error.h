// What kernels tell of data that has no result, such as an index that is in no axis, as an error.
#pragma once

#include "absl/status/status.h"
#include "kernels/layout/device_error.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// The error of `record`, if there is one: InvalidArgument, with the op and its node. The record is then free for the
// next.
absl::Status TakeDeviceError(const plan::Manifest& manifest, volatile DeviceErrorRecord* record);

}  // namespace llmc
