// Elements and slices by index: gather_elements, gather_nd, scatter_nd. Negative indices count from the end. Indices
// out of range are a fault of the model: they are clamped.
#pragma once
#include "kernels/elementwise.cuh"

namespace llmc {

__device__ __forceinline__ i64 ClampIndex(i64 index, i64 size) {
  if (index < 0) index += size;
  return index < 0 ? 0 : index >= size ? size - 1 : index;
}

// out[…] = x[…] with the index along one axis read from `indices`, which has the shape of out.
// C::T: element type (only its size matters).  C::kThreads: threads per block.
template <class C, class Index, int kRank>
__device__ __forceinline__ void GatherElements(typename C::T* __restrict__ out, const Index* __restrict__ indices,
                                               i64 n, const Axes<kRank>& axes,
                                               const Strided<const typename C::T, kRank>& x, i64 size, i64 stride) {
  const i64 i = static_cast<i64>(blockIdx.x) * C::kThreads + threadIdx.x;
  if (i >= n) return;
  i64 strides[1][kRank], at[1];
  for (int axis = 0; axis < kRank; ++axis) strides[0][axis] = x.stride[axis];
  Locate<i64>(i, axes, strides, at);
  out[i] = x.at[at[0] + ClampIndex(indices[i], size) * stride];
}

// The offset of the slice that a tuple of kTuple indices names, over axes of the given sizes and strides.
template <int kTuple, class Index>
__device__ __forceinline__ i64 TupleOffset(const Index* tuple, const Axes<kTuple>& sizes, const Axes<kTuple>& strides) {
  i64 offset = 0;
#pragma unroll
  for (int k = 0; k < kTuple; ++k) offset += ClampIndex(tuple[k], sizes.size[k]) * strides.size[k];
  return offset;
}

// out[b, i, :] = x[b, tuple i of batch b, :], slices of `inner` elements; x has `batch` elements for each of its
// batches of `tuples` tuples.
template <class C, class Index, int kTuple>
__device__ __forceinline__ void GatherNd(typename C::T* __restrict__ out, const typename C::T* __restrict__ x,
                                         const Index* __restrict__ indices, i64 n, i64 tuples, i64 inner, i64 batch,
                                         const Axes<kTuple>& sizes, const Axes<kTuple>& strides) {
  const i64 i = static_cast<i64>(blockIdx.x) * C::kThreads + threadIdx.x;
  if (i >= n) return;
  const i64 tuple = i / inner;
  const i64 offset = TupleOffset<kTuple>(indices + tuple * C::kTuple, sizes, strides);
  out[i] = x[tuple / tuples * batch + offset + i % inner];
}

// out, which holds x already, gets the slices of `updates`. If two tuples are the same, the last one counts: a thread
// goes through all tuples in order for one element of the slices.
template <class C, class Index, int kTuple>
__device__ __forceinline__ void ScatterNd(typename C::T* out, const typename C::T* __restrict__ updates,
                                          const Index* __restrict__ indices, i64 tuples, i64 inner,
                                          const Axes<kTuple>& sizes, const Axes<kTuple>& strides) {
  const i64 i = static_cast<i64>(blockIdx.x) * C::kThreads + threadIdx.x;
  if (i >= inner) return;
  for (i64 t = 0; t < tuples; ++t) {
    out[TupleOffset<kTuple>(indices + t * C::kTuple, sizes, strides) + i] = updates[t * inner + i];
  }
}

}  // namespace llmc
