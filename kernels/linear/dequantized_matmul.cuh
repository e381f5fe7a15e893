// Products of floats with weights of 8 or 4 bits, which are dequantized in registers: (weight - zero) * scale.
#pragma once
#include "kernels/linear/matmul.cuh"
#include "kernels/linear/quantized_parts.cuh"

namespace llmc {

// One element of the weight.
// C::T: of x and result.  C::Q: i8, u8, i4 or u4.  C::Scale, C::Zero: of scales and zero points.
// C::kScale, C::kZero: PartKinds.  C::kBlock: of those of blocks, else 1.  C::kTransposed: the weight is [n, k].
template <class C>
struct DequantizedParts {
  const typename C::Scale* scale;
  const typename C::Zero* zero;

  template <class X>
  __device__ __forceinline__ X ScaleOf(i64 i, i64 c, i64 k, i64 n) const {
    return static_cast<X>(Widen(scale[PartAt<C::kScale, C::kBlock, C::kTransposed>(i, c, k, n)]));
  }
  template <class X>
  __device__ __forceinline__ X ZeroOf(i64 i, i64 c, i64 k, i64 n) const {
    if constexpr (C::kZero == kNoPart) {
      return X(0);
    } else {
      return static_cast<X>(Widen(ReadElement(zero, PartAt<C::kZero, C::kBlock, C::kTransposed>(i, c, k, n))));
    }
  }
};

// out[b, m, n] = x[b, m, k] * weight[b, k, n] (or [b, n, k]) for every b of `batches`, of any types and sizes.
// C::kThreads: 256.
template <class C, class Context, int kRank>
__device__ __forceinline__ void DequantizedMatMul(const Context& context, typename C::T* __restrict__ out, i64 m, i64 n,
                                                  i64 k, const DequantizedParts<C>& parts, const Axes<kRank>& batches,
                                                  const Strided<const typename C::T, kRank>& x,
                                                  const Strided<const typename C::Q, kRank>& weight) {
  using T = typename C::T;
  using X = Wide<T>;
  constexpr int kTile = kProductTile;
  static_assert(C::kThreads == kProductThreads, "kThreads: 256, of which each computes 16 elements");
  const BatchTile<kTile> tile(context, m, n, batches, x, weight);
  const T* a = x.at + tile.x;
  const i64 first = tile.y;
  out += tile.batch * m * n;
  TiledProduct<kTile, X>(
      context, tile.first_row, tile.first_column, m, n, k, [=](i64 r, i64 d) { return Widen(a[r * k + d]); },
      [=](i64 c, i64 d) {
        const X q = static_cast<X>(Widen(ReadElement(weight.at, first + (C::kTransposed ? c * k + d : d * n + c))));
        return (q - parts.template ZeroOf<X>(d, c, k, n)) * parts.template ScaleOf<X>(d, c, k, n);
      },
      [=](i64 r, i64 c, X sum) { out[r * n + c] = Narrow<T>(sum); });
}

// Numbers of a weight as unsigned ones: those of signed types are greater by kShift, which zero points then are, too.
template <class Q>
inline constexpr int kShift = 0;
template <>
inline constexpr int kShift<i8> = 128;
template <>
inline constexpr int kShift<i4> = 8;

// Neighbours in a row, 16 bytes of them at the most; their number divides the index of the first.
template <class Q, int kCount>
struct Neighbours {
  static constexpr int kWords = kCount * (kPacked<Q> ? 4 : 8) / 32;
  u32 word[kWords];

  __device__ __forceinline__ void Load(const Q* weight, i64 at) {
    const auto v = llmc::Load<u32, kWords>(reinterpret_cast<const u32*>(weight + (kPacked<Q> ? at / 2 : at)));
    constexpr u32 kSigns = kShift<Q> == 0 ? 0 : kPacked<Q> ? 0x88888888u : 0x80808080u;
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = v.v[i] ^ kSigns;
  }
  // As the last bits of 2^23, which a subtraction takes off: faster than a conversion.
  static constexpr float kRaised = 8388608.0f;
  __device__ __forceinline__ float Raised(int i) const {
    const u32 bits = kPacked<Q> ? (word[i / 8] >> (i % 8 * 4) & 15) | 0x4b000000u
                                : __byte_perm(word[kPacked<Q> ? 0 : i / 4], 0x4b000000u, 0x7440 + i % 4);
    return __uint_as_float(bits);
  }
  __device__ __forceinline__ float Get(int i) const { return Raised(i) - kRaised; }
};

// out = the weight [k, n] (or [n, k]), dequantized. A thread makes eight neighbours.
// C::kEights: eight divides rows of the weight, and blocks that lie along them.
template <class C, class Context>
__device__ __forceinline__ void Dequantize(const Context& context, typename C::T* out, const typename C::Q* weight,
                                           const DequantizedParts<C>& parts, i64 n, i64 k) {
  using T = typename C::T;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  context.Wait();
  const i64 first = (static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x) * 8, row = C::kTransposed ? k : n;
  if (first >= n * k) return;
  const auto of = [&](float q, i64 major, i64 minor) {
    const i64 i = C::kTransposed ? minor : major, c = C::kTransposed ? major : minor;
    return FromFloat<T>((q - parts.template ZeroOf<float>(i, c, k, n)) * parts.template ScaleOf<float>(i, c, k, n));
  };
  if constexpr (C::kEights) {
    constexpr int kVec = 16 / sizeof(T) < 8 ? 16 / sizeof(T) : 8;
    const i64 major = first / row, minor = first - major * row;
    Neighbours<typename C::Q, 8> q;
    q.Load(weight, first);
#pragma unroll
    for (int begin = 0; begin < 8; begin += kVec) {
      Vec<T, kVec> made;
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        made.v[j] = of(q.Get(begin + j) - kShift<typename C::Q>, major, minor + begin + j);
      }
      Store(out + first + begin, made);
    }
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const i64 at = first + j, major = at / row;
      if (at < n * k) out[at] = of(static_cast<float>(Widen(ReadElement(weight, at))), major, at - major * row);
    }
  }
}

// ---- 1 to 8 rows --------------------------------------------------------------------------------------------------

// out[m, n] = x[m, k] * weight[n, k] for m <= C::kRows. A warp makes C::kColumns neighbouring columns.
// C::kRun: numbers of a column that a lane reads at once, 8, 16 or 32: it divides k, and blocks if there are any.
// Over 60 lines: one loop, and what it keeps in registers.
template <class C, class Context>
__device__ __forceinline__ void DequantizedGemv(const Context& context, typename C::T* out, const typename C::T* x,
                                                const typename C::Q* weight, const DequantizedParts<C>& parts, i64 m,
                                                i64 n, i64 k) {
  using T = typename C::T;
  constexpr int kVec = 16 / sizeof(T) < 8 ? 16 / sizeof(T) : 8;
  // Small whole zero points come off with kRaised, exactly; others are taken off the sum.
  using Weights = Neighbours<typename C::Q, C::kRun>;
  using Zero = decltype(Widen(ReadElement(parts.zero, 0)));
  constexpr bool kWhole = C::kZero == kNoPart || (kSame<Zero, i64> && sizeof(typename C::Zero) <= 2);
  static_assert(kIsModelType<T>, "T: float, f16 or bf16");
  static_assert(C::kRows >= 1 && C::kRows <= 8, "kRows: 1 to 8");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kTransposed && C::kBlock >= 1, "kTransposed: 1; kBlock: terms of a scale");
  context.Wait();
  const int lane = threadIdx.x % 32;
  const i64 first = (static_cast<i64>(context.TileX()) * (C::kThreads / 32) + threadIdx.x / 32) * C::kColumns;
  if (first >= n) return;
  float sums[C::kRows][C::kColumns] = {};
#pragma unroll 2
  for (i64 at = lane * C::kRun; at < k; at += 32 * C::kRun) {
    Weights w[C::kColumns];
    float scale[C::kColumns], zero[C::kColumns], dot[C::kRows][C::kColumns] = {}, v_sum[C::kRows] = {};
#pragma unroll
    for (int c = 0; c < C::kColumns; ++c) {
      const i64 column = first + c < n ? first + c : n - 1;
      w[c].Load(weight, column * k + at);
      scale[c] = parts.template ScaleOf<float>(at, column, k, n);
      zero[c] = parts.template ZeroOf<float>(at, column, k, n) + kShift<typename C::Q>;
    }
#pragma unroll
    for (int i = 0; i < C::kRun; i += kVec) {
      float v[C::kRows][kVec];
#pragma unroll
      for (int r = 0; r < C::kRows; ++r) {
        const auto part = Load<T, kVec>(x + (r < m ? r : m - 1) * k + at + i);
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          v[r][j] = ToFloat(part.v[j]);
          if (!kWhole) v_sum[r] += v[r][j];
        }
      }
#pragma unroll
      for (int c = 0; c < C::kColumns; ++c) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          const float q = w[c].Raised(i + j) - (Weights::kRaised + (kWhole ? zero[c] : 0.0f));
#pragma unroll
          for (int r = 0; r < C::kRows; ++r) dot[r][c] += v[r][j] * q;
        }
      }
    }
#pragma unroll
    for (int c = 0; c < C::kColumns; ++c) {
#pragma unroll
      for (int r = 0; r < C::kRows; ++r) sums[r][c] += scale[c] * (kWhole ? dot[r][c] : dot[r][c] - zero[c] * v_sum[r]);
    }
  }
#pragma unroll
  for (int c = 0; c < C::kColumns; ++c) {
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      const float sum = WarpReduce(sums[r][c], Sum());
      if (lane == 0 && r < m && first + c < n) out[r * n + first + c] = FromFloat<T>(sum);
    }
  }
}

}  // namespace llmc
