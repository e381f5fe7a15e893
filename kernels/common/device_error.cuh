// What a kernel tells the host of data for which the language has no result: an index that is in no axis, an integer
// divided by zero. The kernel leaves that element out, or gives it some value, and goes on; the host reads the word
// when the run is done, and gives an error in place of the results.
#pragma once
#include "kernels/common/context.cuh"
#include "kernels/layout/device_error.h"

namespace llmc {

// Which device errors a launch can meet: those from `first` on in the plan.
struct DeviceErrorSite {
  DeviceErrorRecord* record;
  i64 first;

  __device__ __forceinline__ DeviceErrorSite operator+(int i) const { return {record, first + i}; }
  __device__ __forceinline__ void Raise(i64 a = 0, i64 b = 0) const {
    volatile DeviceErrorRecord* to = record;
    if (to->claimed != 0 || atomicCAS(&record->claimed, 0u, 1u) != 0) return;
    to->values[0] = a;
    to->values[1] = b;
    __threadfence_system();
    to->number = static_cast<u32>(first + 1);
  }
};

template <class T>
inline constexpr bool kIsIndex = false;
template <>
inline constexpr bool kIsIndex<i32> = true;
template <>
inline constexpr bool kIsIndex<i64> = true;

// An index into an axis, where negative ones count from the end; -1 if it is none.
__device__ __forceinline__ i64 IndexInto(i64 index, i64 size) {
  const i64 at = index < 0 ? index + size : index;
  return at >= 0 && at < size ? at : -1;
}

}  // namespace llmc
