// Products of bytes (quantized_parts.cuh) of any number of rows, on tensor cores.
#pragma once
#include "kernels/linear/quantized_matmul_hopper.cuh"
#include "kernels/linear/quantized_parts.cuh"

namespace llmc {

// C::kWarpsM, C::kWarpsN: warps of a block along rows and columns.  C::kFragmentsM, C::kFragmentsN: fragments of 16
// rows and of 8 columns that each makes.  C::kStages.  C::kAligned: 16 divides k.  C::kTransposed: the right factor is
// [n, k]. C::kWhole: sums of all k terms fit 32 bits.
template <class C>
struct QuantizedShape {
  static constexpr QuantizedLayout kLayout = {C::kWarpsM, C::kWarpsN, C::kFragmentsM, C::kFragmentsN, C::kStages};
  static constexpr int kRows = kLayout.Rows(), kColumns = kLayout.Columns();
  static constexpr int kDepth = kLayout.kDepth, kStride = kLayout.kStride, kStageBytes = kLayout.StageBytes();
  static_assert(C::kThreads == kLayout.Threads(), "kThreads: 32 for each warp");
  static_assert(C::kFragmentsN % 2 == 0, "columns are read 16 at a time");
  static_assert(C::kStages >= 2, "one stage is read while another is filled");
};

// Sums of any number of terms, or of so few that 32 bits hold them.
template <bool kWhole>
struct LongSum {
  using Type = i64;
};
template <>
struct LongSum<true> {
  using Type = i32;
};

// Rows of k bytes, of which kRows from `first` on go to shared memory: terms `begin` to `begin` + 64, zeros where there
// are none.
template <class C, int kRows>
__device__ __forceinline__ void LoadRows(char* to, const void* matrix, i64 first, i64 rows, i64 begin, i64 k) {
  using S = QuantizedShape<C>;
  const u8* from = static_cast<const u8*>(matrix);
#pragma unroll
  for (int i = 0; i < (kRows * 4 + C::kThreads - 1) / C::kThreads; ++i) {
    const int at = i * C::kThreads + threadIdx.x, row = at / 4, byte = at % 4 * 16;
    if (kRows * 4 % C::kThreads != 0 && at >= kRows * 4) break;
    const i64 r = first + row, d = begin + byte;
    char* to_shared = to + row * S::kStride + byte;
    if constexpr (C::kAligned) {
      const bool exists = r < rows && d < k;
      CopyAsync(SharedAddress(to_shared), exists ? from + r * k + d : from, exists);
    } else {
      Vec<u32, 4> v = {};
      if (r < rows) {
#pragma unroll
        for (int j = 0; j < 16; ++j) {
          if (d + j < k) v.v[j / 4] |= static_cast<u32>(from[r * k + d + j]) << (8 * (j % 4));
        }
      }
      Store(reinterpret_cast<u32*>(to_shared), v);
    }
  }
}

// The same of columns of a matrix [k, n]: four rows of four columns are turned at a time.
template <class C, int kColumns>
__device__ __forceinline__ void LoadColumns(char* to, const void* matrix, i64 first, i64 n, i64 begin, i64 k) {
  using S = QuantizedShape<C>;
  constexpr int kPieces = kColumns / 4 * (S::kDepth / 4);
  const u8* from = static_cast<const u8*>(matrix);
  const bool whole = n % 4 == 0;
#pragma unroll 1
  for (int at = threadIdx.x; at < kPieces; at += C::kThreads) {
    const int column = at % (kColumns / 4) * 4, depth = at / (kColumns / 4) * 4;
    const i64 c = first + column, d = begin + depth;
    u32 row[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (d + j >= k) continue;
      const u8* p = from + (d + j) * n + c;
      if (whole && c < n) {
        row[j] = *reinterpret_cast<const u32*>(p);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (c + i < n) row[j] |= static_cast<u32>(p[i]) << (8 * i);
        }
      }
    }
    const u32 low01 = __byte_perm(row[0], row[1], 0x5140), high01 = __byte_perm(row[0], row[1], 0x7362);
    const u32 low23 = __byte_perm(row[2], row[3], 0x5140), high23 = __byte_perm(row[2], row[3], 0x7362);
    u32* to_shared = reinterpret_cast<u32*>(to + column * S::kStride + depth);
    to_shared[0] = __byte_perm(low01, low23, 0x5410);
    to_shared[S::kStride / 4] = __byte_perm(low01, low23, 0x7632);
    to_shared[2 * S::kStride / 4] = __byte_perm(high01, high23, 0x5410);
    to_shared[3 * S::kStride / 4] = __byte_perm(high01, high23, 0x7632);
  }
}

// out[b, m, n] = x[b, m, k] * y[b, k, n] (or [b, n, k]) for every b of `batches`, whose matrices lie at offsets of x
// and y. Dynamic shared memory: QuantizedLayout::SharedBytes().  C::kHopper: as in quantized_matmul_hopper.cuh, where
// the GPU can; then tiles are as large here, and so is what is reserved for them.
// Over 60 lines: one pipeline over stages, and what it keeps in registers.
template <class C, class Context, int kRank>
__device__ __forceinline__ void QuantizedMatMul(const Context& context, typename C::T* out, i64 m, i64 n, i64 k,
                                                const QuantizedParts<C>& parts, const Axes<kRank>& batches,
                                                const Strided<const typename C::A, kRank>& x,
                                                const Strided<const typename C::B, kRank>& y) {
  using S = QuantizedShape<C>;
  using A = typename C::A;
  using B = typename C::B;
  char* const dynamic_shared = context.template Arena<1024>();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool kWarpgroups = C::kHopper;
#else
  constexpr bool kWarpgroups = false;
#endif
  context.Wait();
  const i64 wide = (n + S::kColumns - 1) / S::kColumns, high = (m + S::kRows - 1) / S::kRows;
  const i64 batch = context.TileX() / (wide * high), tile = context.TileX() % (wide * high);
  // Neighbours share columns: their weights are read from memory once.
  const i64 first_row = tile % high * S::kRows, first_column = tile / high * S::kColumns;
  i64 strides[2][kRank], at[2];
  for (int axis = 0; axis < kRank; ++axis) {
    strides[0][axis] = x.stride[axis];
    strides[1][axis] = y.stride[axis];
  }
  Locate<i64>(batch, batches, strides, at);
  const A* left = x.at + at[0];
  const B* right = y.at + at[1];
  out += batch * m * n;
  if constexpr (kWarpgroups) {
    static_assert(S::kRows == kQuantizedHopper.kRows && S::kColumns == kQuantizedHopper.kColumns, "tiles are alike");
    QuantizedTileHopper<C>(context, dynamic_shared, out, m, n, k, first_row, first_column, parts, left, right);
    return;
  }

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / C::kWarpsN * C::kFragmentsM * 16, warp_column = warp % C::kWarpsN * C::kFragmentsN * 8;
  const i64 stages = (k + S::kDepth - 1) / S::kDepth;
  const auto load = [&](i64 stage) {
    if (stage < stages) {
      char* to = dynamic_shared + stage % C::kStages * S::kStageBytes;
      LoadRows<C, S::kRows>(to, left, first_row, m, stage * S::kDepth, k);
      to += S::kRows * S::kStride;
      if constexpr (C::kTransposed) {
        LoadRows<C, S::kColumns>(to, right, first_column, n, stage * S::kDepth, k);
      } else {
        LoadColumns<C, S::kColumns>(to, right, first_column, n, stage * S::kDepth, k);
      }
    }
    CommitCopies();
  };

  using Sum = typename LongSum<C::kWhole != 0>::Type;
  i32 c[C::kFragmentsM][C::kFragmentsN][4] = {};
  Sum sums[C::kWhole ? 1 : C::kFragmentsM][C::kWhole ? 1 : C::kFragmentsN][4] = {};
  i32 row_sums[C::kFragmentsM][2] = {}, column_sums[C::kFragmentsN] = {};
  i64 long_rows[C::kFragmentsM][2] = {}, long_columns[C::kFragmentsN] = {};
  const auto flush = [&] {
#pragma unroll
    for (int i = 0; i < C::kFragmentsM; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        long_rows[i][j] += row_sums[i][j];
        row_sums[i][j] = 0;
      }
    }
#pragma unroll
    for (int i = 0; i < C::kFragmentsN; ++i) {
      long_columns[i] += column_sums[i];
      column_sums[i] = 0;
    }
    if constexpr (!C::kWhole) {
#pragma unroll
      for (int i = 0; i < C::kFragmentsM * C::kFragmentsN * 4; ++i) {
        const int row = i / 4 / C::kFragmentsN, column = i / 4 % C::kFragmentsN;
        sums[row][column][i % 4] += c[row][column][i % 4];
        c[row][column][i % 4] = 0;
      }
    }
  };

#pragma unroll
  for (int stage = 0; stage < C::kStages - 1; ++stage) load(stage);
#pragma unroll 1
  for (i64 stage = 0; stage < stages; ++stage) {
    WaitForCopies<C::kStages - 2>();
    context.Sync();
    load(stage + C::kStages - 1);
    const u32 rows = SharedAddress(dynamic_shared + stage % C::kStages * S::kStageBytes);
    const u32 columns = rows + S::kRows * S::kStride;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      u32 a[C::kFragmentsM][4], b[C::kFragmentsN / 2][4];
#pragma unroll
      for (int i = 0; i < C::kFragmentsM; ++i) {
        LoadMatrices(a[i], rows + (warp_row + 16 * i + lane % 16) * S::kStride + 32 * half + lane / 16 * 16);
      }
#pragma unroll
      for (int i = 0; i < C::kFragmentsN / 2; ++i) {
        LoadMatrices(b[i], columns + (warp_column + 16 * i + lane % 8 + lane / 16 * 8) * S::kStride + 32 * half +
                               lane / 8 % 2 * 16);
      }
#pragma unroll
      for (int i = 0; i < C::kFragmentsM; ++i) {
#pragma unroll
        for (int j = 0; j < C::kFragmentsN; ++j) {
          MultiplyAddBytes<A, B>(c[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
        if constexpr (C::kZero != kNoPart) {
#pragma unroll
          for (int j = 0; j < 4; ++j) row_sums[i][j % 2] = Dot4<A, u8>(a[i][j], kOnes, row_sums[i][j % 2]);
        }
      }
      if constexpr (C::kZeroA) {
#pragma unroll
        for (int j = 0; j < 2 * C::kFragmentsN; ++j) {
          column_sums[j / 2] = Dot4<B, u8>(b[j / 4][j % 4], kOnes, column_sums[j / 2]);
        }
      }
    }
    if constexpr (!C::kWhole) {
      if (stage % 256 == 255) flush();
    }
  }
  flush();

  // The four lanes of a row have the sums of its left factor, and those of a column the sums of its right one.
  const auto of_four = [](i64 sum) {
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
  };
#pragma unroll
  for (int j = 0; j < C::kFragmentsN; ++j) {
    i64 column_sum[2] = {};
    if constexpr (C::kZeroA) {
      const i64 all = of_four(long_columns[j]);
#pragma unroll
      for (int i = 0; i < 2; ++i) column_sum[i] = __shfl_sync(~0u, all, (2 * (lane % 4) + i) * 4);
    }
#pragma unroll
    for (int i = 0; i < C::kFragmentsM; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const i64 row_sum = C::kZero != kNoPart ? of_four(long_rows[i][e / 2]) : 0;
        const i64 row = first_row + warp_row + 16 * i + lane / 4 + e / 2 * 8;
        const i64 column = first_column + warp_column + 8 * j + 2 * (lane % 4) + e % 2;
        const i64 sum = C::kWhole ? static_cast<i64>(c[i][j][e]) : sums[C::kWhole ? 0 : i][C::kWhole ? 0 : j][e];
        if (row < m && column < n)
          out[row * n + column] = parts.Result(sum, row_sum, column_sum[e % 2], k, row, column);
      }
    }
  }
}

}  // namespace llmc