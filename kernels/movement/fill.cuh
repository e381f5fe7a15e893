// Tensors that are made from numbers, or from a tensor and the indices of its elements: sizes, ranges, triangles, pads.
#pragma once
#include "kernels/elementwise/elementwise.cuh"

namespace llmc {

// out = the sizes.
template <class C, class Context, int kCount>
__device__ __forceinline__ void FillSizes(const Context&, i64* out, const Axes<kCount>& sizes) {
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i] = sizes.size[i];
}

// out[i] = start + i * delta.
// C::T: element type.  C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void Range(const Context& context, typename C::T* __restrict__ out,
                                      const typename C::T* __restrict__ start, const typename C::T* __restrict__ delta,
                                      i64 n) {
  using T = typename C::T;
  static_assert(!kSame<Wide<T>, bool>, "T: numbers");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  const i64 i = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (i >= n) return;
  if constexpr (kSame<Wide<T>, i64>) {
    out[i] = Narrow<T>(op::Add(Widen(start[0]), op::Mul(i, Widen(delta[0]))));
  } else {
    const double from = Widen(start[0]), by = Widen(delta[0]);
    out[i] = Narrow<T>(Cast<T>(op::Add(from, op::Mul(static_cast<double>(i), by))));
  }
}

// out[i] = x.
// C::T: element type.  C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void Repeat(const Context& context, typename C::T* __restrict__ out,
                                       const typename C::T* __restrict__ x, i64 n) {
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  const i64 i = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (i < n) out[i] = x[0];
}

// The upper or lower triangle of matrices [rows, columns]: column - row >= or <= diagonal; zero elsewhere.
// C::T: element type (only its size matters).  C::kUpper.  C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void Triangle(const Context& context, typename C::T* __restrict__ out,
                                         const typename C::T* __restrict__ x, i64 n, i64 rows, i64 columns,
                                         i64 diagonal) {
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  const i64 i = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (i >= n) return;
  const i64 column = i % columns, row = i / columns % rows;
  const bool inside = C::kUpper ? column - row >= diagonal : column - row <= diagonal;
  out[i] = inside ? x[i] : typename C::T(0);
}

// out = x, and C::Value() where out reaches beyond it: `before` elements before each axis of `sizes`.
// C::T: element type.  C::kThreads: threads per block.
template <class C, class Context, int kRank>
__device__ __forceinline__ void Pad(const Context& context, typename C::T* __restrict__ out, i64 n,
                                    const Axes<kRank>& axes, const Strided<const typename C::T, kRank>& x,
                                    const Axes<kRank>& sizes, const Axes<kRank>& before) {
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  i64 i = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (i >= n) return;
  const i64 to = i;
  i64 from = 0;
  bool inside = true;
#pragma unroll
  for (int axis = kRank - 1; axis >= 0; --axis) {
    const i64 at = i % axes.size[axis] - before.size[axis];
    i /= axes.size[axis];
    inside = inside && at >= 0 && at < sizes.size[axis];
    from += at * x.stride[axis];
  }
  out[to] = inside ? x.at[from] : C::Value();
}

}  // namespace llmc
