// Products of 8-bit integers less zero points, times their scales: exact sums on tensor cores, or for 1 to 8 rows in
// dot products of four terms, at the speed of memory. Zero points are taken off the sums:
//   sum (x - a)(y - b) = sum x y - a sum y - b sum x + k a b
#pragma once
#include "kernels/common/mma.cuh"
#include "kernels/elementwise/elementwise.cuh"
#include "kernels/layout/linear.h"

namespace llmc {

template <class T>
inline constexpr bool kIsSigned = static_cast<T>(-1) < static_cast<T>(0);

// sum + the four products of bytes.
template <class A, class B>
__device__ __forceinline__ i32 Dot4(u32 a, u32 b, i32 sum) {
  if constexpr (kIsSigned<A> && kIsSigned<B>) {
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  } else if constexpr (kIsSigned<A>) {
    asm("dp4a.s32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  } else if constexpr (kIsSigned<B>) {
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  } else {
    asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
  }
  return sum;
}
constexpr u32 kOnes = 0x01010101u;

// mma.sync m16n8k32: as that of mma.cuh, with four bytes where that has two elements of 16 bits.
template <class A, class B>
__device__ __forceinline__ void MultiplyAddBytes(i32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#define LLMC_MMA(types)                                     \
  asm("mma.sync.aligned.m16n8k32.row.col.s32." types        \
      ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
      "{%0, %1, %2, %3};"                                   \
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])      \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (kIsSigned<A> && kIsSigned<B>) {
    LLMC_MMA("s8.s8");
  } else if constexpr (kIsSigned<A>) {
    LLMC_MMA("s8.u8");
  } else if constexpr (kIsSigned<B>) {
    LLMC_MMA("u8.s8");
  } else {
    LLMC_MMA("u8.u8");
  }
#undef LLMC_MMA
}

// What both kernels are given besides the factors.
// C::A, C::B: i8 or u8.  C::T: of scales and result.  C::ZeroA, C::ZeroB: of zero points.
// C::kZeroA: there is one of the left factor.  C::kScale, C::kZero: PartKinds of the right factor, none of blocks.
template <class C>
struct QuantizedParts {
  const typename C::T* scale;
  const typename C::ZeroB* zero;
  const typename C::T* scale_a;
  const typename C::ZeroA* zero_a;

  // The sums of products, of the row of the left factor and of the column of the right one, to the result.
  __device__ __forceinline__ typename C::T Result(i64 sum, i64 row_sum, i64 column_sum, i64 k, i64 column) const {
    using X = Wide<typename C::T>;
    const i64 a = C::kZeroA ? static_cast<i64>(Widen(ReadElement(zero_a, 0))) : 0;
    i64 b = 0;
    if constexpr (C::kZero != kNoPart)
      b = static_cast<i64>(Widen(ReadElement(zero, C::kZero == kOfColumns ? column : 0)));
    sum += k * a * b - a * column_sum - b * row_sum;
    const X factor = Widen(scale_a[0]) * Widen(scale[C::kScale == kOfColumns ? column : 0]);
    return Narrow<typename C::T>(static_cast<X>(sum) * factor);
  }
};

// ---- 1 to 8 rows --------------------------------------------------------------------------------------------------

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

// ---- any number of rows -------------------------------------------------------------------------------------------

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
// and y. Dynamic shared memory: QuantizedLayout::SharedBytes().
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
        if (row < m && column < n) out[row * n + column] = parts.Result(sum, row_sum, column_sum[e % 2], k, column);
      }
    }
  }
}

}  // namespace llmc
