// Products of bytes (quantized_parts.cuh) of 1 to 8 rows, in dot products of four terms, at the speed of memory.
#pragma once
#include "kernels/linear/quantized_parts.cuh"

namespace llmc {

// kBytes of a row from `at` on, four in each word; those from k on are 0. kBytes: 16, 8 or 4, which divide k, or 1 for
// any k: four bytes one by one.
template <int kBytes>
struct ByteVector {
  static constexpr int kWords = kBytes < 4 ? 1 : kBytes / 4;
  u32 word[kWords];

  __device__ __forceinline__ void Load(const void* row, i64 at, i64 k) {
    const u8* from = static_cast<const u8*>(row) + at;
    if constexpr (kBytes >= 4) {
      const auto v = llmc::Load<u32, kWords>(reinterpret_cast<const u32*>(from));
#pragma unroll
      for (int i = 0; i < kWords; ++i) word[i] = v.v[i];
    } else {
      word[0] = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (at + j < k) word[0] |= static_cast<u32>(from[j]) << (8 * j);
      }
    }
  }
};

// out[m, n] = x[m, k] * y[n, k] for m <= C::kRows. A warp makes C::kColumns neighbouring columns.
// C::kBytes: of a row that a lane reads at once, as ByteVector has them.  C::kWhole: sums of all k terms fit 32 bits.
// Over 60 lines: one loop, and what it keeps in registers.
template <class C, class Context>
__device__ __forceinline__ void QuantizedGemv(const Context& context, typename C::T* out, const typename C::A* x,
                                              const typename C::B* y, const QuantizedParts<C>& parts, i64 m, i64 n,
                                              i64 k) {
  using Bytes = ByteVector<C::kBytes>;
  constexpr int kStep = 4 * Bytes::kWords;
  static_assert(C::kRows >= 1 && C::kRows <= 8, "kRows: 1 to 8");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  context.Wait();
  const int lane = threadIdx.x % 32;
  const i64 first = (static_cast<i64>(context.TileX()) * (C::kThreads / 32) + threadIdx.x / 32) * C::kColumns;
  if (first >= n) return;
  i32 sums[C::kRows][C::kColumns] = {}, row_sums[C::kRows] = {}, column_sums[C::kColumns] = {};
  i64 longs[C::kRows][C::kColumns] = {}, long_rows[C::kRows] = {}, long_columns[C::kColumns] = {};
  int steps = 0;
  const auto flush = [&] {
#pragma unroll
    for (int c = 0; c < C::kColumns; ++c) {
#pragma unroll
      for (int r = 0; r < C::kRows; ++r) {
        longs[r][c] += sums[r][c];
        sums[r][c] = 0;
      }
      long_columns[c] += column_sums[c];
      column_sums[c] = 0;
    }
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      long_rows[r] += row_sums[r];
      row_sums[r] = 0;
    }
  };
#pragma unroll 2
  for (i64 at = lane * kStep; at < k; at += 32 * kStep) {
    Bytes w[C::kColumns];
#pragma unroll
    for (int c = 0; c < C::kColumns; ++c) w[c].Load(y + (first + c < n ? first + c : n - 1) * k, at, k);
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      Bytes v;
      v.Load(x + (r < m ? r : m - 1) * k, at, k);
#pragma unroll
      for (int i = 0; i < Bytes::kWords; ++i) {
#pragma unroll
        for (int c = 0; c < C::kColumns; ++c) {
          sums[r][c] = Dot4<typename C::A, typename C::B>(v.word[i], w[c].word[i], sums[r][c]);
        }
        if constexpr (C::kZero != kNoPart) row_sums[r] = Dot4<typename C::A, u8>(v.word[i], kOnes, row_sums[r]);
      }
    }
    if constexpr (C::kZeroA) {
#pragma unroll
      for (int c = 0; c < C::kColumns; ++c) {
#pragma unroll
        for (int i = 0; i < Bytes::kWords; ++i) {
          column_sums[c] = Dot4<typename C::B, u8>(w[c].word[i], kOnes, column_sums[c]);
        }
      }
    }
    // A lane adds at most 16 products at a time, of which 32 bits hold 2^15.
    if constexpr (!C::kWhole) {
      if (++steps % 1024 == 0) flush();
    }
  }
  flush();
  const auto all = [](i64 sum) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    return sum;
  };
#pragma unroll
  for (int c = 0; c < C::kColumns; ++c) {
    const i64 column_sum = C::kZeroA ? all(long_columns[c]) : 0;
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      const i64 sum = all(longs[r][c]), row_sum = C::kZero != kNoPart ? all(long_rows[r]) : 0;
      if (lane == 0 && r < m && first + c < n)
        out[r * n + first + c] = parts.Result(sum, row_sum, column_sum, k, first + c);
    }
  }
}

}  // namespace llmc
