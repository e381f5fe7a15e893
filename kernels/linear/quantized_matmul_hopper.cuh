// Products of bytes (quantized_parts.cuh) for sm_90a: a tile of 128 x 128 results by two warpgroups, each of which
// makes 64 rows. Both factors go through stages of 128 terms in shared memory, in the layout that hopper.cuh describes.
// Each thread starts copies four stages ahead, then products are started, and while they run, bytes are summed for the
// zero points of the other factor.
//
// A slot is free when both warpgroups' products with it have ended. Each waits for those of the stage before, so that
// at a barrier those of two stages before have ended: that slot is filled next.
#pragma once
#include "kernels/linear/byte_products.cuh"
#include "kernels/linear/quantized_parts.cuh"

namespace llmc {

// Rows of k bytes of a factor, 128 from `first` on, as a thread copies them: every 32nd row, the same 16 of 128 bytes.
struct QuantizedRows {
  const u8* from;  // the first row's bytes
  i64 k;
  i32 byte, exists;  // in a row; a bit for each row

  __device__ __forceinline__ QuantizedRows(const void* matrix, i64 first, i64 rows, i64 k)
      : k(k), byte(threadIdx.x % 8 * 16), exists(0) {
    const i64 row = first + threadIdx.x / 8;
    from = static_cast<const u8*>(matrix) + row * k + byte;
#pragma unroll
    for (int i = 0; i < 4; ++i) exists |= (row + 32 * i < rows ? 1 : 0) << i;
  }
  // The terms from `begin` on; zeros where there are none. `matrix`: any address that can be read.
  __device__ __forceinline__ void Load(u32 to, i64 begin, const void* matrix) const {
    const int row = threadIdx.x / 8;
    const u32 at = to + row * 128 + (byte ^ row % 8 * 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_there = (exists >> i & 1) != 0 && begin + byte < k;
      CopyAsync(at + i * 32 * 128, is_there ? from + 32 * i * k + begin : matrix, is_there);
    }
  }
};

// The sum of 64 bytes, half of a row of a stage of 128 rows: threads 2r and 2r + 1 have row r. The order of the bytes
// does not matter.
template <class Byte>
__device__ __forceinline__ i32 SumBytes(const char* rows, i32 sum) {
  const int row = threadIdx.x / 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int chunk = threadIdx.x % 2 * 4 + (i + row) % 4;  // eight threads read different banks
    const auto v = Load<u32, 4>(reinterpret_cast<const u32*>(rows + row * 128 + chunk * 16));
#pragma unroll
    for (int j = 0; j < 4; ++j) sum = Dot4<Byte, u8>(v.v[j], kOnes, sum);
  }
  return sum;
}

template <class C>
struct QuantizedHopperShared {
  i32 row_sums[kQuantizedHopper.kRows];
  Wide<typename C::Scale> row_scales[kQuantizedHopper.kRows];
  typename QuantizedParts<C>::OfColumn columns[kQuantizedHopper.kColumns];
};

// A thread's results: of each 8 columns two neighbours, of two rows.
template <class C>
__device__ __forceinline__ void StoreQuantizedTile(typename C::T* out, i64 m, i64 n, i64 first_row, i64 first_column,
                                                   const i32 (&c)[16][4], const QuantizedHopperShared<C>& shared) {
  using T = typename C::T;
  const int own_row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, own_column = threadIdx.x % 4 * 2;
  const bool pairs = n % 2 == 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row + 8 * half, column = own_column + 8 * i;
      if (first_row + row >= m || first_column + column >= n) continue;
      const i64 row_sum = C::kZero != kNoPart ? shared.row_sums[row] : 0;
      Vec<T, 2> made;
#pragma unroll
      for (int j = 0; j < 2; ++j)
        made.v[j] = shared.columns[column + j].Result(c[i][2 * half + j], row_sum, shared.row_scales[row]);
      T* const to = out + (first_row + row) * n + first_column + column;
      if (pairs) {
        Store(to, made);
      } else {
        to[0] = made.v[0];
        if (first_column + column + 1 < n) to[1] = made.v[1];
      }
    }
  }
}

// The results of a tile, of one product: out[m, n] = left[m, k] * right[n, k].  16 divides k, and 32 bits hold all
// sums.
template <class C, class Context>
__device__ __forceinline__ void QuantizedTileHopper(const Context& context, char* arena, typename C::T* out, i64 m,
                                                    i64 n, i64 k, i64 first_row, i64 first_column,
                                                    const QuantizedParts<C>& parts, const typename C::A* left,
                                                    const typename C::B* right) {
  using L = QuantizedHopperLayout;
  static_assert(C::kThreads == 256, "two warpgroups");
  static_assert(C::kTransposed && C::kAligned && C::kWhole, "the right factor is [n, k], and 16 divides k");
  char* const stages = arena + (1024 - SharedAddress(arena) % 1024) % 1024;
  const u32 base = SharedAddress(stages);
  auto& shared = context.template Shared<QuantizedHopperShared<C>>();
  const QuantizedRows rows(left, first_row, m, k), columns(right, first_column, n, k);
  // One at least: the first product makes the sums.
  const i32 count = k > 0 ? static_cast<i32>((k + L::kDepth - 1) / L::kDepth) : 1;
  const auto load = [&](i32 stage) {
    if (stage < count) {
      const u32 to = base + stage % L::kStages * L::kStageBytes;
      rows.Load(to, static_cast<i64>(stage) * L::kDepth, left);
      columns.Load(to + L::kRows * L::kDepth, static_cast<i64>(stage) * L::kDepth, right);
    }
    CommitCopies();
  };

  i32 c[16][4];
  i32 row_sum = 0, column_sum = 0;
  for (int stage = 0; stage < L::kStages - 2; ++stage) load(stage);
#pragma unroll 1
  for (i32 stage = 0; stage < count; ++stage) {
    WaitForCopies<L::kStages - 3>();
    FenceSharedForTensorCores();
    context.Sync();
    const u32 slot = stage % L::kStages * L::kStageBytes;
    if constexpr (C::kZero != kNoPart) row_sum = SumBytes<typename C::A>(stages + slot, row_sum);
    if constexpr (C::kZeroA) column_sum = SumBytes<typename C::B>(stages + slot + L::kRows * L::kDepth, column_sum);
    const u32 a = base + slot + threadIdx.x / 128 * 64 * L::kDepth, b = base + slot + L::kRows * L::kDepth;
    BeginProducts();
#pragma unroll
    for (int step = 0; step < L::kDepth / 32; ++step) {
      MultiplyWarpgroupBytes<typename C::A, typename C::B>(c, Operand(a + 32 * step), Operand(b + 32 * step),
                                                           stage + step > 0);
    }
    CommitProducts();
    load(stage + L::kStages - 2);
    WaitForProducts<1>();
  }
  WaitForProducts<0>();
  Pin(c);

  row_sum += __shfl_xor_sync(~0u, row_sum, 1);
  column_sum += __shfl_xor_sync(~0u, column_sum, 1);
  if (threadIdx.x % 2 == 0) {
    const int own = threadIdx.x / 2;
    shared.row_sums[own] = row_sum;
    shared.row_scales[own] = parts.RowScale(first_row + own < m ? first_row + own : m - 1);
    shared.columns[own] = parts.Column(column_sum, k, first_column + own < n ? first_column + own : n - 1);
  }
  context.Sync();
  StoreQuantizedTile<C>(out, m, n, first_row, first_column, c, shared);
}

}  // namespace llmc
