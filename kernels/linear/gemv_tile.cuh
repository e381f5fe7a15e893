// The sizes of gemv.cuh, and the product of 16 rows of the weight and kTokens rows of x.
#pragma once
#include "kernels/common/context.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/layout/linear.h"

namespace llmc {

// Of readers that need nothing that the step makes.
struct NothingMade {};

template <class C, class = void>
inline constexpr int kIntegerBlock = 0;
template <class C>
inline constexpr int kIntegerBlock<C, typename VoidOf<decltype(C::kIntegerBlock)>::Type> = C::kIntegerBlock;

// C::kGivenAt: where the results begin in the row that a persistent launch passes on; 0, if it is not there.
template <class C, class = void>
inline constexpr int kGivenAt = 0;
template <class C>
inline constexpr int kGivenAt<C, typename VoidOf<decltype(C::kGivenAt)>::Type> = C::kGivenAt;

// C::kPairTable: whether pairs of numbers are looked up by bytes of codes; no, if it is not there.
template <class C, class = void>
inline constexpr bool kPairTable = false;
template <class C>
inline constexpr bool kPairTable<C, typename VoidOf<decltype(C::kPairTable)>::Type> = C::kPairTable != 0;

// C::T: type of what the sums become.  C::kIn: length of the sums.  C::kOut: columns of the result; of all heads in
// QkvRope. C::kTokens: the most rows of x.  C::kRows: columns of the result that a block makes; half of them are pairs.
// C::kChunk: columns of the weight in a stage; 0: weights are read without stages, which works for all sizes and GPUs.
// C::kStages.  C::kInFlight: the most stages that are copied at a time.
// C::kXInRing: whether x comes with the stages; else all of it is kept in shared memory.
// C::kThreads: threads per block, of which a warp copies.  C::kSharedBytes: of dynamic shared memory.
// C::kIntegerBlock: x is kept as integers, or halves (half_tile.cuh), in blocks of so many columns; 0, or not there: as
// it is.
// Weight: a reader (weight_reader.cuh).
template <class C, class Prologue, class Epilogue, class Weight>
struct GemvShape {
  using X = typename Weight::X;
  static constexpr int kSize = static_cast<int>(sizeof(X));
  static constexpr bool kStreams = LLMC_SM90 && C::kChunk > 0;
  static constexpr int kVec = kStreams ? 16 / kSize : VectorOf<X>(C::kIn);  // elements of a lane's load of x
  static constexpr bool kHasParts = Weight::kScaleBits + Weight::kZeroBits > 0;
  static constexpr int kWarps = C::kThreads / 32 - (kStreams ? 1 + kHasParts : 0);  // that multiply
  static constexpr int kMathThreads = 32 * kWarps;
  static constexpr int kLane = Weight::kLane, kBlock = 4 * kLane;  // columns that 1 and 4 lanes multiply at once
  // Of integers only as many as leave the warp that has most of a stage no more.
  static constexpr int kBlocks = C::kChunk / kBlock;
  static constexpr int BlocksOfWarp(int steps) { return (kBlocks / steps + kWarps - 1) / kWarps * steps; }
  static constexpr bool kOneByOne = kIntegerBlock<C> > 0 && BlocksOfWarp(Weight::kMostSteps) > BlocksOfWarp(1);
  static constexpr int kMostSteps = kOneByOne ? 1 : Weight::kMostSteps;
  static constexpr int kSteps = GemvSteps(kBlocks, kMostSteps);
  static constexpr int kStep = kSteps * kBlock;  // columns that a warp multiplies before it goes on to others
  static constexpr int kTile = kGemvTile;  // rows of the weight in a stage, of which two make a column if it is paired
  static constexpr int kTileOut = Epilogue::kPaired ? kTile / 2 : kTile;
  static constexpr int kChunk = C::kChunk > 0 ? C::kChunk : kBlock;
  static constexpr int kChunks = C::kIn / kChunk;
  static constexpr GemvLayout kLayout = {C::kIn,
                                         kChunk,
                                         C::kTokens,
                                         C::kXInRing != 0,
                                         kSize,
                                         kBlock,
                                         Weight::kBits,
                                         Weight::kScaleBits,
                                         Weight::kZeroBits,
                                         Weight::kPartBlock,
                                         Weight::kBlockColumns,
                                         Weight::kBlockBytes,
                                         kIntegerBlock<C>,
                                         kPairTable<C> ? kPairTableBytes : 0,
                                         kIntegerBlock<C> > 0 && Weight::kCodesAreWords,
                                         kIntegerBlock<C> > 0 && Weight::kCodesAreHalves};
  static constexpr int kStride = static_cast<int>(kLayout.Stride()), kXStride = static_cast<int>(kLayout.XStride());
  static constexpr int kStageBytes = static_cast<int>(kLayout.StageBytes());
  static constexpr int kXBytes = static_cast<int>(kLayout.XBytes());
  static constexpr int kKeptBytes = static_cast<int>(kLayout.KeptBytes());
  static constexpr int kWeightStrideBytes = static_cast<int>(kLayout.WeightStrideBytes());
  static constexpr int kStages = C::kStages, kTokens = C::kTokens;
  static constexpr bool kIntegers = kIntegerBlock<C> > 0;
  static constexpr bool kPairsX = kStreams && !C::kXInRing && !kIntegers && Weight::kPairsFourApart;
  using Kept = typename Choose<kIntegers, u8, X>::Type;  // how x is kept in shared memory
  // Where column `column` of a row of x is kept.
  static __device__ __forceinline__ int KeptAt(int column) {
    if constexpr (!kIntegers) return column;
    return static_cast<int>(static_cast<u32>(column) / kBlock * kLayout.IntegerX().BlockBytes());
  }
  static constexpr bool kNormalizes = Prologue::kNormalizes;
  // Of the rows of x, by the warps, where the prologue normalizes them.
  struct Squares {
    float of[kNormalizes ? C::kTokens : 1][kWarps];
  };

  static_assert(!kStreams || !Weight::kIsDense || kBlock * kSize == kGemvBlockBytes, "4 lanes read 16 bytes each");
  static_assert(!kStreams || !kHasParts ||
                    ((Weight::kScaleBits == 0 || kLayout.PartCopy(Weight::kScaleBits) > 0) &&
                     (Weight::kZeroBits == 0 || kLayout.PartCopy(Weight::kZeroBits) > 0) &&
                     Weight::kPartBlock % kLane == 0 && kChunk % Weight::kPartBlock == 0),
                "scales and zero points are copied 4 bytes or more at a time, whole blocks of them");
  static_assert(C::kTokens >= 1 && C::kTokens <= kMaxGemvRows, "1 to 8 rows of x");
  static_assert(!kIntegers || (kBlock == kIntegerBlock<C> && C::kTokens == 1 && !C::kXInRing),
                "kIntegerBlock: columns that 4 lanes multiply at once, of one row beside the ring");
  static_assert(C::kThreads >= 160 && C::kThreads % 32 == 0, "4 warps or more multiply, and one copies");
  static_assert(C::kChunk == 0 || (C::kIn % kChunk == 0 && kChunk % kBlock == 0 &&
                                   (Weight::kBlockColumns > 0 || kChunk * Weight::kBits % 128 == 0)),
                "a row is whole chunks, and these are what 4 lanes multiply at once");
};

// The sums of a warp over its columns: lane 4g + t has those of rows g and g + 8. These are the accumulators of mma,
// for rows 2t and 2t + 1 of x. A lane's elements are neighbours in k: the order of k does not matter to mma, as long as
// both operands have the same. Two accumulators take turns, because each mma waits for the last that had its own.
template <class T, int kTokens>
struct TileSums {
  using Terms = Vec<u32, 4>;
  float c[2][4] = {};

  // a and b: the lane's elements of rows g and g + 8.  x: the lane's elements of the first row of x.
  __device__ __forceinline__ void Add(const Terms& a, const Terms& b, const T* x, int x_stride) {
    const int g = threadIdx.x % 32 / 4;
    const Vec<u32, 4> v = Load<u32, 4>(reinterpret_cast<const u32*>(x + (g < kTokens ? g : kTokens - 1) * x_stride));
    MultiplyAdd<T>(c[0], {a.v[0], b.v[0], a.v[1], b.v[1]}, v.v[0], v.v[1]);
    MultiplyAdd<T>(c[1], {a.v[2], b.v[2], a.v[3], b.v[3]}, v.v[2], v.v[3]);
  }
  // to[16][kTokens]
  __device__ __forceinline__ void Store(float* to, NothingMade) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 2 * t + i % 2;
      if (token < kTokens) to[(g + i / 2 * 8) * kTokens + token] = c[0][i] + c[1][i];
    }
  }
};

// In f32 each lane multiplies its elements with those of all rows of x.
template <int kTokens>
struct TileSums<float, kTokens> {
  using Terms = Vec<float, 4>;
  float sums[2][kTokens] = {};

  __device__ __forceinline__ void Add(const Terms& a, const Terms& b, const float* x, int x_stride) {
#pragma unroll
    for (int token = 0; token < kTokens; ++token) {
      const Vec<float, 4> v = Load<float, 4>(x + token * x_stride);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[0][token] += a.v[j] * v.v[j];
        sums[1][token] += b.v[j] * v.v[j];
      }
    }
  }
  __device__ __forceinline__ void Store(float* to, NothingMade) const {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2 * kTokens; ++i) {
      const float sum = WarpReduce<4>(sums[i / kTokens][i % kTokens], Sum());
      if (threadIdx.x % 4 == 0) to[(g + i / kTokens * 8) * kTokens + i % kTokens] = sum;
    }
  }
};

}  // namespace llmc
