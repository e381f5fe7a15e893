// The rows of an expert's weight as the large operand of tensor cores, from memory into registers, for
// expert_small_gemm.cuh: elements, or codes that become numbers of 16 bits.
//
// mma.m16n8k16 (mma.cuh) with 16 rows of the weight as `a` and 8 pairs of a token and an expert as `b`. Which depth is
// which does not matter as long as both operands agree, so lane l reads neighbours of rows l / 4 and l / 4 + 8 and of
// pair l / 4: eight of them are the operands of two products. Four lanes share a slab of depths, one run for each.
#pragma once
#include "kernels/common/mma.cuh"
#include "kernels/linear/row_decoder.cuh"

namespace llmc {

struct Words {
  u32 w[4];
};

// 16 bytes that are read once by this block: they need no place in L1.
__device__ __forceinline__ Words LoadOnce(const void* from) {
  Words r;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3])
      : "l"(from));
  return r;
}
__device__ __forceinline__ Words LoadShared(const void* from) {
  const uint4 v = *static_cast<const uint4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}

// Two rows of elements, which lane l reads.
template <class C, class Reader = Weight<C>>
struct ExpertRowPair {
  using T = typename C::T;
  static constexpr int kSlab = 32;  // depths that four lanes read at once
  const T* rows[2];

  __device__ __forceinline__ ExpertRowPair(const Reader& weight, i64 low, i64 high, i64 k)
      : rows{weight.Row(low, threadIdx.x % 4 * 8, k), weight.Row(high, threadIdx.x % 4 * 8, k)} {}

  // sums += the rows times one row of x for each of kTiles columns of pairs, of depths [begin, end).
  template <int kTiles>
  __device__ __forceinline__ void Multiply(float (&sums)[kTiles][4], const T* const (&x)[kTiles], i64 begin,
                                           i64 end) const {
    constexpr int kSlabs = kTiles < 4 ? 4 : 2;
    i64 at = begin;
    for (; at + kSlabs * kSlab <= end; at += kSlabs * kSlab) MultiplySlabs<kTiles, kSlabs, true>(sums, x, at, end);
    for (; at < end; at += kSlab) MultiplySlabs<kTiles, 1, false>(sums, x, at, end);
  }
  // No factor of what Multiply sums up is left.
  __device__ __forceinline__ float Scale(int) const { return 1; }

 private:
  // kWhole: all of kSlabs slabs lie before `end`.
  template <int kTiles, int kSlabs, bool kWhole>
  __device__ __forceinline__ void MultiplySlabs(float (&sums)[kTiles][4], const T* const (&x)[kTiles], i64 begin,
                                                i64 end) const {
    Words a[kSlabs][2], b[kSlabs][kTiles];
    const int part = threadIdx.x % 4 * 8;
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) {
      const i64 at = begin + s * kSlab;
      const bool exists = kWhole || at + part < end;
#pragma unroll
      for (int r = 0; r < 2; ++r) a[s][r] = exists ? LoadOnce(rows[r] + at) : Words{};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) b[s][t] = exists ? LoadShared(x[t] + at + part) : Words{};
    }
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const u32 both[4] = {a[s][0].w[2 * h], a[s][1].w[2 * h], a[s][0].w[2 * h + 1], a[s][1].w[2 * h + 1]};
#pragma unroll
        for (int t = 0; t < kTiles; ++t) MultiplyAdd<T>(sums[t], both, b[s][t].w[2 * h], b[s][t].w[2 * h + 1]);
      }
    }
  }
};

// Two rows of codes. A run of a lane, of 16 bytes if the sizes allow it, lies in one block of scales. Where a whole
// slab does, scales are applied to the sums of the slab, so that numbers are exact; else numbers are rounded once with
// their scales.
// C: also as EncodedWeight has it.  C::kIn: k.
template <class C>
struct ExpertRowPair<C, EncodedWeight<C>> {
  using T = typename C::T;
  using W = EncodedWeight<C>;
  using Q = typename C::Q;
  using Pairs = CodePairs<T, Q>;
  static constexpr int kRun = W::RunOf(C::kIn), kSlab = 4 * kRun;
  static constexpr bool kScalesSums =
      W::kScaleInBlocks && C::kBlock % kSlab == 0 && W::kExactZero && Pairs::kParts == 1;
  using Decoder = RowDecoder<typename Choose<kScalesSums, WithoutScale<C>, C>::Type>;

  static_assert(C::kTransposed, "kTransposed: the weight is [n, k]");
  static_assert(kRun >= 8 && C::kIn % kRun == 0, "kIn, kBlock: whole eights of codes");

  const W& weight;
  i64 row[2];
  // What both rows have of columns and of all.
  float scale[2];
  Decoder decoder[2];

  __device__ __forceinline__ ExpertRowPair(const W& weight, i64 low, i64 high, i64) : weight(weight), row{low, high} {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (C::kZero == kNoPart) decoder[r].SetWholeZero(kShift<Q>);
      if constexpr (C::kZero != kNoPart && !W::kZeroInBlocks) decoder[r].SetZero(ZeroOf(r, 0));
      scale[r] = W::kScaleInBlocks ? 1.0f : weight.template ScaleOf<float>(0, row[r], C::kIn, 0);
      if constexpr (C::kOuter != kNoPart) scale[r] *= weight.OuterOf(row[r]);
    }
  }
  __device__ __forceinline__ float Scale(int r) const { return scale[r]; }

  template <int kTiles>
  __device__ __forceinline__ void Multiply(float (&sums)[kTiles][4], const T* const (&x)[kTiles], i64 begin, i64 end) {
    constexpr int kSlabs = kTiles < 4 ? 4 : 2;
    i64 at = begin;
    for (; at + kSlabs * kSlab <= end; at += kSlabs * kSlab) MultiplySlabs<kTiles, kSlabs, true>(sums, x, at, end);
    for (; at < end; at += kSlab) MultiplySlabs<kTiles, 1, false>(sums, x, at, end);
  }

 private:
  using ScaleType = typename C::Scale;
  using ZeroType = typename C::Zero;
  __device__ __forceinline__ ScaleType ScaleAt(int r, i64 at) const {
    return weight.scale[PartAt<C::kScale, C::kBlock, C::kBlockRows, 1>(at, row[r], C::kIn, 0)];
  }
  __device__ __forceinline__ ZeroType ZeroOf(int r, i64 at) const {
    return ReadElement(weight.zero, PartAt<C::kZero, C::kBlock, C::kBlockRows, 1>(at, row[r], C::kIn, 0));
  }

  template <int kTiles, int kSlabs, bool kWhole>
  __device__ __forceinline__ void MultiplySlabs(float (&sums)[kTiles][4], const T* const (&x)[kTiles], i64 begin,
                                                i64 end) {
    Codes<Q, kRun> codes[kSlabs][2];
    ScaleType scales[kSlabs][2];
    ZeroType zeros[kSlabs][2];
    const int part = threadIdx.x % 4 * kRun;
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) {
      // A run that is not there is as good as the first: x is 0 beside it.
      const i64 own = begin + s * kSlab + part, at = kWhole || own < end ? own : begin;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        codes[s][r].Load(weight.Row(row[r], at, C::kIn));
        if constexpr (W::kScaleInBlocks) scales[s][r] = ScaleAt(r, at);
        if constexpr (W::kZeroInBlocks) zeros[s][r] = ZeroOf(r, at);
      }
    }
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) {
      const i64 own = begin + s * kSlab + part;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (W::kScaleInBlocks && !kScalesSums) decoder[r].SetScale(scales[s][r]);
        if constexpr (W::kZeroInBlocks) decoder[r].SetZero(zeros[s][r]);
      }
      if constexpr (kScalesSums) {
        float of_slab[kTiles][4] = {};
        MultiplyRun(of_slab, codes[s], x, own, kWhole || own < end);
        const float low = W::ScaleNumber(scales[s][0]), high = W::ScaleNumber(scales[s][1]);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[t][e] += (e < 2 ? low : high) * of_slab[t][e];
        }
      } else {
        MultiplyRun(sums, codes[s], x, own, kWhole || own < end);
      }
    }
  }

  template <int kTiles>
  __device__ __forceinline__ void MultiplyRun(float (&sums)[kTiles][4], const Codes<Q, kRun> (&codes)[2],
                                              const T* const (&x)[kTiles], i64 at, bool exists) const {
#pragma unroll
    for (int first = 0; first < kRun; first += 8) {
      u32 a[2][4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Codes<Q, 8> eight;
#pragma unroll
        for (int w = 0; w < Codes<Q, 8>::kWords; ++w) {
          eight.word[w] = codes[r].word[first / 8 * Codes<Q, 8>::kWords + w];
        }
        decoder[r].Decode(eight, a[r]);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        Vec<u32, 4> b = {};
        if (exists) b = Load<u32, 4>(reinterpret_cast<const u32*>(x[t] + at + first));
        if constexpr (!Pairs::kOfNeighbours) b = PairFourApart(b);
        MultiplyAdd<T>(sums[t], {a[0][0], a[1][0], a[0][1], a[1][1]}, b.v[0], b.v[1]);
        MultiplyAdd<T>(sums[t], {a[0][2], a[1][2], a[0][3], a[1][3]}, b.v[2], b.v[3]);
      }
    }
  }
};

}  // namespace llmc
