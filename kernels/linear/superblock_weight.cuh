// The reader of weights in superblocks of GGUF, as they lie in files (superblocks.cuh).
//
// Codes less kShift are small integers, which 16-bit floats hold exactly: they are what tensor cores multiply. Scales
// are applied to the sums of a group in f32, offsets to those of x, so that nothing is rounded that the language does
// not round. Of 16 columns, which a product of tensor cores sums up, lane t of 4 takes 4 t to 4 t + 3: so those of a
// scale of 16 elements are one product, and codes that share bytes, 16, 32 or 64 columns apart, are in one lane. A warp
// multiplies whole blocks at once, so that their scales are unpacked once.
//
// One row of x is written as integers where there is room (superblock_integers.cuh).
//
// Blocks are no multiples of 16 bytes, so that neither are rows: bulk copies begin up to 14 bytes before a row.
#pragma once
#include "kernels/linear/superblock_integers.cuh"
#include "kernels/linear/weight_reader.cuh"

namespace llmc {

// Four codes less kShift as two pairs of T.
template <class T, class Format>
struct QuadPairs {
  // Floats whose last bits count: 1024 + q in f16, 128 + q in bf16, which has room for 7 bits.
  static constexpr u32 kMagic = kSame<T, bf16> ? 0x43004300u : 0x64006400u;
  static constexpr bool kByFloats = kSame<T, bf16> && Format::kCodeBits > 7;

  static __device__ __forceinline__ void Of(u32 quad, u32 (&pairs)[2]) {
#if LLMC_SM90
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kByFloats) {
        constexpr float kZero = 8388608.0f + Format::kShift;  // 2^23
        const float low = __uint_as_float(__byte_perm(quad, 0x4b000000u, 0x7440 + 2 * i)) - kZero;
        const float high = __uint_as_float(__byte_perm(quad, 0x4b000000u, 0x7441 + 2 * i)) - kZero;
        pairs[i] = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
      } else {
        pairs[i] = SubtractPairs<T>(__byte_perm(quad, kMagic, 0x5150 + i * 0x202), kMagic + Format::kShift * 0x10001u);
      }
    }
#endif
  }
};

// sum (code * scale + offset) x of four codes.
template <class Format>
__device__ __forceinline__ float DotQuad(u32 quad, const float (&x)[4], float scale, float offset) {
  const u32 words[1] = {quad};
  float dot = 0, all = 0;
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    dot += (superblock::ByteOf(words, e) - Format::kShift) * x[e];
    all += x[e];
  }
  return Format::kOffsets ? scale * dot + offset * all : scale * dot;
}

// C::T: of x.  C::Format: a struct of superblocks.cuh.  C::kIn: columns.
template <class C>
struct SuperblockWeight {
  using T = typename C::T;
  using Format = typename C::Format;
  using X = T;
  using Accumulator = float;
  using Made = NothingMade;
  struct OfRow {};
  static constexpr int kBlockColumns = Format::kElements, kBlockBytes = Format::kBytes;
  static constexpr int kBits = 8, kLane = (kIntegerBlock<C> > 0 ? kIntegerBlock<C> : kBlockColumns) / 4;
  static constexpr bool kIsDense = false, kPairsFourApart = false;
  static constexpr int kMostSteps = 1;
  static constexpr bool kCodesAreWords = false, kCodesAreHalves = false;
  static constexpr int kScaleBits = 0, kZeroBits = 0, kPartBlock = 1;
  static constexpr int kQuads = kBlockColumns / 16, kGroups = kBlockColumns / Format::kGroup;
  static constexpr int kQuadsOfGroup = Format::kGroup / 16;
  static_assert(C::kIn % kBlockColumns == 0, "rows are whole blocks");

  const u8* blocks;

  __device__ __forceinline__ const char* Row(i64 row, i64 column, i64 columns) const {
    return reinterpret_cast<const char*>(blocks) + (row * columns + column) / kBlockColumns * kBlockBytes;
  }
  __device__ __forceinline__ const char* Part(i64, i64, i64, bool) const { return nullptr; }
  __device__ __forceinline__ SuperblockWeight OfMatrix(i64 matrix, i64 n, i64 k) const {
    return {blocks + matrix * n * (k / kBlockColumns) * kBlockBytes};
  }
  __device__ __forceinline__ Made AfterWait(int) const { return {}; }
  __device__ __forceinline__ OfRow Of(int) const { return {}; }
  static __device__ __forceinline__ float Result(float sum, OfRow, Made) { return sum; }

  // ---- through stages ---------------------------------------------------------------------------------------------
  // Where the stage has the lane's two rows.
  template <class S>
  struct LaneRows {
    int in_row[2] = {};  // bytes by which the rows of the weight pass multiples of 16
    const u8* rows[2] = {};

    __device__ __forceinline__ void Begin(const int (&of_weight)[2]) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        in_row[j] = (C::kIn / kBlockColumns * kBlockBytes % 16) * of_weight[j] % 16;
      }
    }
    __device__ __forceinline__ void Enter(const char* stage, int chunk) {
      const int g = threadIdx.x % 32 / 4;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int before = (in_row[j] + chunk * static_cast<int>(S::kLayout.RowBytes() % 16)) % 16;
        rows[j] = reinterpret_cast<const u8*>(stage) + (g + 8 * j) * S::kWeightStrideBytes + before;
      }
    }
    __device__ __forceinline__ const u8* Block(int column, int j) const {
      return rows[j] + column / kBlockColumns * kBlockBytes;
    }
  };

  // On tensor cores, as TileSums.
  template <class S, class Element>
  struct TileOf {
    LaneRows<S> lane;
    float c[4] = {};

    struct Terms {
      int column;
    };
    // Codes of whole blocks are too many to wait for x in registers.
    __device__ __forceinline__ Terms Fetch(int i) const { return {i}; }
    __device__ __forceinline__ void Add(const Terms& terms, const T* x) {
      const int g = threadIdx.x % 32 / 4, at = threadIdx.x % 4 * 4;
      const T* row = x - threadIdx.x % 4 * kLane + at + (g < S::kTokens ? g : S::kTokens - 1) * S::kXStride;
      const u8* const blocks[2] = {lane.Block(terms.column, 0), lane.Block(terms.column, 1)};
      typename Format::Parts parts[2];
      parts[0].Load(blocks[0]);
      parts[1].Load(blocks[1]);
      float whole[4] = {}, offsets[4] = {};  // of the block, but for what all of its groups are multiplied with
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        float sums[4] = {}, all[4] = {};
#pragma unroll
        for (int j = group * kQuadsOfGroup; j < (group + 1) * kQuadsOfGroup; ++j) {
          const Vec<u32, 2> b = llmc::Load<u32, 2>(reinterpret_cast<const u32*>(row + 16 * j));
          u32 low[2], high[2];
          QuadPairs<T, Format>::Of(Format::Quad(blocks[0], j, at), low);
          QuadPairs<T, Format>::Of(Format::Quad(blocks[1], j, at), high);
          MultiplyAdd<T>(sums, {low[0], high[0], low[1], high[1]}, b.v[0], b.v[1]);
          if constexpr (Format::kOffsets) {
            constexpr u32 kOne = kSame<T, bf16> ? 0x3f803f80u : 0x3c003c00u;
            MultiplyAdd<T>(all, {kOne, kOne, kOne, kOne}, b.v[0], b.v[1]);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          whole[i] = kGroups == 1 ? sums[i] : whole[i] + parts[i / 2].Step(group) * sums[i];
          if constexpr (Format::kOffsets) {
            offsets[i] = kGroups == 1 ? all[i % 2] : offsets[i] + parts[i / 2].OffsetStep(group) * all[i % 2];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        c[i] += parts[i / 2].d * whole[i];
        if constexpr (Format::kOffsets) c[i] += parts[i / 2].offset * offsets[i];
      }
    }
    __device__ __forceinline__ void Store(float* to, Made) const {
      const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 2 * t + i % 2;
        if (token < S::kTokens) to[(g + i / 2 * 8) * S::kTokens + token] = c[i];
      }
    }
  };
  // In f32 each lane multiplies its codes with those of all rows of x.
  template <class S>
  struct TileOf<S, float> {
    LaneRows<S> lane;
    float sums[2][S::kTokens] = {};

    struct Terms {
      int column;
    };
    __device__ __forceinline__ Terms Fetch(int i) const { return {i}; }
    __device__ __forceinline__ void Add(const Terms& terms, const float* x) {
      const int at = threadIdx.x % 4 * 4;
      const float* row = x - threadIdx.x % 4 * kLane + at;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const u8* const block = lane.Block(terms.column, r);
        typename Format::Parts parts;
        parts.Load(block);
#pragma unroll
        for (int j = 0; j < kQuads; ++j) {
          const u32 quad = Format::Quad(block, j, at);
          const float scale = superblock::ScaleOf<Format>(parts, j / kQuadsOfGroup);
          const float offset = superblock::OffsetOf<Format>(parts, j / kQuadsOfGroup);
#pragma unroll
          for (int token = 0; token < S::kTokens; ++token) {
            const Vec<float, 4> v = llmc::Load<float, 4>(row + token * S::kXStride + 16 * j);
            sums[r][token] += DotQuad<Format>(quad, v.v, scale, offset);
          }
        }
      }
    }
    __device__ __forceinline__ void Store(float* to, Made) const {
      const int g = threadIdx.x % 32 / 4;
#pragma unroll
      for (int i = 0; i < 2 * S::kTokens; ++i) {
        const float sum = WarpReduce<4>(sums[i / S::kTokens][i % S::kTokens], Sum());
        if (threadIdx.x % 4 == 0) to[(g + i / S::kTokens * 8) * S::kTokens + i % S::kTokens] = sum;
      }
    }
  };

  template <class S, bool kIntegers>
  struct SumsOf : TileOf<S, T> {
    __device__ __forceinline__ void Begin(const SuperblockWeight&, int low, int high) {
      const int rows[2] = {low, high};
      this->lane.Begin(rows);
    }
    __device__ __forceinline__ void Enter(const char* stage, int chunk) { this->lane.Enter(stage, chunk); }
  };
#if LLMC_SM90
  template <class S>
  struct SumsOf<S, true> : SuperblockIntegers<SuperblockWeight, S> {};
#endif
  template <class S>
  using Sums = SumsOf<S, (kIntegerBlock<C> > 0)>;

  // ---- without stages ---------------------------------------------------------------------------------------------
  // 32 elements of a block.
  template <int k>
  struct Run {
    static constexpr int kCount = 32, kVec = VectorOf<T>(kCount), kVectors = kCount / kVec;
    struct Terms {
      Vec<T, kVec> vectors[kVectors];
    };
    u32 quads[kCount / 4];
    float scale[kCount / 16], offset[kCount / 16];

    __device__ __forceinline__ void Load(const SuperblockWeight& weight, i64 row, i64 column) {
      const u8* block = reinterpret_cast<const u8*>(weight.Row(row, column, k));
      const int first = kBlockColumns == kCount ? 0 : static_cast<int>(column) % kBlockColumns / 16;
      typename Format::Parts parts;
      parts.Load(block);
#pragma unroll
      for (int i = 0; i < kCount / 16; ++i) {
        scale[i] = superblock::ScaleOf<Format>(parts, (first + i) / kQuadsOfGroup);
        offset[i] = superblock::OffsetOf<Format>(parts, (first + i) / kQuadsOfGroup);
#pragma unroll
        for (int q = 0; q < 4; ++q) quads[4 * i + q] = Format::Quad(block, first + i, 4 * q);
      }
    }
    static __device__ __forceinline__ Terms Fetch(const T* x) {
      Terms terms;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) terms.vectors[i] = llmc::Load<T, kVec>(x + i * kVec);
      return terms;
    }
    __device__ __forceinline__ void Add(const Terms& x, Made, float* sum) const {
#pragma unroll
      for (int q = 0; q < kCount / 4; ++q) {
        float values[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) values[e] = ToFloat(x.vectors[(4 * q + e) / kVec].v[(4 * q + e) % kVec]);
        *sum += DotQuad<Format>(quads[q], values, scale[q / 4], offset[q / 4]);
      }
    }
  };
};

}  // namespace llmc
