// out[m, n] = sum over k of x[m, k] * weight[n, k] for 1 to 8 rows m, at the speed of memory; with what comes before (a
// norm) and after (an addition, silu_mul, rotary positions and the write to the KV cache) in the same kernel. A reader
// (weight_reader.cuh) says what the weight is: numbers, codes that become numbers in registers, or bytes that are
// multiplied with bytes.
//
// A block makes kRows neighbouring columns of the result. One warp copies the rows of the weight that they need into a
// ring of stages in shared memory, 16 rows x kChunk columns each. It begins before the kernel's predecessor has ended,
// so that memory does not rest between two products, and the compiler cannot move such copies behind the wait as it
// does with loads; a second one does the same with scales and zero points. The other warps share the columns of each
// stage and multiply 16 rows of the weight with up to 8 rows of x at a time, on tensor cores if the type has 16 bits.
// After each tile of 16 rows their sums are added in the order of the warps: a result depends on nothing but its row of
// x and of the weight. Code that runs once a launch has to be fetched first: loops are kept rolled.
#pragma once
#include "kernels/common/stage_ring.cuh"
#include "kernels/linear/byte_weight.cuh"
#include "kernels/linear/encoded_weight.cuh"
#include "kernels/linear/gemv_copies.cuh"
#include "kernels/linear/gemv_epilogue.cuh"
#include "kernels/linear/gemv_prologue.cuh"
#include "kernels/linear/superblock_weight.cuh"

namespace llmc {

// ---- the kernel ---------------------------------------------------------------------------------------------------

// What the warps that multiply keep in shared memory beside the ring.
template <class S, class Accumulator>
struct GemvSums {
  Accumulator partials[2][S::kWarps][S::kTile * S::kTokens];
  typename S::Squares squares;
};

// What a launch of its own has in shared memory beside that.
template <class S, class Accumulator>
struct GemvShared {
  u64 full[S::kStages], empty[S::kStages], norm_there;
  GemvSums<S, Accumulator> sums;
};

#if LLMC_SM90
// What the warps that multiply do. all_x: where x is kept beside the ring. norm: of the prologue, when norm_there has
// ended its first phase, if that is not null.
// Over 60 lines: one loop over tiles and stages, and what it keeps in registers.
template <class C, class S, class Context, class Ring, class Norm, class Prologue, class Epilogue>
__device__ __forceinline__ void MultiplyStages(const Context& context, Ring& ring, typename S::Kept* all_x,
                                               u64* norm_there, const Norm& norm,
                                               GemvSums<S, typename Weight<C>::Accumulator>& shared,
                                               const Prologue& prologue, const Epilogue& epilogue, const StoredX<C>* x,
                                               const Weight<C>& weight, const GemvColumns& columns, i64 tokens) {
  using Kept = typename S::Kept;
  using Accumulator = typename Weight<C>::Accumulator;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // The results of a tile are stored by some warps, those of the next by the next ones, so that what they read for that
  // and do at the end makes nobody wait: thread token * kTileOut + column of them has one.
  constexpr int kStorers = (S::kTileOut * C::kTokens + 31) / 32, kTurns = S::kWarps / kStorers;
  static_assert(kTurns >= 1, "there are warps enough for the results of a tile");
  const int turn = warp / kStorers, result = static_cast<int>(threadIdx.x) - turn * kStorers * 32;
  const int token = result / S::kTileOut, column = result % S::kTileOut;
  const bool is_storer = turn < kTurns && token < tokens;
  typename Epilogue::Prepared prepared = {};
  typename Weight<C>::OfRow of_rows[2] = {};
  typename Weight<C>::Made made = {};
  const auto prepare = [&](int tile) {
    if (!is_storer || tile + column >= columns.count) return;
    const int at = columns.first + tile + column;
    prepared = epilogue.Prepare(token, at);
    of_rows[0] = weight.Of(Epilogue::Row(at, 0));
    if constexpr (Epilogue::kPaired) of_rows[1] = weight.Of(Epilogue::Row(at, 1));
  };
  // A task has no time before x is there.
  constexpr bool kIsTask = kRoleOf<Context> == Role::kCompute;
  constexpr bool kPreparesFirst = Epilogue::kEarly && !kIsTask;
  if constexpr (kPreparesFirst) prepare(turn * S::kTileOut);
  char* const table = reinterpret_cast<char*>(all_x) + S::kXBytes;
  if constexpr (kPairTable<C> && !kIsTask) Weight<C>::template FillTable<S::kMathThreads>(table);
  const int lane_column = S::kIntegers ? 0 : lane % 4 * S::kLane;
  // Others learn of the results when the task is done.
  constexpr bool kReadsBack = kIsTask && Epilogue::kReadsBack && kReadBackHolds && !kGivesRow<Context>;
  ReadBack<typename Epilogue::Result> read_back;
  constexpr bool kInParts = kTakesParts<Context, C, S>;
  PartsOfX<C, S> parts;
  int next_turn = 0, parity = 0;
#pragma unroll 1
  for (int tile = 0; tile < columns.count; tile += S::kTileOut) {
    using Sums = typename Weight<C>::template Sums<S>;
    Sums sums;
    if constexpr (kPairTable<C>) sums.table = SharedAddress(table) + lane % kPairTableLanes * 8;
    // The lane's rows; a row that is not there is as good as the last.
    const int last = columns.count - 1, low = tile + lane / 4, high = Epilogue::kPaired ? low : low + 8;
    sums.Begin(weight, Epilogue::Row(columns.first + (low < last ? low : last), 0),
               Epilogue::Row(columns.first + (high < last ? high : last), Epilogue::kPaired ? 1 : 0));
    if (tile == 0) {
      context.Wait();
      if constexpr (!Epilogue::kEarly) prepare(turn * S::kTileOut);
      if constexpr (kPairTable<C> && kIsTask) Weight<C>::template FillTable<S::kMathThreads>(table);
      if constexpr (kPairTable<C> && C::kXInRing) SyncThreads<1, S::kMathThreads>();
      made = weight.AfterWait(token < tokens ? token : 0);
      if constexpr (!C::kXInRing) {
        if (Prologue::kNormalizes && norm_there != nullptr) WaitAt(norm_there, 0);
        const auto load = [&](const auto& rows) {
          prologue.template Load<C, S>(all_x, rows, norm, shared.squares, tokens);
        };
        if constexpr (kInParts) {
          parts.Begin(context.Taken());
        } else if constexpr (kTakesRow<Context>) {
          load(context.Taken());
        } else {
          load(MemoryRows<StoredX<C>>{x, C::kIn});
        }
        if constexpr (!kInParts) {
          SyncThreads<1, S::kMathThreads>();
          if constexpr (kIsTask) context.TellInput();
        }
      }
      if constexpr (Epilogue::kEarly && !kPreparesFirst) prepare(turn * S::kTileOut);
    }
    // Where a stage has work for some warps alone, these are others in the next one.
    constexpr int kWorkers = S::kChunk / S::kStep;
    constexpr bool kIsLong = Weight<C>::kBlockColumns > 32 || (S::kIntegers && S::kSteps > 1);
    // Codes of a codebook take many instructions, and a launch of its own has little other code.
    constexpr bool kIsCodebook =
        S::kIntegers && Weight<C>::kBlockColumns == 0 && (S::kLayout.of_words || S::kLayout.IntegerX().parts > 1);
    constexpr int kUnroll = kIsCodebook && !kIsTask ? 4 : kIsLong ? 1 : 2;
    constexpr bool kTakesTurns = kWorkers < S::kWarps && S::kChunks > 1;
    int place = warp;
#pragma unroll 1
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
      if constexpr (kInParts) {
        if (tile == 0 && chunk % PartsOfX<C, S>::kStages == 0) {
          parts.Load(all_x, context.Taken(), chunk);
          SyncThreads<1, S::kMathThreads>();
          if (chunk == 0) context.TellInput();
        }
      }
      ring.WaitForStage();
      const char* const stage = ring.Stage();
      const Kept* const stage_x = (C::kXInRing ? reinterpret_cast<const Kept*>(stage + S::kLayout.XAt())
                                               : all_x + S::KeptAt(chunk * S::kChunk)) +
                                  lane_column;
      sums.Enter(stage, chunk);
      const int first = (kTakesTurns ? place : warp) * S::kStep;
      constexpr int kRound = S::kWarps * S::kStep;
      if constexpr (S::kChunk % kRound == 0) {  // a loop of known length
#pragma unroll(kUnroll)
        for (int i = 0; i < S::kChunk; i += kRound) {
          sums.Add(sums.Fetch(first + i), stage_x + S::KeptAt(first) + S::KeptAt(i));
        }
      } else {
#pragma unroll(kUnroll)
        for (int i = first; i < S::kChunk; i += kRound) sums.Add(sums.Fetch(i), stage_x + S::KeptAt(i));
      }
      __syncwarp();
      if (lane == 0) ring.Release();
      ring.Next();
      if constexpr (kTakesTurns) place = place < kWorkers ? place + S::kWarps - kWorkers : place - kWorkers;
    }
    Accumulator(*const mine)[S::kTile * C::kTokens] = shared.partials[parity];  // the others may still be read
    parity ^= 1;
    sums.Store(mine[warp], made);
    SyncThreads<1, S::kMathThreads>();
    if (turn == next_turn) {
      if (is_storer && tile + column < columns.count) {
        Accumulator half[2] = {};
        const int at = column * C::kTokens + token;
#pragma unroll
        for (int w = 0; w < S::kWarps; ++w) {
          half[0] += mine[w][at];
          if constexpr (Epilogue::kPaired) half[1] += mine[w][at + S::kTileOut * C::kTokens];
        }
        if constexpr (kReadsBack) read_back.Finish();
        const auto stored =
            epilogue.Store(token, columns.first + tile + column, weight.Result(half[0], of_rows[0], made),
                           weight.Result(half[1], of_rows[1], made), prepared);
        if constexpr (kReadsBack) read_back.Begin(stored);
        if constexpr (kGivesRow<Context>) {
#pragma unroll
          for (int i = 0; i < stored.kSize; ++i)
            context.Given().Give(kGivenAt<C> + stored.places[i], stored.numbers[i]);
        }
      }
      if constexpr (C::kRows > kTurns * S::kTileOut) prepare(tile + kTurns * S::kTileOut);
    }
    if (++next_turn == kTurns) next_turn = 0;
  }
  if constexpr (kReadsBack) {
    read_back.Finish();
    context.HasReadBack();
  }
}

// What warps do that are there for other bodies of the launch.
template <class S, class Ring>
__device__ __forceinline__ void SkipStages(Ring& ring, const GemvColumns& columns) {
  const int stages = (columns.count + S::kTileOut - 1) / S::kTileOut * S::kChunks;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    ring.WaitForStage();
    if (threadIdx.x % 32 == 0) ring.Release();
    ring.Next();
  }
}

// A launch of its own: warps that multiply, and behind them one or two that copy.
template <class C, class S, class Context, class Prologue, class Epilogue>
__device__ __forceinline__ void LaunchedGemv(const Context& context, const Prologue& prologue, const Epilogue& epilogue,
                                             const StoredX<C>* x, const Weight<C>& weight, i64 tokens) {
  using X = typename Weight<C>::X;
  using Kept = typename S::Kept;
  static_assert(C::kStages * S::kStageBytes + S::kKeptBytes <= C::kSharedBytes, "less than the stages and x take");
  auto& shared = context.template Shared<GemvShared<S, typename Weight<C>::Accumulator>>();
  StageRing<C::kStages, S::kStageBytes, C::kInFlight> ring = {context.template Arena<128>(), shared.full, shared.empty};
  const GemvColumns columns = GemvColumns::Of<C>(context.TileX());
  if (threadIdx.x < C::kStages) {
    InitBarrier(&shared.full[threadIdx.x], S::kHasParts ? 1 + 32 : 1);
    InitBarrier(&shared.empty[threadIdx.x], S::kWarps);
    if (threadIdx.x == 0) InitBarrier(&shared.norm_there, 1);
    FenceBarriers();
  }
  context.Sync();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Kept* const all_x = reinterpret_cast<Kept*>(ring.stages + C::kStages * S::kStageBytes);
  constexpr bool kCopiesNorm = Prologue::kNormalizes && !S::kIntegers;
  if (warp == S::kWarps) {
    if constexpr (kCopiesNorm) {
      if (lane == 0) {
        ArriveExpecting(&shared.norm_there, C::kIn * S::kSize);
        BulkCopy(all_x, prologue.weight, C::kIn * S::kSize, &shared.norm_there);
      }
    }
    if (ElectThread()) StreamWeights<C, S, Epilogue>(context, ring, x, weight, columns, tokens);
    return;
  }
  if constexpr (S::kHasParts) {
    if (warp > S::kWarps) {
      StreamParts<C, S, Epilogue, false>(ring, weight, columns);
      WaitForAllCopies();
      return;
    }
  }
  const auto multiply = [&](u64* there, const auto& norm) {
    MultiplyStages<C, S>(context, ring, all_x, there, norm, shared.sums, prologue, epilogue, x, weight, columns,
                         tokens);
  };
  if constexpr (kCopiesNorm) {
    multiply(&shared.norm_there, NormInMemory<S, X>{all_x});
  } else if constexpr (Prologue::kNormalizes) {
    multiply(nullptr, NormOfThread<C, S, X>(prologue.weight));
  } else {
    multiply(nullptr, NoNorm());
  }
}

// A task of a persistent launch (common/persistent_run.cuh), whose context has the ring.
template <class C, class S, class Context, class Prologue, class Epilogue>
__device__ __forceinline__ void GemvTask(const Context& context, const Prologue& prologue, const Epilogue& epilogue,
                                         const StoredX<C>* x, const Weight<C>& weight, i64 tokens) {
  using X = typename Weight<C>::X;
  static_assert(S::kStageBytes <= Context::Ring::kStageBytes, "stages of the ring hold those of the weight");
  const GemvColumns columns = GemvColumns::Of<C>(context.TileX());
  if constexpr (kRoleOf<Context> == Role::kStream) {
    StreamWeights<C, S, Epilogue>(context, context.ring(), x, weight, columns, tokens);
  } else if constexpr (kRoleOf<Context> == Role::kStreamParts) {
    StreamParts<C, S, Epilogue, true>(context.ring(), weight, columns);
  } else {
    if (threadIdx.x >= S::kMathThreads) {
      SkipStages<S>(context.ring(), columns);
      return;
    }
    auto* const all_x = reinterpret_cast<typename S::Kept*>(context.template Arena<128>());
    const auto multiply = [&](const auto& norm) {
      MultiplyStages<C, S>(context, context.ring(), all_x, nullptr, norm,
                           context.template Shared<GemvSums<S, typename Weight<C>::Accumulator>>(), prologue, epilogue,
                           x, weight, columns, tokens);
    };
    if constexpr (Prologue::kNormalizes) {
      multiply(NormOfThread<C, S, X>(prologue.weight));
    } else {
      multiply(NoNorm());
    }
  }
}

template <class C, class Context, class Prologue, class Epilogue>
__device__ __forceinline__ void StreamingGemv(const Context& context, const Prologue& prologue,
                                              const Epilogue& epilogue, const StoredX<C>* x, const Weight<C>& weight,
                                              i64 tokens) {
  using S = GemvShape<C, Prologue, Epilogue, Weight<C>>;
  if constexpr (kRoleOf<Context> == Role::kAll) {
    LaunchedGemv<C, S>(context, prologue, epilogue, x, weight, tokens);
  } else {
    GemvTask<C, S>(context, prologue, epilogue, x, weight, tokens);
  }
}
#endif

// A warp makes C::kWarpColumns columns (1 if the Config does not say), so that what is done to x is done once for them.
template <class C, class = void>
inline constexpr int kWarpColumns = 1;
template <class C>
inline constexpr int kWarpColumns<C, typename VoidOf<decltype(C::kWarpColumns)>::Type> = C::kWarpColumns;

// Over 60 lines: one loop, and what it keeps in registers.
template <class C, class Context, class Prologue, class Epilogue>
__device__ __forceinline__ void DirectGemv(const Context& context, const Prologue& prologue, const Epilogue& epilogue,
                                           const StoredX<C>* x, const Weight<C>& weight, i64 tokens) {
  using X = typename Weight<C>::X;
  using S = GemvShape<C, Prologue, Epilogue, Weight<C>>;
  using Run = typename Weight<C>::template Run<C::kIn>;
  constexpr int kHalves = Epilogue::kPaired ? 2 : 1, kSums = kHalves * kWarpColumns<C>;
  static_assert(C::kRows % kWarpColumns<C> == 0, "kWarpColumns divides kRows");
  context.Wait();
  const typename Weight<C>::Made made = weight.AfterWait(0);
  i64 x_stride = C::kIn;
  if constexpr (Prologue::kNormalizes) {
    X* const all_x = reinterpret_cast<X*>(context.template Arena<128>());
    prologue.template Load<C, S>(all_x, MemoryRows<X>{x, C::kIn}, NormInMemory<S, X>{prologue.weight},
                                 context.template Shared<typename S::Squares>(), tokens);
    context.Sync();
    x = all_x;
    x_stride = S::kXStride;
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int begin = static_cast<int>(context.TileX()) * C::kRows;
  const int end = begin + C::kRows < C::kOut ? begin + C::kRows : C::kOut;
  for (int column = begin + warp * kWarpColumns<C>; column < end; column += S::kWarps * kWarpColumns<C>) {
    typename Weight<C>::Accumulator sums[C::kTokens][kSums] = {};
#pragma unroll 2
    for (int i = Run::kCount * lane; i < C::kIn; i += Run::kCount * 32) {
      Run w[kSums];
#pragma unroll
      for (int h = 0; h < kSums; ++h) {
        const int own = column + h / kHalves;
        w[h].Load(weight, Epilogue::Row(own < end ? own : end - 1, h % kHalves), i);
      }
#pragma unroll
      for (int t = 0; t < C::kTokens; ++t) {
        if (t >= tokens) break;
        const typename Run::Terms terms = Run::Fetch(x + t * x_stride + i);
#pragma unroll
        for (int h = 0; h < kSums; ++h) w[h].Add(terms, made, &sums[t][h]);
      }
    }
#pragma unroll
    for (int t = 0; t < C::kTokens; ++t) {
      if (t >= tokens) break;
#pragma unroll
      for (int c = 0; c < kWarpColumns<C>; ++c) {
        float half[2] = {};
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          const auto sum = WarpReduce(sums[t][c * kHalves + h], Sum());
          half[h] = weight.Result(sum, weight.Of(Epilogue::Row(column + c < end ? column + c : end - 1, h)),
                                  weight.AfterWait(t));
        }
        if (lane == 0 && column + c < end) {
          epilogue.Store(t, column + c, half[0], half[1], epilogue.Prepare(t, column + c));
        }
      }
    }
  }
}

template <class C, class Context, class Prologue, class Epilogue>
__device__ __forceinline__ void GemvKernel(const Context& context, const Prologue& prologue, const Epilogue& epilogue,
                                           const StoredX<C>* x, const Weight<C>& weight, i64 tokens) {
#if LLMC_SM90
  constexpr bool kStreams = C::kChunk > 0;
#else
  constexpr bool kStreams = false;
#endif
  static_assert(!kHasCodedX<C> || (C::kChunk > 0 && !C::kXInRing), "XCodes: become numbers beside a ring of stages");
  if constexpr (kStreams) {
#if LLMC_SM90
    StreamingGemv<C>(context, prologue, epilogue, x, weight, tokens);
#endif
  } else {
    if constexpr (!kHasCodedX<C>) DirectGemv<C>(context, prologue, epilogue, x, weight, tokens);
  }
}

// ---- entry points: what comes before and after the product --------------------------------------------------------

template <class C, class Context>
__device__ __forceinline__ void Gemv(const Context& context, typename C::Out* out, const StoredX<C>* x,
                                     const Weight<C>& weight, i64 tokens) {
  GemvKernel<C>(context, GivenX<C>(weight), StoreSum<C>{out}, x, weight, tokens);
}
// addend[tokens, kOut]
template <class C, class Context>
__device__ __forceinline__ void GemvAdd(const Context& context, typename C::T* out, const StoredX<C>* x,
                                        const Weight<C>& weight, const typename C::T* addend, i64 tokens) {
  GemvKernel<C>(context, GivenX<C>(weight), StoreAdded<C, false>{out, addend}, x, weight, tokens);
}
// bias[kOut]
template <class C, class Context>
__device__ __forceinline__ void GemvBias(const Context& context, typename C::T* out, const StoredX<C>* x,
                                         const Weight<C>& weight, const typename C::T* bias, i64 tokens) {
  GemvKernel<C>(context, GivenX<C>(weight), StoreAdded<C, true>{out, bias}, x, weight, tokens);
}
template <class C, class Context>
__device__ __forceinline__ void GemvSiluMul(const Context& context, typename C::T* out, const StoredX<C>* x,
                                            const Weight<C>& weight, i64 tokens) {
  GemvKernel<C>(context, GivenX<C>(weight), StoreSiluMul<C>{out}, x, weight, tokens);
}
// bias[all columns of q, k and v] if C::kBias; else it is not read.
template <class C, class Context>
__device__ __forceinline__ void GemvQkvRope(const Context& context, typename C::T* out, const StoredX<C>* x,
                                            const Weight<C>& weight, const typename C::T* bias, CacheElement<C>* kv,
                                            const i32* pos, const float* inv_freq, const i32* slots, float scale,
                                            i64 tokens, const StaticScales& scales = {}) {
  GemvKernel<C>(context, GivenX<C>(weight), StoreQkvRope<C>{out, kv, bias, pos, inv_freq, slots, scale, scales}, x,
                weight, tokens);
}

// The same of rms_norm of x, with weight `norm`.
template <class C, class Context>
__device__ __forceinline__ void NormGemv(const Context& context, typename C::Out* out, const typename C::T* x,
                                         const typename C::T* norm, const Weight<C>& weight, float eps, i64 tokens) {
  GemvKernel<C>(context, NormalizedX<typename C::T>{norm, eps}, StoreSum<C>{out}, x, weight, tokens);
}
template <class C, class Context>
__device__ __forceinline__ void NormGemvBias(const Context& context, typename C::T* out, const typename C::T* x,
                                             const typename C::T* norm, const Weight<C>& weight,
                                             const typename C::T* bias, float eps, i64 tokens) {
  GemvKernel<C>(context, NormalizedX<typename C::T>{norm, eps}, StoreAdded<C, true>{out, bias}, x, weight, tokens);
}
template <class C, class Context>
__device__ __forceinline__ void NormGemvSiluMul(const Context& context, typename C::T* out, const typename C::T* x,
                                                const typename C::T* norm, const Weight<C>& weight, float eps,
                                                i64 tokens) {
  GemvKernel<C>(context, NormalizedX<typename C::T>{norm, eps}, StoreSiluMul<C>{out}, x, weight, tokens);
}
template <class C, class Context>
__device__ __forceinline__ void NormGemvQkvRope(const Context& context, typename C::T* out, const typename C::T* x,
                                                const typename C::T* norm, const Weight<C>& weight,
                                                const typename C::T* bias, CacheElement<C>* kv, const i32* pos,
                                                const float* inv_freq, const i32* slots, float scale, float eps,
                                                i64 tokens, const StaticScales& scales = {}) {
  GemvKernel<C>(context, NormalizedX<typename C::T>{norm, eps},
                StoreQkvRope<C>{out, kv, bias, pos, inv_freq, slots, scale, scales}, x, weight, tokens);
}

}  // namespace llmc
