// What x is before gemv.cuh multiplies it.
#pragma once
#include "kernels/linear/code_pairs.cuh"
#include "kernels/linear/gemv_tile.cuh"

namespace llmc {

// To shared memory, paired as the weight's reader takes it.
template <class S, class T>
__device__ __forceinline__ void StoreX(T* to, const Vec<u32, 4>& x) {
  if constexpr (S::kPairsX) {
    *reinterpret_cast<Vec<u32, 4>*>(to) = PairFourApart(x);
  } else {
    *reinterpret_cast<Vec<u32, 4>*>(to) = x;
  }
}

// x as it is.
template <class T>
struct PlainX {
  static constexpr bool kNormalizes = false;

  // To shared memory; the first S::kMathThreads threads call it.
  template <class C, class S>
  __device__ __forceinline__ void Load(T* to, const T* x, const T*, typename S::Squares&, i64 tokens) const {
    using V = Vec<u32, 4>;
    constexpr int kVectors = C::kIn / S::kVec, kEach = (C::kTokens * kVectors + S::kMathThreads - 1) / S::kMathThreads;
    constexpr int kBatch = kEach < 8 ? kEach : 8;
    const int vectors = static_cast<int>(tokens) * kVectors;
#pragma unroll 1
    for (int first = threadIdx.x; first < vectors; first += kBatch * S::kMathThreads) {
      V v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = first + i * S::kMathThreads;
        if (at < vectors) v[i] = reinterpret_cast<const V*>(x)[at];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = first + i * S::kMathThreads;
        if (at < vectors) StoreX<S>(to + at / kVectors * S::kXStride + at % kVectors * S::kVec, v[i]);
      }
    }
  }
};

// rms_norm of x. Every block does it anew, which is faster than to wait for another kernel.
template <class T>
struct NormalizedX {
  static constexpr bool kNormalizes = true;
  const T* weight;
  float eps;

  // `norm` is `weight`, or a copy of it where the first row of x goes: a thread reads what it overwrites.
  // squares: shared memory for the sums of the warps.
  template <class C, class S>
  __device__ __forceinline__ void Load(T* to, const T* x, const T* norm, typename S::Squares& squares,
                                       i64 tokens) const {
    static_assert(!C::kXInRing, "normalized rows are kept in shared memory");
    constexpr int kVec = S::kVec, kEach = (C::kIn / kVec + S::kMathThreads - 1) / S::kMathThreads;
    Vec<T, kVec> v[C::kTokens][kEach] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int column = kVec * (i * S::kMathThreads + threadIdx.x);
      if (column >= C::kIn) break;
#pragma unroll
      for (int token = 0; token < C::kTokens; ++token) {
        if (token < tokens) v[token][i] = llmc::Load<T, kVec>(x + static_cast<i64>(token) * C::kIn + column);
      }
    }
#pragma unroll
    for (int token = 0; token < C::kTokens; ++token) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) sum += ToFloat(v[token][i].v[j]) * ToFloat(v[token][i].v[j]);
      }
      sum = WarpReduce(sum, Sum());
      if (threadIdx.x % 32 == 0) squares.of[token][threadIdx.x / 32] = sum;
    }
    SyncThreads<1, S::kMathThreads>();
    float scale[C::kTokens];
#pragma unroll
    for (int token = 0; token < C::kTokens; ++token) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < S::kWarps; ++i) sum += squares.of[token][i];
      scale[token] = rsqrtf(sum / C::kIn + eps);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int column = kVec * (i * S::kMathThreads + threadIdx.x);
      if (column >= C::kIn) break;
      const Vec<T, kVec> w = llmc::Load<T, kVec>(norm + column);
#pragma unroll
      for (int token = 0; token < C::kTokens; ++token) {
        Vec<T, kVec> r;
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          r.v[j] = FromFloat<T>(ToFloat(v[token][i].v[j]) * scale[token] * ToFloat(w.v[j]));
        }
        if constexpr (S::kPairsX) {
          StoreX<S>(to + token * S::kXStride + column, *reinterpret_cast<const Vec<u32, 4>*>(&r));
        } else {
          Store(to + token * S::kXStride + column, r);
        }
      }
    }
  }
};

}  // namespace llmc
