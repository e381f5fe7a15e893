// Numbers of a step to codes, of every encoding of rows: the scales of runs of elements, and the codes. What codes of 8
// bits need behind a norm is in the norm's kernel (norm/row_sink.cuh).
#pragma once
#include "kernels/linear/codes.cuh"

namespace llmc {

// Element c of row r has scale r * runs + c / kRun, or 0 if kRun is 0. C::kExponents: scales are powers of two, by
// their exponents plus 127.  C::kHasOuter: they are multiplied by a scale of scales.
template <class C>
__device__ __forceinline__ float WholeScale(const typename C::Scale* scale, const float* outer, i64 i) {
  if constexpr (C::kExponents) return PowerOfTwo(static_cast<int>(Widen(scale[i])));
  const float own = static_cast<float>(Widen(scale[i]));
  return C::kHasOuter ? own * outer[0] : own;
}

// scale[run] = the largest magnitude of a run / limit: 32 threads for each run.
// C::T: of x.  C::Scale: of scales.  C::kRun: elements of a run; 0: a row.  C::kInverse: as the language's `inverse`.
template <class C, class Context>
__device__ __forceinline__ void DynamicScale(const Context& context, typename C::Scale* scale, const typename C::T* x,
                                             const float* outer, float limit, i64 rows, i64 columns) {
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  context.Wait();
  const i64 run = C::kRun == 0 ? columns : C::kRun, runs = run == 0 ? 0 : (columns + run - 1) / run;
  const i64 i = static_cast<i64>(context.TileX()) * (C::kThreads / 32) + threadIdx.x / 32;
  if (i >= rows * runs) return;
  const i64 begin = i % runs * run, end = begin + run < columns ? begin + run : columns;
  const typename C::T* row = x + i / runs * columns;
  float most = 0;
  for (i64 c = begin + threadIdx.x % 32; c < end; c += 32) {
    most = LargestMagnitude()(most, fabsf(static_cast<float>(Widen(row[c]))));
  }
  most = WarpReduce(most, LargestMagnitude());
  if (threadIdx.x % 32 != 0) return;
  if constexpr (C::kExponents) {
    scale[i] = {static_cast<u8>(ExponentOf(most, limit))};
  } else if constexpr (C::kHasOuter) {
    const float whole = C::kInverse ? 1.0f / (limit * (1.0f / most)) : most / limit;
    const float own = outer[0] == 0 ? 0 : whole / outer[0];
    scale[i] = Narrow<typename C::Scale>(own > 448 ? 448.0f : own);
  } else {
    scale[i] = Narrow<typename C::Scale>(C::kInverse ? 1.0f / (limit * (1.0f / most)) : most / limit);
  }
}

// codes[i] = the code of the number nearest to x[i] / its scale. A thread makes two.
// C::Codes: a struct of codes.cuh.  The rest as above.
template <class C, class Context>
__device__ __forceinline__ void Quantize(const Context& context, typename C::Codes::Storage* codes,
                                         const typename C::T* x, const typename C::Scale* scale, const float* outer,
                                         i64 elements, i64 columns) {
  using Storage = typename C::Codes::Storage;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  context.Wait();
  const i64 first = 2 * (static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x);
  if (first >= elements) return;
  u8 pair = 0;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const i64 i = first + j;
    if (i >= elements) break;
    const i64 run = C::kRun == 0 ? columns : C::kRun, row = i / columns;
    const i64 at = C::kScaleOfAll ? 0 : row * ((columns + run - 1) / run) + i % columns / run;
    const float all = WholeScale<C>(scale, outer, at);
    const float number = static_cast<float>(Widen(x[i]));
    const Storage code = C::Codes::Of(all == 0 ? 0.0f : C::kInverse ? number * (1.0f / all) : number / all);
    if constexpr (kPacked<Storage>) {
      pair |= static_cast<u8>((code.bits & 15) << (4 * j));
    } else {
      codes[i] = code;
    }
  }
  if constexpr (kPacked<Storage>) codes[first / 2].bits = pair;
}

}  // namespace llmc
