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
// Grid: slices, draws, and 2 in z if log-probabilities are asked for: z = 1 treats the plain logits at temperature 1
// with top_k = log_probs. Config: see SampleShape.
#pragma once
#include "kernels/sampling/sample_border.cuh"

namespace llmc {

template <class C, class Context>
inline __device__ void SampleMax(const Context& context, const typename C::T* logits, const StepHeader* step, u8* work,
                                 i32* sampled) {
  using S = SampleShape<C>;
  auto& [shared, warps] = context.template Shared<SampleMaxShared<C>>();
  const DrawRequest* draws = DrawsOf(step);
  context.Wait();
  SampleRow<C> row;
  if (!BeginRow(context, logits, draws, work, /*after_max=*/false, &row)) return;
  const float infinity = __uint_as_float(0x7f800000u);
  float best = -infinity, smallest = infinity;
  int best_token = context.TileX() * S::kSlice + threadIdx.x * S::kVec;
  bool wrong = false;  // it is NaN or +infinity
  row.ForEach(context.TileX(), [&](int token, float logit) {
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
    row.ForEach(context.TileX(), [&](int token, float logit) {
      if (!(logit < infinity)) key = max(key, 0xffffffffull << 32 | ~static_cast<u32>(token));
    });
  }
  key = BlockMax(context, key, &shared);
  if (threadIdx.x == 0) row.work->best[context.TileX()] = key;
  if (row.plain || row.draw->log2_scale != 0) {
    smallest = -BlockReduce<S::kThreads>(context, warps, -smallest, Max());
    if (threadIdx.x == 0) row.work->smallest[context.TileX()] = smallest;
    return;
  }
  if (!IsLastBlock(context, &row.work->tickets[0], &shared)) return;
  key = BestOfSlices(row);
  if (threadIdx.x != 0) return;
  if (key >= kPlusInfinityKey || key < kMinusInfinityKey) {
    RefuseRow(context, row, key, sampled);
  } else {
    ChooseToken(context, row, static_cast<i32>(TokenOfKey(key)), sampled);
  }
}

template <class C, class Context>
inline __device__ void SampleHistogram(const Context& context, const typename C::T* logits, const StepHeader* step,
                                       u8* work) {
  using S = SampleShape<C>;
  auto& shared = context.template Shared<SampleShared<C>>();
  const DrawRequest* draws = DrawsOf(step);
  context.Wait();
  SampleRow<C> row;
  u64 best;
  if (!BeginRow(context, logits, draws, work, /*after_max=*/true, &row) || !NeedsBins(row)) return;
  if (!ReadRange(&row, &best)) return;
  ClearBins(context, &shared);
  row.ForEach(context.TileX(), [&](int, float logit) {
    const float distance = row.Distance(logit);
    const u64 weight = SampleWeight(distance);
    if (row.Counts(weight)) AddWeight(weight, row.Bin(distance), &shared);
  });
  context.Sync();
  for (int b = threadIdx.x; b < S::kBins; b += S::kThreads) {
    row.work->bin_weights[context.TileX()][b] = BinWeight(shared, b);
    row.work->bin_counts[context.TileX()][b] = shared.counts[b];
  }
  if (IsLastBlock(context, &row.work->tickets[1], &shared)) FindBorders(context, row, &shared);
}

template <class C, class Context>
inline __device__ void SumSlice(const Context& context, const SampleRow<C>& row, int slice, u64 border,
                                SampleShared<C>* shared) {
  u64 sum = 0, all;
  row.ForEach(slice, [&](int token, float logit) {
    const u64 weight = SampleWeight(row.Distance(logit));
    if (weight >= row.MinWeight() && RankKey(logit, token) >= border) sum += weight;
  });
  BlockScan(context, sum, &all, shared);
  if (threadIdx.x == 0) shared->slices[slice] = all;
  context.Sync();
}

// In order of tokens: the one in whose part of the sum the random number falls. First the slice is found, then the
// warp whose part of the slice has it, then the lane.
template <class C, class Context>
inline __device__ void DrawToken(const Context& context, const SampleRow<C>& row, u64 border, i32* sampled,
                                 SampleShared<C>* shared) {
  using S = SampleShape<C>;
  const u64 mine = threadIdx.x < S::kSlices ? shared->slices[threadIdx.x] : 0;
  u64 total;
  const u64 before = BlockScan(context, mine, &total, shared);
  const u64 target = __umul64hi(row.draw->random, total);
  context.Sync();
  if (before <= target && target < before + mine) {
    shared->index = threadIdx.x;
    shared->number[0] = target - before;
  }
  context.Sync();
  const u64 left = shared->number[0];
  constexpr int kOfWarp = S::kSlice / S::kWarps, kSweeps = kOfWarp / (32 * S::kVec);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = shared->index * S::kSlice + warp * kOfWarp + lane * S::kVec;
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
    for (int i = 0; i < S::kVec; ++i) {
      const int token = first + s * 32 * S::kVec + i;
      if (token < S::kVocab) sums[s] += weight_of(token);
    }
    sum += sums[s];
  }
  u64 all;
  u64 at = __shfl_sync(~0u, BlockScan(context, sum, &all, shared), 0);  // before this warp
#pragma unroll
  for (int s = 0; s < kSweeps; ++s) {
    const u64 up_to = WarpScan(sums[s]);
    u64 here = at + up_to - sums[s];
    if (here <= left && left < at + up_to) {
      int token = first + s * 32 * S::kVec;
      for (here += weight_of(token); left >= here; here += weight_of(token)) ++token;
      ChooseToken(context, row, token, sampled);
    }
    at += __shfl_sync(~0u, up_to, 31);
  }
}

// The likeliest tokens of a plain row.
template <class C, class Context>
inline __device__ void ReportTop(const Context& context, const SampleRow<C>& row, u32 candidates,
                                 SampleShared<C>* shared) {
  using S = SampleShape<C>;
  const u32 count = min(static_cast<u32>(row.draw->log_probs), row.work->count);
  if (candidates <= S::kCandidates) {
    SortCandidates(context, row, candidates, shared);
  } else {
    const u64 border = Select(context, row, count, 0, shared).key;
    context.Sync();
    if (threadIdx.x < 32) shared->keys[threadIdx.x] = 0;
    if (threadIdx.x == 0) shared->index = 0;
    context.Sync();
    for (int s = 0; s < S::kSlices; ++s) {
      row.ForEach(s, [&](int token, float logit) {
        const u64 key = RankKey(logit, token);
        if (key >= border) shared->keys[atomicAdd(&shared->index, 1u)] = key;
      });
    }
    SortKeys(context, 32, shared);
  }
  if (threadIdx.x < count) {
    row.draw->result->top_tokens[threadIdx.x] = static_cast<i32>(TokenOfKey(shared->keys[threadIdx.x]));
    row.draw->result->top_logits[threadIdx.x] = LogitOfKey(shared->keys[threadIdx.x]);
  }
  if (threadIdx.x == 0) row.draw->result->top_count = static_cast<i32>(count);
}

// Over 60 lines: one pass over a slice, and what the last block makes of what all found.
template <class C, class Context>
inline __device__ void SampleFinish(const Context& context, const typename C::T* logits, const StepHeader* step,
                                    u8* work, i32* sampled) {
  using S = SampleShape<C>;
  auto& shared = context.template Shared<SampleShared<C>>();
  const DrawRequest* draws = DrawsOf(step);
  context.Wait();
  SampleRow<C> row;
  u64 best;
  if (!BeginRow(context, logits, draws, work, /*after_max=*/true, &row) || (row.plain && row.draw->log_probs == 0))
    return;
  if (!ReadRange(&row, &best)) {
    if (!row.plain && context.TileX() == 0 && threadIdx.x == 0) RefuseRow(context, row, best, sampled);
    return;
  }
  const bool has_bins = NeedsBins(row);
  const u32 first = has_bins ? row.work->first : S::kBins, last = has_bins ? row.work->last : 0;
  if (threadIdx.x == 0) shared.index = 0;
  context.Sync();
  u64 sum = 0;
  row.ForEach(context.TileX(), [&](int token, float logit) {
    const float distance = row.Distance(logit);
    const u32 bin = row.Bin(distance);
    if (bin >= first && bin > last) return;  // most tokens
    const u64 weight = SampleWeight(distance);
    if (!row.Counts(weight)) return;
    if (bin < first) {
      if (weight >= row.MinWeight()) sum += weight;
    } else {
      const u32 at = atomicAdd(&shared.index, 1u);
      if (at < S::kCandidates) shared.keys[at] = RankKey(logit, token);
    }
  });
  u64 slice_weight;
  BlockScan(context, sum, &slice_weight, &shared);
  const u32 found = shared.index;
  if (threadIdx.x == 0) {
    row.work->slice_weights[context.TileX()] = slice_weight;
    if (found > 0) shared.number[0] = atomicAdd(&row.work->num_candidates, found);
  }
  context.Sync();
  for (u32 i = threadIdx.x; i < found; i += S::kThreads) {
    const u32 to = static_cast<u32>(shared.number[0]) + i;
    if (i < S::kCandidates && to < S::kCandidates) row.work->candidates[to] = shared.keys[i];
  }
  if (!IsLastBlock(context, &row.work->tickets[2], &shared)) return;
  const u32 candidates = __ldcg(&row.work->num_candidates);
  context.Sync();
  if (threadIdx.x == 0) row.work->num_candidates = 0;
  if (threadIdx.x < S::kSlices) shared.slices[threadIdx.x] = __ldcg(&row.work->slice_weights[threadIdx.x]);
  context.Sync();
  u64 border = 0;  // tokens with this key and above are kept
  if (row.plain) {
    ReportTop(context, row, candidates, &shared);
    return;
  }
  if (candidates > S::kCandidates) {
    border = SelectBorder(context, row, &shared);
    for (int s = 0; s < S::kSlices; ++s) SumSlice(context, row, s, border, &shared);
  } else if (candidates > 0) {
    border = SortBorder(context, row, candidates, &shared);
  }
  DrawToken(context, row, border, sampled, &shared);
}

}  // namespace llmc
