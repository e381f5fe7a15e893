// flash_attention.cuh for sm_90a (FlashAttention-3, arXiv:2407.08608): one warpgroup copies queries, keys and values,
// two compute, each 64 rows. The two take turns, so that the tensor cores work for one while the other makes weights; a
// turn is the scores of a tile and the weights * values of the tile before it. A block does many blocks of rows one
// after the other, and copies for the next while the last is computed.
//
// Queries stay in registers, as the left operand. Source::kKeyDim and kValueDim are both 64 or both 128, S::kKeys is 64
// or 128.
// A Work says what to do: bool Get(context, i32 turn, Source* source), called by the warps that copy.
//
// S::kByMaps: tiles whose keys are all seen by some row are copied by maps of tiles, by one thread; the others, as all
// where there are no maps, by 16 bytes a thread. Then a Source has:
//   kMapRows                                   keys that lie one after the other, and are copied at once
//   i32 MapRowOf(i32 key)                      what the next one needs to know of the keys from here on
//   void CopyRows<kOfKeys>(u32 to, i32 map_row, int part, u64* barrier)  copies their columns 64 * part…
#pragma once
#include "kernels/attention/flash_attention.cuh"
#include "kernels/common/bulk_copy.cuh"

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
  static constexpr int kStages = FlashHopperStages(S::kByMaps);  // of keys, and of values
  static constexpr int kOffsets = kKeys / 32;                    // of keys that a lane looks up
  static constexpr u32 kColumns = kKeys * 128;                   // bytes of 64 columns of a tile of keys or values
  static constexpr u32 kPart = kDim / 64 * kColumns;             // of a tile
  static constexpr u32 kQueryColumns = kRows * 128;              // bytes of 64 columns of queries
  static constexpr int kSharedBytes = FlashHopperSharedBytes(kDim, kKeys, S::kByMaps);
  static_assert(kSharedBytes == 2 * kStages * kPart + kRows * kDim * 2 + 1024, "the layout has what is used here");
  static_assert(kDim == Source::kValueDim, "keys and values lie alike");
  static_assert(kDim == 64 || kDim == 128, "rows are one or two times 128 bytes");
  static_assert(S::kThreads == kThreads && kThreads == kFlashHopperThreads && kRows == kFlashRows,
                "a warpgroup that copies and two that compute");

  // What the warpgroups tell each other: what is there and what is free, and what there is to do.
  struct Shared {
    u64 keys_full[kStages], keys_free[kStages], values_full[kStages], values_free[kStages];
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
        values(keys + kStages * kPart),
        queries(values + kStages * kPart) {}

  // All threads of the block.
  __device__ __forceinline__ void Run(const Scale& scale) const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        InitBarrier(&shared.keys_full[i], 128);
        InitBarrier(&shared.keys_free[i], 4 * kWarpgroups);
        InitBarrier(&shared.values_full[i], 128);
        InitBarrier(&shared.values_free[i], 4 * kWarpgroups);
      }
      InitBarrier(&shared.work_full, 1 + 128);
      InitBarrier(&shared.work_free, 128 * kWarpgroups);
#if LLMC_SM90
      if (S::kByMaps) FenceBarriers();
#endif
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
      if constexpr (S::kByMaps) {
        CopyByMaps(source, tiles);
      } else {
        Copy(source, tiles);
      }
    } else {
      ArriveAt(&shared.work_full);
    }
    return more;
  }

  // Where 8 elements of a row of queries lie, so that those of 8 rows are in different banks.
  __device__ __forceinline__ u32 QueryAt(int row, int chunk) const {
    return queries + chunk / 8 * kQueryColumns + row * 128 + (chunk % 8 ^ row % 8) * 16;
  }

  __device__ __forceinline__ void CopyQueries(const Source& source) const {
    constexpr int kChunks = kDim / 8, kRowsAtOnce = 128 / kChunks;
    const int column = threadIdx.x % kChunks * 8;
#pragma unroll 4
    for (int row = threadIdx.x % 128 / kChunks; row < kRows; row += kRowsAtOnce) {
      const T* from = source.Query(row);
      CopyAsync(QueryAt(row, column / 8), from + column, from != nullptr);
    }
  }

  __device__ __forceinline__ void Copy(const Source& source, i32* tiles) const {
    const i32 first = FirstTile(source), last = LastTile(source);
    i32 offsets[kOffsets], next[kOffsets];
    FindOffsets(source, last, offsets);
    for (i32 tile = last; tile >= first; --tile, ++*tiles) {
      FindOffsets(source, tile - 1, next);
      CopyPart<true>(source, tile, *tiles, offsets);
      CopyPart<false>(source, tile, *tiles, offsets);
#pragma unroll
      for (int p = 0; p < kOffsets; ++p) offsets[p] = next[p];
    }
  }

  // The keys or the values of a tile, to the stage of tile number `number` of the block.
  template <bool kOfKeys>
  __device__ __forceinline__ void CopyPart(const Source& source, i32 tile, i32 number,
                                           const i32 (&offsets)[kOffsets]) const {
    const int stage = WaitForStage<kOfKeys>(number);
    CopyTile<kOfKeys>(source, (kOfKeys ? keys : values) + stage * kPart, tile, offsets);
    Arrive(kOfKeys ? &shared.keys_full[stage] : &shared.values_full[stage]);
  }

  template <bool kOfKeys>
  __device__ __forceinline__ int WaitForStage(i32 number) const {
    const int stage = number % kStages;
    WaitAt(kOfKeys ? &shared.keys_free[stage] : &shared.values_free[stage], (number / kStages + 1) % 2);
    return stage;
  }

  // ---- the same by maps of tiles -----------------------------------------------------------------------------------
  static __device__ __forceinline__ bool IsByMap(const Source& source, i32 tile) {
    return S::kByMaps && tile * kKeys >= source.first_key && (tile + 1) * kKeys <= source.end_key;
  }

  // Keys come a tile ahead of values, as they are needed. What must be looked up for a copy is looked up two tiles
  // ahead: each lane has the keys of one copy.
  __device__ __forceinline__ void CopyByMaps(const Source& source, i32* tiles) const {
    const i32 first = FirstTile(source), last = LastTile(source);
    i32 map_row = FindMapRow(source, last), next = FindMapRow(source, last - 1);
    CopyPartByMap<true>(source, last, *tiles, map_row);
    for (i32 tile = last; tile >= first; --tile, ++*tiles) {
      const i32 after = FindMapRow(source, tile - 2);
      if (tile > first) CopyPartByMap<true>(source, tile - 1, *tiles + 1, next);
      CopyPartByMap<false>(source, tile, *tiles, map_row);
      map_row = next;
      next = after;
    }
  }

  static __device__ __forceinline__ i32 FindMapRow(const Source& source, i32 tile) {
    const i32 key = tile * kKeys + static_cast<i32>(threadIdx.x) % (kKeys / Source::kMapRows) * Source::kMapRows;
    return source.MapRowOf(max(source.first_key, min(key, source.end_key - 1)));
  }

  template <bool kOfKeys>
  __device__ __forceinline__ void CopyPartByMap(const Source& source, i32 tile, i32 number, i32 map_row) const {
    constexpr int kCopies = kKeys / Source::kMapRows;
    static_assert(kCopies * Source::kMapRows == kKeys && kCopies <= 32 && Source::kMapRows % 8 == 0, "whole copies");
    if (!IsByMap(source, tile)) {
      i32 offsets[kOffsets];
      FindOffsets(source, tile, offsets);
      CopyPart<kOfKeys>(source, tile, number, offsets);
      return;
    }
#if LLMC_SM90
    const int stage = WaitForStage<kOfKeys>(number);
    u64* const full = kOfKeys ? &shared.keys_full[stage] : &shared.values_full[stage];
    if (threadIdx.x % 128 != 0) ArriveAt(full);
    if (threadIdx.x % 128 >= 32) return;
    i32 map_rows[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i) map_rows[i] = __shfl_sync(~0u, map_row, i);
    if (threadIdx.x % 128 == 0) ArriveExpecting(full, kPart);
    __syncwarp();
    if (!ElectThread()) return;
    const u32 to = (kOfKeys ? keys : values) + stage * kPart;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
#pragma unroll
      for (int part = 0; part < kDim / 64; ++part) {
        source.template CopyRows<kOfKeys>(to + part * kColumns + i * Source::kMapRows * 128, map_rows[i], part, full);
      }
    }
#endif
  }

  // ---- copies of 16 bytes ------------------------------------------------------------------------------------------
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
      LoadMatrices(query[step], QueryAt(row, 2 * step + lane / 16));
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

  // Waits for keys or values of tile number `number` of the block.
  __device__ __forceinline__ int WaitForKeys(i32 number) const {
    WaitAt(&shared.keys_full[number % kStages], number / kStages % 2);
    return number % kStages;
  }
  __device__ __forceinline__ int WaitForValues(i32 number) const {
    WaitAt(&shared.values_full[number % kStages], number / kStages % 2);
    return number % kStages;
  }
  // Lets the tensor cores see a tile that was waited for and what threads have written of it.
  static __device__ __forceinline__ void ShowTile(const Source& source, i32 tile) {
    if (!IsByMap(source, tile)) FenceSharedForTensorCores();
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

    int key_stage = WaitForKeys(*tiles);
    ShowTile(source, last);
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
      LoadMask(source, rows, at * kKeys, &pairs);
      key_stage = WaitForKeys(*tiles + 1);
      const int value_stage = WaitForValues(*tiles);
      if (!IsByMap(source, at + 1) || !IsByMap(source, at)) FenceSharedForTensorCores();
      ++*tiles;
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

    const int value_stage = WaitForValues(*tiles);
    ShowTile(source, first);
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
