// The product of 16 rows of codes that become words (code_words.cuh) and a row of x as integers (integer_x.cuh), by
// tensor cores for bytes.
//
// The matrix that mma multiplies with has a column for each power of 256: low bytes are multiplied with the digits of
// x, and high ones with the digits of the power before. Four columns do, of which the first takes no high bytes and the
// last no low ones. Sums begin as integer_tile.cuh says, less what the zero point of words is times the sum of x. They
// stay within 2^22 of that: those of 64 columns are 2 * 64 * 255 * 128 at the most.
#pragma once
#include "kernels/linear/code_words.cuh"
#include "kernels/linear/integer_tile.cuh"

namespace llmc {

#if LLMC_SM90
// As weight_reader.cuh says of Sums.  W: EncodedWeight, without zero points.
template <class W, class S>
struct WordTile {
  struct Bytes {
    static constexpr bool kEvensFirst = false;
  };
  using Words = CodeWords<typename W::Q>;
  using Parts = typename W::template LaneParts<S>;
  static constexpr IntegerXLayout kX = S::kLayout.IntegerX();
  static constexpr int kLane = W::kLane, kColumns = 4 * kLane, kHalf = static_cast<int>(kX.Half());
  static constexpr bool kSums = true;
  static_assert(Words::kIsThere && kX.parts == 1 && kX.of_words && kColumns == kCodeWordBlock && kHalf == 4 * kLane &&
                    S::kTokens == 1 && !W::kHasZero,
                "blocks of 64 that four lanes share, one row");
  Parts parts;
  // Digits of low and of high bytes' column, in a block of x; they stay 0 where there are none.
  int low_at = 0, high_at = 0, begin_at = 0;
  u32 has_low = 0, has_high = 0;
  Vec<u32, 4> low[S::kSteps] = {}, high[S::kSteps] = {};
  float c[4] = {};

  using Terms = typename Parts::Terms;

  __device__ __forceinline__ void Begin(const W& weight, int low_row, int high_row) {
    const int rows[2] = {low_row, high_row};
    parts.Begin(weight, rows);
    const int lane = threadIdx.x % 32, place = lane / 4 % 4, t = lane % 4;
    has_low = place < 3;
    has_high = place > 0;
    low_at = place * kHalf + t * kLane;
    high_at = low_at - kHalf;
    begin_at = static_cast<int>(kX.SumsAt()) + 16 + t % 2 * 8;
  }
  __device__ __forceinline__ void Enter(const char* stage, int) { parts.Enter(stage); }
  __device__ __forceinline__ Terms Fetch(int i) {
    column = i;
    return parts.Fetch(i);
  }
  __device__ __forceinline__ void Add(const Terms& terms, const u8* x) {
    i32 sums[S::kSteps][4];
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const u8* const block = x + step * static_cast<int>(kX.BlockBytes());
      const auto begin = llmc::Load<i32, 2>(reinterpret_cast<const i32*>(block + begin_at));
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[step][e] = static_cast<i32>(kRaisedIntegerBits) + begin.v[e % 2];
      LoadSharedIf(has_low, block + low_at, &low[step]);
      LoadSharedIf(has_high, block + high_at, &high[step]);
    }
#pragma unroll
    for (int i = 0; i < kLane; i += 8) {
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        u32 lows[2][2], highs[2][2];
        Words::Of(terms.codes[step][0], i, lows[0], highs[0]);
        Words::Of(terms.codes[step][1], i, lows[1], highs[1]);
        MultiplyAddBytes<u8, i8>(sums[step], {lows[0][0], lows[1][0], lows[0][1], lows[1][1]}, low[step].v[i / 4],
                                 low[step].v[i / 4 + 1]);
        MultiplyAddBytes<u8, i8>(sums[step], {highs[0][0], highs[1][0], highs[0][1], highs[1][1]}, high[step].v[i / 4],
                                 high[step].v[i / 4 + 1]);
      }
    }
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const u8* const block = x + step * static_cast<int>(kX.BlockBytes());
      const float of_x = reinterpret_cast<const IntegerBlockSums*>(block + kX.SumsAt())->step;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float scale = W::kScaleInBlocks ? of_x * parts.BlockScale(column + step * kColumns, j) : of_x;
#pragma unroll
        for (int e = 0; e < 2; ++e) c[2 * j + e] += scale * (__int_as_float(sums[step][2 * j + e]) - kRaisedInteger);
      }
    }
  }
  // to[16][1]
  __device__ __forceinline__ void Store(float* to, typename W::Made) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    constexpr float kUnit = static_cast<float>(-1 / kCodeWordUnit);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float pair = c[2 * j] + 256.0f * c[2 * j + 1], own = t % 2 == 0 ? pair : 65536.0f * pair;
      const float sum = (own + __shfl_xor_sync(~0u, own, 1)) * (kUnit * parts.scale[j]);
      if (t == 0) to[g + 8 * j] = sum;
    }
  }

 private:
  int column = 0;  // of the stage, that was fetched
};
#endif

}  // namespace llmc
