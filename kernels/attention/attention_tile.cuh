// Attention of one warp on tensor cores: 16 * kM rows of queries against tiles of kKeys keys, with a running softmax,
// so that scores are never stored (FlashAttention-2, arXiv:2307.08691).
//
// Tiles of queries, keys and values lie in shared memory as rows of kHeadDim elements, kStride apart: an odd number of
// 16-byte chunks, so that the 8 rows of a matrix lie in different banks. Scores, weights and sums stay in registers, in
// the layout of mma.sync (mma.cuh): the weights of a tile, rounded, are at once the left operand of weights * values.
//
// kHalf: only the first 8 of 16 rows are used (kM is 1).  kRowDim: elements of a row in shared memory, of which
// kHeadDim are multiplied.
#pragma once
#include "kernels/common/mma.cuh"
#include "kernels/layout/attention.h"

namespace llmc {

// Below every score, with finite differences to all of them; masked scores are -infinity.
constexpr float kLowestScore = -1e30f;
// The same where masks are added to scores: they may be as low as floats go.
constexpr float kLowestAdded = -3.402823466e38f;

__device__ __forceinline__ float Infinity() { return __uint_as_float(0x7f800000u); }

// How scores become exponents of 2. `scale` is for base 2: the attention's scale times log2(e), or without that factor
// if scores are capped to (-softcap, softcap), or if a mask is added to them (kAdds): then Capped gives scores as the
// attention defines them.
template <bool kSoftcap, bool kAdds = false>
struct ScoreScale {
  static constexpr bool kCaps = kSoftcap || kAdds;  // whether Capped does something
  static constexpr bool kFar = kAdds;               // see AttentionTile::Weigh
  static constexpr float kLog2E = 1.4426950408889634f;
  float scale;       // of a score before Capped
  float cap;         // softcap, times log2(e) if no mask is added
  float tanh_scale;  // of a score in exp2 for tanh

  __device__ __forceinline__ ScoreScale(float scale_of_op, float softcap)
      : scale(scale_of_op),
        cap(kAdds ? softcap : softcap * kLog2E),
        tanh_scale(kSoftcap ? 2 * kLog2E * scale_of_op / softcap : 0.0f) {}

  // tanh(x) = 1 - 2 / (exp(2 x) + 1).
  __device__ __forceinline__ float Capped(float score) const {
    if (kSoftcap) return cap - 2 * cap * __frcp_rn(Exp2(score * tanh_scale) + 1);
    return kAdds ? score * scale : score;
  }
  __device__ __forceinline__ float Factor() const { return kAdds ? kLog2E : kSoftcap ? 1.0f : scale; }
};

template <class T, int kHeadDim, int kKeys, int kM, bool kHalf = false, int kRowDim = kHeadDim>
struct AttentionTile {
  static_assert(sizeof(T) == 2, "tensor cores take 16-bit elements here");
  static_assert(kHeadDim % 16 == 0 && kHeadDim <= kMaxHeadDim, "rows are padded to multiples of 16");
  static_assert(kKeys % 16 == 0, "keys come in multiples of 16");
  static_assert(!kHalf || kM == 1, "half of a tile is half of one matrix");
  static constexpr int kStride = kRowDim + kRowPaddingBytes / static_cast<int>(sizeof(T));
  static constexpr int kHalves = kHalf ? 1 : 2;
  using Query = u32[4];

  float out[kM][kHeadDim / 8][4];
  float scores[kM][kKeys / 8][4];
  float top[kM][2], sum[kM][2];  // of rows 16 m + lane / 4 + {0, 8}; sums are over the lane's own columns until Finish

  __device__ __forceinline__ void Reset(float lowest = kLowestScore) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][n][i] = 0;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        top[m][h] = lowest;
        sum[m][h] = 0;
      }
    }
  }

  // scores = queries * keys^T. `query(m, step, a)` gives the operand of rows 16 m… and elements 16 step… of the
  // queries.
  template <class QueryOf>
  __device__ __forceinline__ void Multiply(QueryOf query, u32 keys) {
    const int lane = threadIdx.x % 32;
    // Matrices: keys 0-7, both halves of 16 elements; then keys 8-15.
    const u32 address = keys + ((lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8) * 2;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][n][i] = 0;
      }
    }
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      u32 a[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) query(m, step, a[m]);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        u32 b[4];
        LoadMatrices(b, address + (n * 16 * kStride + step * 16) * 2);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          MultiplyAdd<T>(scores[m][2 * n], a[m], b[0], b[1]);
          MultiplyAdd<T>(scores[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  template <class Scale>
  __device__ __forceinline__ void Cap(const Scale& scale) {
    if constexpr (Scale::kCaps) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          ChangeRow(m, h, [&](int, int, int, float score) { return scale.Capped(score); });
        }
      }
    }
  }

  // Row 16 m + 8 half + lane / 4: its score of key `key` of the tile, which is 8 n + lane % 4 * 2 + i, becomes
  // `change(n, i, key, score)`.
  template <class F>
  __device__ __forceinline__ void ChangeRow(int m, int half, F change) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& score = scores[m][n][2 * half + i];
        score = change(n, i, n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i, score);
      }
    }
  }

  // Scores become weights relative to the greatest so far; `rescale`: of what was summed before. kFar: scores may be so
  // far from 0 that their differences are exact only before they meet the factor.
  template <bool kFar = false>
  __device__ __forceinline__ void Weigh(float factor, float (&rescale)[kM][2]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        float new_top = top[m][h];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
          new_top = fmaxf(new_top, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
        new_top = fmaxf(new_top, __shfl_xor_sync(~0u, new_top, 1));
        new_top = fmaxf(new_top, __shfl_xor_sync(~0u, new_top, 2));
        rescale[m][h] = Exp2((top[m][h] - new_top) * factor);
        const float offset = new_top * factor;
        top[m][h] = new_top;
        float added = 0;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i) {
            const float score = scores[m][n][i];
            scores[m][n][i] = Exp2(kFar ? (score - new_top) * factor : score * factor - offset);
            added += scores[m][n][i];
          }
        }
        sum[m][h] = sum[m][h] * rescale[m][h] + added;
      }
    }
  }

  __device__ __forceinline__ void Rescale(const float (&rescale)[kM][2]) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2 * kHalves; ++i) out[m][n][i] *= rescale[m][i / 2];
      }
    }
  }

  // The weights of keys 16 step… as a left operand.
  __device__ __forceinline__ void PackWeights(int m, int step, u32 (&a)[4]) const {
    const auto& s = scores[m];
    a[0] = Pack<T>(s[2 * step][0], s[2 * step][1]);
    a[1] = kHalf ? 0 : Pack<T>(s[2 * step][2], s[2 * step][3]);
    a[2] = Pack<T>(s[2 * step + 1][0], s[2 * step + 1][1]);
    a[3] = kHalf ? 0 : Pack<T>(s[2 * step + 1][2], s[2 * step + 1][3]);
  }

  // out += weights * values.
  __device__ __forceinline__ void Accumulate(u32 values) {
    const int lane = threadIdx.x % 32;
    // Matrices: keys 0-7 and 8-15 of 8 columns; then of the next 8.
    const u32 address = values + (lane % 16 * kStride + lane / 16 * 8) * 2;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      u32 a[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) PackWeights(m, step, a[m]);
#pragma unroll
      for (int n = 0; n < kHeadDim / 16; ++n) {
        u32 b[4];
        LoadMatricesTransposed(b, address + (step * 16 * kStride + n * 16) * 2);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          MultiplyAdd<T>(out[m][2 * n], a[m], b[0], b[1]);
          MultiplyAdd<T>(out[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // Sums over all columns.
  __device__ __forceinline__ void Finish() {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) sum[m][h] = WarpReduce<4>(sum[m][h], Sum());
    }
  }
};

}  // namespace llmc
