// Matrix products of any type and layout, and convolutions, without tensor cores: a block computes a tile of the result
// from tiles of both operands in shared memory.
#pragma once
#include "kernels/elementwise/elementwise.cuh"
#include "kernels/layout/linear.h"

namespace llmc {

// One tile of out[r, c] = sum over d of a(r, d) * b(c, d). `a` and `b` read elements in their arithmetic type, `write`
// gets each sum; all must take any index below the sizes given. Threads: kTile / 4 squared, 4 x 4 sums each.
template <int kTile, class X, class Context, class A, class B, class Write>
__device__ __forceinline__ void TiledProduct(const Context& context, i64 first_row, i64 first_column, i64 rows,
                                             i64 columns, i64 depth, A a, B b, Write write) {
  constexpr int kDepth = 16, kSide = kTile / 4, kThreads = kSide * kSide;
  struct Tiles {
    X a[kDepth][kTile + 1], b[kDepth][kTile + 1];
  };
  auto& [tile_a, tile_b] = context.template Shared<Tiles>();
  const int row = threadIdx.x / kSide, column = threadIdx.x % kSide;
  X sums[4][4] = {};
  for (i64 begin = 0; begin < depth; begin += kDepth) {
    for (int i = threadIdx.x; i < kDepth * kTile; i += kThreads) {
      const int d = i % kDepth, j = i / kDepth;
      const bool inside = begin + d < depth;
      tile_a[d][j] = inside && first_row + j < rows ? a(first_row + j, begin + d) : X(0);
      tile_b[d][j] = inside && first_column + j < columns ? b(first_column + j, begin + d) : X(0);
    }
    context.Sync();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      X x[4], y[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x[j] = tile_a[d][row + j * kSide];
        y[j] = tile_b[d][column + j * kSide];
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[j][k] += x[j] * y[k];
      }
    }
    context.Sync();
  }
  for (int j = 0; j < 4; ++j) {
    for (int k = 0; k < 4; ++k) {
      const i64 r = first_row + row + j * kSide, c = first_column + column + k * kSide;
      if (r < rows && c < columns) write(r, c, sums[j][k]);
    }
  }
}

// The tile of a block among those of out[b, m, n] for every b of `batches`, and where its matrices lie in x and y.
template <int kTile>
struct BatchTile {
  i64 batch, first_row, first_column, x, y;

  template <class Context, int kRank, class T, class U>
  __device__ __forceinline__ BatchTile(const Context& context, i64 m, i64 n, const Axes<kRank>& batches,
                                       const Strided<T, kRank>& x, const Strided<U, kRank>& y) {
    const i64 wide = (n + kTile - 1) / kTile, high = (m + kTile - 1) / kTile;
    const i64 tile = context.TileX() % (wide * high);
    batch = context.TileX() / (wide * high);
    first_row = tile / wide * kTile;
    first_column = tile % wide * kTile;
    i64 strides[2][kRank], at[2];
    for (int axis = 0; axis < kRank; ++axis) {
      strides[0][axis] = x.stride[axis];
      strides[1][axis] = y.stride[axis];
    }
    Locate<i64>(batch, batches, strides, at);
    this->x = at[0];
    this->y = at[1];
  }
};

// Integers wrap around: sums are of unsigned ones.
template <class X>
struct SumType {
  using Type = X;
};
template <>
struct SumType<i64> {
  using Type = u64;
};

// out[b, m, n] = x[b, m, k] * y[b, k, n] (or [b, n, k] if kTransposed) for every b of `batches`.
// C::T: element type.  C::kTransposed.  C::kThreads: 256.
template <class C, class Context, int kRank>
__device__ __forceinline__ void MatMul(const Context& context, typename C::T* __restrict__ out, i64 m, i64 n, i64 k,
                                       const Axes<kRank>& batches, const Strided<const typename C::T, kRank>& x,
                                       const Strided<const typename C::T, kRank>& y) {
  using T = typename C::T;
  using X = typename SumType<Wide<T>>::Type;
  constexpr int kTile = kProductTile;
  static_assert(C::kThreads == kProductThreads, "kThreads: 256, of which each computes 16 elements");
  const BatchTile<kTile> tile(context, m, n, batches, x, y);
  const T* a = x.at + tile.x;
  const T* b = y.at + tile.y;
  out += tile.batch * m * n;
  TiledProduct<kTile, X>(
      context, tile.first_row, tile.first_column, m, n, k,
      [=](i64 r, i64 d) { return static_cast<X>(Widen(a[r * k + d])); },
      [=](i64 c, i64 d) { return static_cast<X>(Widen(b[C::kTransposed ? c * k + d : d * n + c])); },
      [=](i64 r, i64 c, X sum) { out[r * n + c] = Narrow<T>(static_cast<Wide<T>>(sum)); });
}

}  // namespace llmc
