// out[m, n] = x[m, k] * weight[n, k] of f8e4m3, with a scale for each 128 terms of a row of x and for each 128 x 128
// block of the weight, for many rows, on sm_90a.
//
// Tensor cores keep some 14 bits of what they add up. So sums of 128 terms, which have the same scales, are multiplied
// by these and added in f32 registers, as in DeepGEMM (https://github.com/deepseek-ai/DeepGEMM) and DeepSeek-V3's
// report (arXiv 2412.19437, 3.3.2). While one warpgroup does that, the tensor cores work for the other one.
//
// One block an SM goes from tile to tile of 128 x 128 results: two warpgroups copy stages of 128 terms of both factors,
// in the layout that hopper.cuh describes, and two multiply, 64 rows of x each.
#pragma once
#include "kernels/common/hopper.cuh"
#include "kernels/elementwise/elementwise.cuh"
#include "kernels/layout/linear.h"

namespace llmc {

#if LLMC_SM90
struct BlockScaledShared {
  u64 full[BlockScaledLayout::kStages], empty[BlockScaledLayout::kStages];
};

#define LLMC_C4(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define LLMC_C16(i) LLMC_C4(i), LLMC_C4(i + 1), LLMC_C4(i + 2), LLMC_C4(i + 3)
// c[64, 128] = a[64, 32] * b[128, 32], plus c if `add`; both in shared memory.
__device__ __forceinline__ void MultiplyWarpgroupFloat8(float (&c)[16][4], u64 a, u64 b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
      "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1;\n}"
      : LLMC_C16(0), LLMC_C16(4), LLMC_C16(8), LLMC_C16(12)
      : "l"(a), "l"(b), "r"(add));
}
#undef LLMC_C4
#undef LLMC_C16

// C::T: of the result.  C::Scale: of the weight's scales.  C::kIn, C::kOut: k and n.
template <class C, class Context>
struct BlockScaledBody {
  using T = typename C::T;
  using L = BlockScaledLayout;
  static constexpr int kBlocks = C::kIn / L::kDepth, kColumnTiles = (C::kOut + L::kColumns - 1) / L::kColumns;
  static constexpr int kRun = kBlocks % 4 == 0 ? 4 : 1;  // scales of a row of x that are copied at once
  static_assert(C::kThreads == L::kThreads, "kThreads: two warpgroups multiply, and two copy");
  static_assert(C::kIn % L::kDepth == 0 && C::kOut % 8 == 0, "kIn, kOut: whole blocks of terms, eights of columns");

  const Context& context;
  BlockScaledShared& shared;
  char* const arena;
  T* const out;
  const f8e4m3* const x;
  const float* const x_scale;
  const f8e4m3* const weight;
  const typename C::Scale* const scale;
  const int m;

  struct Slot {
    int at = 0;
    u32 round = 0;
    __device__ __forceinline__ void Advance() {
      if (++at == L::kStages) {
        at = 0;
        ++round;
      }
    }
  };
  // Tiles of the same columns of the result, which read the same rows of the weight, are neighbours.
  __device__ __forceinline__ int RowTiles() const { return (m + L::kRows - 1) / L::kRows; }
  __device__ __forceinline__ int Tiles() const { return RowTiles() * kColumnTiles; }
  __device__ __forceinline__ int FirstRow(int tile) const { return tile % RowTiles() * L::kRows; }
  __device__ __forceinline__ int FirstColumn(int tile) const { return tile / RowTiles() * L::kColumns; }
  __device__ __forceinline__ char* Stage(int slot) const { return arena + slot * L::kStageBytes; }
  // Of the rows of x, for kRun blocks. `run`: how many runs were before, of all tiles. No stage of a run that is
  // overwritten is needed any more: a run has one stage at the least.
  __device__ __forceinline__ float* ScalesOf(int run) const {
    return reinterpret_cast<float*>(arena + L::kStages * L::kStageBytes) + run % L::kStages * (L::kRows * 4);
  }

  __device__ __forceinline__ void Copy() const {
    const int thread = threadIdx.x % L::kCopying, byte = thread % 8 * 16;
    constexpr int kStep = L::kCopying / 8;  // rows from one copy of a thread to the next
    Slot slot;
    int run = -1;
    context.Wait();
    for (int tile = context.TileX(); tile < Tiles(); tile += context.TilesX()) {
      const int row = FirstRow(tile) + thread / 8, column = FirstColumn(tile) + thread / 8;
      const f8e4m3* const from_x = x + static_cast<i64>(row) * C::kIn + byte;
      const f8e4m3* const from_weight = weight + static_cast<i64>(column) * C::kIn + byte;
      const int own = FirstRow(tile) + thread;
      const float* const from_scale = x_scale + static_cast<i64>(own < m ? own : 0) * kBlocks;
#pragma unroll 1
      for (int block = 0; block < kBlocks; ++block) {
        if (slot.round > 0) WaitAt(&shared.empty[slot.at], (slot.round - 1) & 1);
        const u32 to = SharedAddress(Stage(slot.at)) + thread / 8 * 128 + (byte ^ thread / 8 % 8 * 16);
#pragma unroll
        for (int i = 0; i < L::kRows / kStep; ++i) {
          const bool is_row = row + kStep * i < m, is_column = column + kStep * i < C::kOut;
          const i64 at = static_cast<i64>(kStep * i) * C::kIn + block * L::kDepth;
          CopyAsync(to + i * kStep * 128, is_row ? from_x + at : x, is_row);
          CopyAsync(to + (L::kRows + i * kStep) * 128, is_column ? from_weight + at : weight, is_column);
        }
        if (block % kRun == 0) {
          ++run;
          if (thread < L::kRows) {
            CopyAsyncBytes<4 * kRun>(SharedAddress(ScalesOf(run) + thread * 4), from_scale + block);
          }
        }
        ArriveWithCopies(&shared.full[slot.at]);
        slot.Advance();
      }
    }
    WaitForAllCopies();
  }

  // The row of a tile that a thread has, and that eight on.
  static __device__ __forceinline__ int OwnRow() {
    return static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  }

  __device__ __forceinline__ void Multiply() const {
    Slot slot;
    int run = -1;
    for (int tile = context.TileX(); tile < Tiles(); tile += context.TilesX()) {
      const typename C::Scale* const of_weight = scale + FirstColumn(tile) / L::kColumns * kBlocks;
      float sums[16][4] = {};
#pragma unroll 1
      for (int block = 0; block < kBlocks; ++block) {
        const float factor = static_cast<float>(Widen(of_weight[block]));
        WaitAt(&shared.full[slot.at], slot.round & 1);
        FenceSharedForTensorCores();
        const u32 a = SharedAddress(Stage(slot.at)) + threadIdx.x / 128 * 64 * 128;
        const u32 b = SharedAddress(Stage(slot.at)) + L::kRows * 128;
        float c[16][4];
        BeginProducts();
#pragma unroll
        for (int step = 0; step < L::kDepth / 32; ++step) {
          MultiplyWarpgroupFloat8(c, Operand(a + 32 * step), Operand(b + 32 * step), step > 0);
        }
        CommitProducts();
        if (block % kRun == 0) ++run;
        float scales[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) scales[j] = ScalesOf(run)[(OwnRow() + 8 * j) * 4 + block % kRun] * factor;
        WaitForProducts<0>();
        Pin(c);
        if (threadIdx.x % 32 == 0) ArriveAt(&shared.empty[slot.at]);
        slot.Advance();
#pragma unroll
        for (int i = 0; i < 16; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][e] += c[i][e] * scales[e / 2];
        }
      }
      StoreTile(tile, sums);
    }
  }

  // Of four neighbouring lanes, lane t has pair t of four eights of columns; it gets all of eight t.
  static __device__ __forceinline__ void ExchangePairs(u32 (&v)[4]) {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((i & bit) != 0) continue;
        const bool upper = (lane & bit) != 0;
        const u32 given = __shfl_xor_sync(~0u, upper ? v[i] : v[i | bit], bit);
        (upper ? v[i] : v[i | bit]) = given;
      }
    }
  }
  __device__ __forceinline__ void StoreTile(int tile, const float (&sums)[16][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = FirstRow(tile) + OwnRow() + 8 * half;
#pragma unroll
      for (int first = 0; first < 16; first += 4) {
        u32 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = Pack<T>(sums[first + i][2 * half], sums[first + i][2 * half + 1]);
        ExchangePairs(v);
        const int column = FirstColumn(tile) + (first + static_cast<int>(threadIdx.x) % 4) * 8;
        if (row < m && column < C::kOut) {
          Store(reinterpret_cast<u32*>(out + static_cast<i64>(row) * C::kOut + column),
                Vec<u32, 4>{v[0], v[1], v[2], v[3]});
        }
      }
    }
  }

  __device__ __forceinline__ void Run() const {
    if (threadIdx.x < L::kStages) {
      InitBarrier(&shared.full[threadIdx.x], L::kCopying);
      InitBarrier(&shared.empty[threadIdx.x], 2 * 4);
    }
    context.Sync();
    if (threadIdx.x < 256) {
      TakeRegisters<192>();
      context.Wait();
      Multiply();
    } else {
      GiveRegisters<56>();
      Copy();
    }
  }
};
#endif

// x: [m, k], x_scale: [m, k / 128], weight: [n, k], scale: [n / 128, k / 128], rounded up.
template <class C, class Context>
__device__ __forceinline__ void BlockScaledMatMul(const Context& context, typename C::T* out, const f8e4m3* x,
                                                  const float* x_scale, const f8e4m3* weight,
                                                  const typename C::Scale* scale, i64 m) {
#if LLMC_SM90
  BlockScaledBody<C, Context>{context,
                              context.template Shared<BlockScaledShared>(),
                              context.template Arena<1024>(),
                              out,
                              x,
                              x_scale,
                              weight,
                              scale,
                              static_cast<int>(m)}
      .Run();
#endif
}

}  // namespace llmc
