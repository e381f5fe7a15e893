// The indices that sort rows: a stable merge sort, a block for each row. In each round a thread finds the index of an
// element in the merged run by a binary search in the run beside its own.
#pragma once
#include "kernels/elementwise/elementwise.cuh"

namespace llmc {

// x[outer, n, inner]: rows of n elements, `inner` apart; `out` and `other` hold an index for each element of x, the
// second only while the kernel runs. Equal elements keep their order; NaN is larger than all numbers.
// C::T: element type.  C::kDescending: the largest first.  C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void ArgSort(const Context& context, i64* out, const typename C::T* __restrict__ x,
                                        i64* other, i64 n, i64 inner) {
  using X = Wide<typename C::T>;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  const i64 row = context.TileX(), begin = row / inner * n * inner + row % inner;
  const auto before = [](X a, X b) {
    const X low = C::kDescending ? b : a, high = C::kDescending ? a : b;
    return high != high ? low == low : low < high;
  };
  const auto value = [&](i64 index) { return Widen(x[begin + index * inner]); };
  // The rounds go from one buffer to the other and end in `out`.
  bool in_out = true;
  for (i64 width = 1; width < n; width *= 2) in_out = !in_out;
  i64* from = (in_out ? out : other) + begin;
  i64* to = (in_out ? other : out) + begin;
  for (i64 i = threadIdx.x; i < n; i += C::kThreads) from[i * inner] = i;
  for (i64 width = 1; width < n; width *= 2) {
    context.Sync();
    for (i64 i = threadIdx.x; i < n; i += C::kThreads) {
      const i64 pair = i / (2 * width) * (2 * width);
      const bool first = i - pair < width;
      const i64 index = from[i * inner];
      const X own = value(index);
      // How many of the other run go before this one: of equal ones, those of the first run do.
      const i64 start = first ? pair + width : pair;
      i64 low = start < n ? start : n, high = start + width < n ? start + width : n;
      const i64 origin = low;
      while (low < high) {
        const i64 middle = low + (high - low) / 2;
        const X there = value(from[middle * inner]);
        if (first ? before(there, own) : !before(own, there)) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      const i64 index_in_run = (first ? i : i - width) + (low - origin);
      to[index_in_run * inner] = index;
    }
    i64* const swap = from;
    from = to;
    to = swap;
  }
}

}  // namespace llmc
