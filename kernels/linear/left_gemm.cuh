// Products of some or many rows of x with an encoded weight, for sm_90a: rows of the weight are the left operand of
// products of warpgroups, and become numbers of 16 bits in registers (left_operand.cuh); the right one is rows of x,
// put in the order that goes with it (order_columns.cuh).
//
// A block goes from tile to tile. Of a warpgroup that copies, one thread copies slabs of x by maps of tiles, three
// warps stages of the weight, to two rings in shared memory; two warpgroups multiply 64 or 128 rows of the weight each.
// Products of one stretch of terms run while codes of the next are decoded. Of its sums a lane has neighbours of a row
// of the result. Where tiles are many, each sum is of all terms in their order, whatever the tiles are; of some rows of
// x blocks share the stages of all tiles equally (stream_k.cuh).
#pragma once
#include "kernels/linear/left_products.cuh"
#include "kernels/linear/stream_k.cuh"

namespace llmc {

#if LLMC_SM90
struct LeftGemmShared {
  u64 x_full[LeftGemmLayout::kMostStages], x_empty[LeftGemmLayout::kMostStages];
  u64 weight_full[LeftGemmLayout::kMostStages], weight_empty[LeftGemmLayout::kMostStages];
  u32 offsets[256];  // of the tile that is copied: where rows of the weight begin, in bytes
  int is_last[2];    // of each warpgroup
};

// Of the result, columns from `column` on; rows [row, row + rows) of x.
struct LeftGemmTile {
  int column, row, rows;
};
// Of tile `tile`, stages [begin, end).
struct LeftGemmPart {
  int tile, begin, end;
};

// Work says which tiles there are, and what becomes of sums:
//   Tiles(), At(t)               of all blocks; they are taken in their order
//   Result(sum, up)              the element of a sum; up: where there are gates
//   Prepare(tile, row, column), Store(tile, row, column, results, prepared)   what becomes of a vector of those of row
//                                `row` of the tile, and what is read for it before
//   partials, counters           where blocks share tiles: for each block twice the sums of a tile; two for each, zero,
//                                and left so
// C::T: f16 or bf16.  C::kIn, C::kOut: k, and columns of the result.  C::kGated: each of them is of two rows of the
// weight, kOut apart.  C::kHalves: times 64 rows of the weight that a warpgroup has.  C::kSharedBytes.  C::kGrid:
// blocks of the launch, which share tiles; 0: each tile is one block's.  C::kFew: two blocks fit on a multiprocessor.
// And what the reader says.  kTokens: rows of x in a tile, at the most; of kBox rows x is copied at once.
template <class C, class Context, class Work, int kTokens, int kBox>
struct LeftGemmBody {
  using T = typename C::T;
  using Reader = Weight<C>;
  using L = LeftGemmLayout;
  static constexpr int kHalves = C::kHalves, kRows = 128 * kHalves;
  using Left = LeftOperand<C, Reader, kRows>;
  static constexpr L kLayout = {kHalves, kTokens, Left::kDepth / L::kSlab, Left::kStageBytes, C::kSharedBytes};
  static constexpr int kSlabs = kLayout.slabs, kStages = (C::kIn + Left::kDepth - 1) / Left::kDepth;  // of a tile
  static constexpr int kXStages = kLayout.XStages(), kWeightStages = kLayout.WeightStages();
  static constexpr int kSlabBytes = kLayout.SlabBytes();
  using Places = LeftPlaces<kWeightStages, kXStages>;
  static constexpr int kN = C::kGated ? 2 * C::kOut : C::kOut;    // rows of the weight
  static constexpr int kColumns = C::kGated ? kRows / 2 : kRows;  // of the result, in a tile
  static constexpr int kColumnTiles = (C::kOut + kColumns - 1) / kColumns;
  static constexpr int kOwnRows = 2 * kHalves, kOwn = C::kGated ? kHalves : kOwnRows;  // of a lane
  static constexpr int kSlots = 8 * kOwnRows;                                          // of a warp
  // Of results, which a warpgroup stores: columns, and blocks of 8 rows that it stores at once; elements of a vector.
  static constexpr int kGroupColumns = kColumns / 2, kMostStored = kHalves == 1 ? 8 : C::kGated ? 4 : 2;
  static constexpr int kStoreBlocks = kTokens / 8 < kMostStored ? kTokens / 8 : kMostStored;
  static constexpr int kVec = ElementsOfVector(C::kOut, 16), kVecs = kGroupColumns / kVec;
  static constexpr int kStoreRows = 8 * kStoreBlocks, kPasses = kStoreRows * kVecs / 128;
  static constexpr int kStoreStride = 2 * kGroupColumns + 16;  // rows of a warp are in different banks
  static constexpr int kStoreBytes = kStoreRows * kStoreStride;
  static_assert(2 * kStoreBytes <= kLayout.StoreBytes(), "results that are stored at once");
  static_assert(sizeof(T) == 2, "T: f16 or bf16");
  static_assert(kHalves == 1 || kHalves == 2, "kHalves: 1 or 2");
  static_assert(L::kSlab == kLeftSlab, "slabs are those of left operands");
  static_assert(C::kThreads == L::kThreads, "kThreads: two warpgroups multiply, one copies");
  static_assert(kXStages >= L::kLeastXStages, "kSharedBytes: two stages of weights, three slabs of x");
  static_assert(kTokens % kBox == 0 && kBox % 8 == 0, "kBox: whole boxes");
  static_assert(C::kGrid * 8 <= kCounterBytes, "kGrid: blocks have counters");
  static_assert(static_cast<i64>(kN) * Left::kMatrixRowBytes < 1ll << 32, "kOut, kIn: offsets of 32 bits");

  const Context& context;
  LeftGemmShared& shared;
  char* const arena;
  const TileMap& x;
  const Reader& weight;
  const Work& work;

  __device__ __forceinline__ char* XStage(int slot) const { return arena + slot * kSlabBytes; }
  __device__ __forceinline__ char* WeightStage(int slot) const {
    return arena + kXStages * kSlabBytes + slot * Left::kStageBytes;
  }
  static __device__ __forceinline__ int Thread() { return static_cast<int>(threadIdx.x); }

  // The row of the weight in a slot of a tile whose columns of the result begin at `first`, so that a lane's slots are
  // neighbours: columns, or the gate and the up of half as many. What is not there is as good as the last.
  static __device__ __forceinline__ i64 RowOf(int first, int slot) {
    const int j = slot % kSlots / 8, lane = slot % 8;
    const int column = first + slot / kSlots * (8 * kOwn) + lane * kOwn + (C::kGated ? j / 2 : j);
    return (column < C::kOut ? column : C::kOut - 1) + (C::kGated ? j % 2 * C::kOut : 0);
  }
  // Few tiles are cut into equal parts, whose blocks have no parts of others, if that leaves few blocks without any.
  __device__ __forceinline__ StreamLine Line() const {
    const int tiles = work.Tiles(), whole = tiles < C::kGrid ? C::kGrid / tiles * tiles : 0;
    return {tiles * kStages, kStages, 10 * whole >= 7 * C::kGrid ? whole : C::kGrid};
  }
  __device__ __forceinline__ int Block() const { return static_cast<int>(context.TileX()); }
  template <class Visit>
  __device__ __forceinline__ void ForEachPart(const Visit& visit) const {
    if constexpr (C::kGrid > 0) {
      const int end = Line().BeginOf(Block() + 1);
#pragma unroll 1
      for (int at = Line().BeginOf(Block()); at < end;) {
        const int tile = at / kStages, first = at % kStages;
        const int last = first + (end - at < kStages - first ? end - at : kStages - first);
        visit(work.At(tile), LeftGemmPart{tile, first, last});
        at += last - first;
      }
    } else {
      const int tiles = work.Tiles();
#pragma unroll 1
      for (int t = Block(); t < tiles; t += static_cast<int>(context.TilesX())) {
        visit(work.At(t), LeftGemmPart{t, 0, kStages});
      }
    }
  }

  // ---- threads that copy -------------------------------------------------------------------------------------------
  // What lies behind the rows of a tile, or behind all, becomes sums that nobody stores.
  __device__ __forceinline__ void CopyX() const {
    if (!ElectThread()) return;
    RingPlace<kXStages> place;
    ForEachPart([&](const LeftGemmTile& tile, const LeftGemmPart& part) {
      const int boxes = (tile.rows + kBox - 1) / kBox;
#pragma unroll 1
      for (int slab = part.begin * kSlabs; slab < part.end * kSlabs; ++slab) {
        WaitAt(&shared.x_empty[place.slot], place.parity ^ 1);
        u64* const full = &shared.x_full[place.slot];
        ArriveExpecting(full, static_cast<u32>(boxes * kBox * 128));
        const u32 to = SharedAddress(XStage(place.slot));
        for (int i = 0; i < boxes; ++i) CopyTile(to + i * kBox * 128, x, slab * 128, tile.row + i * kBox, full);
        place.Advance();
      }
    });
  }
  __device__ __forceinline__ void CopyWeights() const {
    constexpr int kThreads = L::kWeightThreads;
    const int thread = Thread() - L::kMathThreads - L::kXThreads;
    RingPlace<kWeightStages> place;
    ForEachPart([&](const LeftGemmTile& tile, const LeftGemmPart& part) {
      const auto row_of = [=](int slot) { return RowOf(tile.column, slot); };
      SyncNamed(1, kThreads);  // the tile before has been copied
      for (int slot = thread; slot < kRows; slot += kThreads) {
        shared.offsets[slot] = static_cast<u32>(row_of(slot) * Left::kMatrixRowBytes);
      }
      SyncNamed(1, kThreads);
#pragma unroll 1
      for (int at = part.begin; at < part.end; ++at) {
        WaitAt(&shared.weight_empty[place.slot], place.parity ^ 1);
        Left::template Copy<kThreads>(thread, weight, row_of, shared.offsets, at, WeightStage(place.slot));
        ArriveWithCopies(&shared.weight_full[place.slot]);
        place.Advance();
      }
    });
    WaitForAllCopies();
  }

  // ---- warpgroups that multiply ------------------------------------------------------------------------------------
  // Of the slots of the first half of its rows, the lane's first.
  static __device__ __forceinline__ int OwnSlot() { return Thread() / 32 * kSlots + Thread() % 32 / 4; }

  __device__ __forceinline__ void AwaitWeight(const Places& places, int slab) const {
    if (slab == 0) WaitAt(&shared.weight_full[places.weight.slot], places.weight.parity);
  }
  __device__ __forceinline__ void AwaitX(const Places& places) const {
    WaitAt(&shared.x_full[places.x.slot], places.x.parity);
  }

  // What a thread stores of some rows: one vector of several.
  struct Place {
    int row, column, at;
    bool exists;
  };
  static __device__ __forceinline__ Place PlaceOf(const LeftGemmTile& tile, int first, int begin, int pass) {
    const int vec = pass * 128 + Thread() % 128, of_stage = vec / kVecs, column = vec % kVecs * kVec;
    const int row = 8 * begin + of_stage;
    return {row, first + column, of_stage * kStoreStride + 2 * column, row < tile.rows && first + column < C::kOut};
  }

  template <int kBlocks>
  __device__ __forceinline__ void Multiply(Places& places, const LeftGemmTile& tile, const LeftGemmPart& part) const {
    float c[kHalves][kBlocks][4] = {};
    MultiplyLeftTile(*this, places, weight, tile.column, part.begin, part.end, c);
    if constexpr (C::kGrid > 0) {
      if (part.end - part.begin < kStages && !AddUp(part.tile, c)) return;
    }
    Store(tile, c);
  }
  // The parts of a tile: warpgroups do not wait for each other.
  template <int kBlocks>
  __device__ __forceinline__ bool AddUp(int tile, float (&c)[kHalves][kBlocks][4]) const {
    constexpr int kParts = (kBlocks + 15) / 16, kAtOnce = kBlocks / kParts, kArrays = kHalves * kParts;
    static_assert(kBlocks % kParts == 0, "kTokens: parts of as many sums, that registers hold");
    const int group = Thread() / 128;
    // A tile that lies in several blocks' parts is the last one of the first of them.
    const int counter = 2 * Line().BlockOf(tile * kStages) + group;
    return AddUpTile<128, L::kMathThreads, 1>(Line(), Block(), tile, work.partials, work.counters + counter, 2 + group,
                                              shared.is_last[group], reinterpret_cast<float(&)[kArrays][kAtOnce][4]>(c),
                                              [](int) { return true; });
  }

  // By a warpgroup, some rows at a time through shared memory, so that it writes neighbours in memory at once.
  template <int kBlocks>
  __device__ __forceinline__ void Store(const LeftGemmTile& tile, const float (&c)[kHalves][kBlocks][4]) const {
    static_assert(kBlocks % kStoreBlocks == 0, "kTokens: whole parts");
    const int group = Thread() / 128, first = tile.column + group * kGroupColumns;
    const int own = OwnSlot() % (4 * kSlots) / kSlots * (8 * kOwn) + OwnSlot() % 8 * kOwn;  // of the warpgroup's
    char* const stage = arena + kLayout.StoreAt() + group * kStoreBytes;
    float scale[kOwnRows];
#pragma unroll
    for (int j = 0; j < kOwnRows; ++j) scale[j] = Left::Scale(weight, RowOf(tile.column, OwnSlot() + 8 * j));
#pragma unroll
    for (int begin = 0; begin < kBlocks; begin += kStoreBlocks) {
      if (8 * begin >= tile.rows) break;
      Place places_of[kPasses];
      typename Work::Prepared prepared[kPasses];
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        places_of[i] = PlaceOf(tile, first, begin, i);
        if (places_of[i].exists) prepared[i] = work.Prepare(tile, places_of[i].row, places_of[i].column);
      }
      SyncNamed(2 + group, 128);  // the rows before, of this tile or of the one before, have been read
#pragma unroll
      for (int i = 0; i < 2 * kStoreBlocks; ++i) {
        Vec<T, kOwn> results;
        float sums[kOwnRows];
#pragma unroll
        for (int j = 0; j < kOwnRows; ++j) sums[j] = c[j / 2][begin + i / 2][j % 2 * 2 + i % 2] * scale[j];
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
          results.v[j] = work.Result(sums[C::kGated ? 2 * j : j], sums[C::kGated ? 2 * j + 1 : j]);
        }
        const int row = i / 2 * 8 + Thread() % 4 * 2 + i % 2;
        llmc::Store(reinterpret_cast<T*>(stage + row * kStoreStride) + own, results);
      }
      SyncNamed(2 + group, 128);
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        const Place& place = places_of[i];
        if (!place.exists) continue;
        work.Store(tile, place.row, place.column, Load<T, kVec>(reinterpret_cast<const T*>(stage + place.at)),
                   prepared[i]);
      }
    }
  }

  __device__ __forceinline__ void Run() const {
    if (threadIdx.x < L::kMostStages) {
      InitBarrier(&shared.x_full[threadIdx.x], 1);
      InitBarrier(&shared.x_empty[threadIdx.x], L::kMathThreads / 32);
      InitBarrier(&shared.weight_full[threadIdx.x], L::kWeightThreads);
      InitBarrier(&shared.weight_empty[threadIdx.x], L::kMathThreads / 32);
      FenceBarriers();
    }
    context.Sync();
    if (threadIdx.x < L::kMathThreads) {
      TakeRegisters<C::kFew ? 96 : 232>();
      context.Wait();
      Places places;
      ForEachPart(
          [&](const LeftGemmTile& tile, const LeftGemmPart& part) { Multiply<kTokens / 8>(places, tile, part); });
      return;
    }
    GiveRegisters<40>();
    if (threadIdx.x < L::kMathThreads + L::kXThreads) {
      context.Wait();
      CopyX();
    } else {
      CopyWeights();
    }
  }
};
#endif

}  // namespace llmc
