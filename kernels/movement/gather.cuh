// out[o, i, :] = x[o, indices[i], :]: slices along an axis by index; negative ones count from the end.
#pragma once
#include "kernels/common/device_error.cuh"
#include "kernels/common/tagged_row.cuh"

namespace llmc {

// A thread copies one vector; none where the index is a device error.
// C::T: element type (only its size matters).  C::Index: i32 or i64.  C::kVec: elements in a copy; divides `inner`.
// C::kThreads: threads per block.  C::kVectors: copies of a block.  In a persistent launch a single row may be given as
// numbers of 16 bits.
template <class C, class Context>
__device__ __forceinline__ void Gather(const Context& context, typename C::T* out, const typename C::T* x,
                                       const typename C::Index* indices, i64 outer, i64 count, i64 axis, i64 inner,
                                       const DeviceErrorSite& device_error) {
  using V = Vec<typename C::T, C::kVec>;
  static_assert(kIsIndex<typename C::Index>, "Index: i32 or i64");
  static_assert(IsVector<typename C::T>(C::kVec), "kVec: a power of two, at most 16 bytes");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kVectors >= 1 && C::kVectors <= C::kThreads, "kVectors: one for each thread, at the most");
  context.Wait();
  const i64 vectors = inner / C::kVec;
  const i64 at = static_cast<i64>(context.TileX()) * C::kVectors + threadIdx.x;
  if (static_cast<int>(threadIdx.x) >= C::kVectors || at >= outer * count * vectors) return;
  const i64 column = at % vectors, row = at / vectors;
  const i64 given = indices[row % count], index = IndexInto(given, axis);
  V elements = {};
  if (index >= 0) {
    elements = Load<typename C::T, C::kVec>(x + (row / count * axis + index) * inner + column * C::kVec);
    Store(out + row * inner + column * C::kVec, elements);
  } else if (column == 0) {
    device_error.Raise(given, axis);
  }
  // Where it is a device error, too: others wait.
  if constexpr (kGivesRow<Context>) {
#pragma unroll
    for (int i = 0; i < C::kVec; ++i) context.Given().Give(static_cast<int>(column) * C::kVec + i, elements.v[i]);
  }
}

}  // namespace llmc
