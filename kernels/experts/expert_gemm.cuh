// expert_linear for many pairs of a token and an expert, which expert_order.cuh has sorted, for sm_90a: the weight, of
// any format, is the left operand of products of warpgroups and becomes numbers of 16 bits in registers
// (left_operand.cuh); the right one is the rows of x of up to 160 pairs of one expert, as they lie in memory.
//
// A block goes from tile to tile: those of the same pairs, which share x, run at the same time. One warpgroup copies
// stages of the weight and slabs of x to two rings in shared memory, two multiply 128 rows of the weight each. Of its
// sums a lane has neighbours of a row of the result.
#pragma once
#include "kernels/experts/expert_sums.cuh"
#include "kernels/experts/expert_tile.cuh"
#include "kernels/linear/left_products.cuh"

namespace llmc {

#if LLMC_SM90
struct ExpertGemmShared {
  u64 full[ExpertGemmLayout::kMostStages];  // of slabs of x, and of the stage of the weight that begins with them
  u64 x_empty[ExpertGemmLayout::kMostStages], weight_empty[ExpertGemmLayout::kMostStages];
  // Of the tile that is copied: rows of x, and where those of the weight begin, in bytes.
  i32 rows[ExpertGemmLayout::kPairs];
  u32 offsets[ExpertGemmLayout::kRows];
  i32 pairs[2][ExpertGemmLayout::kPairs];  // of the tile that each warpgroup multiplies
};

template <class C, class Context>
struct ExpertGemmBody {
  using T = typename C::T;
  using Reader = Weight<C>;
  using L = ExpertGemmLayout;
  using Left = LeftOperand<C, Reader, L::kRows>;
  using Tile = ExpertTile<C::kExperts, L::kPairs>;
  static constexpr L kLayout = {Left::kDepth / L::kSlab, Left::kStageBytes, C::kSharedBytes};
  static constexpr int kSlabs = kLayout.slabs, kStages = (C::kIn + Left::kDepth - 1) / Left::kDepth;  // of a tile
  static constexpr int kXStages = kLayout.XStages(), kWeightStages = kLayout.WeightStages();
  static constexpr int kHalves = 2, kSlabBytes = L::kSlabBytes;
  using Places = LeftPlaces<kWeightStages, kXStages>;
  static constexpr int kN = C::kGated ? 2 * C::kOut : C::kOut;          // rows of the weight
  static constexpr int kColumns = C::kGated ? L::kRows / 2 : L::kRows;  // of the result, in a tile
  static constexpr int kColumnTiles = (C::kOut + kColumns - 1) / kColumns;
  static constexpr int kOwn = C::kGated ? 2 : 4;  // neighbours of a row of the result, of a lane
  static_assert(sizeof(T) == 2, "T: f16 or bf16");
  static_assert(L::kSlab == kLeftSlab, "slabs are those of left operands");
  static_assert(C::kThreads == L::kThreads, "kThreads: two warpgroups multiply, one copies");
  static_assert(kXStages >= 3, "kSharedBytes: two stages of weights, three slabs of x");
  static_assert(static_cast<i64>(kN) * Left::kMatrixRowBytes < 1ll << 32, "kOut, kIn: offsets of 32 bits");

  const Context& context;
  ExpertGemmShared& shared;
  char* const arena;
  T* const out;
  const T* const x;
  const Reader& weight;  // of all experts
  const T* const bias;
  const i32* const table;

  __device__ __forceinline__ int Tiles() const {
    return table[ExpertTilesAt(C::kExperts) + C::kExperts] * kColumnTiles;
  }
  __device__ __forceinline__ char* XStage(int slot) const { return arena + slot * kSlabBytes; }
  __device__ __forceinline__ char* WeightStage(int slot) const {
    return arena + kXStages * kSlabBytes + slot * Left::kStageBytes;
  }
  static __device__ __forceinline__ int Thread() { return static_cast<int>(threadIdx.x); }

  // The row of the weight in a slot of a tile whose columns of the result begin at `first`, so that a lane's slots are
  // neighbours: columns, or the gate and the up of half as many. What is not there is as good as the last.
  static __device__ __forceinline__ i64 RowOf(int first, int slot) {
    const int j = slot % 32 / 8, lane = slot % 8;
    const int column = first + slot / 32 * (8 * kOwn) + lane * kOwn + (C::kGated ? j / 2 : j);
    return ExpertRowOf<C>(kN, column < C::kOut ? column : C::kOut - 1, C::kGated ? j % 2 : 0);
  }

  // ---- threads that copy -------------------------------------------------------------------------------------------
  static constexpr int kRowsAtOnce = L::kCopyThreads / 8, kRounds = L::kPairs / kRowsAtOnce;

  __device__ __forceinline__ void CopyX(int pairs, int slab, char* to) const {
    const int thread = Thread() - L::kMathThreads, chunk = thread % 8, column = slab * L::kSlab + chunk * 8;
    const bool exists = C::kIn % L::kSlab == 0 || column < C::kIn;
    const T* const from = x + (exists ? column : 0);
    constexpr int kAtOnce = 5;
    static_assert(kRounds % kAtOnce == 0 && kRowsAtOnce % 8 == 0, "kPairs: whole rounds");
    const u32 first = SharedAddress(to + thread / 8 * 128 + (chunk ^ thread / 8 % 8) * 16);
#pragma unroll
    for (int begin = 0; begin < kRounds; begin += kAtOnce) {
      i32 rows[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) rows[i] = shared.rows[(begin + i) * kRowsAtOnce + thread / 8];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        // Of pairs that are not there, whatever is in the stage becomes sums that nobody stores.
        const T* const row = from + static_cast<i64>(rows[i]) * C::kIn;
        if ((begin + i) * kRowsAtOnce + thread / 8 < pairs) {
          CopyAsync(first + (begin + i) * kRowsAtOnce * 128, row, exists);
        }
      }
    }
  }
  // What all threads that copy need of a tile.
  __device__ __forceinline__ void Enter(const Tile& tile, int first, int pairs) const {
    const int thread = Thread() - L::kMathThreads;
    SyncNamed(1, L::kCopyThreads);  // the tile before has been copied
    for (int i = thread; i < L::kPairs; i += L::kCopyThreads) {
      shared.rows[i] = i < pairs ? tile.sorted[tile.first + i] / C::kShare : 0;
    }
    for (int slot = thread; slot < L::kRows; slot += L::kCopyThreads) {
      shared.offsets[slot] = static_cast<u32>(RowOf(first, slot) * Left::kMatrixRowBytes);
    }
    SyncNamed(1, L::kCopyThreads);
  }
  __device__ __forceinline__ void Copy() const {
    const int thread = Thread() - L::kMathThreads;
    RingPlace<kXStages> place;
    RingPlace<kWeightStages> weight_place;
    const int tiles = Tiles();
#pragma unroll 1
    for (int t = static_cast<int>(context.TileX()); t < tiles; t += static_cast<int>(context.TilesX())) {
      const Tile tile(table, t / kColumnTiles);
      const int first = t % kColumnTiles * kColumns, pairs = min(tile.end - tile.first, L::kPairs);
      const Reader of_expert = weight.OfMatrix(tile.expert, kN, C::kIn);
      Enter(tile, first, pairs);
#pragma unroll 1
      for (int slab = 0; slab < kStages * kSlabs; ++slab) {
        if (slab % kSlabs == 0) {
          WaitAt(&shared.weight_empty[weight_place.slot], weight_place.parity ^ 1);
          const auto row_of = [=](int slot) { return RowOf(first, slot); };
          Left::template Copy<L::kCopyThreads>(thread, of_expert, row_of, shared.offsets, slab / kSlabs,
                                               WeightStage(weight_place.slot));
          weight_place.Advance();
        }
        WaitAt(&shared.x_empty[place.slot], place.parity ^ 1);
        CopyX(pairs, slab, XStage(place.slot));
        ArriveWithCopies(&shared.full[place.slot]);
        place.Advance();
      }
    }
    WaitForAllCopies();
  }

  // ---- warpgroups that multiply ------------------------------------------------------------------------------------
  // Of the slots of the first half of its rows, the lane's first.
  static __device__ __forceinline__ int OwnSlot() { return Thread() / 32 * 32 + Thread() % 32 / 4; }

  // A stage of the weight is there with the first slab of x that goes with it.
  __device__ __forceinline__ void AwaitWeight(const Places& places, int) const {
    WaitAt(&shared.full[places.x.slot], places.x.parity);
    // By those who read: who copies would wait for all copies that are under way.
    FenceSharedForTensorCores();
  }
  __device__ __forceinline__ void AwaitX(const Places&) const {}

  template <int kBlocks>
  __device__ __forceinline__ void Multiply(Places& places, int expert, int first, int pairs) const {
    const Reader of_expert = weight.OfMatrix(expert, kN, C::kIn);
    float c[2][kBlocks][4] = {};
    MultiplyLeftTile(*this, places, of_expert, first, 0, kStages, c);
    Store(of_expert, expert, first, pairs, c);
  }

  // By a warpgroup, before it multiplies: where its sums go.
  __device__ __forceinline__ i32* OwnPairs() const { return shared.pairs[Thread() / 128]; }
  __device__ __forceinline__ void ReadPairs(const Tile& tile, int pairs) const {
    SyncNamed(2 + Thread() / 128, 128);  // those of the tile before have been read
    for (int i = Thread() % 128; i < pairs; i += 128) OwnPairs()[i] = tile.sorted[tile.first + i];
    SyncNamed(2 + Thread() / 128, 128);
  }

  template <int kBlocks>
  __device__ __forceinline__ void Store(const Reader& of_expert, int expert, int first, int pairs,
                                        const float (&c)[2][kBlocks][4]) const {
    const T* const of_bias = C::kBias ? bias + static_cast<i64>(expert) * kN : nullptr;
    const int column = first + OwnSlot() / 32 * (8 * kOwn) + OwnSlot() % 8 * kOwn;
    if (column >= C::kOut) return;
    float scale[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) scale[j] = Left::Scale(of_expert, RowOf(first, OwnSlot() + 8 * j));
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) {
      const int at = i / 2 * 8 + Thread() % 4 * 2 + i % 2;
      if (at >= pairs) continue;
      const float sums[4] = {c[0][i / 2][i % 2] * scale[0], c[0][i / 2][2 + i % 2] * scale[1],
                             c[1][i / 2][i % 2] * scale[2], c[1][i / 2][2 + i % 2] * scale[3]};
      T* const to = out + static_cast<i64>(OwnPairs()[at]) * C::kOut + column;
      Vec<T, kOwn> results;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        if (C::kOut % kOwn != 0 && column + j >= C::kOut) break;
        if constexpr (C::kGated) {
          results.v[j] = ExpertSum<C>(of_bias, kN, column + j, sums[2 * j], sums[2 * j + 1]);
        } else {
          results.v[j] = ExpertSum<C>(of_bias, kN, column + j, sums[j], 0);
        }
        if (C::kOut % kOwn != 0) to[j] = results.v[j];
      }
      if (C::kOut % kOwn == 0) llmc::Store(to, results);
    }
  }

  __device__ __forceinline__ void MultiplyAll() const {
    Places places;
    const int tiles = Tiles();
#pragma unroll 1
    for (int t = static_cast<int>(context.TileX()); t < tiles; t += static_cast<int>(context.TilesX())) {
      const Tile tile(table, t / kColumnTiles);
      const int first = t % kColumnTiles * kColumns, pairs = min(tile.end - tile.first, L::kPairs);
      ReadPairs(tile, pairs);
      if (pairs <= 64) {
        Multiply<8>(places, tile.expert, first, pairs);
      } else if (pairs <= 96) {
        Multiply<12>(places, tile.expert, first, pairs);
      } else if (pairs <= 128) {
        Multiply<16>(places, tile.expert, first, pairs);
      } else {
        Multiply<20>(places, tile.expert, first, pairs);
      }
    }
  }

  __device__ __forceinline__ void Run() const {
    if (threadIdx.x < L::kMostStages) {
      InitBarrier(&shared.full[threadIdx.x], L::kCopyThreads);
      InitBarrier(&shared.x_empty[threadIdx.x], L::kMathThreads / 32);
      InitBarrier(&shared.weight_empty[threadIdx.x], L::kMathThreads / 32);
    }
    context.Sync();
    context.Wait();
    if (threadIdx.x < L::kMathThreads) {
      TakeRegisters<232>();
      MultiplyAll();
    } else {
      GiveRegisters<40>();
      Copy();
    }
  }
};
#endif

// out[p, n] = x[p / kShare, k] * the matrix of the expert of pair p, plus its row of bias[experts, n]; or the gate of
// an MLP of that, silu(y[p, i]) * y[p, n / 2 + i]. x is in the order of LeftOperand. `table`: see layout/experts.h.
// Nothing where the expert is a device error.
// C::T: f16 or bf16.  C::kIn, C::kOut: k, and columns of the result.  C::kExperts.  C::kShare: pairs that share a row
// of x.  C::kBias, C::kGated: whether there is one.  C::kSharedBytes.  And what the reader says.
template <class C, class Context>
__device__ __forceinline__ void ExpertGemm(const Context& context, typename C::T* out, const typename C::T* x,
                                           const Weight<C>& weight, const typename C::T* bias, const i32* table) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  char* const arena = context.template Arena<1024>();
  auto& shared = context.template Shared<ExpertGemmShared>();
  ExpertGemmBody<C, Context>{context, shared, arena, out, x, weight, bias, table}.Run();
#endif
}

}  // namespace llmc
