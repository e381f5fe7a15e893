// Products of codes of 8 bits, x[m, k] * weight[n, k]^T, whose scales are those of all, of rows and columns, or of
// blocks of 128, or the gate of an MLP of them, silu(y[t, i]) * y[t, n / 2 + i]; for sm_90a.
//
// A block goes from tile to tile of the result; where tiles are few, blocks share their chunks (stream_k.cuh). One
// thread copies tiles of both factors, kDepth terms at a time, to stages in shared memory, as far ahead as there are
// stages; warpgroups multiply. Each has 64 rows of a tile, or, where there are enough rows, twice 64: more products for
// each byte that is copied.
//
// Tensor cores keep some 14 bits of sums of floats of 8 bits. So the sums of a span of kDepth terms, or of twice as
// many where there are many rows, are made by themselves and added up in f32, which is also where scales of blocks are
// multiplied. Meanwhile another warpgroup's products run. Sums of integers are exact, and stay where they are.
//
// What many rows take is what the power allows, so fewer additions and fewer bytes from the cache make them shorter:
// blocks of a cluster have neighbouring tiles of the same rows, and each copies a part of x for all.
#pragma once
#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/linear/byte_products.cuh"
#include "kernels/linear/stream_k.cuh"

namespace llmc {

#if LLMC_SM90
template <int kStages>
struct WarpgroupMatMulShared {
  u64 full[kStages], empty[kStages];
  int is_last;
};

// A stage, and the parity of the phase in which it is used.
struct StageWalk {
  int stages;
  int slot = 0;
  u32 parity = 0;
  __device__ __forceinline__ void Advance() {
    slot = slot + 1 == stages ? 0 : slot + 1;
    parity ^= slot == 0 ? 1 : 0;
  }
};

// C::T: of the result.  C::A, C::B: of the codes.  C::ScaleA, C::Scale: of their scales.  C::kIn, C::kOut: k and
// n.  C::kScaleA, C::kScale: PartKinds of the scales: kOfColumns: of rows of x, and of columns of the result; both or
// neither kOfBlocks.  C::kHalves: the most times 64 rows that a warpgroup has.  C::kStages.
// C::kCluster: blocks that share what they copy of x.
// C::kStreamK: all rows are in one tile, whatever m is, and blocks share the chunks of all tiles.  C::kWeightFirst: the
// weight is there before the step.
// Over 250 lines: what copies and what multiplies share one walk along tiles and stages.
template <class C, class Context>
struct WarpgroupMatMulBody {
  using L = WarpgroupMatMulLayout;
  using T = typename C::T;
  using ScaleA = typename C::ScaleA;
  using Scale = typename C::Scale;
  static constexpr bool kFloats = kIsFloatType<typename C::A>;
  static constexpr bool kBlocks = C::kScale == kOfBlocks;
  static constexpr WarpgroupMatMulLayout kLayout = {C::kWarpgroups, C::kHalves, C::kStages};
  static constexpr int kChunks = (C::kIn + L::kDepth - 1) / L::kDepth;
  // Of a tile: columns of the result, and of the weight, whose gate and up columns lie one after the other.
  static constexpr int kTileOut = C::kGated ? L::kColumns / 2 : L::kColumns;
  static constexpr int kColumnTiles = (C::kOut + kTileOut - 1) / kTileOut;
  static constexpr int kWeightRows = C::kGated ? 2 * C::kOut : C::kOut;
  static constexpr int kMostStages = kLayout.MostStages();
  // Chunks whose sums tensor cores make.
  static constexpr int kSpan = kBlocks || C::kStreamK || C::kHalves == 1 ? 1 : 2;
  static_assert(C::kCluster == 1 || (!C::kStreamK && C::kHalves == 2 && kColumnTiles % C::kCluster == 0),
                "kCluster: each block has a tile in every turn");
  static_assert(C::kWarpgroups == 2, "as many registers as two may take");
  static_assert(kIsFloatType<typename C::B> == kFloats, "A, B: both are floats or integers");
  static_assert(kBlocks == (C::kScaleA == kOfBlocks), "kScaleA: of blocks like kScale");
  static_assert(C::kOut % 8 == 0 && sizeof(T) == 2, "results are stored by 16 bytes");
  static_assert(!C::kGated || !kBlocks || C::kOut % kTileOut == 0, "kGated: tiles lie in blocks");
  static_assert(C::kThreads == kLayout.Threads(), "warpgroups that multiply, and one that copies");
  using Sum = typename WarpgroupSum<kFloats>::Type;

  const Context& context;
  WarpgroupMatMulShared<kMostStages>& shared;
  char* stages;  // from a multiple of 1024 on
  T* out;
  const TileMap &x_map, &weight_map;
  const Scale* scale;
  const ScaleA* scale_a;
  Sum* partials;
  i32* counters;  // of tiles
  i32 m;
  i32 halves;  // of this product

  struct Tile {
    i32 row, column;
  };
  // What a block does at once: chunks [first, end) of a tile.
  struct Segment {
    i32 tile, first, end;
  };
  // In kStreamK `at` is a chunk of the line, else a tile.
  struct Segments {
    i32 at, end;
    i32 step;  // from tile to tile
    __device__ __forceinline__ bool Next(Segment* s) {
      if (at >= end) return false;
      if constexpr (C::kStreamK) {
        const i32 first = at % kChunks, left = end - at, whole = kChunks - first;
        *s = {at / kChunks, first, first + (left < whole ? left : whole)};
        at += s->end - first;
      } else {
        *s = {at, 0, kChunks};
        at += step;
      }
      return true;
    }
  };
  __device__ __forceinline__ i32 Block() const { return static_cast<i32>(context.TileX()); }
  __device__ __forceinline__ StreamLine Line() const {
    return {kColumnTiles * kChunks, kChunks, static_cast<int>(context.TilesX())};
  }
  __device__ __forceinline__ Segments Begin() const {
    if constexpr (C::kStreamK) return {Line().BeginOf(Block()), Line().BeginOf(Block() + 1), 0};
    return {Block(), Tiles(), static_cast<i32>(context.TilesX())};
  }
  __device__ __forceinline__ i32 TileRows() const { return 64 * C::kWarpgroups * halves; }
  __device__ __forceinline__ i32 StageBytes() const { return (TileRows() + L::kColumns) * L::kDepth; }
  // Stages of fewer rows are smaller, and more.
  __device__ __forceinline__ i32 Stages() const { return halves == C::kHalves ? C::kStages : kMostStages; }
  __device__ __forceinline__ i32 RowTiles() const { return (m + TileRows() - 1) / TileRows(); }
  __device__ __forceinline__ i32 Tiles() const { return RowTiles() * kColumnTiles; }
  // The blocks of a cluster share rows of x, neighbours beyond it columns of the weight; kGroup row tiles go through
  // all columns, so that their x stays in the cache.
  __device__ __forceinline__ Tile TileOf(i32 tile) const {
    if (C::kStreamK) return {0, tile * kTileOut};
    const i32 group = tile / (L::kGroup * kColumnTiles), rest = tile % (L::kGroup * kColumnTiles);
    const i32 first = group * L::kGroup, left = RowTiles() - first, high = left < L::kGroup ? left : L::kGroup;
    const i32 row = rest / C::kCluster % high, column = rest / (high * C::kCluster) * C::kCluster + rest % C::kCluster;
    return {(first + row) * TileRows(), column * kTileOut};
  }

  __device__ __forceinline__ void CopyWeight(i32 chunk, i32 column, i32 slot) const {
    u64* const full = &shared.full[slot];
    ArriveExpecting(full, (TileRows() + L::kColumns) * L::kDepth);
    const u32 to = SharedAddress(stages) + slot * StageBytes() + TileRows() * L::kDepth;
    CopyTile(to, weight_map, chunk * L::kDepth, column, full);
    if (C::kGated) CopyTile(to + kTileOut * L::kDepth, weight_map, chunk * L::kDepth, C::kOut + column, full);
  }
  __device__ __forceinline__ void CopyX(i32 chunk, i32 row, i32 slot) const {
    const u32 to = SharedAddress(stages) + slot * StageBytes();
    const i32 part = TileRows() / C::kCluster, begin = C::kCluster > 1 ? static_cast<i32>(ClusterRank()) * part : 0;
    for (i32 rows = begin; rows < begin + part; rows += 64) {
      if constexpr (C::kCluster > 1) {
        CopyTileToCluster<C::kCluster>(to + rows * L::kDepth, x_map, chunk * L::kDepth, row + rows, &shared.full[slot]);
      } else {
        CopyTile(to + rows * L::kDepth, x_map, chunk * L::kDepth, row + rows, &shared.full[slot]);
      }
    }
  }
  __device__ __forceinline__ void Copy() const {
    if (threadIdx.x != kLayout.MathThreads()) return;
    Segments segments = Begin();
    Segment s;
    i32 early = 0;  // stages whose weight is copied while the kernel before still runs
    if constexpr (C::kWeightFirst) {
      for (Segments ahead = segments; early < Stages() && ahead.Next(&s);) {
        for (i32 chunk = s.first; chunk < s.end && early < Stages(); ++chunk, ++early) {
          CopyWeight(chunk, TileOf(s.tile).column, early);
        }
      }
    }
    context.Wait();
    StageWalk walk{Stages()};
    while (segments.Next(&s)) {
      const Tile tile = TileOf(s.tile);
#pragma unroll 1
      for (i32 chunk = s.first; chunk < s.end; ++chunk, walk.Advance()) {
        if (early > 0) {
          --early;
        } else {
          WaitAt(&shared.empty[walk.slot], walk.parity ^ 1);
          CopyWeight(chunk, tile.column, walk.slot);
        }
        CopyX(chunk, tile.row, walk.slot);
      }
    }
  }

  // Of a tile, the row of this thread's first sum among the 64 of a half of its warpgroup; the others are 8 below.
  __device__ __forceinline__ i32 OwnRow() const { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
  __device__ __forceinline__ i32 FirstRow(const Tile& tile, i32 half) const {
    return tile.row + (static_cast<i32>(threadIdx.x) / 128 * halves + half) * 64;
  }
  __device__ __forceinline__ i32 KnownRow(i32 row) const { return row < m ? row : m - 1; }

  // The products of a chunk with one half of the rows.
  __device__ __forceinline__ void MultiplyChunk(Sum (&c)[16][4], i32 slot, i32 half, bool add) const {
    const u32 at = SharedAddress(stages) + slot * StageBytes();
    const u32 a = at + (threadIdx.x / 128 * halves + half) * 64 * L::kDepth, b = at + TileRows() * L::kDepth;
#pragma unroll
    for (int step = 0; step < L::kDepth / 32; ++step) {
      MultiplyWarpgroupBytes<typename C::A, typename C::B>(c, Operand(a + 32 * step), Operand(b + 32 * step),
                                                           add || step > 0);
    }
  }
  __device__ __forceinline__ void Free(u64* empty) const {
    if constexpr (C::kCluster > 1) {
      if (threadIdx.x % 32 < C::kCluster) ArriveAtOfBlock(empty, threadIdx.x % 32);
    } else {
      if (threadIdx.x % 32 == 0) ArriveAt(empty);
    }
  }

  // Sums of integers: products of a stage run while the next one is awaited.
  __device__ __forceinline__ void SumWhole(const Segment& s, StageWalk& walk, Sum (&sums)[C::kHalves][16][4]) const {
    u64* before = nullptr;
#pragma unroll 1
    for (i32 chunk = s.first; chunk < s.end; ++chunk) {
      WaitAt(&shared.full[walk.slot], walk.parity);
      BeginProducts();
#pragma unroll
      for (int half = 0; half < C::kHalves; ++half) {
        if (half < halves) MultiplyChunk(sums[half], walk.slot, half, chunk > s.first);
      }
      CommitProducts();
      WaitForProducts<1>();
      if (before != nullptr) Free(before);
      before = &shared.empty[walk.slot];
      walk.Advance();
    }
    WaitForProducts<0>();
    Free(before);
#pragma unroll
    for (int half = 0; half < C::kHalves; ++half) Pin(sums[half]);
  }

  // The products of one or two stages with one half of the rows. The last half frees them. The first of them is there;
  // the first half awaits the second one.
  __device__ __forceinline__ void MultiplySpan(float (&c)[16][4], const StageWalk& first, const StageWalk& second,
                                               bool has_second, i32 half) const {
    BeginProducts();
    MultiplyChunk(c, first.slot, half, false);
    CommitProducts();
    if (has_second) {
      if (half == 0) WaitAt(&shared.full[second.slot], second.parity);
      MultiplyChunk(c, second.slot, half, true);
      CommitProducts();
      WaitForProducts<1>();
      if (half == halves - 1) Free(&shared.empty[first.slot]);
      WaitForProducts<0>();
      if (half == halves - 1) Free(&shared.empty[second.slot]);
    } else {
      WaitForProducts<0>();
      if (half == halves - 1) Free(&shared.empty[first.slot]);
    }
  }

  // Sums of floats: those of each span are added to others, times the scales of its blocks.
  __device__ __forceinline__ void SumChunks(const Segment& s, StageWalk& walk, Sum (&sums)[C::kHalves][16][4]) const {
    const Tile tile = TileOf(s.tile);
    const ScaleA* row_scales[C::kHalves][2];
#pragma unroll
    for (int i = 0; i < 2 * C::kHalves; ++i) {
      row_scales[i / 2][i % 2] =
          scale_a + static_cast<i64>(KnownRow(FirstRow(tile, i / 2) + OwnRow() + i % 2 * 8)) * kChunks;
    }
    // Of the columns of the weight in the tile: all, or the first and the second half.
    const Scale* const column_scales[] = {
        scale + static_cast<i64>(tile.column / L::kColumns) * kChunks,
        scale + static_cast<i64>((tile.column + (C::kGated ? C::kOut : 0)) / L::kColumns) * kChunks};
#pragma unroll
    for (int i = 0; i < C::kHalves * 64; ++i) sums[i / 64][i / 4 % 16][i % 4] = 0;
#pragma unroll 1
    for (i32 chunk = s.first; chunk < s.end; chunk += kSpan) {
      const bool has_second = kSpan == 2 && chunk + 1 < s.end;
      StageWalk next = walk;
      next.Advance();
      float of_row[C::kHalves][2], of_columns[2];
#pragma unroll
      for (int i = 0; i < 2 && kBlocks; ++i) of_columns[i] = ToFloat(column_scales[i][chunk]);
#pragma unroll
      for (int i = 0; i < 2 * C::kHalves && kBlocks; ++i) {
        of_row[i / 2][i % 2] = ToFloat(row_scales[i / 2][i % 2][chunk]);
      }
      WaitAt(&shared.full[walk.slot], walk.parity);
#pragma unroll
      for (int half = 0; half < C::kHalves; ++half) {
        if (half >= halves) break;
        float c[16][4];
        MultiplySpan(c, walk, next, has_second, half);
        Pin(c);
#pragma unroll
        for (int i = 0; i < 64; ++i) {
          Sum& sum = sums[half][i / 4][i % 4];
          const float factor = kBlocks ? of_row[half][i % 4 / 2] * of_columns[i / 32] : 1.0f;
          sum = kBlocks ? fmaf(c[i / 4][i % 4], factor, sum) : sum + c[i / 4][i % 4];
        }
      }
      walk = next;
      if (has_second) walk.Advance();
    }
  }
  // Through shared memory, where a warp has its own: rows of 64 results, which are stored by 128 bytes.
  __device__ __forceinline__ void Store(const Tile& tile, const Sum (&sums)[C::kHalves][16][4]) const {
    const int lane = threadIdx.x % 32;
    char* const mine = stages + C::kStages * kLayout.StageBytes() + threadIdx.x / 32 * L::kStoreBytes;
#pragma unroll
    for (int half = 0; half < C::kHalves; ++half) {
      if (half >= halves) break;
      const i32 first = FirstRow(tile, half) + static_cast<i32>(threadIdx.x) % 128 / 32 * 16;
      float of_row[2] = {1, 1};
#pragma unroll
      for (int i = 0; i < 2 && !kBlocks; ++i) {
        of_row[i] = ToFloat(scale_a[C::kScaleA == kOfColumns ? KnownRow(first + lane / 4 + 8 * i) : 0]);
      }
      // What a sum of a part of 64 columns of the weight stands for.
      const auto number = [&](int part, int i, int row, int j) {
        const float sum = static_cast<float>(sums[half][8 * part + i][2 * row + j]);
        if constexpr (kBlocks) return sum;
        const i32 at = tile.column + part * (C::kGated ? C::kOut : 64) + 8 * i + lane % 4 * 2 + j;
        const i32 known = at < kWeightRows ? at : kWeightRows - 1;
        return sum * (of_row[row] * ToFloat(scale[C::kScale == kOfColumns ? known : 0]));
      };
#pragma unroll
      for (int part = 0; part < kTileOut / 64; ++part) {
        const i32 first_column = tile.column + 64 * part;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            Vec<T, 2> pair;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              float y = number(part, i, row, j);
              if constexpr (C::kGated) y = SiluMul(Rounded<T>(y), Rounded<T>(number(1, i, row, j)));
              pair.v[j] = FromFloat<T>(y);
            }
            llmc::Store(reinterpret_cast<T*>(mine + (lane / 4 + 8 * row) * L::kStoreStride) + 8 * i + lane % 4 * 2,
                        pair);
          }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = 4 * i + lane / 8, column = lane % 8 * 8;
          const auto v = Load<T, 8>(reinterpret_cast<const T*>(mine + row * L::kStoreStride) + column);
          if (first + row < m && first_column + column < C::kOut) {
            llmc::Store(out + static_cast<i64>(first + row) * C::kOut + first_column + column, v);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void Multiply() const {
    context.Wait();
    StageWalk walk{Stages()};
    Segments segments = Begin();
    Segment s;
    while (segments.Next(&s)) {
      Sum sums[C::kHalves][16][4];
      if constexpr (kFloats) {
        SumChunks(s, walk, sums);
      } else {
        SumWhole(s, walk, sums);
      }
      const Tile tile = TileOf(s.tile);
      if (C::kStreamK && s.end - s.first < kChunks) {
        const auto takes = [&](int half) {
          return half < halves && FirstRow(tile, half) + static_cast<i32>(threadIdx.x) % 128 / 32 * 16 < m;
        };
        constexpr int kThreads = kLayout.MathThreads();
        if (!AddUpTile<kThreads, kThreads, 2>(Line(), Block(), s.tile, partials, counters + s.tile, 1, shared.is_last,
                                              sums, takes)) {
          continue;
        }
      }
      Store(tile, sums);
    }
  }

  __device__ __forceinline__ void Run() const {
    if (threadIdx.x < kMostStages) {
      InitBarrier(&shared.full[threadIdx.x], 1);
      InitBarrier(&shared.empty[threadIdx.x], C::kCluster * kLayout.MathThreads() / 32);
      FenceBarriers();
    }
    if constexpr (C::kCluster > 1) {
      ArriveInCluster();
      WaitForCluster();
    } else {
      context.Sync();
    }
    if (threadIdx.x >= kLayout.MathThreads()) {
      GiveRegisters<24>();
      Copy();
    } else {
      TakeRegisters<240>();
      Multiply();
    }
    // Others' copies and arrivals come to this block until they have ended.
    if constexpr (C::kCluster > 1) {
      ArriveInCluster();
      WaitForCluster();
    }
  }
};
#endif

template <class C, class Context>
__device__ __forceinline__ void WarpgroupMatMul(const Context& context, typename C::T* out, const TileMap& x_map,
                                                const TileMap& weight_map, const typename C::Scale* scale,
                                                const typename C::ScaleA* scale_a, void* partials, i32* counters,
                                                i64 m) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Body = WarpgroupMatMulBody<C, Context>;
  char* const arena = context.template Arena<1024>();
  char* const stages = arena + (1024 - SharedAddress(arena) % 1024) % 1024;
  auto& shared = context.template Shared<WarpgroupMatMulShared<Body::kMostStages>>();
  const i32 rows = static_cast<i32>(m);
  if (C::kStreamK && rows == 0) return context.Wait();
  i32 halves = C::kHalves;
  if constexpr (C::kHalves == 2 && C::kStreamK) {
    if (rows <= 64 * C::kWarpgroups) halves = 1;
  } else if constexpr (C::kHalves == 2) {
    // Fewer tiles of twice as many rows take as long as the last of them, and a tenth less for what they share.
    const auto rounds = [&](i32 tile_rows) {
      const i32 tiles = (rows + tile_rows - 1) / tile_rows * Body::kColumnTiles, blocks = context.TilesX();
      return (tiles + blocks - 1) / blocks;
    };
    if (10 * rounds(64 * C::kWarpgroups) <= 9 * 2 * rounds(128 * C::kWarpgroups)) halves = 1;
  }
  auto* const sums = static_cast<typename Body::Sum*>(partials);
  Body{context, shared, stages, out, x_map, weight_map, scale, scale_a, sums, counters, rows, halves}.Run();
#endif
}

}  // namespace llmc
