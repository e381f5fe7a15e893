// The border of sample.cuh: the last token that top-k and top-p keep. Bins of the histogram hold it; few tokens in them
// are sorted, many are selected by their bits.
#pragma once
#include "kernels/sampling/sample_row.cuh"

namespace llmc {

// Adds to a 64-bit number in two halves: shared memory adds 32 bits at a time.
template <class C>
inline __device__ void AddWeight(u64 weight, u32 bin, SampleShared<C>* shared) {
  const u32 low = static_cast<u32>(weight);
  u32 high = static_cast<u32>(weight >> 32);
  if (low != 0 && atomicAdd(&shared->low[bin], low) + low < low) ++high;
  if (high != 0) atomicAdd(&shared->high[bin], high);
  atomicAdd(&shared->counts[bin], 1u);
}

template <class C, class Context>
inline __device__ void ClearBins(const Context& context, SampleShared<C>* shared) {
  using S = SampleShape<C>;
  context.Sync();
  for (int b = threadIdx.x; b < S::kBins; b += S::kThreads) shared->low[b] = shared->high[b] = shared->counts[b] = 0;
  context.Sync();
}

template <class C>
inline __device__ u64 BinWeight(const SampleShared<C>& shared, int bin) {
  return static_cast<u64>(shared.high[bin]) << 32 | shared.low[bin];
}

template <class C>
inline __device__ bool NeedsBins(const SampleRow<C>& row) {
  return row.plain || row.draw->top_k > 0 || row.draw->top_p > 0;
}

// The first bin up to which the sum of `value`, which `before` scans, reaches `target`; kBins if none.
template <class C, class Context>
inline __device__ u32 BinReaching(const Context& context, u64 target, u64 before, u64 value, SampleShared<C>* shared) {
  using S = SampleShape<C>;
  context.Sync();
  if (threadIdx.x == 0) shared->index = S::kBins;
  context.Sync();
  if (threadIdx.x < S::kBins && before < target && before + value >= target) shared->index = threadIdx.x;
  context.Sync();
  return shared->index;
}

template <class C, class Context>
inline __device__ void FindBorders(const Context& context, const SampleRow<C>& row, SampleShared<C>* shared) {
  using S = SampleShape<C>;
  u64 weight = 0, count = 0, total, total_count;
  if (threadIdx.x < S::kBins) {
#pragma unroll 8
    for (int s = 0; s < S::kSlices; ++s) {
      weight += __ldcg(&row.work->bin_weights[s][threadIdx.x]);
      count += __ldcg(&row.work->bin_counts[s][threadIdx.x]);
    }
  }
  const u64 weight_before = BlockScan(context, weight, &total, shared);
  const u64 count_before = BlockScan(context, count, &total_count, shared);
  u32 first = S::kBins, last = 0;
  u64 least_total = total;  // what top-k leaves is at least that
  if (row.TopK() > 0 && row.TopK() < total_count) {
    first = last = BinReaching(context, row.TopK(), count_before, count, shared);
    context.Sync();
    if (threadIdx.x == last) shared->number[0] = weight_before;
    context.Sync();
    least_total = shared->number[0];
  }
  if (row.TopP() > 0) {
    // If top-k leaves little more than nothing, the border can be in any bin up to that of top-k.
    const u64 least = max(MultiplyHighUp(least_total, row.TopP()), 1ull);
    const u32 bin = BinReaching(context, least, weight_before, weight, shared);
    if (first == S::kBins) last = bin;
    first = min(bin, first);
  }
  if (row.plain) first = 0;  // all of the likeliest are listed
  context.Sync();
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
  if (row.TopK() >= total_count) row.work->last = S::kBins - 1;
}

template <class C, class Context>
inline __device__ void SortKeys(const Context& context, u32 size, SampleShared<C>* shared) {
  using S = SampleShape<C>;
  context.Sync();
  for (u32 run = 2; run <= size; run *= 2) {
    for (u32 step = run / 2; step > 0; step /= 2) {
      for (u32 pair = threadIdx.x; pair < size / 2; pair += S::kThreads) {
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
        context.Sync();
      } else {
        __syncwarp();
      }
    }
  }
  context.Sync();
}

// Loads the candidates and sorts them, the likeliest first (bitonic; Batcher, 1968).
template <class C, class Context>
inline __device__ void SortCandidates(const Context& context, const SampleRow<C>& row, u32 count,
                                      SampleShared<C>* shared) {
  using S = SampleShape<C>;
  u32 size = 1;
  while (size < count) size *= 2;
  for (u32 i = threadIdx.x; i < size; i += S::kThreads) {
    shared->keys[i] = i < count ? __ldcg(&row.work->candidates[i]) : 0;
  }
  SortKeys(context, size, shared);
}

template <class C>
inline __device__ u64 KeyWeight(const SampleRow<C>& row, u64 key) {
  return SampleWeight(row.Distance(LogitOfKey(key)));
}

// The border among the sorted candidates; what is above it counts for its slices.
template <class C, class Context>
inline __device__ u64 SortBorder(const Context& context, const SampleRow<C>& row, u32 count, SampleShared<C>* shared) {
  using S = SampleShape<C>;
  SortCandidates(context, row, count, shared);
  constexpr u32 kEach = S::kCandidates / S::kThreads;
  u64 weights[kEach], own = 0, sum;
#pragma unroll
  for (u32 i = 0; i < kEach; ++i) {
    const u32 at = threadIdx.x * kEach + i;
    weights[i] = at < count ? KeyWeight(row, shared->keys[at]) : 0;
    own += weights[i];
  }
  const typename SampleShape<C>::Work& work = *row.work;
  const u64 before = work.base_weight + BlockScan(context, own, &sum, shared);
  // After top-k.
  const u32 base = work.base_count;
  u32 kept = count;
  u64 total = work.total;
  if (row.TopK() > 0 && row.TopK() < work.count) {
    kept = row.TopK() - base;
    u64 mine = 0;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) mine += threadIdx.x * kEach + i < kept ? weights[i] : 0;
    BlockScan(context, mine, &total, shared);
    total += work.base_weight;
  }
  // The first candidates that reach top-p.
  if (row.TopP() > 0) {
    const u64 least = MultiplyHighUp(total, row.TopP());
    if (threadIdx.x == 0) shared->index = kept;
    context.Sync();
    u64 reached = before;
#pragma unroll
    for (u32 i = 0; i < kEach; ++i) {
      if (reached < least && reached + weights[i] >= least) atomicMin(&shared->index, threadIdx.x * kEach + i + 1);
      reached += weights[i];
    }
    context.Sync();
    kept = shared->index;
  }
#pragma unroll
  for (u32 i = 0; i < kEach; ++i) {
    const u32 at = threadIdx.x * kEach + i;
    if (at < kept && weights[i] >= row.MinWeight()) {
      atomicAdd(&shared->slices[TokenOfKey(shared->keys[at]) / S::kSlice], weights[i]);
    }
  }
  context.Sync();
  return shared->keys[kept - 1];
}

struct SampleSelected {
  u64 key;     // of the last that is kept
  u64 weight;  // of all kept
};

// The likeliest tokens, as few as reach `count` or `weight`, whichever is not 0: eight bits of the key at a time.
template <class C, class Context>
inline __device__ SampleSelected Select(const Context& context, const SampleRow<C>& row, u64 count, u64 weight,
                                        SampleShared<C>* shared) {
  using S = SampleShape<C>;
  u64 prefix = 0, base_count = 0, base_weight = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    ClearBins(context, shared);
    for (int s = 0; s < S::kSlices; ++s) {
      row.ForEach(s, [&](int token, float logit) {
        const u64 w = SampleWeight(row.Distance(logit)), key = RankKey(logit, token);
        if (row.Counts(w) && (shift == 56 || key >> (shift + 8) == prefix)) AddWeight(w, key >> shift & 255, shared);
      });
    }
    context.Sync();
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
    context.Sync();
    prefix = prefix << 8 | shared->index;
  }
  return {prefix, shared->number[0]};
}

template <class C, class Context>
inline __device__ u64 SelectBorder(const Context& context, const SampleRow<C>& row, SampleShared<C>* shared) {
  SampleSelected kept = {0, row.work->total};
  if (row.TopK() > 0 && row.TopK() < row.work->count) kept = Select(context, row, row.TopK(), 0, shared);
  if (row.TopP() > 0) kept = Select(context, row, 0, MultiplyHighUp(kept.weight, row.TopP()), shared);
  return kept.key;
}

}  // namespace llmc
