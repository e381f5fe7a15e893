// The product of 16 rows of codes and one or two rows of x as integers (integer_x.cuh), by tensor cores for bytes.
//
// A matrix that mma multiplies with has eight columns: the three digits of a row of x, the last one twice, and those of
// the second row. Its sums are of whole numbers, so they are exact, and they begin at the integer that the bits of
// kRaisedInteger are: while they stay within 2^22 of it, their bits are those of the float that is greater by as much.
// Of 128 products of codes from -128 to 127, or of 8 bits less a zero point of 8 bits, with digits, all do.
#pragma once
#include "kernels/linear/integer_x.cuh"
#include "kernels/linear/quantized_parts.cuh"

namespace llmc {

#if LLMC_SM90
// As weight_reader.cuh says of Sums.  W: EncodedWeight.
template <class W, class S>
struct IntegerTile {
  using Bytes = CodeBytes<typename W::Q>;
  using Parts = typename W::template LaneParts<S>;
  static constexpr IntegerXLayout kX = S::kLayout.IntegerX();
  static constexpr int kLane = W::kLane, kColumns = 4 * kLane, kHalf = static_cast<int>(kX.Half());
  static constexpr int kAtOnce = kHalf / 4;  // columns of a lane in one load of x
  static constexpr bool kSums = W::kHasZero || Bytes::kZero != 0;
  Parts parts;
  int x_at = 0, sums_at = 0;  // of the lane, in a block of x
  float c[4] = {};

  struct Terms {
    Codes<typename W::Q, kLane> codes[S::kSteps][2];
  };

  __device__ __forceinline__ void Begin(const W& weight, int low, int high) {
    const int rows[2] = {low, high};
    parts.Begin(weight, rows);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    constexpr int kPlaces = static_cast<int>(kXDigits);
    const int place = g % 4 < kPlaces ? g % 4 : kPlaces - 1;
    x_at = (S::kTokens > 1 ? g / 4 * S::kXStride : 0) + place * kHalf + t * kAtOnce;
    sums_at = (S::kTokens > 1 ? t / 2 * S::kXStride : 0) + static_cast<int>(kX.SumsAt()) + t % 2 * 8;
  }
  __device__ __forceinline__ void Enter(const char* stage, int) { parts.Enter(stage); }
  __device__ __forceinline__ Terms Fetch(int i) {
    column = i;
    Terms terms;
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
      for (int j = 0; j < 2; ++j) terms.codes[step][j] = parts.Load(i, step * kColumns, j);
    }
    return terms;
  }
  // x: the block of what was fetched, of the first row.
  __device__ __forceinline__ void Add(const Terms& terms, const u8* x) {
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const u8* const block = x + step * static_cast<int>(kX.BlockBytes());
      i32 sums[4];
      BeginSums(block, column + step * kColumns, sums);
#pragma unroll
      for (int first = 0; first < kLane; first += kAtOnce) {
        const auto digits = llmc::Load<u32, kAtOnce / 4>(
            reinterpret_cast<const u32*>(block + x_at + first / kAtOnce * static_cast<int>(kXDigits) * kHalf));
#pragma unroll
        for (int i = 0; i < kAtOnce; i += 8) {
          u32 a[2][2];
          Bytes::Of(terms.codes[step][0], first + i, a[0]);
          Bytes::Of(terms.codes[step][1], first + i, a[1]);
          MultiplyAddBytes<typename Bytes::Byte, i8>(sums, {a[0][0], a[1][0], a[0][1], a[1][1]}, digits.v[i / 4],
                                                     digits.v[i / 4 + 1]);
        }
      }
      AddScaled(block, column + step * kColumns, sums);
    }
  }
  // to[16][kTokens]
  __device__ __forceinline__ void Store(float* to, typename W::Made) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    constexpr float kUnit = 1.0f / Bytes::kFactor;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float own = t % 2 == 0 ? c[2 * j] + 256.0f * c[2 * j + 1] : 65536.0f * c[2 * j];
      const float sum = (own + __shfl_xor_sync(~0u, own, 1)) * (kUnit * parts.scale[j]);
      if (t % 2 == 0 && t / 2 < S::kTokens) to[(g + 8 * j) * S::kTokens + t / 2] = sum;
    }
  }

 private:
  int column = 0;  // of the stage, that was fetched

  // A zero point that is whole, in units of bytes.
  __device__ __forceinline__ i32 ByteZero(int i, int j) const {
    if constexpr (!W::kHasZero || !W::kExactZero) return Bytes::kZero;
    return (static_cast<i32>(parts.WholeZero(i, j)) - kShift<typename W::Q>)*Bytes::kFactor + Bytes::kZero;
  }
  __device__ __forceinline__ void BeginSums(const u8* block, int i, i32 (&sums)[4]) const {
    constexpr u32 kRaised = 0x4b400000u;
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[e] = kRaised;
    if constexpr (kSums && W::kExactZero) {
      const auto of_x = llmc::Load<i32, 2>(reinterpret_cast<const i32*>(block + sums_at));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const i32 zero = ByteZero(i, j);
#pragma unroll
        for (int e = 0; e < 2; ++e) sums[2 * j + e] -= zero * of_x.v[e];
      }
    }
  }
  __device__ __forceinline__ void AddScaled(const u8* block, int i, const i32 (&sums)[4]) {
    float of_x[2] = {};
    if constexpr (kSums && !W::kExactZero) {
      const auto digits = llmc::Load<i32, 2>(reinterpret_cast<const i32*>(block + sums_at));
      of_x[0] = static_cast<float>(digits.v[0]);
      of_x[1] = static_cast<float>(digits.v[1]);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float step = StepOf(block);
      if constexpr (W::kScaleInBlocks) step *= parts.BlockScale(i, j);
      const float zero = kSums && !W::kExactZero ? Bytes::kFactor * parts.ZeroOf(i, j) : 0.0f;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = __int_as_float(sums[2 * j + e]) - kRaisedInteger;
        if constexpr (kSums && !W::kExactZero) sum -= zero * of_x[e];
        c[2 * j + e] += step * sum;
      }
    }
  }
  // 2^e of the row of x that the lane's sums are of.
  __device__ __forceinline__ float StepOf(const u8* block) const {
    const int row = S::kTokens > 1 ? threadIdx.x % 4 / 2 * S::kXStride : 0;
    return reinterpret_cast<const IntegerBlockSums*>(block + row + kX.SumsAt())->step;
  }
};
#endif

}  // namespace llmc
