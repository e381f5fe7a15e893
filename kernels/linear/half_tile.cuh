// The product of 16 rows of floats of 8 bits and a row of x in bf16, by tensor cores for f16: codes become pairs of f16
// by one instruction, and those of bf16 take four.
//
// A block of x has a power of two, 2^e, such that all of its x / 2^e are below 2^15, and these are rounded to f16. So
// an x of 8 bits is exact down to 2^-31 times the largest of those that share e, and what is rounded away of others is
// at most 2^-39 times that. A number that is not finite makes 2^e NaN, and so all results of its row.
#pragma once
#include "kernels/linear/integer_tile.cuh"
#include "kernels/linear/word_tile.cuh"

namespace llmc {

#if LLMC_SM90
// As StoreIntegers, of x as such halves.
template <class S, class T>
__device__ __forceinline__ void StoreHalves(u8* row, u32 column, bool is_there, const Vec<u32, 4>& x) {
  constexpr IntegerXLayout kX = S::kLayout.IntegerX();
  const u32 field = ExponentField<kX.exponent_columns / 8, T>(x), exponent = field < 22 ? 22 : field;
  const float factor = __uint_as_float((268u - exponent) << 23);  // 2^15 / 2^(exponent - 126)
  Vec<u32, 4> halves;
#pragma unroll
  for (int i = 0; i < 4; ++i) halves.v[i] = Pack<f16>(LowOf<T>(x.v[i]) * factor, HighOf<T>(x.v[i]) * factor);
  if (!is_there) return;
  u8* const block = row + column / kX.block * kX.BlockBytes();
  *reinterpret_cast<Vec<u32, 4>*>(block + 2 * (column % kX.block)) = halves;
  if (column % kX.block != 0) return;
  const float step = __uint_as_float(field == 255 ? 0x7fc00000u : (exponent - 14u) << 23);  // 1 / factor
  reinterpret_cast<IntegerBlockSums*>(block + kX.SumsAt())->step = step;
}

// As weight_reader.cuh says of Sums.  W: EncodedWeight.
template <class W, class S>
struct HalfTile {
  using Q = typename W::Q;
  using Parts = typename W::template LaneParts<S>;
  using Terms = typename Parts::Terms;
  static constexpr IntegerXLayout kX = S::kLayout.IntegerX();
  static constexpr int kLane = W::kLane, kColumns = 4 * kLane;
  static_assert(kX.of_halves && S::kTokens == 1 && !W::kHasZero, "floats of 8 bits, one row");
  Parts parts;
  float c[2] = {};

  __device__ __forceinline__ void Begin(const W& weight, int low, int high) {
    const int rows[2] = {low, high};
    parts.Begin(weight, rows);
  }
  __device__ __forceinline__ void Enter(const char* stage, int) { parts.Enter(stage); }
  __device__ __forceinline__ Terms Fetch(int i) {
    column = i;
    return parts.Fetch(i);
  }
  // x: the block of what was fetched.
  __device__ __forceinline__ void Add(const Terms& terms, const u8* x) {
    float sums[S::kSteps][2][4] = {};
#pragma unroll
    for (int i = 0; i < kLane; i += 8) {
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        const u8* const block = x + step * static_cast<int>(kX.BlockBytes());
        const auto b = llmc::Load<u32, 4>(reinterpret_cast<const u32*>(block + threadIdx.x % 4 * (2 * kLane) + 2 * i));
        u32 a[2][1][4];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const auto& codes = terms.codes[step][j];
          const Codes<Q, 8> eight = {{codes.word[i / 4], codes.word[i / 4 + 1]}};
          CodePairs<f16, Q>::Dequantize(eight, 0, a[j]);
        }
        const u32(&low)[4] = a[0][0], (&high)[4] = a[1][0];
        MultiplyAdd<f16>(sums[step][0], {low[0], high[0], low[1], high[1]}, b.v[0], b.v[1]);
        MultiplyAdd<f16>(sums[step][1], {low[2], high[2], low[3], high[3]}, b.v[2], b.v[3]);
      }
    }
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const u8* const block = x + step * static_cast<int>(kX.BlockBytes());
      const float of_x = reinterpret_cast<const IntegerBlockSums*>(block + kX.SumsAt())->step;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float scale = W::kScaleInBlocks ? of_x * parts.BlockScale(column + step * kColumns, j) : of_x;
        c[j] += scale * (sums[step][0][2 * j] + sums[step][1][2 * j]);
      }
    }
  }
  // to[16][1]
  __device__ __forceinline__ void Store(float* to, typename W::Made) const {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (threadIdx.x % 4 == 0) to[g + 8 * j] = c[j] * parts.scale[j];
    }
  }

 private:
  int column = 0;  // of the stage, that was fetched
};

// Of x in blocks with a power of two each.
template <class W, class S>
struct TileOfKeptX : Choose<S::kLayout.of_words, WordTile<W, S>,
                            typename Choose<S::kLayout.of_halves, HalfTile<W, S>,
                                            IntegerTileOf<(S::kLayout.IntegerX().parts > 1), W, S>>::Type>::Type {};
#endif

}  // namespace llmc
