// What a kernel tells the host of data for which the language has no result.
#pragma once
#include "kernels/layout/base.h"

namespace llmc {

// In the host's memory, so that it costs nothing to read.
struct DeviceErrorRecord {
  u32 claimed = 0;     // by the first thread that met a device error: nobody else writes
  u32 number = 0;      // of the device error in the plan, and 1 more: 0 is none. Written last.
  i64 values[2] = {};  // that the message is about
};
static_assert(sizeof(DeviceErrorRecord) == 24, "both sides count on no padding");

}  // namespace llmc
