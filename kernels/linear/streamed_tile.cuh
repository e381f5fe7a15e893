// What streamed_gemm.cuh has of a tile: its rows of the weight, the scales of both factors, and what becomes of sums.
#pragma once
#include "kernels/linear/gemv_epilogue.cuh"

namespace llmc {

// The scales of both factors: C::ScaleA, of x, and C::Scale, of the weight, of kinds C::kScaleA and C::kScale.
template <class C>
struct ScalesOfFactors {
  const typename C::Scale* scale;
  const typename C::ScaleA* scale_a;

  static constexpr int kRuns = (C::kIn + 127) / 128;  // of terms that share one, where those are of blocks
  __device__ __forceinline__ float OfBlock(int row, int run) const {
    return ToFloat(scale[static_cast<i64>(row / 128) * kRuns + run]);
  }
  __device__ __forceinline__ float OfRun(int token, int run) const {
    return ToFloat(scale_a[static_cast<i64>(token) * kRuns + run]);
  }
  // Of sums; 1 where stages have been scaled.
  __device__ __forceinline__ float OfRow(int row) const {
    if constexpr (C::kScale == kOfBlocks) return 1.0f;
    return ToFloat(scale[C::kScale == kOfColumns ? row : 0]);
  }
  __device__ __forceinline__ float OfToken(int token) const {
    if constexpr (C::kScaleA == kOfBlocks) return 1.0f;
    return ToFloat(scale_a[C::kScaleA == kOfColumns ? token : 0]);
  }
};

// Factors that are elements.
struct NoScales {
  __device__ __forceinline__ float OfRow(int) const { return 1.0f; }
  __device__ __forceinline__ float OfToken(int) const { return 1.0f; }
};
template <class C>
using StreamedFactors = typename Choose<C::kScale == kNoPart, NoScales, ScalesOfFactors<C>>::Type;

// 128 rows of the weight, 64 of each of two warpgroups. Where two columns of the product make one of the result, the
// first warpgroup has the first ones.
template <class C, class Epilogue>
struct StreamedTile {
  using L = StreamedGemmLayout;
  static constexpr bool kPaired = Epilogue::kPaired;
  static constexpr int kColumns = kPaired ? L::kRows / 2 : L::kRows;  // of the result
  static constexpr int kTiles = (C::kOut + kColumns - 1) / kColumns;
  static_assert(kColumns % C::kBoxRows == 0, "kBoxRows: a box lies in one half of pairs");

  // Row `row` of a tile, in the weight: the first of a box.
  static __device__ __forceinline__ int WeightRow(int tile, int row) {
    if constexpr (!kPaired) return tile * L::kRows + row;
    return Epilogue::Row(tile * kColumns + row % kColumns, row / kColumns);
  }
  // Of each 8 tokens a thread has sums of this one and the next.
  static __device__ __forceinline__ int OwnToken() { return static_cast<int>(threadIdx.x) % 4 * 2; }
  static __device__ __forceinline__ int TokenOf(int i) { return OwnToken() + i / 2 * 8 + i % 2; }
  // One that is not there is as good as the last.
  static __device__ __forceinline__ int KnownToken(int token, int tokens) {
    return token < tokens ? token : tokens - 1;
  }
  // The first of the 64 rows of a thread's warpgroup.
  static __device__ __forceinline__ int FirstRow() { return static_cast<int>(threadIdx.x) / 128 * 64; }
  // The column of the result whose sums a thread stores, with that 8 behind it or with both halves of pairs.
  static __device__ __forceinline__ int OwnColumn(int tile) {
    const int thread = static_cast<int>(threadIdx.x), first = thread % 128 / 32 * 16 + thread % 32 / 4;
    return tile * kColumns + first + (kPaired ? thread / 128 * 8 : FirstRow());
  }
  static __device__ __forceinline__ int Known(int column) { return column < C::kOut ? column : C::kOut - 1; }

  // What a thread's sums are multiplied with.
  template <int kBlocks>
  struct Scales {
    float of_x[kBlocks][2], of_rows[2];
    __device__ __forceinline__ void Read(const StreamedFactors<C>& factors, int tile, int tokens) {
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) {
        of_x[i / 2][i % 2] = factors.OfToken(KnownToken(OwnToken() + i / 2 * 8 + i % 2, tokens));
      }
      const int column = OwnColumn(tile);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        of_rows[i] = factors.OfRow(kPaired ? Epilogue::Row(Known(column), i) : Epilogue::Row(Known(column + 8 * i), 0));
      }
    }
  };

  // Of rows r and r + 8 of its warpgroup a thread has sums of two tokens each. Of pairs, they become those of both
  // halves of one row: the first warpgroup's r, the second's r + 8.
  template <int kBlocks>
  static __device__ __forceinline__ void PairUp(char* exchange, float (&c)[kBlocks][4]) {
    constexpr int kAtOnce = kBlocks < L::kExchanged ? kBlocks : L::kExchanged;
    const int thread = static_cast<int>(threadIdx.x), group = thread / 128, other = thread ^ 128;
    auto* const pairs = reinterpret_cast<Vec<float, 2>*>(exchange);
#pragma unroll
    for (int first = 0; first < kBlocks; first += kAtOnce) {
      SyncThreads<1, L::kMathThreads>();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float(&sums)[4] = c[first + i];
        pairs[i * L::kMathThreads + thread] =
            group == 0 ? Vec<float, 2>{sums[2], sums[3]} : Vec<float, 2>{sums[0], sums[1]};
      }
      SyncThreads<1, L::kMathThreads>();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const Vec<float, 2> given = pairs[i * L::kMathThreads + other];
        float(&sums)[4] = c[first + i];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float low = group == 0 ? sums[e] : given.v[e], high = group == 0 ? given.v[e] : sums[2 + e];
          sums[e] = low;
          sums[2 + e] = high;
        }
      }
    }
  }

  // What the epilogue needs besides a thread's sums, of tokens that are not there that of the last. It is read for all
  // of them at once, so that nothing waits for it one by one; what takes many registers, and instructions to make, is
  // made as it is needed.
  template <int kBlocks>
  struct Prepared {
    using Number = typename Epilogue::Prepared;
    static constexpr int kOwn = kPaired ? 1 : 2;  // columns
    static constexpr bool kIsRead = sizeof(Number) <= 4;
    Number numbers[kIsRead ? 2 * kBlocks : 1][kOwn];

    __device__ __forceinline__ void Read(const Epilogue& epilogue, int tile, int tokens) {
      if constexpr (kIsRead) {
#pragma unroll
        for (int i = 0; i < 2 * kBlocks * kOwn; ++i) {
          numbers[i / kOwn][i % kOwn] =
              epilogue.Prepare(KnownToken(TokenOf(i / kOwn), tokens), Known(OwnColumn(tile) + i % kOwn * 8));
        }
      }
    }
    __device__ __forceinline__ Number Of(const Epilogue& epilogue, int tile, int i, int own) const {
      if constexpr (kIsRead) return numbers[i][own];
      return epilogue.Prepare(TokenOf(i), OwnColumn(tile) + 8 * own);
    }
  };

  // The sums of a tile to the epilogue.
  template <int kBlocks>
  static __device__ __forceinline__ void Store(const Epilogue& epilogue, const Scales<kBlocks>& scales,
                                               const Prepared<kBlocks>& prepared, int tile, int tokens,
                                               const float (&c)[kBlocks][4]) {
    const int column = OwnColumn(tile);
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) {
      const int token = TokenOf(i);
      if (token >= tokens) continue;
      const float of_x = scales.of_x[i / 2][i % 2];
      const float low = c[i / 2][i % 2] * (of_x * scales.of_rows[0]);
      const float high = c[i / 2][2 + i % 2] * (of_x * scales.of_rows[1]);
      const auto store = [&](int own, float first, float second) {
        if (column + 8 * own >= C::kOut) return;
        epilogue.Store(token, column + 8 * own, first, second, prepared.Of(epilogue, tile, i, own));
      };
      store(0, low, kPaired ? high : 0);
      if constexpr (!kPaired) store(1, high, 0);
    }
  }
};

}  // namespace llmc
