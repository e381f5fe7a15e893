// Few rows of many small products: out[row, batch, n] = sum_k x[row, batch, k] * weight[batch, n, k], or weight[batch,
// k, n]. Each weight is read once, into registers, before the kernel waits for x.
//
// A block has some columns of one batch. Of weights [n, k], kLanes neighbouring lanes share a column, whose k they take
// by vectors. Of weights [k, n], 8 neighbouring threads share a row of as many vectors, and the 32 such teams take
// every 32nd k.
//
// C::T: element type.  C::kRows: rows at the most.  C::kN, C::kK: of a product, whole vectors.  C::kTransposed: whether
// weights are [n, k].  C::kThreads: 256.  The sizes of a block: kernels/layout/linear.h. x and out: StridedRows, whose
// strides are multiples of a vector for x.
#pragma once
#include "kernels/common/context.cuh"
#include "kernels/common/strided_rows.cuh"
#include "kernels/layout/linear.h"

namespace llmc {

template <class C>
struct BatchedGemvShape {
  using T = typename C::T;
  static constexpr int kVec = 16 / static_cast<int>(sizeof(T));
  static constexpr BatchedGemv kSizes = {C::kN, C::kK, kVec, C::kTransposed};
  static constexpr int kLanes = kSizes.Lanes(), kVectors = static_cast<int>(kSizes.Vectors());
  static constexpr int kPasses = kSizes.Passes();
  static_assert(kIsModelType<T>, "T: float, f16 or bf16");
  static_assert(C::kThreads == kBatchedGemvThreads, "kThreads: as many");
  static_assert(C::kN % kVec == 0 && C::kK % kVec == 0 && kSizes.Fits(), "kN, kK: whole vectors, in registers");
  static_assert(C::kRows >= 1 && C::kRows <= kMaxGemvRows, "kRows: few");
};

// weight [n, k].
template <class C, class Context>
__device__ __forceinline__ void BatchedGemvOfColumns(const Context& context, const StridedRows<typename C::T>& out,
                                                     const StridedRows<const typename C::T>& x,
                                                     const typename C::T* __restrict__ weight, i64 rows) {
  using T = typename C::T;
  using S = BatchedGemvShape<C>;
  constexpr int kVec = S::kVec, kTeams = 32 / S::kLanes;
  const i32 batch = context.TileY(), lane = threadIdx.x % S::kLanes;
  const i32 first =
      (context.TileX() * (C::kThreads / 32) + threadIdx.x / 32) * S::kPasses * kTeams + threadIdx.x % 32 / S::kLanes;
  weight += static_cast<i64>(batch) * C::kN * C::kK;
  Vec<T, kVec> w[S::kPasses][S::kVectors];
#pragma unroll
  for (int pass = 0; pass < S::kPasses; ++pass) {
#pragma unroll
    for (int i = 0; i < S::kVectors; ++i) {
      const i32 n = first + pass * kTeams, k = (i * S::kLanes + lane) * kVec;
      w[pass][i] = {};
      if (n < C::kN && k < C::kK) w[pass][i] = Load<T, kVec>(weight + n * C::kK + k);
    }
  }
  context.Wait();
  for (i32 row = 0; row < static_cast<i32>(rows); ++row) {
    const T* const from = x.At(row, batch);
    float sums[S::kPasses] = {};
#pragma unroll
    for (int i = 0; i < S::kVectors; ++i) {
      const i32 k = (i * S::kLanes + lane) * kVec;
      Vec<T, kVec> a = {};
      if (k < C::kK) a = Load<T, kVec>(from + k);
#pragma unroll
      for (int pass = 0; pass < S::kPasses; ++pass) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) sums[pass] += ToFloat(a.v[j]) * ToFloat(w[pass][i].v[j]);
      }
    }
#pragma unroll
    for (int pass = 0; pass < S::kPasses; ++pass) {
      const float sum = WarpReduce<S::kLanes>(sums[pass], Sum());
      const i32 n = first + pass * kTeams;
      if (lane == 0 && n < C::kN) out.At(row, batch)[n] = FromFloat<T>(sum);
    }
  }
}

// weight [k, n].
template <class C, class Context>
__device__ __forceinline__ void BatchedGemvOfRows(const Context& context, const StridedRows<typename C::T>& out,
                                                  const StridedRows<const typename C::T>& x,
                                                  const typename C::T* __restrict__ weight, i64 rows) {
  using T = typename C::T;
  using S = BatchedGemvShape<C>;
  constexpr int kVec = S::kVec, kTeam = kBatchedGemvTeam, kTeams = C::kThreads / kTeam, kWarps = C::kThreads / 32;
  const i32 batch = context.TileY(), team = threadIdx.x / kTeam;
  const i32 column = threadIdx.x % kTeam * kVec, n = context.TileX() * (kTeam * kVec) + column;
  weight += static_cast<i64>(batch) * C::kK * C::kN;
  Vec<T, kVec> w[S::kVectors];
#pragma unroll
  for (int i = 0; i < S::kVectors; ++i) {
    const i32 k = i * kTeams + team;
    w[i] = {};
    if (k < C::kK && n < C::kN) w[i] = Load<T, kVec>(weight + k * C::kN + n);
  }
  struct alignas(16) Partial {
    float of[C::kRows][kWarps][kTeam * kVec];
  };
  auto& partial = context.template Shared<Partial>();
  context.Wait();
#pragma unroll
  for (int row = 0; row < C::kRows; ++row) {
    if (row >= rows) break;
    const T* const from = x.At(row, batch);
    float sums[kVec] = {};
#pragma unroll
    for (int i = 0; i < S::kVectors; ++i) {
      const i32 k = i * kTeams + team;
      const float a = k < C::kK ? ToFloat(from[k]) : 0.0f;
#pragma unroll
      for (int j = 0; j < kVec; ++j) sums[j] += a * ToFloat(w[i].v[j]);
    }
#pragma unroll
    for (int offset = kTeam; offset < 32; offset *= 2) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) sums[j] += __shfl_xor_sync(~0u, sums[j], offset);
    }
    if (threadIdx.x % 32 >= kTeam) continue;
#pragma unroll
    for (int j = 0; j < kVec; j += 4) {
      const Vec<float, 4> part = {sums[j], sums[j + 1], sums[j + 2], sums[j + 3]};
      Store(&partial.of[row][threadIdx.x / 32][column + j], part);
    }
  }
  context.Sync();
  for (i32 at = threadIdx.x; at < static_cast<i32>(rows) * kTeam * kVec; at += C::kThreads) {
    const i32 row = at / (kTeam * kVec), of_block = at % (kTeam * kVec);
    const i32 to = context.TileX() * (kTeam * kVec) + of_block;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partial.of[row][w][of_block];
    if (to < C::kN) out.At(row, batch)[to] = FromFloat<T>(sum);
  }
}

// Blocks (some columns, batch).
template <class C, class Context>
__device__ __forceinline__ void BatchedGemv(const Context& context, const StridedRows<typename C::T>& out,
                                            const StridedRows<const typename C::T>& x,
                                            const typename C::T* __restrict__ weight, i64 rows) {
  if constexpr (C::kTransposed) {
    BatchedGemvOfColumns<C>(context, out, x, weight, rows);
  } else {
    BatchedGemvOfRows<C>(context, out, x, weight, rows);
  }
}

}  // namespace llmc
