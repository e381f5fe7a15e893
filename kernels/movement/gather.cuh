// out[o, i, :] = x[o, indices[i], :]: slices along an axis by index; negative ones count from the end.
#pragma once
#include "kernels/common/device_error.cuh"

namespace llmc {

// A thread copies one vector; none where the index is a device error.
// C::T: element type (only its size matters).  C::Index: i32 or i64.  C::kVec: elements in a copy; divides `inner`.
// C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void Gather(const Context& context, typename C::T* out, const typename C::T* x,
                                       const typename C::Index* indices, i64 outer, i64 count, i64 axis, i64 inner,
                                       const DeviceErrorSite& device_error) {
  static_assert(kIsIndex<typename C::Index>, "Index: i32 or i64");
  static_assert(IsVector<typename C::T>(C::kVec), "kVec: a power of two, at most 16 bytes");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  context.Wait();
  const i64 vectors = inner / C::kVec;
  const i64 at = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (at >= outer * count * vectors) return;
  const i64 column = at % vectors, row = at / vectors;
  const i64 given = indices[row % count], index = IndexInto(given, axis);
  if (index < 0) {
    if (column == 0) device_error.Raise(given, axis);
    return;
  }
  const i64 from = (row / count * axis + index) * inner + column * C::kVec;
  Store(out + row * inner + column * C::kVec, Load<typename C::T, C::kVec>(x + from));
}

}  // namespace llmc
