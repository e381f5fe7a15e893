// The product of 16 rows of superblocks and a row of x as integers (integer_x.cuh), by tensor cores for bytes.
//
// As integer_tile.cuh, but that scales of groups are integers, too: sums of a group are multiplied with them as such,
// and only those of a whole superblock become floats. 32 bits hold them: of 256 products of bytes with digits and
// scales of 8 bits they are 2^29 at the most. Offsets are multiplied with sums of x: of groups of 32 they are kept, and
// each of four lanes has some of them.
#pragma once
#include "kernels/linear/integer_x.cuh"
#include "kernels/linear/quantized_parts.cuh"
#include "kernels/linear/superblocks.cuh"

namespace llmc {

#if LLMC_SM90
// Four codes of a format as bytes: (byte - kZero) / kFactor is a code less kShift.
template <class Format>
struct QuadBytes {
  static constexpr int kShift = Format::kShift, kBits = Format::kCodeBits;
  // Codes less half of their range are the high bits of signed bytes.
  static constexpr bool kIsHalf = kShift == 1 << (kBits - 1);
  static constexpr int kFactor = kIsHalf ? 1 << (8 - kBits) : 1;
  static constexpr bool kEvensFirst = false;
  using Byte = typename Choose<kShift == 0, u8, i8>::Type;

  static __device__ __forceinline__ u32 Of(const u8* block, int j, int at) {
    if constexpr (kIsHalf && kBits < 8) {
      return Format::Quad(block, j, at, 8 - kBits) ^ 0x80808080u;
    } else {
      const u32 quad = Format::Quad(block, j, at);
      if constexpr (kShift == 0) return quad;
      if constexpr (kIsHalf) return quad ^ 0x80808080u;
      return ((quad | 0x80808080u) - kShift * kOnes) ^ 0x80808080u;
    }
  }
};

// As weight_reader.cuh says of Sums.  W: SuperblockWeight.
template <class W, class S>
struct SuperblockIntegers {
  using Format = typename W::Format;
  using Bytes = QuadBytes<Format>;
  using Parts = typename Format::Parts;
  static constexpr IntegerXLayout kX = S::kLayout.IntegerX();
  static constexpr int kHalf = static_cast<int>(kX.Half()), kBlocks = static_cast<int>(kX.block) / Format::kElements;
  static constexpr int kGroups = static_cast<int>(kX.block) / Format::kGroup;  // of what is multiplied at once
  static constexpr bool kSums = Format::kOffsets && Format::kGroup == kSuperblockPart;
  static_assert(kX.of_quads && (kX.block == 128 || kX.block == 256) && S::kTokens == 1, "whole or half superblocks");
  static_assert(Format::kGroup == 16 || Format::kGroup == 32, "groups are products of tensor cores");

  // Sums of the integers of x, as floats.
  using OfPart = float;
  static __device__ __forceinline__ float PartOf(i32 sum) { return static_cast<float>(sum); }

  typename W::template LaneRows<S> lane;
  int x_at = 0;
  float c[4] = {}, offsets[2] = {};

  struct Terms {
    int column;
  };

  __device__ __forceinline__ void Begin(const W&, int low, int high) {
    const int rows[2] = {low, high}, g = threadIdx.x % 32 / 4;
    lane.Begin(rows);
    constexpr int kPlaces = static_cast<int>(kXDigits);
    x_at = (g % 4 < kPlaces ? g % 4 : kPlaces - 1) * kHalf + threadIdx.x % 4 * (kHalf / 4);
  }
  __device__ __forceinline__ void Enter(const char* stage, int chunk) { lane.Enter(stage, chunk); }
  __device__ __forceinline__ Terms Fetch(int i) const { return {i}; }
  // x: the block of what was fetched.
  __device__ __forceinline__ void Add(const Terms& terms, const u8* x) {
    const auto* const sums = reinterpret_cast<const IntegerBlockSums*>(x + kX.SumsAt());
    const auto* const x_sums = reinterpret_cast<const float*>(sums + 1);
    const float step = sums->step;
    if constexpr (kX.block == Format::kElements) {
      AddPart<0>(terms, x, x_sums, step);
    } else if constexpr (kX.block < Format::kElements) {
      // All lanes take the same way.
      static_assert(2 * kX.block == Format::kElements, "halves");
      if (static_cast<u32>(terms.column) % Format::kElements == 0) {
        AddPart<0>(terms, x, x_sums, step);
      } else {
        AddPart<1>(terms, x, x_sums, step);
      }
    } else {
#pragma unroll
      for (int half = 0; half < kX.block / 64; ++half) {
        const auto digits = llmc::Load<u32, 4>(reinterpret_cast<const u32*>(x + x_at + half * 3 * kHalf));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = 2 * half + i;
          const u8* const blocks[2] = {lane.Block(terms.column, 0) + at * Format::kBytes,
                                       lane.Block(terms.column, 1) + at * Format::kBytes};
          Parts parts[2];
          parts[0].Load(blocks[0]);
          parts[1].Load(blocks[1]);
          i32 whole[4] = {};
          Multiply(blocks, 0, digits.v[2 * i], digits.v[2 * i + 1], whole);
          AddScaled(parts[0].d * step, parts[1].d * step, whole);
          if constexpr (kSums) {
            const float x_sum = step * x_sums[at];
            offsets[0] += parts[0].offset * x_sum;
            offsets[1] += parts[1].offset * x_sum;
          }
        }
      }
    }
  }
  // to[16][1]
  __device__ __forceinline__ void Store(float* to, typename W::Made) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    constexpr float kUnit = 1.0f / Bytes::kFactor;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float own = t % 2 == 0 ? c[2 * j] + 256.0f * c[2 * j + 1] : 65536.0f * c[2 * j];
      float sum = (own + __shfl_xor_sync(~0u, own, 1)) * kUnit;
      if constexpr (kSums) sum += kBlocks <= 1 ? WarpReduce<4>(offsets[j], Sum()) : offsets[j];
      if (t == 0) to[g + 8 * j] = sum;
    }
  }

 private:
  // sums += codes of quad j, and of the next one if groups are of 32, times digits.
  static __device__ __forceinline__ void Multiply(const u8* const (&blocks)[2], int j, u32 low, u32 high,
                                                  i32 (&sums)[4]) {
    const int at = threadIdx.x % 4 * 4;
    using Byte = typename Bytes::Byte;
    if constexpr (Format::kByTurns) {
      u32 a[2][2];
      Format::SignedByTurns(blocks[0], j, at, a[0]);
      Format::SignedByTurns(blocks[1], j, at, a[1]);
      MultiplyAddBytes<Byte, i8>(sums, {a[0][0], a[1][0], a[0][1], a[1][1]}, __byte_perm(low, high, 0x5140),
                                 __byte_perm(low, high, 0x7362));
    } else if constexpr (Format::kGroup == 16) {
      MultiplyAddBytes<Byte, i8>(sums, Bytes::Of(blocks[0], j, at), Bytes::Of(blocks[1], j, at), low);
    } else {
      MultiplyAddBytes<Byte, i8>(sums,
                                 {Bytes::Of(blocks[0], j, at), Bytes::Of(blocks[1], j, at),
                                  Bytes::Of(blocks[0], j + 1, at), Bytes::Of(blocks[1], j + 1, at)},
                                 low, high);
    }
  }
  // Of a superblock, or of a half of it.
  template <int kPart>
  __device__ __forceinline__ void AddPart(const Terms& terms, const u8* x, const float* x_sums, float step) {
    const u8* const blocks[2] = {lane.Block(terms.column, 0), lane.Block(terms.column, 1)};
    Parts parts[2];
    parts[0].Load(blocks[0]);
    parts[1].Load(blocks[1]);
    i32 whole[4] = {}, of_offsets[4] = {};
#pragma unroll
    for (int run = 0; run < static_cast<int>(kX.block) / 64; ++run) {
      AddRun<kPart* static_cast<int>(kX.block) / 16>(blocks, parts, x, run, whole, of_offsets);
    }
    AddScaled(parts[0].d * step, parts[1].d * step, whole);
    if constexpr (kSums) {
      AddOffsets<kPart>(parts, x_sums, step);
    } else if constexpr (Format::kOffsets) {
      AddScaled(parts[0].offset * step, parts[1].offset * step, of_offsets);
    }
  }
  // Of 64 columns.  kFirst: the quad of the superblock that x begins with.
  template <int kFirst>
  __device__ __forceinline__ void AddRun(const u8* const (&blocks)[2], const Parts (&parts)[2], const u8* x, int run,
                                         i32 (&whole)[4], i32 (&of_offsets)[4]) const {
    const auto digits = llmc::Load<u32, 4>(reinterpret_cast<const u32*>(x + x_at + run * 3 * kHalf));
    constexpr int kQuads = Format::kGroup / 16;
#pragma unroll
    for (int i = 0; i < 4; i += kQuads) {
      i32 sums[4] = {};
      Multiply(blocks, kFirst + 4 * run + i, digits.v[i], digits.v[i + kQuads - 1], sums);
      const int group = (kFirst + 4 * run + i) / kQuads;
#pragma unroll
      for (int e = 0; e < 4; ++e) whole[e] += parts[e / 2].WholeStep(group) * sums[e];
      if constexpr (Format::kOffsets && !kSums) {
        i32 all[4] = {};
        MultiplyAddBytes<u8, i8>(all, kOnes, kOnes, digits.v[i]);
#pragma unroll
        for (int e = 0; e < 4; ++e) of_offsets[e] += parts[e / 2].WholeOffsetStep(group) * all[e];
      }
    }
  }
  __device__ __forceinline__ void AddScaled(float low, float high, const i32 (&whole)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) c[e] += (e < 2 ? low : high) * static_cast<float>(whole[e]);
  }
  template <int kPart>
  __device__ __forceinline__ void AddOffsets(const Parts (&parts)[2], const float* x_sums, float step) {
    constexpr int kEach = kGroups / 4;
    const int t = threadIdx.x % 4;
    const auto own = llmc::Load<float, kEach>(x_sums + t * kEach);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const u32 steps[1] = {parts[j].template LaneOffsets<kEach>(kPart * kGroups + t * kEach)};
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) sum += superblock::ByteOf(steps, i) * own.v[i];
      offsets[j] += parts[j].offset * step * sum;
    }
  }
};
#endif

}  // namespace llmc
