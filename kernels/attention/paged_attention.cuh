// Causal attention of each token over its sequence's paged KV cache, for any type, group and head size: what the
// kernels of paged_attention_decode.cuh and paged_attention_prefill.cuh leave.
//
// One block per token and kHeads query heads that share a KV head, for which each key and value is read once. kLanes
// neighbouring lanes share a row of the cache; each such team walks every kTeams-th position with a running softmax of
// its own, and the teams are merged at the end.
#pragma once
#include "kernels/attention/head_terms.cuh"
#include "kernels/attention/paged_kv.cuh"
#include "kernels/common/context.cuh"

namespace llmc {

// The sequence that a token belongs to: the last s with starts[s] <= token. starts has `sequences` + 1 elements.
__device__ __forceinline__ i32 SequenceOf(i32 token, const i32* __restrict__ starts, i32 sequences) {
  i32 low = 0, high = sequences;
  while (high - low > 1) {
    const i32 middle = (low + high) / 2;
    (starts[middle] <= token ? low : high) = middle;
  }
  return low;
}

// A softmax under way: weights relative to exp(top), their sum, and the sum of weighted values.
template <int kElements>
struct RunningSoftmax {
  float top = Max::kIdentity;
  float sum = 0;
  float values[kElements] = {};

  __device__ __forceinline__ void Rescale(float new_top) {
    const float factor = top == new_top ? 1.0f : exp2f(top - new_top);
    top = new_top;
    sum *= factor;
#pragma unroll
    for (int i = 0; i < kElements; ++i) values[i] *= factor;
  }
};

// C::T: element type.  C::kKvHeads, C::kGroup: KV heads, and query heads of each.  C::kHeads: divides kGroup.
// C::kHeadDim, C::kValueDim: of keys, and of values; where they lie: paged_kv.cuh.
// C::kWindow, C::kChunk: FirstSeen.  C::kSoftcap: whether scores are capped.
// C::kThreads: threads per block.
// Elements of a row that are read at once, of `dim`.
template <class C>
constexpr int RowVector(int dim) {
  if constexpr (kIsEncoded<C>) {
    return VectorOf<typename C::T>(C::kKvGroup);
  } else {
    return VectorOf<typename C::T>(dim);
  }
}

template <class C>
struct PagedAttentionShape {
  static_assert(kIsModelType<typename C::T>, "T: float, f16 or bf16");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kHeads > 0 && C::kGroup % C::kHeads == 0, "kHeads: divides kGroup");
  static_assert(C::kHeadDim > 0 && C::kPageSize > 0 && C::kKvHeads > 0, "kHeadDim, kPageSize, kKvHeads: of the state");
  static_assert(C::kValueDim > 0, "kValueDim: of the state");
  static constexpr int kVec = RowVector<C>(C::kHeadDim);  // of keys
  static constexpr int kValueVec = RowVector<C>(C::kValueDim);
  // Of the longer row; both are in as many lanes.
  static constexpr int kVectors =
      C::kHeadDim / kVec > C::kValueDim / kValueVec ? C::kHeadDim / kVec : C::kValueDim / kValueVec;
  static constexpr int kLanes = kVectors > 16 ? 32 : kVectors > 8 ? 16 : kVectors > 4 ? 8 : 4;
  static constexpr int kPerLane = (C::kHeadDim / kVec + kLanes - 1) / kLanes;
  static constexpr int kElements = kPerLane * kVec;
  static constexpr int kValuesPerLane = (C::kValueDim / kValueVec + kLanes - 1) / kLanes;
  static constexpr int kValueElements = kValuesPerLane * kValueVec;
  static constexpr int kWarps = C::kThreads / 32;
  static constexpr int kTeams = C::kThreads / kLanes;
};

// A lane's elements of a key (part 0) or a value, in vectors of kVec; zeros past the end, or if it is not seen.
template <class C, int kPart, int kDim, int kVec, int kLanes, int kElements>
__device__ __forceinline__ void LoadRow(const CacheElement<C>* __restrict__ kv, u32 slot, i32 head, bool sees, i32 lane,
                                        const StaticScales& static_scales, float (&out)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements / kVec; ++i) {
    const int column = (i * kLanes + lane) * kVec;
    const bool exists = sees && column < kDim;
    if constexpr (kIsEncoded<C>) {
      static_assert(C::kHeadDim == kDim, "keys and values lie alike");
      float x[kVec] = {};
      if (exists) ReadCodes<C>(kv, slot, kPart, head, column, static_scales, x);
#pragma unroll
      for (int j = 0; j < kVec; ++j) out[i * kVec + j] = x[j];
    } else {
      const i64 row = (kPart == 0 ? KeysOfHead<C>(head) : ValuesOfHead<C, kDim>(head)) + RowOfSlot<C, kDim>(slot);
      Vec<typename C::T, kVec> a = {};
      if (exists) a = Load<typename C::T, kVec>(kv + row + column);
#pragma unroll
      for (int j = 0; j < kVec; ++j) out[i * kVec + j] = ToFloat(a.v[j]);
    }
  }
}

// `scale` is for base 2: the attention's scale times log2(e), or without it if scores are capped. `terms`: HeadTerms.
// Over 60 lines: one loop over positions, and what it keeps in registers.
template <class C, class Context, class Terms = HeadTerms<false, false>>
__device__ __forceinline__ void PagedAttention(const Context& context, typename C::T* __restrict__ out,
                                               const typename C::T* __restrict__ q,
                                               const CacheElement<C>* __restrict__ kv, const i32* __restrict__ pages,
                                               const i32* __restrict__ lens, const i32* __restrict__ starts,
                                               i64 sequences, i64 pages_per_sequence, float scale, float softcap,
                                               const Terms& terms = {}, const StaticScales& static_scales = {}) {
  constexpr float kLog2E = 1.4426950408889634f;
  using T = typename C::T;
  using S = PagedAttentionShape<C>;
  constexpr int kVec = S::kVec;
  constexpr int kValueVec = S::kValueVec;
  const i32 token = context.TileX(), kv_head = context.TileY() * C::kHeads / C::kGroup;
  const i32 sequence = SequenceOf(token, starts, static_cast<i32>(sequences));
  const i32 position = lens[sequence] - (starts[sequence + 1] - token);
  const i32 first = FirstSeen<C>(position);
  const i32 lane = threadIdx.x % S::kLanes, team = threadIdx.x / S::kLanes;
  const i32 first_query_head = context.TileY() * C::kHeads;
  const i64 first_head = token * static_cast<i64>(C::kKvHeads * C::kGroup) + first_query_head;
  const i64 q_row = first_head * C::kHeadDim, out_row = first_head * C::kValueDim;

  float query[C::kHeads][S::kElements];
#pragma unroll
  for (int g = 0; g < C::kHeads; ++g) {
#pragma unroll
    for (int i = 0; i < S::kPerLane; ++i) {
      const int column = (i * S::kLanes + lane) * kVec;
      Vec<T, kVec> a = {};
      if (column < C::kHeadDim) a = Load<T, kVec>(q + q_row + g * C::kHeadDim + column);
#pragma unroll
      for (int j = 0; j < kVec; ++j) query[g][i * kVec + j] = ToFloat(a.v[j]) * scale;
    }
  }

  RunningSoftmax<S::kValueElements> softmax[C::kHeads];
  const i32* table = pages + sequence * pages_per_sequence;
  // All lanes of a warp go round equally often: the shuffles below need them.
  for (i32 base = first; base <= position; base += S::kTeams) {
    const i32 p = base + team;
    const bool sees = p <= position;
    const u32 slot = sees ? static_cast<u32>(SlotOf<C>(table, p)) : 0;
    float k[S::kElements], v[S::kValueElements];
    LoadRow<C, 0, C::kHeadDim, kVec, S::kLanes>(kv, slot, kv_head, sees, lane, static_scales, k);
    LoadRow<C, 1, C::kValueDim, kValueVec, S::kLanes>(kv, slot, kv_head, sees, lane, static_scales, v);
#pragma unroll
    for (int g = 0; g < C::kHeads; ++g) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < S::kElements; ++i) dot += query[g][i] * k[i];
      float score = WarpReduce<S::kLanes>(dot, Sum());
      if constexpr (C::kSoftcap) score = softcap * tanhf(score / softcap) * kLog2E;
      if constexpr (Terms::kSlopes) {
        score += terms.slopes[first_query_head + g] * kLog2E * static_cast<float>(p - position);
      }
      if (!sees) continue;
      RunningSoftmax<S::kValueElements>& s = softmax[g];
      if (score > s.top) s.Rescale(score);
      const float weight = exp2f(score - s.top);
      s.sum += weight;
#pragma unroll
      for (int i = 0; i < S::kValueElements; ++i) s.values[i] += weight * v[i];
    }
  }

  // Teams of a warp, by shuffles; then warps, through shared memory.
  struct OfWarps {
    float tops[S::kWarps][C::kHeads], sums[S::kWarps][C::kHeads];
    float values[S::kWarps][C::kHeads][C::kValueDim];
  };
  auto& [tops, sums, values] = context.template Shared<OfWarps>();
  const i32 warp = threadIdx.x / 32;
#pragma unroll
  for (int g = 0; g < C::kHeads; ++g) {
    RunningSoftmax<S::kValueElements>& s = softmax[g];
#pragma unroll
    for (int offset = S::kLanes; offset < 32; offset *= 2) {
      const float other = __shfl_xor_sync(~0u, s.top, offset), top = fmaxf(s.top, other);
      if (top > Max::kIdentity) s.Rescale(top);
      s.sum += __shfl_xor_sync(~0u, s.sum, offset);
#pragma unroll
      for (int i = 0; i < S::kValueElements; ++i) s.values[i] += __shfl_xor_sync(~0u, s.values[i], offset);
    }
    if (threadIdx.x % 32 >= S::kLanes) continue;
    tops[warp][g] = s.top;
    sums[warp][g] = s.sum;
#pragma unroll
    for (int i = 0; i < S::kValuesPerLane; ++i) {
      const int column = (i * S::kLanes + lane) * kValueVec;
      if (column >= C::kValueDim) continue;
#pragma unroll
      for (int j = 0; j < kValueVec; ++j) values[warp][g][column + j] = s.values[i * kValueVec + j];
    }
  }
  context.Sync();
  for (int at = threadIdx.x; at < C::kHeads * C::kValueDim; at += C::kThreads) {
    const int g = at / C::kValueDim, column = at % C::kValueDim;
    float top = Max::kIdentity;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) top = fmaxf(top, tops[w][g]);
    float sum = 0, value = 0;
    if constexpr (Terms::kSinks) {
      const float sink = terms.sinks[first_query_head + g] * kLog2E;
      top = fmaxf(top, sink);
      sum = exp2f(sink - top);
    }
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      const float factor = exp2f(tops[w][g] - top);  // 0 for a warp that saw nothing
      sum += sums[w][g] * factor;
      value += values[w][g][column] * factor;
    }
    out[out_row + at] = FromFloat<T>(sum > 0 ? value / sum : 0.0f);
  }
}

}  // namespace llmc
