// The rows of sample.cuh: their logits as a draw sees them, and what the blocks of a row share.
#pragma once
#include "kernels/common/context.cuh"
#include "kernels/layout/sampling.h"
#include "kernels/sampling/step_inputs.cuh"

namespace llmc {

__device__ __forceinline__ u64 SampleWeight(float x) {
  return TokenWeight(x, [](float a, float b, float c) { return __fmaf_rn(a, b, c); });
}

// a * b / 2^64, rounded up.
__device__ __forceinline__ u64 MultiplyHighUp(u64 a, u64 b) { return __umul64hi(a, b) + (a * b != 0 ? 1 : 0); }

// Orders logits, and tokens of equal logits with the lowest id first; larger is likelier.
__device__ __forceinline__ u64 RankKey(float logit, u32 token) {
  const u32 bits = __float_as_uint(logit + 0.0f);  // no negative zero
  const u32 ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<u64>(ordered) << 32 | ~token;
}
__device__ __forceinline__ float LogitOfKey(u64 key) {
  const u32 ordered = static_cast<u32>(key >> 32);
  return __uint_as_float((ordered >> 31) != 0 ? ordered & 0x7fffffffu : ~ordered);
}
__device__ __forceinline__ u32 TokenOfKey(u64 key) { return ~static_cast<u32>(key); }

// Bounds of the keys of finite logits.
constexpr u64 kPlusInfinityKey = 0xff800000ull << 32, kMinusInfinityKey = 0x00800000ull << 32;

// C::kVocab.  C::T: of the logits.  C::kThreads.
template <class C>
struct SampleShape {
  using T = typename C::T;
  static constexpr int kVocab = C::kVocab;
  static constexpr int kThreads = C::kThreads, kWarps = kThreads / 32;
  static constexpr int kSlice = kSampleSlice, kSlices = static_cast<int>(SampleSlices(kVocab));
  static constexpr int kVec = VectorOf<T>(kVocab) < 4 ? VectorOf<T>(kVocab) : 4;
  static constexpr int kBins = kSampleBins, kCandidates = kSampleCandidates;
  using Work = SampleWork<kSlices>;

  static_assert(kThreads == kSampleThreads, "kThreads: as slices are cut");
  static_assert(kThreads >= kBins && kSlice % (kThreads * kVec) == 0, "a thread has a bin and whole vectors");
  static_assert(kSlices <= kThreads, "a vocabulary has at most 8,192 tokens for each thread of a block");
};

template <class C>
struct SampleShared {
  using S = SampleShape<C>;
  u64 keys[S::kCandidates];  // first: one block's candidates, then all; or bins of the radix selection
  u64 slices[S::kSlices];
  u64 warps[S::kWarps];
  u32 low[S::kBins], high[S::kBins], counts[S::kBins];
  u64 number[2];
  u32 index;
  bool flag;
};

// What SampleMax has beside it.
template <class C>
struct SampleMaxShared {
  SampleShared<C> all;
  float warps[SampleShape<C>::kWarps];
};

// One row as one z sees it.
template <class C>
struct SampleRow {
  using S = SampleShape<C>;
  using T = typename C::T;

  const DrawRequest* draw;
  const T* logits;
  typename S::Work* work;
  bool plain;  // z = 1
  float largest, smallest, scale, bin_scale;

  __device__ float Penalized(float logit, u32 count) const {
    if (count == 0 || !(fabsf(logit) < __uint_as_float(0x7f800000u))) return logit;
    logit = logit > 0 ? __fdiv_rn(logit, draw->repetition) : logit * draw->repetition;
    const u32 generated = count & ~kInPrompt;
    if (generated > 0) logit = __fmaf_rn(-draw->frequency, static_cast<float>(generated), logit) - draw->presence;
    return logit;
  }
  __device__ float Logit(int token) const {
    const float logit = ToFloat(logits[token]);
    return plain || draw->counts == nullptr ? logit : Penalized(logit, draw->counts[token]);
  }
  // Calls f(token, logit) for this thread's tokens of a slice, in ascending order, in coalesced vectors. A loop, with
  // the next vector on its way: code that runs once takes longer to be fetched than to run.
  template <class F>
  __device__ void ForEach(int slice, F f) const {
    const bool penalize = !plain && draw->counts != nullptr;
    constexpr int kStep = S::kThreads * S::kVec;
    int token = slice * S::kSlice + threadIdx.x * S::kVec;
    const int end = min((slice + 1) * S::kSlice, S::kVocab);
    Vec<T, S::kVec> next = {};
    if (token < end) next = Load<T, S::kVec>(logits + token);
#pragma unroll 1
    for (; token < end; token += kStep) {
      const Vec<T, S::kVec> x = next;
      if (token + kStep < end) next = Load<T, S::kVec>(logits + token + kStep);
#pragma unroll
      for (int i = 0; i < S::kVec; ++i) {
        const float logit = ToFloat(x.v[i]);
        f(token + i, penalize ? Penalized(logit, draw->counts[token + i]) : logit);
      }
    }
  }
  // A plain row counts all tokens; a drawn one those that have a weight.
  __device__ bool Counts(u64 weight) const { return plain || weight > 0; }
  __device__ float Distance(float logit) const { return (largest - logit) * scale; }
  __device__ u32 Bin(float distance) const { return min(static_cast<u32>(distance * bin_scale), S::kBins - 1u); }
  __device__ u64 MinWeight() const { return plain ? 0 : draw->min_weight; }
  __device__ u32 TopK() const { return plain ? static_cast<u32>(draw->log_probs) : draw->top_k; }
  __device__ u64 TopP() const { return plain ? 0 : draw->top_p; }
};

// Whether there is anything to do for this block's draw and z; greedy rows have no z = 0 after SampleMax.
template <class C, class Context>
inline __device__ bool BeginRow(const Context& context, const typename C::T* logits, const DrawRequest* draws, u8* work,
                                bool after_max, SampleRow<C>* row) {
  using S = SampleShape<C>;
  const DrawRequest* draw = draws + context.TileY();
  if (draw->result == nullptr) return false;
  row->draw = draw;
  row->logits = logits + static_cast<i64>(draw->row) * S::kVocab;
  row->plain = context.TileZ() == 1;
  row->work = reinterpret_cast<typename S::Work*>(work) +
              (static_cast<i64>(context.TileZ()) * context.TilesY() + context.TileY());
  if (row->plain) return draw->log_probs >= 0;
  return !after_max || draw->log2_scale != 0;
}

inline __device__ u64 WarpMax(u64 x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

template <class C, class Context>
inline __device__ u64 BlockMax(const Context& context, u64 x, SampleShared<C>* shared) {
  using S = SampleShape<C>;
  x = WarpMax(x);
  context.Sync();
  if (threadIdx.x % 32 == 0) shared->warps[threadIdx.x / 32] = x;
  context.Sync();
  return WarpMax(threadIdx.x % 32 < S::kWarps ? shared->warps[threadIdx.x % 32] : 0);
}

// The sum of x up to and with this lane.
inline __device__ u64 WarpScan(u64 x) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const u64 below = __shfl_up_sync(~0u, x, offset);
    if (threadIdx.x % 32 >= offset) x += below;
  }
  return x;
}

// The sum of x over the threads before this one; `all` over all.
template <class C, class Context>
inline __device__ u64 BlockScan(const Context& context, u64 x, u64* all, SampleShared<C>* shared) {
  using S = SampleShape<C>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u64 sum = WarpScan(x);
  context.Sync();
  if (lane == 31) shared->warps[warp] = sum;
  context.Sync();
  const u64 of_warp = lane < S::kWarps ? shared->warps[lane] : 0, warps = WarpScan(of_warp);
  *all = __shfl_sync(~0u, warps, 31);
  return __shfl_sync(~0u, warps - of_warp, warp) + sum - x;
}

// True in the block of the row that comes last, which then sees what the others wrote.
template <class C, class Context>
inline __device__ bool IsLastBlock(const Context& context, u32* ticket, SampleShared<C>* shared) {
  using S = SampleShape<C>;
  __threadfence();
  context.Sync();
  if (threadIdx.x == 0) {
    shared->flag = atomicAdd(ticket, 1u) == S::kSlices - 1;
    if (shared->flag) *ticket = 0;
  }
  context.Sync();
  if (shared->flag) __threadfence();
  return shared->flag;
}

// Each warp for itself.
template <class C>
inline __device__ u64 BestOfSlices(const SampleRow<C>& row) {
  using S = SampleShape<C>;
  u64 best = 0;
  for (int s = threadIdx.x % 32; s < S::kSlices; s += 32) best = max(best, __ldcg(&row.work->best[s]));
  return WarpMax(best);
}

// Largest and smallest logit and what follows from them. False: the row has a logit that is NaN or infinite, or none.
template <class C>
inline __device__ bool ReadRange(SampleRow<C>* row, u64* best) {
  using S = SampleShape<C>;
  *best = BestOfSlices(*row);
  if (*best >= kPlusInfinityKey || *best < kMinusInfinityKey) return false;
  row->largest = LogitOfKey(*best);
  float smallest = row->largest;
  for (int s = threadIdx.x % 32; s < S::kSlices; s += 32) smallest = fminf(smallest, __ldcg(&row->work->smallest[s]));
  row->smallest = -WarpReduce(-smallest, Max());
  row->scale = row->plain ? 1.44269504f : row->draw->log2_scale;
  // Bins are as wide as is needed for all tokens that have a weight.
  const float range = fminf((row->largest - row->smallest) * row->scale, row->plain ? 128.0f : 40.0f);
  row->bin_scale = S::kBins / fmaxf(range, 1e-30f);
  return true;
}

template <class C, class Context>
inline __device__ void ChooseToken(const Context& context, const SampleRow<C>& row, i32 token, i32* sampled) {
  sampled[context.TileY()] = token;
  row.draw->result->token = token;
  row.draw->result->status = 0;
  row.draw->result->logit = ToFloat(row.logits[token]);
  if (row.draw->counts != nullptr) row.draw->counts[token] += 1;
}

template <class C, class Context>
inline __device__ void RefuseRow(const Context& context, const SampleRow<C>& row, u64 best, i32* sampled) {
  sampled[context.TileY()] = 0;
  row.draw->result->token = best >= kPlusInfinityKey ? static_cast<i32>(TokenOfKey(best)) : 0;
  row.draw->result->status = best >= kPlusInfinityKey ? 1 : 2;
  row.draw->result->logit = ToFloat(row.logits[row.draw->result->token]);
}

}  // namespace llmc
