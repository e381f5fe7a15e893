// Elements and slices by index: gather_elements, gather_nd, scatter_nd. Negative indices count from the end.
// Where an index is a device error, nothing is written.
#pragma once
#include "kernels/common/device_error.cuh"
#include "kernels/elementwise/elementwise.cuh"
#include "kernels/layout/movement.h"

namespace llmc {

// out[…] = x[…] with the index along one axis read from `indices`, which has the shape of out.
// C::T: element type (only its size matters).  C::kThreads: threads per block.
template <class C, class Context, class Index, int kRank>
__device__ __forceinline__ void GatherElements(const Context& context, typename C::T* __restrict__ out,
                                               const Index* __restrict__ indices, i64 n, const Axes<kRank>& axes,
                                               const Strided<const typename C::T, kRank>& x, i64 size, i64 stride,
                                               const DeviceErrorSite& device_error) {
  static_assert(kIsIndex<Index>, "indices are i32 or i64");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  const i64 i = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (i >= n) return;
  i64 strides[1][kRank], at[1];
  for (int axis = 0; axis < kRank; ++axis) strides[0][axis] = x.stride[axis];
  Locate<i64>(i, axes, strides, at);
  const i64 index = IndexInto(indices[i], size);
  if (index < 0) return device_error.Raise(indices[i], size);
  out[i] = x.at[at[0] + index * stride];
}

// The offset of the slice that a tuple of kTuple indices names, over axes of the given sizes and strides; -1 if there
// is no such slice, which the thread that `reports` raises.
template <int kTuple, class Index>
__device__ __forceinline__ i64 TupleOffset(const Index* tuple, const Axes<kTuple>& sizes, const Axes<kTuple>& strides,
                                           const DeviceErrorSite& device_error, bool reports) {
  i64 offset = 0;
#pragma unroll
  for (int k = 0; k < kTuple; ++k) {
    const i64 index = IndexInto(tuple[k], sizes.size[k]);
    if (index < 0) {
      if (reports) device_error.Raise(tuple[k], sizes.size[k]);
      return -1;
    }
    offset += index * strides.size[k];
  }
  return offset;
}

// out[b, i, :] = x[b, tuple i of batch b, :], slices of `inner` elements; x has `batch` elements for each of its
// batches of `tuples` tuples.
template <class C, class Context, class Index, int kTuple>
__device__ __forceinline__ void GatherNd(const Context& context, typename C::T* __restrict__ out,
                                         const typename C::T* __restrict__ x, const Index* __restrict__ indices, i64 n,
                                         i64 tuples, i64 inner, i64 batch, const Axes<kTuple>& sizes,
                                         const Axes<kTuple>& strides, const DeviceErrorSite& device_error) {
  static_assert(kIsIndex<Index>, "indices are i32 or i64");
  static_assert(C::kTuple == kTuple && kTuple > 0, "kTuple: an index for each of the axes");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  const i64 i = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (i >= n) return;
  const i64 tuple = i / inner;
  const i64 offset = TupleOffset<kTuple>(indices + tuple * C::kTuple, sizes, strides, device_error, i % inner == 0);
  if (offset < 0) return;
  out[i] = x[tuple / tuples * batch + offset + i % inner];
}

// In the arithmetic of the type.
template <int kJoin, class T>
__device__ __forceinline__ T Joined(T there, T update) {
  if constexpr (kJoin == kReplace) {
    return update;
  } else {
    const auto a = Widen(there), b = Widen(update);
    if constexpr (kJoin == kAdd) return Narrow<T>(op::Add(a, b));
    if constexpr (kJoin == kMultiply) return Narrow<T>(op::Mul(a, b));
    if constexpr (kJoin == kMost) return Narrow<T>(op::Max(b, a));
    if constexpr (kJoin == kLeast) return Narrow<T>(op::Min(b, a));
  }
}

// out, which holds x already, is joined with the slices of `updates`. If two tuples are the same, their order counts: a
// thread goes through all tuples for one element of the slices.
// C::T: element type (only its size matters where updates replace).  C::kJoin: a ScatterJoin.
template <class C, class Context, class Index, int kTuple>
__device__ __forceinline__ void ScatterNd(const Context& context, typename C::T* out,
                                          const typename C::T* __restrict__ updates, const Index* __restrict__ indices,
                                          i64 tuples, i64 inner, const Axes<kTuple>& sizes, const Axes<kTuple>& strides,
                                          const DeviceErrorSite& device_error) {
  static_assert(kIsIndex<Index>, "indices are i32 or i64");
  static_assert(C::kTuple == kTuple && kTuple > 0, "kTuple: an index for each of the axes");
  static_assert(C::kJoin >= kReplace && C::kJoin <= kLeast, "kJoin: a ScatterJoin");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  const i64 i = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (i >= inner) return;
  for (i64 t = 0; t < tuples; ++t) {
    const i64 offset = TupleOffset<kTuple>(indices + t * C::kTuple, sizes, strides, device_error, i == 0);
    if (offset >= 0) out[offset + i] = Joined<C::kJoin>(out[offset + i], updates[t * inner + i]);
  }
}

}  // namespace llmc
