// Attention of a block's rows of queries over the keys of one sequence and KV head, on tensor cores
// (FlashAttention-2, arXiv:2307.08691): each warp has 16 * kM rows; tiles of kKeys keys and values go through shared
// memory, the next arriving while one is computed. The last tile is first: in causal attention it needs the mask.
//
// Where things lie and what a row sees is said by a Source:
//   kKeyDim, kValueDim                         elements of a query or key, of a value
//   kAdds                                      whether Join adds something to scores
//   const T* Query(int row), T* Out(int row)   of the block's rows; null if there is no such row
//   i32 first_key, end_key                     the keys that any of the rows sees; equal if none sees any
//   i32 OffsetOf(i32 key)                      of a key in this range, as the next two take it
//   const T* Key(i32 offset), Value(i32 offset)
//   Row RowOf(int row)                         what the following needs to know of a row
//   void Load(Row, i32 begin, MaskPairs<Pair, n>*)  what Join needs of 8 * n keys
//   float Join(Pair, int i, float score)       the score of the pair's key i with a mask
//   bool Hides(i32 begin, i32 end)             whether one of the rows may not see all of these keys
//   bool Sees(Row, i32 key)
//   float Inverse(int row, float top, float sum)  what the row's weighted values are multiplied with at the end, by
//                                              its greatest score, for base 2, and its sum of weights relative to it
// Scores that are not seen, by Join or Sees, are -Infinity(). Where keys and values are encoded, a Source has, in place
// of Key and Value, Chunk and LoadChunk (cached_pairs.cuh): they are decoded on their way to shared memory.
//
// Run may be called again after a barrier of the block.
//
// S::T: element type, 16 bits.  S::kM, S::kKeys: as above.  S::kThreads: of a block.
// S::kSoftcap: whether scores are capped.
#pragma once
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/cached_pairs.cuh"

namespace llmc {

// Of a row and a tile of 8 * kPairs keys: Pair n is of keys 8 n + lane % 4 * 2 and the next one.
template <class Pair, int kPairs>
struct MaskPairs {
  Pair at[kPairs];
};

template <class Source, int kM, int kPairs>
__device__ __forceinline__ void LoadMask(const Source& source, const typename Source::Row (&rows)[kM][2], i32 begin,
                                         MaskPairs<typename Source::Pair, kPairs> (*pairs)[kM][2]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    source.Load(rows[m][0], begin, &(*pairs)[m][0]);
    source.Load(rows[m][1], begin, &(*pairs)[m][1]);
  }
}

// Caps and masks the scores of the keys from `begin` on.
template <class Source, class Scale, class Tile, int kM, int kPairs>
__device__ __forceinline__ void MaskScores(const Source& source, const Scale& scale,
                                           const typename Source::Row (&rows)[kM][2], i32 begin,
                                           const MaskPairs<typename Source::Pair, kPairs> (&pairs)[kM][2], Tile* tile) {
  tile->Cap(scale);
  const bool hides = source.Hides(begin, begin + 8 * kPairs);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      tile->ChangeRow(m, half,
                      [&](int n, int i, int, float score) { return source.Join(pairs[m][half].at[n], i, score); });
      if (!hides) continue;
      tile->ChangeRow(m, half, [&](int, int, int key, float score) {
        return source.Sees(rows[m][half], begin + key) ? score : -Infinity();
      });
    }
  }
}

template <class S, class Source, class Context>
struct FlashAttention {
  using T = typename S::T;
  static constexpr int kKeyDim = Source::kKeyDim, kValueDim = Source::kValueDim;
  static constexpr int kDim = PaddedHeadDim(kKeyDim > kValueDim ? kKeyDim : kValueDim);
  using Scale = ScoreScale<S::kSoftcap, Source::kAdds>;
  using Tile = AttentionTile<T, kDim, S::kKeys, S::kM>;
  static constexpr int kWarps = S::kThreads / 32;
  static constexpr int kRows = kWarps * 16 * S::kM;
  static constexpr int kStride = Tile::kStride;
  static constexpr int kStage = 2 * S::kKeys * kStride * 2;  // bytes of a tile's keys and values
  static constexpr int kSharedBytes = FlashSharedBytes(kDim, kRows, S::kKeys);
  static_assert(kSharedBytes == kRows * kStride * 2 + 2 * kStage, "the layout has what is used here");
  static_assert(kKeyDim % 8 == 0 && kValueDim % 8 == 0, "rows are copied in chunks of 16 bytes");

  const Context& context;
  const Source& source;
  u32 queries, stages;  // in shared memory

  __device__ __forceinline__ FlashAttention(const Context& context, const Source& source, void* shared)
      : context(context), source(source), queries(SharedAddress(shared)), stages(queries + kRows * kStride * 2) {}

  __device__ __forceinline__ void Run(const Scale& scale) const {
    CopyQueries();
    const i32 first = source.first_key / S::kKeys, last = (source.end_key - 1) / S::kKeys;
    CopyTile(stages, last);
    CommitCopies();
    Tile tile;
    tile.Reset(Source::kAdds ? kLowestAdded : kLowestScore);
    typename Source::Row rows[S::kM][2];
#pragma unroll
    for (int m = 0; m < S::kM; ++m) {
      rows[m][0] = source.RowOf(Row(m, 0));
      rows[m][1] = source.RowOf(Row(m, 1));
    }
    for (i32 at = last; at >= first; --at) {
      WaitForCopies<0>();
      context.Sync();  // the tile is here, and the one before it is done with
      const u32 keys = stages + (last - at) % 2 * kStage;
      if (at > first) CopyTile(stages + (last - at + 1) % 2 * kStage, at - 1);
      CommitCopies();
      const i32 begin = at * S::kKeys;
      MaskPairs<typename Source::Pair, S::kKeys / 8> pairs[S::kM][2];
      LoadMask(source, rows, begin, &pairs);
      tile.Multiply([&](int m, int step, u32(&a)[4]) { LoadQuery(m, step, a); }, keys);
      MaskScores(source, scale, rows, begin, pairs, &tile);
      float rescale[S::kM][2];
      tile.template Weigh<Source::kAdds>(scale.Factor(), rescale);
      tile.Rescale(rescale);
      tile.Accumulate(keys + S::kKeys * kStride * 2);
    }
    tile.Finish();
    Write(scale, tile);
  }

 private:
  static __device__ __forceinline__ int Row(int m, int half) {
    return threadIdx.x / 32 * (16 * S::kM) + 16 * m + 8 * half + threadIdx.x % 32 / 4;
  }

  // Chunks of 16 bytes of a row, zeros past its end, and rows that all threads copy at once.
  static constexpr int kChunks = kDim / 8;
  static constexpr int kQueryTurns = (kRows * kChunks + S::kThreads - 1) / S::kThreads;
  static constexpr int kKeyTurns = (S::kKeys * kChunks + S::kThreads - 1) / S::kThreads;

  __device__ __forceinline__ void CopyQueries() const {
#pragma unroll
    for (int i = 0; i < kQueryTurns; ++i) {
      const int at = i * S::kThreads + threadIdx.x, row = at / kChunks, column = at % kChunks * 8;
      if (row >= kRows) break;
      const T* from = source.Query(row);
      CopyAsync(queries + (row * kStride + column) * 2, from + column, from != nullptr && column < kKeyDim);
    }
  }

  __device__ __forceinline__ void CopyTile(u32 to, i32 tile) const {
    if constexpr (kHasCodes<Source>) {
      DecodeTile(to, tile);
    } else {
      CopyElements(to, tile);
    }
  }

  __device__ __forceinline__ void CopyElements(u32 to, i32 tile) const {
    const i32 begin = tile * S::kKeys;
    i32 offsets[kKeyTurns];  // all looked up before the first copy
#pragma unroll
    for (int i = 0; i < kKeyTurns; ++i) {
      const i32 key = begin + (i * S::kThreads + static_cast<i32>(threadIdx.x)) / kChunks;
      offsets[i] = source.OffsetOf(max(source.first_key, min(key, source.end_key - 1)));
    }
#pragma unroll
    for (int i = 0; i < kKeyTurns; ++i) {
      const int at = i * S::kThreads + threadIdx.x, row = at / kChunks, column = at % kChunks * 8;
      if (row >= S::kKeys) break;
      const bool exists = begin + row >= source.first_key && begin + row < source.end_key;
      const bool of_key = column < kKeyDim, of_value = column < kValueDim;
      const u32 key = to + (row * kStride + column) * 2;
      CopyAsync(key, source.Key(offsets[i]) + (of_key ? column : 0), exists && of_key);
      CopyAsync(key + S::kKeys * kStride * 2, source.Value(offsets[i]) + (of_value ? column : 0), exists && of_value);
    }
  }

  // Rows that are encoded, some chunks on their way at a time.
  __device__ __forceinline__ void DecodeTile(u32 to, i32 tile) const {
    constexpr int kAtOnce = kKeyTurns % 4 == 0 ? 4 : 1;
    const i32 begin = tile * S::kKeys;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const u32 first = to + part * S::kKeys * kStride * 2;
#pragma unroll 1
      for (int i = 0; i < kKeyTurns; i += kAtOnce) {
        typename Source::Chunk chunks[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int at = (i + j) * S::kThreads + threadIdx.x, row = at / kChunks, column = at % kChunks * 8;
          const i32 key = max(source.first_key, min(begin + row, source.end_key - 1));
          source.LoadChunk(source.OffsetOf(key), part, column < kKeyDim ? column : 0, &chunks[j]);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int at = (i + j) * S::kThreads + threadIdx.x, row = at / kChunks, column = at % kChunks * 8;
          if (row >= S::kKeys) break;
          const bool exists = begin + row >= source.first_key && begin + row < source.end_key && column < kKeyDim;
          u32 numbers[4] = {0, 0, 0, 0};
          if (exists) chunks[j].Decode(numbers);
          StoreShared(first + (row * kStride + column) * 2, numbers);
        }
      }
    }
  }

  __device__ __forceinline__ void LoadQuery(int m, int step, u32 (&a)[4]) const {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * (16 * S::kM) + 16 * m + lane % 16;
    LoadMatrices(a, queries + (row * kStride + step * 16 + lane / 16 * 8) * 2);
  }

  __device__ __forceinline__ void Write(const Scale& scale, const Tile& tile) const {
#pragma unroll
    for (int m = 0; m < S::kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        T* out = source.Out(Row(m, half));
        if (out == nullptr) continue;
        const float inverse = source.Inverse(Row(m, half), tile.top[m][half] * scale.Factor(), tile.sum[m][half]);
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
          const int column = n * 8 + threadIdx.x % 4 * 2;
          if (column >= kValueDim) continue;
          *reinterpret_cast<u32*>(out + column) =
              Pack<T>(tile.out[m][n][2 * half] * inverse, tile.out[m][n][2 * half + 1] * inverse);
        }
      }
    }
  }
};

}  // namespace llmc
