// out[m, n] = sum over k of x[m, k] * weight[n, k] for 1 to 8 rows m, at the speed of memory; with what comes before (a
// norm) and after (an addition, silu_mul, rotary positions and the write to the KV cache) in the same kernel.
//
// A block makes kRows neighbouring columns of the result. One warp copies the rows of the weight that they need into a
// ring of stages in shared memory, 16 rows x kChunk columns each. It begins before the kernel's predecessor has ended,
// so that memory does not rest between two products, and the compiler cannot move such copies behind the wait as it
// does with loads. The other warps share the columns of each stage and multiply 16 rows of the weight with up to 8 rows
// of x at a time, on tensor cores if the type has 16 bits. After each tile of 16 rows their sums are added in the order
// of the warps: a result depends on nothing but its row of x and of the weight. Code that runs once a launch has to be
// fetched first: loops are kept rolled.
#pragma once
#include "kernels/common/bulk_copy.cuh"
#include "kernels/linear/gemv_epilogue.cuh"
#include "kernels/linear/gemv_prologue.cuh"

namespace llmc {

// ---- the kernel ---------------------------------------------------------------------------------------------------

// What a body keeps in shared memory beside the ring.
template <class S>
struct GemvShared {
  u64 full[S::kStages], empty[S::kStages], norm_there;
  float partials[2][S::kWarps][S::kTile * S::kTokens];
  typename S::Squares squares;
};

#if LLMC_SM90
// What the copying thread does. Its addresses depend on no thread's number, so that they are in uniform registers,
// where copies need them.
template <class C, class Context, class Prologue, class Epilogue>
__device__ __forceinline__ void StreamWeights(const Context& context, char* ring, u64* full, u64* empty,
                                              const typename C::T* x, const typename C::T* weight, int first,
                                              int columns, i64 tokens) {
  using S = GemvShape<C, Prologue, Epilogue>;
  constexpr int kRowBytes = S::kChunk * S::kSize, kStrideBytes = S::kStride * S::kSize;
  constexpr int kHalves = Epilogue::kPaired ? 2 : 1;
  const auto copy_x = [&](int chunk, int slot) {
#pragma unroll 1
    for (int token = 0; token < tokens; ++token) {
      BulkCopy(ring + slot * S::kStageBytes + (S::kTile + token) * kStrideBytes,
               x + static_cast<i64>(token) * C::kIn + chunk * S::kChunk, kRowBytes, &full[slot]);
    }
  };
  const int stages = (columns + S::kTileOut - 1) / S::kTileOut * S::kChunks;
  const int filled = stages < C::kStages ? stages : C::kStages;
  int slot = 0, round = 0, column = 0, chunk = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    if (stage >= C::kStages) WaitAt(&empty[slot], (round - 1) & 1);
    // More copies at once make memory slower, and the blocks of this and of other kernels wait for each other's.
    if (C::kInFlight < C::kStages && stage >= (C::kXInRing ? filled : C::kInFlight)) {
      WaitAt(&full[(stage - C::kInFlight) % C::kStages], (stage - C::kInFlight) / C::kStages % 2);
    }
    const int left = columns - column, rows = left < S::kTileOut ? left : S::kTileOut;
    ArriveExpecting(&full[slot], (kHalves * rows + (C::kXInRing ? static_cast<int>(tokens) : 0)) * kRowBytes);
    char* const to = ring + slot * S::kStageBytes;
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const i64 from = static_cast<i64>(Epilogue::Row(first + column + row, half)) * C::kIn + chunk * S::kChunk;
        BulkCopy(to + (half * S::kTileOut + row) * kStrideBytes, weight + from, kRowBytes, &full[slot]);
      }
    }
    if constexpr (C::kXInRing) {
      if (stage == filled - 1) {
        context.Wait();
        for (int i = 0; i < filled; ++i) copy_x(i % S::kChunks, i);
      } else if (stage >= filled) {
        copy_x(chunk, slot);
      }
    }
    if (++slot == C::kStages) {
      slot = 0;
      ++round;
    }
    if (++chunk == S::kChunks) {
      chunk = 0;
      column += S::kTileOut;
    }
  }
}

// Over 60 lines: one loop over tiles and stages, and what it keeps in registers.
template <class C, class Context, class Prologue, class Epilogue>
__device__ __forceinline__ void StreamingGemv(const Context& context, const Prologue& prologue,
                                              const Epilogue& epilogue, const typename C::T* x,
                                              const typename C::T* weight, i64 tokens) {
  using T = typename C::T;
  using S = GemvShape<C, Prologue, Epilogue>;
  static_assert(C::kStages * S::kStageBytes + S::kXBytes <= C::kSharedBytes, "less than the stages and x take");
  char* const ring = context.template Arena<128>();
  auto& [full, empty, norm_there, partials, squares] = context.template Shared<GemvShared<S>>();
  const int first = static_cast<int>(context.TileX()) * C::kRows;
  const int columns = C::kOut - first < C::kRows ? C::kOut - first : C::kRows;
  if (threadIdx.x < C::kStages) {
    InitBarrier(&full[threadIdx.x], 1);
    InitBarrier(&empty[threadIdx.x], S::kWarps);
    if (threadIdx.x == 0) InitBarrier(&norm_there, 1);
    FenceBarriers();
  }
  context.Sync();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  T* const all_x = reinterpret_cast<T*>(ring + C::kStages * S::kStageBytes);
  if (warp == S::kWarps) {
    if constexpr (Prologue::kNormalizes) {
      if (lane == 0) {
        ArriveExpecting(&norm_there, C::kIn * S::kSize);
        BulkCopy(all_x, prologue.weight, C::kIn * S::kSize, &norm_there);
      }
    }
    if (lane == 0)
      StreamWeights<C, Context, Prologue, Epilogue>(context, ring, full, empty, x, weight, first, columns, tokens);
    return;
  }

  // Thread token * kTileOut + column stores a result of each tile.
  const int token = threadIdx.x / S::kTileOut;
  int column = threadIdx.x % S::kTileOut;
  typename Epilogue::Prepared prepared = {};
  const int lane_column = lane % 4 * S::kVec;
  int slot = 0, round = 0, parity = 0;
#pragma unroll 1
  for (int tile = 0; tile < columns; tile += S::kTileOut) {
    const bool stores = token < tokens && column < columns;
    if (Epilogue::kEarly && stores) prepared = epilogue.Prepare(token, first + column);
    if (tile == 0) {
      context.Wait();
      if constexpr (!C::kXInRing) {
        if constexpr (Prologue::kNormalizes) WaitAt(&norm_there, 0);
        prologue.template Load<C, S>(all_x, x, all_x, squares, tokens);
        SyncThreads<1, S::kMathThreads>();
      }
    }
    if (!Epilogue::kEarly && stores) prepared = epilogue.Prepare(token, first + column);
    TileSums<T, C::kTokens> sums;
#pragma unroll 1
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
      WaitAt(&full[slot], round & 1);
      const T* stage = reinterpret_cast<const T*>(ring + slot * S::kStageBytes) + lane_column;
      const T* stage_x = C::kXInRing ? stage + S::kTile * S::kStride : all_x + chunk * S::kChunk + lane_column;
      stage += lane / 4 * S::kStride;
#pragma unroll 2
      for (int i = warp * S::kBlock; i < S::kChunk; i += S::kWarps * S::kBlock) {
        sums.Add(stage + i, stage + 8 * S::kStride + i, stage_x + i, S::kXStride);
      }
      __syncwarp();
      if (lane == 0) ArriveAt(&empty[slot]);
      if (++slot == C::kStages) {
        slot = 0;
        ++round;
      }
    }
    float(*const mine)[S::kTile * C::kTokens] = partials[parity];  // the others may still be read
    parity ^= 1;
    sums.Store(mine[warp]);
    SyncThreads<1, S::kMathThreads>();
    if (stores) {
      float half[2] = {};
      const int at = threadIdx.x % S::kTileOut * C::kTokens + token;
#pragma unroll
      for (int w = 0; w < S::kWarps; ++w) {
        half[0] += mine[w][at];
        if constexpr (Epilogue::kPaired) half[1] += mine[w][at + S::kTileOut * C::kTokens];
      }
      epilogue.Store(token, first + column, half[0], half[1], prepared);
    }
    column += S::kTileOut;
  }
}
#endif

// A warp makes a column.
template <class C, class Context, class Prologue, class Epilogue>
__device__ __forceinline__ void DirectGemv(const Context& context, const Prologue& prologue, const Epilogue& epilogue,
                                           const typename C::T* x, const typename C::T* weight, i64 tokens) {
  using T = typename C::T;
  using S = GemvShape<C, Prologue, Epilogue>;
  constexpr int kHalves = Epilogue::kPaired ? 2 : 1;
  context.Wait();
  i64 x_stride = C::kIn;
  if constexpr (Prologue::kNormalizes) {
    T* const all_x = reinterpret_cast<T*>(context.template Arena<128>());
    prologue.template Load<C, S>(all_x, x, prologue.weight, context.template Shared<typename S::Squares>(), tokens);
    context.Sync();
    x = all_x;
    x_stride = S::kXStride;
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = static_cast<int>(context.TileX()) * C::kRows;
  for (int column = first + warp; column < first + C::kRows && column < C::kOut; column += S::kWarps) {
    float sums[C::kTokens][kHalves] = {};
#pragma unroll 2
    for (int i = S::kVec * lane; i < C::kIn; i += S::kVec * 32) {
      Vec<T, S::kVec> w[kHalves];
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        w[h] = Load<T, S::kVec>(weight + static_cast<i64>(Epilogue::Row(column, h)) * C::kIn + i);
      }
#pragma unroll
      for (int t = 0; t < C::kTokens; ++t) {
        if (t >= tokens) break;
        const Vec<T, S::kVec> v = Load<T, S::kVec>(x + t * x_stride + i);
#pragma unroll
        for (int j = 0; j < kHalves * S::kVec; ++j) {
          sums[t][j / S::kVec] += ToFloat(v.v[j % S::kVec]) * ToFloat(w[j / S::kVec].v[j % S::kVec]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < C::kTokens; ++t) {
      if (t >= tokens) break;
      float half[2] = {};
#pragma unroll
      for (int h = 0; h < kHalves; ++h) half[h] = WarpReduce(sums[t][h], Sum());
      if (lane == 0) epilogue.Store(t, column, half[0], half[1], epilogue.Prepare(t, column));
    }
  }
}

template <class C, class Context, class Prologue, class Epilogue>
__device__ __forceinline__ void GemvKernel(const Context& context, const Prologue& prologue, const Epilogue& epilogue,
                                           const typename C::T* x, const typename C::T* weight, i64 tokens) {
#if LLMC_SM90
  if constexpr (C::kChunk > 0) {
    StreamingGemv<C>(context, prologue, epilogue, x, weight, tokens);
    return;
  }
#endif
  DirectGemv<C>(context, prologue, epilogue, x, weight, tokens);
}

// ---- entry points: what comes before and after the product --------------------------------------------------------

template <class C, class Context>
__device__ __forceinline__ void Gemv(const Context& context, typename C::Out* out, const typename C::T* x,
                                     const typename C::T* weight, i64 tokens) {
  GemvKernel<C>(context, PlainX<typename C::T>{}, StoreSum<C>{out}, x, weight, tokens);
}
// addend[tokens, kOut]
template <class C, class Context>
__device__ __forceinline__ void GemvAdd(const Context& context, typename C::T* out, const typename C::T* x,
                                        const typename C::T* weight, const typename C::T* addend, i64 tokens) {
  GemvKernel<C>(context, PlainX<typename C::T>{}, StoreAdded<C, false>{out, addend}, x, weight, tokens);
}
// bias[kOut]
template <class C, class Context>
__device__ __forceinline__ void GemvBias(const Context& context, typename C::T* out, const typename C::T* x,
                                         const typename C::T* weight, const typename C::T* bias, i64 tokens) {
  GemvKernel<C>(context, PlainX<typename C::T>{}, StoreAdded<C, true>{out, bias}, x, weight, tokens);
}
template <class C, class Context>
__device__ __forceinline__ void GemvSiluMul(const Context& context, typename C::T* out, const typename C::T* x,
                                            const typename C::T* weight, i64 tokens) {
  GemvKernel<C>(context, PlainX<typename C::T>{}, StoreSiluMul<C>{out}, x, weight, tokens);
}
// bias[all columns of q, k and v] if C::kBias; else it is not read.
template <class C, class Context>
__device__ __forceinline__ void GemvQkvRope(const Context& context, typename C::T* out, const typename C::T* x,
                                            const typename C::T* weight, const typename C::T* bias, typename C::T* kv,
                                            const i32* pos, const float* inv_freq, const i32* slots, float scale,
                                            i64 tokens) {
  GemvKernel<C>(context, PlainX<typename C::T>{}, StoreQkvRope<C>{out, kv, bias, pos, inv_freq, slots, scale}, x,
                weight, tokens);
}

// The same of rms_norm of x, with weight `norm`.
template <class C, class Context>
__device__ __forceinline__ void NormGemv(const Context& context, typename C::Out* out, const typename C::T* x,
                                         const typename C::T* norm, const typename C::T* weight, float eps,
                                         i64 tokens) {
  GemvKernel<C>(context, NormalizedX<typename C::T>{norm, eps}, StoreSum<C>{out}, x, weight, tokens);
}
template <class C, class Context>
__device__ __forceinline__ void NormGemvBias(const Context& context, typename C::T* out, const typename C::T* x,
                                             const typename C::T* norm, const typename C::T* weight,
                                             const typename C::T* bias, float eps, i64 tokens) {
  GemvKernel<C>(context, NormalizedX<typename C::T>{norm, eps}, StoreAdded<C, true>{out, bias}, x, weight, tokens);
}
template <class C, class Context>
__device__ __forceinline__ void NormGemvSiluMul(const Context& context, typename C::T* out, const typename C::T* x,
                                                const typename C::T* norm, const typename C::T* weight, float eps,
                                                i64 tokens) {
  GemvKernel<C>(context, NormalizedX<typename C::T>{norm, eps}, StoreSiluMul<C>{out}, x, weight, tokens);
}
template <class C, class Context>
__device__ __forceinline__ void NormGemvQkvRope(const Context& context, typename C::T* out, const typename C::T* x,
                                                const typename C::T* norm, const typename C::T* weight,
                                                const typename C::T* bias, typename C::T* kv, const i32* pos,
                                                const float* inv_freq, const i32* slots, float scale, float eps,
                                                i64 tokens) {
  GemvKernel<C>(context, NormalizedX<typename C::T>{norm, eps},
                StoreQkvRope<C>{out, kv, bias, pos, inv_freq, slots, scale}, x, weight, tokens);
}

}  // namespace llmc
