// Running sums along an axis: a warp scans a row 32 elements at a time (Hillis and Steele, 1986).
#pragma once
#include "kernels/elementwise/reduce.cuh"

namespace llmc {

template <class X>
__device__ __forceinline__ X ShuffleUp(X x, int by) {
  if constexpr (sizeof(X) == 8) {
    u32 words[2];
    memcpy(words, &x, sizeof(x));
    words[0] = __shfl_up_sync(~0u, words[0], by);
    words[1] = __shfl_up_sync(~0u, words[1], by);
    memcpy(&x, words, sizeof(x));
    return x;
  } else {
    return __shfl_up_sync(~0u, x, by);
  }
}

// x[outer, n, inner]: rows of n elements, `inner` apart.
// C::T: element type.  C::kExclusive: without the element itself.  C::kReverse: from the end.
// C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void CumSum(const Context& context, typename C::T* __restrict__ out,
                                       const typename C::T* __restrict__ x, i64 rows, i64 n, i64 inner) {
  using X = Wide<typename C::T>;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(!kSame<X, bool>, "T: numbers");
  const i64 row = (static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x) / 32;
  if (row >= rows) return;
  const int lane = threadIdx.x % 32;
  const i64 begin = row / inner * n * inner + row % inner;
  X before = 0;  // the sum of what lies before these 32
  for (i64 first = 0; first < n; first += 32) {
    const i64 i = first + lane, at = begin + (C::kReverse ? n - 1 - i : i) * inner;
    X sum = i < n ? Widen(x[at]) : X(0);
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const X left = ShuffleUp(sum, by);
      if (lane >= by) sum = op::Add(sum, left);
    }
    const X left = ShuffleUp(sum, 1);
    const X exclusive = lane == 0 ? before : op::Add(before, left);
    sum = op::Add(before, sum);
    if (i < n) out[at] = Narrow<typename C::T>(C::kExclusive ? exclusive : sum);
    // The last lane holds the sum of all.
    u32 words[sizeof(X) / 4];
    memcpy(words, &sum, sizeof(sum));
#pragma unroll
    for (u32& word : words) word = __shfl_sync(~0u, word, 31);
    memcpy(&before, words, sizeof(before));
  }
}

}  // namespace llmc
