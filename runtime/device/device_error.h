// What kernels tell of data that has no result, such as an index that is in no axis: kernels/common/device_error.cuh,
// byte for byte.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

struct DeviceErrorRecord {
  uint32_t claimed = 0;
  uint32_t number = 0;  // of Manifest.device_errors, and 1 more; 0: none
  int64_t values[2] = {};
};
static_assert(sizeof(DeviceErrorRecord) == 24);

// The error that `word` tells of, if there is one: InvalidArgument, with the op and its place. The word is then free
// for the next.
absl::Status TakeDeviceError(const plan::Manifest& manifest, volatile DeviceErrorRecord* word);

}  // namespace llmc
