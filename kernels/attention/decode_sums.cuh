// How paged_attention_decode.cuh puts partial results together: those of the warps of a block, then those of the blocks
// that share a (sequence, head).
#pragma once
#include "kernels/attention/decode_items.cuh"
#include "kernels/attention/head_terms.cuh"
#include "kernels/common/read_back.cuh"
#include "kernels/common/tagged_row.cuh"
#include "kernels/linear/x_order.cuh"

namespace llmc {

// Four columns of a row of the result, and what they are relative to. Stored as kRows * kDim columns, then the top (for
// base 2) and the sum of weights of each row.
struct DecodeSums {
  float top = kLowestScore, sum = 0;
  Vec<float, 4> columns = {};

  __device__ __forceinline__ void Add(const DecodeSums& other) {
    const float new_top = fmaxf(top, other.top), own = Exp2(top - new_top), others = Exp2(other.top - new_top);
    top = new_top;
    sum = sum * own + other.sum * others;
#pragma unroll
    for (int i = 0; i < 4; ++i) columns.v[i] = columns.v[i] * own + other.columns.v[i] * others;
  }

  // Vector `at` of what lies at `from`.
  template <class S>
  static __device__ __forceinline__ DecodeSums Read(const float* from, int at) {
    const Vec<float, 2> row = Load<float, 2>(from + S::kRows * S::kDim + at * 4 / S::kDim * 2);
    return {row.v[0], row.v[1], Load<float, 4>(from + at * 4)};
  }
  // The same of what other blocks have just written: past the cache of this multiprocessor.
  template <class S>
  static __device__ __forceinline__ DecodeSums ReadOthers(const float* from, int at) {
    DecodeSums sums;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
                 : "=f"(sums.top), "=f"(sums.sum)
                 : "l"(from + S::kRows * S::kDim + at * 4 / S::kDim * 2)
                 : "memory");
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(sums.columns.v[0]), "=f"(sums.columns.v[1]), "=f"(sums.columns.v[2]), "=f"(sums.columns.v[3])
                 : "l"(from + at * 4)
                 : "memory");
    return sums;
  }
  // The row's top and sum by its first vector.
  template <class S>
  __device__ __forceinline__ void Write(float* to, int at) const {
    Store(to + at * 4, columns);
    const Vec<float, 2> row = {top, sum};
    if (at * 4 % S::kDim == 0) Store(to + S::kRows * S::kDim + at * 4 / S::kDim * 2, row);
  }
};

// What the threads of a block tell each other.
template <class Heads>
struct DecodeShared {
  typename Heads::Shared heads;
  bool last;
};

template <class C, class Context, class Terms>
struct DecodeMerge {
  using T = typename C::T;
  using S = DecodeShape<C>;
  using Result = Written<T, 1>;  // the first of the numbers that a thread stores at once

  const Context& context;
  bool& last;  // in shared memory
  T* __restrict__ out;
  float* partials;  // two slots a block, of S::kSums
  i32* counters;    // one a block
  float* shared;    // S::kMergeSums times S::kSums
  i32 share;        // tiles of a block
  const Terms& terms;

  // From the sums of all warps in `shared` to the result, or to `partials`. Between two barriers of the block.
  // Returns whether memory has all that the block has written.
  __device__ __forceinline__ bool Finish(const DecodeItem<C>& item) const {
    constexpr bool kReadsBack = kRoleOf<Context> == Role::kCompute && !kGivesRow<Context>;
    const bool whole = item.IsWhole();
    ReadBack<Result> read_back;
    for (int at = threadIdx.x; at < S::kVectors; at += S::kThreads) {
      DecodeSums sums = DecodeSums::Read<S>(shared, at);
#pragma unroll(kRoleOf <Context> == Role::kCompute ? 1 : S::kWarps)
      for (int w = 1; w < S::kWarps; ++w) sums.Add(DecodeSums::Read<S>(shared + w * S::kSums, at));
      if (whole) {
        if constexpr (kReadsBack) read_back.Finish();
        const Result result = Write(item, at, sums);
        if constexpr (kReadsBack) read_back.Begin(result);
      } else {
        sums.Write<S>(Slot(context.TileX(), item.begin == 0), at);
      }
    }
    if constexpr (kReadsBack) read_back.Finish();
    if (!whole && IsLast(item)) MergeItems(item);
    return whole && kReadsBack;
  }

 private:
  // The slot of the item of a block: the second for one that goes on into the next block, the first for others.
  __device__ __forceinline__ float* Slot(i32 block, bool starts) const {
    return partials + (block * 2 + (starts ? 1 : 0)) * S::kSums;
  }

  __device__ __forceinline__ Result Write(const DecodeItem<C>& item, int at, const DecodeSums& sums) const {
    const int r = at * 4 / S::kDim, column = at * 4 % S::kDim;
    if (r >= item.tokens * C::kGroup || column >= C::kHeadDim) return {};
    const float inverse = terms.Inverse(item.QueryHead(r), sums.top, sums.sum);
    Vec<T, 4> result;
#pragma unroll
    for (int i = 0; i < 4; ++i) result.v[i] = FromFloat<T>(sums.columns.v[i] * inverse);
    if constexpr (kGivesRow<Context>) {
      context.Given().Give(static_cast<int>(item.Row(r)) + column, result);
      return {};
    }
    const i64 first = item.Row(r) + column;
    if constexpr (RowOrder<C>::kIsPlain) {
      Store(out + first, result);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[RowOrder<C>::Place(first + i)] = result.v[i];
    }
    return {{out + RowOrder<C>::Place(first)}, {result.v[0]}};
  }

  // Counts the item of its (sequence, head). The last one's count is 0 again: in one access, since blocks that go on to
  // the next layer of a persistent launch count there with no barrier between.
  __device__ __forceinline__ bool IsLast(const DecodeItem<C>& item) const {
    context.Sync();
    if (threadIdx.x == 0) {
      const i32 first_block = item.origin / share, blocks = (item.origin + item.tiles - 1) / share - first_block;
      i32* counter = counters + first_block;
      i32 before;
      asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(counter), "r"(blocks)
                   : "memory");
      last = before == blocks;
    }
    context.Sync();
    return last;
  }

  // By teams of kVectors threads; each team reads every kTeams-th item.
  __device__ __forceinline__ void MergeItems(const DecodeItem<C>& item) const {
    const i32 first_block = item.origin / share;
    const i32 count = (item.origin + item.tiles - 1) / share - first_block + 1;
    const int team = S::kTeams > 1 ? threadIdx.x / S::kVectors : 0;
    for (int at = threadIdx.x - team * S::kVectors; at < S::kVectors && team < S::kTeams; at += S::kThreads) {
      DecodeSums sums;
      for (i32 first = team; first < count; first += 8 * S::kTeams) {
        DecodeSums others[8];  // all asked for before the first is used
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const i32 index = first + i * S::kTeams;
          if (index < count) others[i] = DecodeSums::ReadOthers<S>(Slot(first_block + index, index == 0), at);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) sums.Add(others[i]);
      }
      if constexpr (S::kTeams == 1) {
        Write(item, at, sums);
      } else {
        sums.Write<S>(shared + team * S::kSums, at);
      }
    }
    if constexpr (S::kTeams == 1) return;
    context.Sync();
    if (threadIdx.x >= S::kVectors) return;
    DecodeSums sums = DecodeSums::Read<S>(shared, threadIdx.x);
#pragma unroll
    for (int i = 1; i < S::kTeams; ++i) sums.Add(DecodeSums::Read<S>(shared + i * S::kSums, threadIdx.x));
    Write(item, threadIdx.x, sums);
  }
};

}  // namespace llmc
