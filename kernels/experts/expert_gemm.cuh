// expert_linear for many pairs of a token and an expert, which expert_order.cuh has sorted, for sm_90a: the weight, of
// any format, is the left operand of products of warpgroups and becomes numbers of 16 bits in registers
// (left_operand.cuh); the right one is the rows of x of up to 160 pairs of one expert, as they lie in memory.
//
// A block goes from tile to tile: those of the same pairs, which share x, run at the same time. One warpgroup copies
// stages of the weight and slabs of x to two rings in shared memory, two multiply 128 rows of the weight each. Of its
// sums a lane has neighbours of a row of the result.
#pragma once
#include "kernels/common/stage_ring.cuh"
#include "kernels/experts/expert_sums.cuh"
#include "kernels/experts/expert_tile.cuh"
#include "kernels/linear/left_operand.cuh"

namespace llmc {

#if LLMC_SM90
struct ExpertGemmShared {
  u64 full[ExpertGemmLayout::kMostStages];  // of slabs of x, and of the stage of the weight that begins with them
  u64 x_empty[ExpertGemmLayout::kMostStages], weight_empty[ExpertGemmLayout::kMostStages];
  i32 rows[ExpertGemmLayout::kPairs];  // of x, for the pairs of the tile that is copied
};

template <class C, class Context>
struct ExpertGemmBody {
  using T = typename C::T;
  using Reader = Weight<C>;
  using Left = LeftOperand<C, Reader>;
  using L = ExpertGemmLayout;
  using Tile = ExpertTile<C::kExperts, L::kPairs>;
  static constexpr L kLayout = {Left::kDepth / L::kSlab, Left::kStageBytes, C::kSharedBytes};
  static constexpr int kSlabs = kLayout.slabs, kStages = (C::kIn + Left::kDepth - 1) / Left::kDepth;  // of a tile
  static constexpr int kXStages = kLayout.XStages(), kWeightStages = kLayout.WeightStages();
  static constexpr int kInFlight = kLayout.InFlight();
  static constexpr int kN = C::kGated ? 2 * C::kOut : C::kOut;          // rows of the weight
  static constexpr int kColumns = C::kGated ? L::kRows / 2 : L::kRows;  // of the result, in a tile
  static constexpr int kColumnTiles = (C::kOut + kColumns - 1) / kColumns;
  static constexpr int kOwn = C::kGated ? 2 : 4;  // neighbours of a row of the result, of a lane
  static_assert(sizeof(T) == 2, "T: f16 or bf16");
  static_assert(L::kRows == kLeftRows && L::kSlab == kLeftSlab, "tiles are those of left operands");
  static_assert(C::kThreads == L::kThreads, "kThreads: two warpgroups multiply, one copies");
  static_assert(kXStages >= 3 && kInFlight >= 1, "kSharedBytes: two stages of weights, three slabs of x");

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
  __device__ __forceinline__ char* XStage(int slot) const { return arena + slot * L::kSlabBytes; }
  __device__ __forceinline__ char* WeightStage(int slot) const {
    return arena + kXStages * L::kSlabBytes + slot * Left::kStageBytes;
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
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int pair = i * kRowsAtOnce + thread / 8;
      // Of pairs that are not there, whatever is in the stage becomes sums that nobody stores.
      if (pair < pairs) {
        CopyAsync(SharedAddress(to + pair * 128 + (chunk ^ pair % 8) * 16),
                  from + static_cast<i64>(shared.rows[pair]) * C::kIn, exists);
      }
    }
  }
  __device__ __forceinline__ void Copy() const {
    const int thread = Thread() - L::kMathThreads;
    RingPlace<kXStages> place, handed_on;
    RingPlace<kWeightStages> weight_place;
    int in_flight = 0;
    const auto hand_on = [&] {
      FenceSharedForTensorCores();
      ArriveAt(&shared.full[handed_on.slot]);
      handed_on.Advance();
    };
    const int tiles = Tiles();
#pragma unroll 1
    for (int t = static_cast<int>(context.TileX()); t < tiles; t += static_cast<int>(context.TilesX())) {
      const Tile tile(table, t / kColumnTiles);
      const int first = t % kColumnTiles * kColumns, pairs = min(tile.end - tile.first, L::kPairs);
      const Reader of_expert = weight.OfMatrix(tile.expert, kN, C::kIn);
      // A thread reads what it has written, as the others of its row have.
      __syncwarp();
      for (int pair = thread / 8; pair < pairs; pair += kRowsAtOnce) {
        shared.rows[pair] = tile.sorted[tile.first + pair] / C::kShare;
      }
#pragma unroll 1
      for (int slab = 0; slab < kStages * kSlabs; ++slab) {
        if (slab % kSlabs == 0) {
          WaitAt(&shared.weight_empty[weight_place.slot], weight_place.parity ^ 1);
          Left::template Copy<L::kCopyThreads>(
              thread, of_expert, [=](int slot) { return RowOf(first, slot); }, slab / kSlabs,
              WeightStage(weight_place.slot));
          weight_place.Advance();
        }
        WaitAt(&shared.x_empty[place.slot], place.parity ^ 1);
        CopyX(pairs, slab, XStage(place.slot));
        place.Advance();
        CommitCopies();
        if (in_flight == kInFlight) {
          WaitForCopies<kInFlight>();
          hand_on();
        } else {
          ++in_flight;
        }
      }
    }
    WaitForAllCopies();
    for (; in_flight > 0; --in_flight) hand_on();
  }

  // ---- warpgroups that multiply ------------------------------------------------------------------------------------
  struct Places {
    RingPlace<kWeightStages> weight;
    RingPlace<kXStages> x;
    int x_before = -1;  // of the slab before, whose products may run still
  };
  static __device__ __forceinline__ void Free(u64* empty) {
    if (threadIdx.x % 32 == 0) ArriveAt(empty);
  }
  // Of the slots of the first half of its rows, the lane's first.
  static __device__ __forceinline__ int OwnSlot() { return Thread() / 32 * 32 + Thread() % 32 / 4; }

  template <int kBlocks>
  __device__ __forceinline__ void MultiplySlab(Places& places, const Reader& of_expert, int first, int at, int slab,
                                               float (&c)[2][kBlocks][4]) const {
    const char* const stage = WeightStage(places.weight.slot);
    WaitAt(&shared.full[places.x.slot], places.x.parity);
    // The same in all lanes, so that it is in registers from which products take it.
    const u64 x_at =
        __shfl_sync(~0u, places.x.slot, 0) * static_cast<u64>(L::kSlabBytes / 16) + Operand(SharedAddress(arena));
    u32 a[2][2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      typename Left::Lane lane;
      lane.Enter(
          of_expert, [=](int slot) { return RowOf(first, slot); }, stage, at, slab, OwnSlot() + 16 * half);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        lane.Decode(e, a[e]);
        if (slab == kSlabs - 1 && half == 1 && e == 1) {
          __syncwarp();
          Free(&shared.weight_empty[places.weight.slot]);
        }
        BeginProducts();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          MultiplyWarpgroup<T, 0>(c[half], a[e][i], OperandBehind(x_at, (2 * e + i) * 32), 1);
        }
        CommitProducts();
        WaitForProducts<1>();
        // Now the products before these have ended.
        if (half == 0 && e == 0 && places.x_before >= 0) Free(&shared.x_empty[places.x_before]);
      }
    }
    places.x_before = places.x.slot;
    places.x.Advance();
  }

  template <int kBlocks>
  __device__ __forceinline__ void Multiply(Places& places, const Tile& tile, int first) const {
    const Reader of_expert = weight.OfMatrix(tile.expert, kN, C::kIn);
    float c[2][kBlocks][4] = {};
#pragma unroll 1
    for (int at = 0; at < kStages; ++at) {
#pragma unroll
      for (int slab = 0; slab < kSlabs; ++slab) MultiplySlab(places, of_expert, first, at, slab, c);
      places.weight.Advance();
    }
    WaitForProducts<0>();
    Pin(c[0]);
    Pin(c[1]);
    Free(&shared.x_empty[places.x_before]);
    places.x_before = -1;
    Store(tile, of_expert, first, c);
  }

  template <int kBlocks>
  __device__ __forceinline__ void Store(const Tile& tile, const Reader& of_expert, int first,
                                        const float (&c)[2][kBlocks][4]) const {
    const T* const of_bias = C::kBias ? bias + static_cast<i64>(tile.expert) * kN : nullptr;
    const int column = first + OwnSlot() / 32 * (8 * kOwn) + OwnSlot() % 8 * kOwn;
    if (column >= C::kOut) return;
    float scale[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) scale[j] = Left::Scale(of_expert, RowOf(first, OwnSlot() + 8 * j));
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) {
      const int at = tile.first + i / 2 * 8 + Thread() % 4 * 2 + i % 2;
      if (at >= tile.end || at >= tile.first + L::kPairs) continue;
      const float sums[4] = {c[0][i / 2][i % 2] * scale[0], c[0][i / 2][2 + i % 2] * scale[1],
                             c[1][i / 2][i % 2] * scale[2], c[1][i / 2][2 + i % 2] * scale[3]};
      T* const to = out + static_cast<i64>(tile.sorted[at]) * C::kOut + column;
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
      if (pairs <= 64) {
        Multiply<8>(places, tile, first);
      } else if (pairs <= 96) {
        Multiply<12>(places, tile, first);
      } else if (pairs <= 128) {
        Multiply<16>(places, tile, first);
      } else {
        Multiply<20>(places, tile, first);
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
