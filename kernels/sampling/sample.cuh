// Choice of the next token from rows of logits [rows, kVocab]: greedy, or drawn after penalties, temperature, top-k,
// top-p and min-p; and log-probabilities of the likeliest tokens. The reference is runtime/engine/sampler.cc, and
// tokens are the same, bit for bit, whatever the batch: a token's weight exp((logit - largest) / temperature) is an
// integer (2^40 for the likeliest), so no sum depends on the order of its terms.
//
// A row is split into slices of eight tokens a thread, one block each. Who finishes a row last does what needs the
// whole row:
//   SampleMax        largest and smallest logit; greedy rows are done then
//   SampleHistogram  weights and counts in 256 bins of the logit, from likely to unlikely: which bins hold the borders
//                    of top-k and top-p
//   SampleFinish     the weight of each slice in bins before the border, and the few tokens in the border's bins, which
//                    are sorted: that gives the exact border. The draw then picks a slice, and a token in it.
// So no vocabulary is sorted. If more than 4,096 tokens are in the border's bins (equal logits), one block selects
// the border by its bits instead (radix selection), which is slow and exact.
//
// Grid: slices, draws, and 2 in z if log-probabilities are wanted: z = 1 treats the plain logits at temperature 1 with
// top_k = log_probs. Config: kVocab, T (of the logits), kThreads, kWorkBytes (see Work).
#pragma once

#include "kernels/common/common.cuh"
#include "kernels/sampling/step_inputs.cuh"

namespace llmc {

constexpr u32 kInPrompt = 1u << 31;
constexpr int kMaxTop = 20;

struct DrawResult {
  i32 token;
  i32 status;     // 0; 1: logits[token] is NaN or infinite; 2: no token can be
  float logit;    // of the token, without penalties
  float largest;  // logit
  u64 total;      // of the weights at temperature 1
  i32 top_count;
  i32 unused;
  i32 top_tokens[kMaxTop];
  float top_logits[kMaxTop];
};
static_assert(sizeof(DrawResult) == 192, "as in runtime/engine/step_message.h");

// 2^-x in units of 2^-40, rounded down; the same operations as in runtime/engine/sampler.cc.
__device__ __forceinline__ u64 SampleWeight(float x) {
  if (x > 40.0f) return 0;
  const int whole = static_cast<int>(x);
  const float f = x - static_cast<float>(whole);
  float p = 0.000114980925f;
  p = __fmaf_rn(p, f, -0.00129179028f);
  p = __fmaf_rn(p, f, 0.00959717017f);
  p = __fmaf_rn(p, f, -0.055499278f);
  p = __fmaf_rn(p, f, 0.240226105f);
  p = __fmaf_rn(p, f, -0.693147182f);
  p = __fmaf_rn(p, f, 1.0f);
  return (static_cast<u64>(p * 16777216.0f) << 16) >> whole;
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

template <class Config>
struct Sample {
  using T = typename Config::T;
  static constexpr int kVocab = Config::kVocab;
  static constexpr int kThreads = Config::kThreads, kWarps = kThreads / 32;
  static constexpr int kSlice = 8 * kThreads, kSlices = (kVocab + kSlice - 1) / kSlice;
  static constexpr int kVec = VectorOf<T>(kVocab) < 4 ? VectorOf<T>(kVocab) : 4;
  static constexpr int kBins = 256, kCandidates = 4096;
  static constexpr u64 kPlusInfinity = 0xff800000ull << 32, kMinusInfinity = 0x00800000ull << 32;  // bounds of keys
  static_assert(kThreads >= kBins && kSlice % (kThreads * kVec) == 0, "a thread has a bin and whole vectors");
  static_assert(kSlices <= kThreads, "a vocabulary has at most 8,192 tokens for each thread of a block");

  // What the blocks of one draw tell each other. Zero at first; tickets and num_candidates are left zero.
  struct Work {
    u64 best[kSlices];  // the largest key
    u64 slice_weights[kSlices];
    u64 bin_weights[kSlices][kBins];
    u64 candidates[kCandidates];
    u64 base_weight, total;  // of bins before `first`, and of all
    u32 bin_counts[kSlices][kBins];
    float smallest[kSlices];  // finite logit
    u32 tickets[3];
    u32 num_candidates;
    u32 first, last;        // bins that hold borders; first > last: all tokens are kept
    u32 base_count, count;  // tokens in bins before `first`, and in all
  };
  static_assert(sizeof(Work) == Config::kWorkBytes, "codegen reserves as much for each draw and z");

  struct Shared {
    u64 keys[kCandidates];  // first: one block's candidates, then all; or bins of the radix selection
    u64 slices[kSlices];
    u64 warps[kWarps];
    u32 low[kBins], high[kBins], counts[kBins];
    u64 number[2];
    u32 index;
    bool flag;
  };

  // One row as one z sees it.
  struct Row {
    const Draw* draw;
    const T* logits;
    Work* work;
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
      constexpr int kStep = kThreads * kVec;
      int token = slice * kSlice + threadIdx.x * kVec;
      const int end = min((slice + 1) * kSlice, kVocab);
      Vec<T, kVec> next = {};
      if (token < end) next = Load<T, kVec>(logits + token);
#pragma unroll 1
      for (; token < end; token += kStep) {
        const Vec<T, kVec> x = next;
        if (token + kStep < end) next = Load<T, kVec>(logits + token + kStep);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const float logit = ToFloat(x.v[i]);
          f(token + i, penalize ? Penalized(logit, draw->counts[token + i]) : logit);
        }
      }
    }
    // A plain row counts all tokens; a drawn one those that have a weight.
    __device__ bool Counts(u64 weight) const { return plain || weight > 0; }
    __device__ float Distance(float logit) const { return (largest - logit) * scale; }
    __device__ u32 Bin(float distance) const { return min(static_cast<u32>(distance * bin_scale), kBins - 1u); }
    __device__ u64 MinWeight() const { return plain ? 0 : draw->min_weight; }
    __device__ u32 TopK() const { return plain ? static_cast<u32>(draw->log_probs) : draw->top_k; }
    __device__ u64 TopP() const { return plain ? 0 : draw->top_p; }
  };

  // Whether there is anything to do for this block's draw and z; greedy rows have no z = 0 after SampleMax.
  static __device__ bool Begin(const T* logits, const Draw* draws, u8* work, bool after_max, Row* row) {
    const Draw* draw = draws + blockIdx.y;
    if (draw->result == nullptr) return false;
    row->draw = draw;
    row->logits = logits + static_cast<i64>(draw->row) * kVocab;
    row->plain = blockIdx.z == 1;
    row->work = reinterpret_cast<Work*>(work) + (static_cast<i64>(blockIdx.z) * gridDim.y + blockIdx.y);
    if (row->plain) return draw->log_probs >= 0;
    return !after_max || draw->log2_scale != 0;
  }

  static __device__ u64 WarpMax(u64 x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(~0u, x, offset));
    return x;
  }

  static __device__ u64 BlockMax(u64 x, Shared* shared) {
    x = WarpMax(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared->warps[threadIdx.x / 32] = x;
    __syncthreads();
    return WarpMax(threadIdx.x % 32 < kWarps ? shared->warps[threadIdx.x % 32] : 0);
  }

  // The sum of x up to and with this lane.
  static __device__ u64 WarpScan(u64 x) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const u64 below = __shfl_up_sync(~0u, x, offset);
      if (threadIdx.x % 32 >= offset) x += below;
    }
    return x;
  }

  // The sum of x over the threads before this one; `all` over all.
  static __device__ u64 BlockScan(u64 x, u64* all, Shared* shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u64 sum = WarpScan(x);
    __syncthreads();
    if (lane == 31) shared->warps[warp] = sum;
    __syncthreads();
    const u64 of_warp = lane < kWarps ? shared->warps[lane] : 0, warps = WarpScan(of_warp);
    *all = __shfl_sync(~0u, warps, 31);
    return __shfl_sync(~0u, warps - of_warp, warp) + sum - x;
  }

  // True in the block of the row that comes last, which then sees what the others wrote.
  static __device__ bool IsLast(u32* ticket, Shared* shared) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      shared->flag = atomicAdd(ticket, 1u) == kSlices - 1;
      if (shared->flag) *ticket = 0;
    }
    __syncthreads();
    if (shared->flag) __threadfence();
    return shared->flag;
  }

  // Each warp for itself.
  static __device__ u64 BestOfSlices(const Work& work) {
    u64 best = 0;
    for (int s = threadIdx.x % 32; s < kSlices; s += 32) best = max(best, __ldcg(&work.best[s]));
    return WarpMax(best);
  }

  // Largest and smallest logit and what follows from them. False: the row has a logit that is NaN or infinite, or none.
  static __device__ bool ReadRange(Row* row, u64* best) {
    *best = BestOfSlices(*row->work);
    if (*best >= kPlusInfinity || *best < kMinusInfinity) return false;
    row->largest = LogitOfKey(*best);
    float smallest = row->largest;
    for (int s = threadIdx.x % 32; s < kSlices; s += 32) smallest = fminf(smallest, __ldcg(&row->work->smallest[s]));
    row->smallest = -WarpReduce(-smallest, Max());
    row->scale = row->plain ? 1.44269504f : row->draw->log2_scale;
    // Bins are as wide as is needed for all tokens that have a weight.
    const float range = fminf((row->largest - row->smallest) * row->scale, row->plain ? 128.0f : 40.0f);
    row->bin_scale = kBins / fmaxf(range, 1e-30f);
    return true;
  }

  static __device__ void Choose(const Row& row, i32 token, i32* sampled) {
    sampled[blockIdx.y] = token;
    row.draw->result->token = token;
    row.draw->result->status = 0;
    row.draw->result->logit = ToFloat(row.logits[token]);
    if (row.draw->counts != nullptr) row.draw->counts[token] += 1;
  }

  static __device__ void Refuse(const Row& row, u64 best, i32* sampled) {
    sampled[blockIdx.y] = 0;
    row.draw->result->token = best >= kPlusInfinity ? static_cast<i32>(TokenOfKey(best)) : 0;
    row.draw->result->status = best >= kPlusInfinity ? 1 : 2;
    row.draw->result->logit = ToFloat(row.logits[row.draw->result->token]);
  }

  static __device__ void RunMax(const T* logits, const Draw* draws, u8* work, i32* sampled) {
    __shared__ Shared shared;
    LaunchDependents();
    GridDependencyWait();
    Row row;
    if (!Begin(logits, draws, work, /*after_max=*/false, &row)) return;
    const float infinity = __uint_as_float(0x7f800000u);
    float best = -infinity, smallest = infinity;
    int best_token = blockIdx.x * kSlice + threadIdx.x * kVec;
    bool wrong = false;  // it is NaN or +infinity
    row.ForEach(blockIdx.x, [&](int token, float logit) {
      if (logit > best) {
        best = logit;
        best_token = token;
      }
      if (logit > -infinity) smallest = fminf(smallest, logit);
      wrong |= !(logit < infinity);
    });
    u64 key = RankKey(best, best_token);
    if (wrong) {
      key = 0;
      row.ForEach(blockIdx.x, [&](int token, float logit) {
        if (!(logit < infinity)) key = max(key, 0xffffffffull << 32 | ~static_cast<u32>(token));
      });
    }
    key = BlockMax(key, &shared);
    if (threadIdx.x == 0) row.work->best[blockIdx.x] = key;
    if (row.plain || row.draw->log2_scale != 0) {
      smallest = -BlockReduce<kThreads>(-smallest, Max());
      if (threadIdx.x == 0) row.work->smallest[blockIdx.x] = smallest;
      return;
    }
    if (!IsLast(&row.work->tickets[0], &shared)) return;
    key = BestOfSlices(*row.work);
    if (threadIdx.x != 0) return;
    if (key >= kPlusInfinity || key < kMinusInfinity) {
      Refuse(row, key, sampled);
    } else {
      Choose(row, static_cast<i32>(TokenOfKey(key)), sampled);
    }
  }

  // Adds to a 64-bit number in two halves: shared memory adds 32 bits at a time.
  static __device__ void AddWeight(u64 weight, u32 bin, Shared* shared) {
    const u32 low = static_cast<u32>(weight);
    u32 high = static_cast<u32>(weight >> 32);
    if (low != 0 && atomicAdd(&shared->low[bin], low) + low < low) ++high;
    if (high != 0) atomicAdd(&shared->high[bin], high);
    atomicAdd(&shared->counts[bin], 1u);
  }

  static __device__ void ClearBins(Shared* shared) {
    __syncthreads();
    for (int b = threadIdx.x; b < kBins; b += kThreads) shared->low[b] = shared->high[b] = shared->counts[b] = 0;
    __syncthreads();
  }

  static __device__ u64 BinWeight(const Shared& shared, int bin) {
    return static_cast<u64>(shared.high[bin]) << 32 | shared.low[bin];
  }

  static __device__ bool NeedsBins(const Row& row) { return row.plain || row.draw->top_k > 0 || row.draw->top_p > 0; }

  static __device__ void RunHistogram(const T* logits, const Draw* draws, u8* work) {
    __shared__ Shared shared;
    LaunchDependents();
    GridDependencyWait();
    Row row;
    u64 best;
    if (!Begin(logits, draws, work, /*after_max=*/true, &row) || !NeedsBins(row)) return;
    if (!ReadRange(&row, &best)) return;
    ClearBins(&shared);
    row.ForEach(blockIdx.x, [&](int, float logit) {
      const float distance = row.Distance(logit);
      const u64 weight = SampleWeight(distance);
      if (row.Counts(weight)) AddWeight(weight, row.Bin(distance), &shared);
    });
    __syncthreads();
    for (int b = threadIdx.x; b < kBins; b += kThreads) {
      row.work->bin_weights[blockIdx.x][b] = BinWeight(shared, b);
      row.work->bin_counts[blockIdx.x][b] = shared.counts[b];
    }
    if (IsLast(&row.work->tickets[1], &shared)) FindBorders(row, &shared);
  }

  // The first bin up to which the sum of `values`, which `before` scans, reaches `wanted`; kBins if none.
  static __device__ u32 BinReaching(u64 wanted, u64 before, u64 value, Shared* shared) {
    __syncthreads();
    if (threadIdx.x == 0) shared->index = kBins;
    __syncthreads();
    if (threadIdx.x < kBins && before < wanted && before + value >= wanted) shared->index = threadIdx.x;
    __syncthreads();
    return shared->index;
  }

  static __device__ void FindBorders(const Row& row, Shared* shared) {
    u64 weight = 0, count = 0, total, total_count;
    if (threadIdx.x < kBins) {
#pragma unroll 8
      for (int s = 0; s < kSlices; ++s) {
        weight += __ldcg(&row.work->bin_weights[s][threadIdx.x]);
        count += __ldcg(&row.work->bin_counts[s][threadIdx.x]);
      }
    }
    const u64 weight_before = BlockScan(weight, &total, shared);
    const u64 count_before = BlockScan(count, &total_count, shared);
    u32 first = kBins, last = 0;
    u64 least_total = total;  // what top-k leaves is at least that
    if (row.TopK() > 0 && row.TopK() < total_count) {
      first = last = BinReaching(row.TopK(), count_before, count, shared);
      __syncthreads();
      if (threadIdx.x == last) shared->number[0] = weight_before;
      __syncthreads();
      least_total = shared->number[0];
    }
    if (row.TopP() > 0) {
      // If top-k leaves little more than nothing, the border can be in any bin up to that of top-k.
      const u64 least = max(MultiplyHighUp(least_total, row.TopP()), 1ull);
      const u32 bin = BinReaching(least, weight_before, weight, shared);
      if (first == kBins) last = bin;
      first = min(bin, first);
    }
    if (row.plain) first = 0;  // all of the likeliest are listed
    __syncthreads();
    if (threadIdx.x == first) {
      row.work->base_weight = weight_before;
      row.work->base_count = static_cast<u32>(count_before);
    }
    if (threadIdx.x != 0) return;
    row.work->first = first;
    row.work->last = last;
    row.work->total = total;
    row.work->count = static_cast<u32>(total_count);
    if (!row.plain) return;
    row.draw->result->total = total;
    row.draw->result->largest = row.largest;
    row.draw->result->top_count = 0;
    if (row.TopK() >= total_count) row.work->last = kBins - 1;
  }

  static __device__ void RunFinish(const T* logits, const Draw* draws, u8* work, i32* sampled) {
    __shared__ Shared shared;
    LaunchDependents();
    GridDependencyWait();
    Row row;
    u64 best;
    if (!Begin(logits, draws, work, /*after_max=*/true, &row) || (row.plain && row.draw->log_probs == 0)) return;
    if (!ReadRange(&row, &best)) {
      if (!row.plain && blockIdx.x == 0 && threadIdx.x == 0) Refuse(row, best, sampled);
      return;
    }
    const bool has_bins = NeedsBins(row);
    const u32 first = has_bins ? row.work->first : kBins, last = has_bins ? row.work->last : 0;
    if (threadIdx.x == 0) shared.index = 0;
    __syncthreads();
    u64 sum = 0;
    row.ForEach(blockIdx.x, [&](int token, float logit) {
      const float distance = row.Distance(logit);
      const u32 bin = row.Bin(distance);
      if (bin >= first && bin > last) return;  // most tokens
      const u64 weight = SampleWeight(distance);
      if (!row.Counts(weight)) return;
      if (bin < first) {
        if (weight >= row.MinWeight()) sum += weight;
      } else {
        const u32 at = atomicAdd(&shared.index, 1u);
        if (at < kCandidates) shared.keys[at] = RankKey(logit, token);
      }
    });
    u64 slice_weight;
    BlockScan(sum, &slice_weight, &shared);
    const u32 found = shared.index;
    if (threadIdx.x == 0) {
      row.work->slice_weights[blockIdx.x] = slice_weight;
      if (found > 0) shared.number[0] = atomicAdd(&row.work->num_candidates, found);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < found; i += kThreads) {
      const u32 to = static_cast<u32>(shared.number[0]) + i;
      if (i < kCandidates && to < kCandidates) row.work->candidates[to] = shared.keys[i];
    }
    if (!IsLast(&row.work->tickets[2], &shared)) return;
    const u32 candidates = __ldcg(&row.work->num_candidates);
    __syncthreads();
    if (threadIdx.x == 0) row.work->num_candidates = 0;
    if (threadIdx.x < kSlices) shared.slices[threadIdx.x] = __ldcg(&row.work->slice_weights[threadIdx.x]);
    __syncthreads();
    u64 border = 0;  // tokens with this key and above are kept
    if (row.plain) {
      ReportTop(row, candidates, &shared);
      return;
    }
    if (candidates > kCandidates) {
      border = SelectBorder(row, &shared);
      for (int s = 0; s < kSlices; ++s) SumSlice(row, s, border, &shared);
    } else if (candidates > 0) {
      border = SortBorder(row, candidates, &shared);
    }
    DrawToken(row, border, sampled, &shared);
  }

  // Loads the candidates and sorts them, the likeliest first (bitonic; Batcher, 1968).
  static __device__ void SortCandidates(const Row& row, u32 count, Shared* shared) {
    u32 size = 1;
    while (size < count) size *= 2;
    for (u32 i = threadIdx.x; i < size; i += kThreads) {
      shared->keys[i] = i < count ? __ldcg(&row.work->candidates[i]) : 0;
    }
    SortKeys(size, shared);
  }

  static __device__ void SortKeys(u32 size, Shared* shared) {
    __syncthreads();
    for (u32 run = 2; run <= size; run *= 2) {
      for (u32 step = run / 2; step > 0; step /= 2) {
        for (u32 pair = threadIdx.x; pair < size / 2; pair += kThreads) {
          const u32 a = 2 * pair - (pair & (step - 1)), b = a + step;
          const u64 x = shared->keys[a], y = shared->keys[b];
          if ((x < y) == ((a & run) == 0)) {
            shared->keys[a] = y;
            shared->keys[b] = x;
          }
        }
        // Pairs of a warp lie in 64 neighbouring keys.
        const u32 next = step > 1 ? step / 2 : run;
        if (max(step, next) > 32) {
          __syncthreads();
        } else {
          __syncwarp();
        }
      }
    }
    __syncthreads();
  }

  static __device__ u64 KeyWeight(const Row& row, u64 key) { return SampleWeight(row.Distance(LogitOfKey(key))); }

  // The border among the sorted candidates; what is above it counts for its slices.
  static __device__ u64 SortBorder(const Row& row, u32 count, Shared* shared) {
    SortCandidates(row, count, shared);
    constexpr u32 kEach = kCandidates / kThreads;
    u64 weights[kEach], own = 0, sum;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      const u32 at = threadIdx.x * kEach + i;
      weights[i] = at < count ? KeyWeight(row, shared->keys[at]) : 0;
      own += weights[i];
    }
    const Work& work = *row.work;
    const u64 before = work.base_weight + BlockScan(own, &sum, shared);
    // After top-k.
    const u32 base = work.base_count;
    u32 kept = count;
    u64 total = work.total;
    if (row.TopK() > 0 && row.TopK() < work.count) {
      kept = row.TopK() - base;
      u64 mine = 0;
#pragma unroll
      for (u32 i = 0; i < kEach; ++i) mine += threadIdx.x * kEach + i < kept ? weights[i] : 0;
      BlockScan(mine, &total, shared);
      total += work.base_weight;
    }
    // The first candidates that reach top-p.
    if (row.TopP() > 0) {
      const u64 least = MultiplyHighUp(total, row.TopP());
      if (threadIdx.x == 0) shared->index = kept;
      __syncthreads();
      u64 reached = before;
#pragma unroll
      for (u32 i = 0; i < kEach; ++i) {
        if (reached < least && reached + weights[i] >= least) atomicMin(&shared->index, threadIdx.x * kEach + i + 1);
        reached += weights[i];
      }
      __syncthreads();
      kept = shared->index;
    }
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      const u32 at = threadIdx.x * kEach + i;
      if (at < kept && weights[i] >= row.MinWeight()) {
        atomicAdd(&shared->slices[TokenOfKey(shared->keys[at]) / kSlice], weights[i]);
      }
    }
    __syncthreads();
    return shared->keys[kept - 1];
  }

  struct Selected {
    u64 key;     // of the last that is kept
    u64 weight;  // of all kept
  };

  // The likeliest tokens, as few as reach `count` or `weight`, whichever is not 0: eight bits of the key at a time.
  static __device__ Selected Select(const Row& row, u64 count, u64 weight, Shared* shared) {
    u64 prefix = 0, base_count = 0, base_weight = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
      ClearBins(shared);
      for (int s = 0; s < kSlices; ++s) {
        row.ForEach(s, [&](int token, float logit) {
          const u64 w = SampleWeight(row.Distance(logit)), key = RankKey(logit, token);
          if (row.Counts(w) && (shift == 56 || key >> (shift + 8) == prefix)) AddWeight(w, key >> shift & 255, shared);
        });
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        int bin = 255;
        for (; bin > 0; --bin) {
          const u64 c = base_count + shared->counts[bin], w = base_weight + BinWeight(*shared, bin);
          if (count > 0 ? c >= count : w >= weight) break;
          base_count = c;
          base_weight = w;
        }
        shared->number[0] = base_weight + (shift == 0 ? BinWeight(*shared, bin) : 0);
        shared->index = bin;
      }
      __syncthreads();
      prefix = prefix << 8 | shared->index;
    }
    return {prefix, shared->number[0]};
  }

  static __device__ u64 SelectBorder(const Row& row, Shared* shared) {
    Selected kept = {0, row.work->total};
    if (row.TopK() > 0 && row.TopK() < row.work->count) kept = Select(row, row.TopK(), 0, shared);
    if (row.TopP() > 0) kept = Select(row, 0, MultiplyHighUp(kept.weight, row.TopP()), shared);
    return kept.key;
  }

  static __device__ void SumSlice(const Row& row, int slice, u64 border, Shared* shared) {
    u64 sum = 0, all;
    row.ForEach(slice, [&](int token, float logit) {
      const u64 weight = SampleWeight(row.Distance(logit));
      if (weight >= row.MinWeight() && RankKey(logit, token) >= border) sum += weight;
    });
    BlockScan(sum, &all, shared);
    if (threadIdx.x == 0) shared->slices[slice] = all;
    __syncthreads();
  }

  // In order of tokens: the one in whose part of the sum the random number falls. First the slice is found, then the
  // warp whose part of the slice has it, then the lane.
  static __device__ void DrawToken(const Row& row, u64 border, i32* sampled, Shared* shared) {
    const u64 mine = threadIdx.x < kSlices ? shared->slices[threadIdx.x] : 0;
    u64 total;
    const u64 before = BlockScan(mine, &total, shared);
    const u64 target = __umul64hi(row.draw->random, total);
    __syncthreads();
    if (before <= target && target < before + mine) {
      shared->index = threadIdx.x;
      shared->number[0] = target - before;
    }
    __syncthreads();
    const u64 wanted = shared->number[0];
    constexpr int kOfWarp = kSlice / kWarps, kSweeps = kOfWarp / (32 * kVec);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = shared->index * kSlice + warp * kOfWarp + lane * kVec;
    const u64 min_weight = row.MinWeight();
    const auto weight_of = [&](int token) -> u64 {
      const float logit = row.Logit(token);
      const u64 weight = SampleWeight(row.Distance(logit));
      return weight >= min_weight && RankKey(logit, token) >= border ? weight : 0;
    };
    u64 sums[kSweeps], sum = 0;
#pragma unroll
    for (int s = 0; s < kSweeps; ++s) {
      sums[s] = 0;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const int token = first + s * 32 * kVec + i;
        if (token < kVocab) sums[s] += weight_of(token);
      }
      sum += sums[s];
    }
    u64 all;
    u64 at = __shfl_sync(~0u, BlockScan(sum, &all, shared), 0);  // before this warp
#pragma unroll
    for (int s = 0; s < kSweeps; ++s) {
      const u64 up_to = WarpScan(sums[s]);
      u64 here = at + up_to - sums[s];
      if (here <= wanted && wanted < at + up_to) {
        int token = first + s * 32 * kVec;
        for (here += weight_of(token); wanted >= here; here += weight_of(token)) ++token;
        Choose(row, token, sampled);
      }
      at += __shfl_sync(~0u, up_to, 31);
    }
  }

  // The likeliest tokens of a plain row.
  static __device__ void ReportTop(const Row& row, u32 candidates, Shared* shared) {
    const u32 count = min(static_cast<u32>(row.draw->log_probs), row.work->count);
    if (candidates <= kCandidates) {
      SortCandidates(row, candidates, shared);
    } else {
      const u64 border = Select(row, count, 0, shared).key;
      __syncthreads();
      if (threadIdx.x < 32) shared->keys[threadIdx.x] = 0;
      if (threadIdx.x == 0) shared->index = 0;
      __syncthreads();
      for (int s = 0; s < kSlices; ++s) {
        row.ForEach(s, [&](int token, float logit) {
          const u64 key = RankKey(logit, token);
          if (key >= border) shared->keys[atomicAdd(&shared->index, 1u)] = key;
        });
      }
      SortKeys(32, shared);
    }
    if (threadIdx.x < count) {
      row.draw->result->top_tokens[threadIdx.x] = static_cast<i32>(TokenOfKey(shared->keys[threadIdx.x]));
      row.draw->result->top_logits[threadIdx.x] = LogitOfKey(shared->keys[threadIdx.x]);
    }
    if (threadIdx.x == 0) row.draw->result->top_count = static_cast<i32>(count);
  }
};

template <class Config>
__device__ void SampleMax(const typename Config::T* logits, const StepHeader* step, u8* work, i32* sampled) {
  Sample<Config>::RunMax(logits, DrawsOf(step), work, sampled);
}
template <class Config>
__device__ void SampleHistogram(const typename Config::T* logits, const StepHeader* step, u8* work) {
  Sample<Config>::RunHistogram(logits, DrawsOf(step), work);
}
template <class Config>
__device__ void SampleFinish(const typename Config::T* logits, const StepHeader* step, u8* work, i32* sampled) {
  Sample<Config>::RunFinish(logits, DrawsOf(step), work, sampled);
}

}  // namespace llmc
