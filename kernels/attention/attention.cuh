// Attention over whole tensors (arXiv:1706.03762), with the running softmax of FlashAttention (arXiv:2205.14135):
// scores never leave the block. Without tensor cores; sums are in float (f64: in double).
#pragma once
#include "kernels/elementwise/reduce.cuh"
#include "kernels/layout/attention.h"

namespace llmc {

// q[B, heads, queries, kDim], k[B, kv heads, keys, kDim], v[B, kv heads, keys, kValueDim], out[B, heads, queries,
// kValueDim]. A block takes kQueries queries of one head, a warp a few of these: tiles of 32 keys and values are
// brought to shared memory; a lane scores one key, then sums its columns of the values. A row that sees nothing is 0.
// C::T, C::Mask: element types; a mask of bool says what may be seen, one of floats is added to the scores.
// C::kMasked, C::kCausal, C::kSoftcap: whether there is one.  C::kDim, C::kValueDim.  C::kThreads: threads per block.
// Over 60 lines: one loop over tiles, and what it keeps in registers.
template <class C, class Context>
__device__ __forceinline__ void Attention(const Context& context, typename C::T* __restrict__ out,
                                          const typename C::T* __restrict__ q, const typename C::T* __restrict__ k,
                                          const typename C::T* __restrict__ v,
                                          const Strided<const typename C::Mask, 4>& mask, i64 heads, i64 kv_heads,
                                          i64 queries, i64 keys, i64 shift, Wide<typename C::T> scale,
                                          Wide<typename C::T> softcap) {
  using T = typename C::T;
  using X = Wide<T>;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kDim > 0 && C::kValueDim > 0, "kDim, kValueDim: sizes of heads");
  static_assert(!kSame<X, i64> && !kSame<X, bool>, "T: floats");
  constexpr int kRows = kAttentionRows, kQueries = AttentionQueries(C::kThreads), kKeys = kAttentionKeys;
  constexpr int kColumns = (C::kValueDim + 31) / 32;
  constexpr X kHidden = kSame<X, double> ? -1.7976931348623157e308 : -3.402823466e38;
  X* const q_tile = reinterpret_cast<X*>(context.template Arena<128>());  // [kQueries][kDim]
  X* const k_tile = q_tile + kQueries * C::kDim;                          // [kKeys][kDim + 1]: no two lanes in one bank
  X* const v_tile = k_tile + kKeys * (C::kDim + 1);                       // [kKeys][kValueDim]
  const i64 tiles = (queries + kQueries - 1) / kQueries;
  const i64 head = context.TileX() / tiles, first = context.TileX() % tiles * kQueries;  // head: of all sequences
  const i64 sequence = head / heads, kv_head = sequence * kv_heads + head % heads / (heads / kv_heads);
  q += (head * queries + first) * C::kDim;
  k += kv_head * keys * C::kDim;
  v += kv_head * keys * C::kValueDim;
  out += (head * queries + first) * C::kValueDim;
  const i64 mask_at = sequence * mask.stride[0] + head % heads * mask.stride[1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const i64 count = queries - first < kQueries ? queries - first : kQueries;
  for (i64 i = threadIdx.x; i < count * C::kDim; i += C::kThreads) q_tile[i] = Widen(q[i]);

  const auto greater = [](X a, X b) { return a < b ? b : a; };
  const auto add = [](X a, X b) { return a + b; };
  X top[kRows], sum[kRows], columns[kRows][kColumns] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    top[r] = kHidden;
    sum[r] = 0;
  }
  // Causal: query i sees keys up to i + shift.
  i64 end = keys;
  if (C::kCausal && first + count + shift < end) end = first + count + shift;
  for (i64 begin = 0; begin < end; begin += kKeys) {
    const i64 part = keys - begin < kKeys ? keys - begin : kKeys;
    context.Sync();
    for (i64 i = threadIdx.x; i < part * C::kDim; i += C::kThreads) {
      k_tile[i / C::kDim * (C::kDim + 1) + i % C::kDim] = Widen(k[begin * C::kDim + i]);
    }
    for (i64 i = threadIdx.x; i < part * C::kValueDim; i += C::kThreads) v_tile[i] = Widen(v[begin * C::kValueDim + i]);
    context.Sync();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = warp * kRows + r;
      if (row >= count) break;
      const i64 query = first + row, key = begin + lane;
      bool seen = lane < part && (!C::kCausal || key <= query + shift);
      X score = kHidden;
      if (seen) {
        X dot = 0;
        for (int d = 0; d < C::kDim; ++d) dot += q_tile[row * C::kDim + d] * k_tile[lane * (C::kDim + 1) + d];
        score = dot * scale;
        if constexpr (C::kSoftcap) score = softcap * op::Tanh(score / softcap);
        if constexpr (C::kMasked) {
          const auto m = Widen(mask.at[mask_at + query * mask.stride[2] + key * mask.stride[3]]);
          if constexpr (kSame<typename C::Mask, bool>) {
            seen = m;
          } else {
            score += static_cast<X>(m);
            seen = !(score == static_cast<X>(-__uint_as_float(0x7f800000u)));
          }
          if (!seen) score = kHidden;
        }
      }
      const X highest = greater(top[r], ReduceLanes<32>(context, score, greater));
      const X rescale = op::Exp(top[r] - highest), weight = seen ? op::Exp(score - highest) : X(0);
      top[r] = highest;
      sum[r] = sum[r] * rescale + ReduceLanes<32>(context, weight, add);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) columns[r][c] *= rescale;
      for (int j = 0; j < part; ++j) {
        const X w = __shfl_sync(~0u, weight, j);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          if (lane + 32 * c < C::kValueDim) columns[r][c] += w * v_tile[j * C::kValueDim + lane + 32 * c];
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = warp * kRows + r;
    if (row >= count) break;
    const X inverse = sum[r] == 0 ? X(0) : 1 / sum[r];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (lane + 32 * c < C::kValueDim) out[row * C::kValueDim + lane + 32 * c] = Narrow<T>(columns[r][c] * inverse);
    }
  }
}

// Rotation of x[B, heads, L, dim] by given cos and sin [B, L, half] (arXiv:2104.09864): pair i is (i, i + half), or
// (2i, 2i + 1) if interleaved; what is past 2 * half is copied.
// C::T: element type.  C::kInterleaved.  C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void RotaryEmbedding(const Context& context, typename C::T* __restrict__ out,
                                                const typename C::T* __restrict__ x,
                                                const typename C::T* __restrict__ cos,
                                                const typename C::T* __restrict__ sin, i64 n, i64 heads, i64 length,
                                                i64 dim, i64 half) {
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  const i64 i = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (i >= n) return;
  const i64 row = i / dim, d = i % dim;
  if (d >= 2 * half) {
    out[i] = x[i];
    return;
  }
  const i64 pair = C::kInterleaved ? d / 2 : d % half;
  const bool second = C::kInterleaved ? d % 2 == 1 : d >= half;
  const i64 distance = C::kInterleaved ? 1 : half,
            angle = (row / (heads * length) * length + row % length) * half + pair;
  const auto c = Widen(cos[angle]), s = Widen(sin[angle]), a = Widen(x[i]),
             b = Widen(x[second ? i - distance : i + distance]);
  // The first of a pair is a cos - b sin, the second b sin + a cos.
  out[i] = Narrow<typename C::T>(op::Add(op::Mul(a, c), op::Mul(second ? b : -b, s)));
}

}  // namespace llmc
