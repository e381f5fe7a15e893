// flash_attention.cuh for sm_90a (FlashAttention-3, arXiv:2407.08608): one warpgroup copies queries, keys and values,
// two compute, each 64 rows. The two take turns, so that the tensor cores work for one while the other makes weights; a
// turn is the scores of a tile and the weights * values of the tile before it. A block does many blocks of rows one
// after the other, and copies for the next while the last is computed.
//
// Queries stay in registers, as the left operand. Source::kKeyDim and kValueDim are both 64 or both 128, S::kKeys is 64
// or 128.
// A Work says what to do: bool Get(context, i32 turn, Source* source), called by the warps that copy.
#pragma once
#include "kernels/attention/flash_attention.cuh"
#include "kernels/common/hopper.cuh"

namespace llmc {

// Over 250 lines: the warpgroups that copy and those that compute, which have to fit each other.
template <class S, class Source, class Work, class Context>
struct FlashAttentionHopper {
  using T = typename S::T;
  static constexpr int kDim = Source::kKeyDim, kKeys = S::kKeys;
  using Scale = ScoreScale<S::kSoftcap, Source::kAdds>;
  using Tile = AttentionTile<T, kDim, kKeys, 1>;
  static constexpr int kWarpgroups = 2;  // that compute
  static constexpr int kThreads = 128 * (1 + kWarpgroups);
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kKeyStages = 2, kValueStages = 2;
  static constexpr u32 kColumns = kKeys * 128;        // bytes of 64 columns of a tile of keys or values
  static constexpr u32 kPart = kDim / 64 * kColumns;  // of a tile
  static constexpr int kStride = Tile::kStride;       // of rows of queries
  static constexpr int kSharedBytes = FlashHopperSharedBytes(kDim, kKeys);
  static_assert(kSharedBytes == (kKeyStages + kValueStages) * kPart + kRows * kStride * 2 + 1024,
                "the layout has what is used here");
  static_assert(kDim == Source::kValueDim, "keys and values lie alike");
  static_assert(kDim == 64 || kDim == 128, "rows are one or two times 128 bytes");
  static_assert(S::kThreads == kThreads && kThreads == kFlashHopperThreads && kRows == kFlashRows,
                "a warpgroup that copies and two that compute");

  // What the warpgroups tell each other: what is there and what is free, and what there is to do.
  struct Shared {
    u64 keys_full[kKeyStages], keys_free[kKeyStages], values_full[kValueStages], values_free[kValueStages];
    u64 work_full, work_free;
    Source source;
    bool more;
  };

  const Context& context;
  const Work& work;
  Shared& shared;
  u32 keys, values, queries;  // in shared memory

  __device__ __forceinline__ FlashAttentionHopper(const Context& context, const Work& work, void* dynamic_shared)
      : context(context),
        work(work),
        shared(context.template Shared<Shared>()),
        keys((SharedAddress(dynamic_shared) + 1023) / 1024 * 1024),
        values(keys + kKeyStages * kPart),
        queries(values + kValueStages * kPart) {}

  // All threads of the block.
  __device__ __forceinline__ void Run(const Scale& scale) const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kKeyStages; ++i) {
        InitBarrier(&shared.keys_full[i], 128);
        InitBarrier(&shared.keys_free[i], 4 * kWarpgroups);
      }
      for (int i = 0; i < kValueStages; ++i) {
        InitBarrier(&shared.values_full[i], 128);
        InitBarrier(&shared.values_free[i], 4 * kWarpgroups);
      }
      InitBarrier(&shared.work_full, 1 + 128);
      InitBarrier(&shared.work_free, 128 * kWarpgroups);
    }
    context.Sync();
    i32 tiles = 0;  // done so far
    if (threadIdx.x >= 128 * kWarpgroups) {
      GiveRegisters<56>();
      for (i32 turn = 0; CopyTurn(turn, &tiles); ++turn) continue;
    } else {
      TakeRegisters<224>();
      if (threadIdx.x >= 128) GiveTurn();  // the first turn is of the first warpgroup
      for (i32 turn = 0; ComputeTurn(scale, turn, &tiles); ++turn) continue;
      if (threadIdx.x < 128) WaitForTurn();  // the other's last
    }
  }

 private:
  static __device__ __forceinline__ i32 FirstTile(const Source& source) { return source.first_key / kKeys; }
  static __device__ __forceinline__ i32 LastTile(const Source& source) { return (source.end_key - 1) / kKeys; }

  // ---- the warpgroup that copies -----------------------------------------------------------------------------------
  __device__ __forceinline__ bool CopyTurn(i32 turn, i32* tiles) const {
    Source source;
    const bool more = work.Get(context, turn, &source);
    WaitAt(&shared.work_free, (turn + 1) % 2);
    if (threadIdx.x % 128 == 0) {
      shared.source = source;
      shared.more = more;
      ArriveAt(&shared.work_full);  // the arrivals of copies do not release what this thread wrote itself
    }
    if (more) {
      CopyQueries(source);
      ArriveWithCopies(&shared.work_full);
      Copy(source, tiles);
    } else {
      ArriveAt(&shared.work_full);
    }
    return more;
  }

  __device__ __forceinline__ void CopyQueries(const Source& source) const {
    constexpr int kChunks = kDim / 8, kRowsAtOnce = 128 / kChunks;
    const int column = threadIdx.x % kChunks * 8;
#pragma unroll 4
    for (int row = threadIdx.x % 128 / kChunks; row < kRows; row += kRowsAtOnce) {
      const T* from = source.Query(row);
      CopyAsync(queries + (row * kStride + column) * 2, from + column, from != nullptr);
    }
  }

  __device__ __forceinline__ void Copy(const Source& source, i32* tiles) const {
    const i32 first = FirstTile(source), last = LastTile(source);
    i32 offsets[kOffsets], next[kOffsets];
    FindOffsets(source, last, offsets);
    for (i32 tile = last; tile >= first; --tile, ++*tiles) {
      const int key_stage = *tiles % kKeyStages, value_stage = *tiles % kValueStages;
      FindOffsets(source, tile - 1, next);
      WaitAt(&shared.keys_free[key_stage], (*tiles / kKeyStages + 1) % 2);
      CopyTile<true>(source, keys + key_stage * kPart, tile, offsets);
      Arrive(&shared.keys_full[key_stage]);
      WaitAt(&shared.values_free[value_stage], (*tiles / kValueStages + 1) % 2);
      CopyTile<false>(source, values + value_stage * kPart, tile, offsets);
      Arrive(&shared.values_full[value_stage]);
#pragma unroll
      for (int p = 0; p < kOffsets; ++p) offsets[p] = next[p];
    }
  }

  // What this thread has written of a tile is there, or will be.
  static __device__ __forceinline__ void Arrive(u64* barrier) {
    if constexpr (kHasCodes<Source>) {
      FenceSharedForTensorCores();
      ArriveAt(barrier);
    } else {
      ArriveWithCopies(barrier);
    }
  }

  // Each lane looks up the keys of its number, and 32, 64… on.
  static constexpr int kOffsets = kKeys / 32;
  __device__ __forceinline__ void FindOffsets(const Source& source, i32 tile, i32 (&offsets)[kOffsets]) const {
#pragma unroll
    for (int p = 0; p < kOffsets; ++p) {
      const i32 key = tile * kKeys + p * 32 + static_cast<i32>(threadIdx.x % 32);
      offsets[p] = source.OffsetOf(max(source.first_key, min(key, source.end_key - 1)));
    }
  }

  template <bool kOfKeys>
  __device__ __forceinline__ void CopyTile(const Source& source, u32 to, i32 tile,
                                           const i32 (&offsets)[kOffsets]) const {
    constexpr int kChunks = kDim / 8, kRowsAtOnce = 128 / kChunks;  // 8 or 16
    const int chunk = threadIdx.x % kChunks, row = threadIdx.x % 128 / kChunks;
    const u32 first_row = to + chunk / 8 * kColumns + row * 128 + (chunk % 8 ^ row % 8) * 16;
    const i32 begin = tile * kKeys + row;
    if constexpr (kHasCodes<Source>) {
      DecodeRows<kOfKeys ? 0 : 1>(source, first_row, begin, chunk * 8, offsets);
    } else {
#pragma unroll
      for (int i = 0; i < kKeys / kRowsAtOnce; ++i) {
        const i32 key = begin + i * kRowsAtOnce;
        const i32 offset = __shfl_sync(~0u, offsets[i * kRowsAtOnce / 32], row + i * kRowsAtOnce % 32);
        const T* from = (kOfKeys ? source.Key(offset) : source.Value(offset)) + chunk * 8;
        CopyAsync(first_row + i * kRowsAtOnce * 128, from, key >= source.first_key && key < source.end_key);
      }
    }
  }

  // The same of rows that are encoded: a thread has chunks of 8 elements from column `column` on.
  template <int kOfPart>
  static __device__ __forceinline__ void DecodeRows(const Source& source, u32 first_row, i32 begin, int column,
                                                    const i32 (&offsets)[kOffsets]) {
    constexpr int kRowsAtOnce = 128 / (kDim / 8), kTurns = kKeys / kRowsAtOnce, kAtOnce = 4;
    static_assert(kTurns % kAtOnce == 0, "whole rounds");
    const int row = threadIdx.x % 128 / (kDim / 8);
#pragma unroll
    for (int round = 0; round < kTurns; round += kAtOnce) {
      typename Source::Chunk chunks[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int i = round + j;
        const i32 offset = __shfl_sync(~0u, offsets[i * kRowsAtOnce / 32], row + i * kRowsAtOnce % 32);
        source.LoadChunk(offset, kOfPart, column, &chunks[j]);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const i32 key = begin + (round + j) * kRowsAtOnce;
        u32 numbers[4] = {0, 0, 0, 0};
        if (key >= source.first_key && key < source.end_key) chunks[j].Decode(numbers);
        StoreShared(first_row + (round + j) * kRowsAtOnce * 128, numbers);
      }
    }
  }

  // ---- warpgroups that compute -------------------------------------------------------------------------------------
  static __device__ __forceinline__ int Row(int half) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half;
  }

  __device__ __forceinline__ void LoadQueries(u32 (&query)[kDim / 16][4]) const {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      LoadMatrices(query[step], queries + (row * kStride + step * 16 + lane / 16 * 8) * 2);
    }
  }

  __device__ __forceinline__ void MultiplyKeys(const u32 (&query)[kDim / 16][4], u32 stage, Tile* tile) const {
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const u64 b = Operand(stage + step / 4 * kColumns + step % 4 * 32);
      MultiplyWarpgroup<T, 0>(tile->scores[0], query[step], b, step > 0);
    }
    CommitProducts();
  }

  __device__ __forceinline__ void MultiplyValues(const u32 (&weights)[kKeys / 16][4], u32 stage, Tile* tile) const {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      MultiplyWarpgroup<T, 1>(tile->out[0], weights[step], Operand(stage + step * 2048, kColumns), 1);
    }
    CommitProducts();
  }

  // Of a thread's rows: what is known of them, and what the mask says of them in a tile.
  using Rows = typename Source::Row[1][2];
  using Pairs = MaskPairs<typename Source::Pair, kKeys / 8>[1][2];

  // Scores of tile `at` become weights.
  static __device__ __forceinline__ void Weigh(const Source& source, const Scale& scale, const Rows& rows, i32 at,
                                               const Pairs& pairs, Tile* tile, float (&rescale)[1][2]) {
    MaskScores(source, scale, rows, at * kKeys, pairs, tile);
    tile->template Weigh<Source::kAdds>(scale.Factor(), rescale);
  }

  static __device__ __forceinline__ void Free(u64* barrier) {
    if (threadIdx.x % 32 == 0) ArriveAt(barrier);
  }

  // The warpgroups' turns: each waits at a barrier of its own, where the other arrives.
  static __device__ __forceinline__ void WaitForTurn() { SyncNamed(1 + threadIdx.x / 128, 128 * kWarpgroups); }
  static __device__ __forceinline__ void GiveTurn() { ArriveNamed(2 - threadIdx.x / 128, 128 * kWarpgroups); }

  // Waits for a tile of keys or values, and lets the tensor cores see it and all before it.
  static __device__ __forceinline__ void WaitForTile(u64* barrier, i32 phase) {
    WaitAt(barrier, phase % 2);
    FenceSharedForTensorCores();
  }

  // Over 60 lines: one pipeline, whose order is what makes it fast.
  __device__ __forceinline__ bool ComputeTurn(const Scale& scale, i32 turn, i32* tiles) const {
    WaitAt(&shared.work_full, turn % 2);
    if (!shared.more) return false;
    const Source source = shared.source;
    const i32 first = FirstTile(source), last = LastTile(source);
    u32 query[kDim / 16][4], weights[kKeys / 16][4];
    LoadQueries(query);
    ArriveAt(&shared.work_free);
    const Rows rows = {{source.RowOf(Row(0)), source.RowOf(Row(1))}};
    Pairs pairs;  // loaded while a tile is waited for
    LoadMask(source, rows, last * kKeys, &pairs);
    Tile tile;
    tile.Reset(Source::kAdds ? kLowestAdded : kLowestScore);
    float rescale[1][2];

    int key_stage = *tiles % kKeyStages;
    WaitForTile(&shared.keys_full[key_stage], *tiles / kKeyStages);
    WaitForTurn();
    BeginProducts();
    MultiplyKeys(query, keys + key_stage * kPart, &tile);
    GiveTurn();
    WaitForProducts<0>();
    Pin(tile.scores[0]);
    Free(&shared.keys_free[key_stage]);
    Weigh(source, scale, rows, last, pairs, &tile, rescale);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) tile.PackWeights(0, step, weights[step]);

    // Scores of a tile, while values of the tile before it are added.
    for (i32 at = last - 1; at >= first; --at) {
      const int value_stage = *tiles % kValueStages;
      const i32 value_phase = *tiles / kValueStages;
      ++*tiles;
      key_stage = *tiles % kKeyStages;
      LoadMask(source, rows, at * kKeys, &pairs);
      WaitAt(&shared.keys_full[key_stage], *tiles / kKeyStages % 2);
      WaitForTile(&shared.values_full[value_stage], value_phase);
      WaitForTurn();
      Pin(tile.scores[0]);
      Pin(tile.out[0]);
      BeginProducts();
      MultiplyKeys(query, keys + key_stage * kPart, &tile);
      MultiplyValues(weights, values + value_stage * kPart, &tile);
      GiveTurn();
      WaitForProducts<1>();
      Pin(tile.scores[0]);
      Free(&shared.keys_free[key_stage]);
      Weigh(source, scale, rows, at, pairs, &tile, rescale);
      WaitForProducts<0>();
      Pin(tile.out[0]);
      Free(&shared.values_free[value_stage]);
      tile.Rescale(rescale);
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step) tile.PackWeights(0, step, weights[step]);
    }

    const int value_stage = *tiles % kValueStages;
    WaitForTile(&shared.values_full[value_stage], *tiles / kValueStages);
    Pin(tile.out[0]);
    BeginProducts();
    MultiplyValues(weights, values + value_stage * kPart, &tile);
    WaitForProducts<0>();
    Pin(tile.out[0]);
    Free(&shared.values_free[value_stage]);
    ++*tiles;
    tile.Finish();
    Write(source, scale, tile);
    return true;
  }

  __device__ __forceinline__ void Write(const Source& source, const Scale& scale, const Tile& tile) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* out = source.Out(Row(half));
      if (out == nullptr) continue;
      const float inverse = source.Inverse(Row(half), tile.top[0][half] * scale.Factor(), tile.sum[0][half]);
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        *reinterpret_cast<u32*>(out + n * 8 + threadIdx.x % 4 * 2) =
            Pack<T>(tile.out[0][n][2 * half] * inverse, tile.out[0][n][2 * half + 1] * inverse);
      }
    }
  }
};

}  // namespace llmc
