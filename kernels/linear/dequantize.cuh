// What an encoded weight (weight_reader.cuh) is for many rows: dequantized to memory, for cuBLASLt, or element by
// element in a product of any types.
#pragma once
#include "kernels/linear/encoded_weight.cuh"
#include "kernels/linear/matmul.cuh"

namespace llmc {

// out[b, m, n] = x[b, m, k] * weight[b, k, n] (or [b, n, k]) for every b of `batches`, of any types and sizes.
// C::kThreads: 256.
template <class C, class Context, int kRank>
__device__ __forceinline__ void DequantizedMatMul(const Context& context, typename C::T* __restrict__ out, i64 m, i64 n,
                                                  i64 k, const Weight<C>& weight, const Axes<kRank>& batches,
                                                  const Strided<const typename C::T, kRank>& x,
                                                  const Strided<const typename Weight<C>::Storage, kRank>& codes) {
  using T = typename C::T;
  using X = Wide<T>;
  constexpr int kTile = kProductTile;
  static_assert(C::kThreads == kProductThreads, "kThreads: 256, of which each computes 16 elements");
  const BatchTile<kTile> tile(context, m, n, batches, x, codes);
  const T* a = x.at + tile.x;
  const i64 first = tile.y;
  out += tile.batch * m * n;
  TiledProduct<kTile, X>(
      context, tile.first_row, tile.first_column, m, n, k, [=](i64 r, i64 d) { return Widen(a[r * k + d]); },
      [=](i64 c, i64 d) { return weight.template Get<X>(first, d, c, k, n); },
      [=](i64 r, i64 c, X sum) { out[r * n + c] = Narrow<T>(sum); });
}

// out = the weight [k, n] (or [n, k]), dequantized. A thread makes eight neighbours.
// C::kEights: eight divides rows of the weight, and blocks that lie along them.
template <class C, class Context>
__device__ __forceinline__ void Dequantize(const Context& context, typename C::T* out, const Weight<C>& weight, i64 n,
                                           i64 k) {
  using T = typename C::T;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  context.Wait();
  const i64 first = (static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x) * 8, row = C::kTransposed ? k : n;
  if (first >= n * k) return;
  const auto of = [&](float q, i64 major, i64 minor) {
    const i64 i = C::kTransposed ? minor : major, c = C::kTransposed ? major : minor;
    const float scaled = (q - weight.template ZeroOf<float>(i, c, k, n)) * weight.template ScaleOf<float>(i, c, k, n);
    return FromFloat<T>(C::kOuter ? scaled * weight.OuterOf(c) : scaled);
  };
  if constexpr (C::kEights) {
    constexpr int kVec = 16 / sizeof(T) < 8 ? 16 / sizeof(T) : 8;
    const i64 major = first / row, minor = first - major * row;
    Codes<typename C::Q, 8> q;
    q.Load(weight.Row(major, minor, row));
#pragma unroll
    for (int begin = 0; begin < 8; begin += kVec) {
      Vec<T, kVec> made;
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        made.v[j] = of(q.Get(begin + j, kShift<typename C::Q>), major, minor + begin + j);
      }
      Store(out + first + begin, made);
    }
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const i64 at = first + j, major = at / row;
      if (at < n * k) out[at] = of(weight.NumberAt(at), major, at - major * row);
    }
  }
}

}  // namespace llmc
