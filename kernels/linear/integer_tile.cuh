// The product of 16 rows of codes and a row of x as integers (integer_x.cuh), by tensor cores for bytes.
//
// The matrix that mma multiplies with has eight columns, of which three are the digits of x. Its sums are of whole
// numbers, so they are exact, and they begin at the integer that the bits of kRaisedInteger are: while they stay within
// 2^22 of it, their bits are those of the float that is greater by as much. Those of 128 products of bytes with digits
// do: they are 2^21 at the most, with zero points of 4 bits 2^22 - 2^18.
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
  static constexpr bool kSums = W::kHasZero;
  static_assert(Bytes::kIsThere && kX.parts == 1 && Bytes::kZero == 0 && S::kTokens == 1,
                "blocks that four lanes share, one row");
  Parts parts;
  int x_at = 0, sums_at = 0;  // of the lane, in a block of x
  float c[4] = {};

  using Terms = typename Parts::Terms;

  __device__ __forceinline__ void Begin(const W& weight, int low, int high) {
    const int rows[2] = {low, high};
    parts.Begin(weight, rows);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    constexpr int kPlaces = static_cast<int>(kXDigits);
    const int place = g % 4 < kPlaces ? g % 4 : kPlaces - 1;
    x_at = place * kHalf + t * kAtOnce;
    sums_at = static_cast<int>(kX.SumsAt()) + t % 2 * 8;
  }
  __device__ __forceinline__ void Enter(const char* stage, int) { parts.Enter(stage); }
  __device__ __forceinline__ Terms Fetch(int i) {
    column = i;
    return parts.Fetch(i);
  }
  // x: the block of what was fetched. Each mma waits for the last that had its sums, so those of several blocks take
  // turns.
  __device__ __forceinline__ void Add(const Terms& terms, const u8* x) {
    i32 sums[S::kSteps][4];
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      BeginSums(x + step * static_cast<int>(kX.BlockBytes()), column + step * kColumns, sums[step]);
    }
#pragma unroll
    for (int first = 0; first < kLane; first += kAtOnce) {
      Vec<u32, kAtOnce / 4> digits[S::kSteps];
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
        const u8* const from = x + step * static_cast<int>(kX.BlockBytes()) + x_at;
        digits[step] = llmc::Load<u32, kAtOnce / 4>(
            reinterpret_cast<const u32*>(from + first / kAtOnce * static_cast<int>(kXDigits) * kHalf));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; i += 8) {
#pragma unroll
        for (int step = 0; step < S::kSteps; ++step) {
          u32 a[2][2];
          Bytes::Of(terms.codes[step][0], first + i, a[0]);
          Bytes::Of(terms.codes[step][1], first + i, a[1]);
          MultiplyAddBytes<typename Bytes::Byte, i8>(sums[step], {a[0][0], a[1][0], a[0][1], a[1][1]},
                                                     digits[step].v[i / 4], digits[step].v[i / 4 + 1]);
        }
      }
    }
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      AddScaled(x + step * static_cast<int>(kX.BlockBytes()), column + step * kColumns, sums[step]);
    }
  }
  // to[16][1]
  __device__ __forceinline__ void Store(float* to, typename W::Made) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    constexpr float kUnit = 1.0f / Bytes::kFactor;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float own = t % 2 == 0 ? c[2 * j] + 256.0f * c[2 * j + 1] : 65536.0f * c[2 * j];
      const float sum = (own + __shfl_xor_sync(~0u, own, 1)) * (kUnit * parts.scale[j]);
      if (t == 0) to[g + 8 * j] = sum;
    }
  }

 private:
  int column = 0;  // of the stage, that was fetched

  // A zero point that is whole, in units of bytes.
  __device__ __forceinline__ i32 ByteZero(int i, int j) const {
    return (static_cast<i32>(parts.WholeZero(i, j)) - kShift<typename W::Q>)*Bytes::kFactor;
  }
  __device__ __forceinline__ void BeginSums(const u8* block, int i, i32 (&sums)[4]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[e] = kRaisedIntegerBits;
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
      float step = reinterpret_cast<const IntegerBlockSums*>(block + kX.SumsAt())->step;
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
};

// 16 bytes of shared memory, if `exists`; else *to stays.
__device__ __forceinline__ void LoadSharedIf(u32 exists, const u8* from, Vec<u32, 4>* to) {
  // Volatile, so that it stays behind the barrier after which x is there.
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
      "@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(to->v[0]), "+r"(to->v[1]), "+r"(to->v[2]), "+r"(to->v[3])
      : "r"(SharedAddress(from)), "r"(exists));
}

// Where each lane of four has a block of its own of the weight, with a scale, and no zero points: mma has a column for
// each digit of each lane's terms, in which those of other lanes are 0, so that a sum is of one block. 32 bits hold
// that of all digits. One row of x.
template <class W, class S>
struct LaneBlockTile {
  using Bytes = CodeBytes<typename W::Q>;
  using Parts = typename W::template LaneParts<S>;
  static constexpr IntegerXLayout kX = S::kLayout.IntegerX();
  static constexpr int kLane = W::kLane, kColumns = 4 * kLane, kHalf = static_cast<int>(kX.Half());
  static constexpr int kAtOnce = kHalf / 4, kLoads = kLane / kAtOnce;
  static constexpr bool kSums = Bytes::kZero != 0;
  static_assert(Bytes::kIsThere && kX.parts == 4 && kAtOnce == 16 && S::kTokens == 1 && !W::kHasZero,
                "blocks of 16 and 32, one row");
  static_assert(kLane * Bytes::kMost < 512, "32 bits hold sums of products with integers below 2^22");
  // Where sums of products begin.
  using OfPart = i32;
  static __device__ __forceinline__ i32 PartOf(i32 sum) { return -Bytes::kZero * sum; }
  Parts parts;
  // Two digits of the lane's terms, and the third: its column is of one of them, or of none.
  int low_at = 0, top_at = 0;
  u32 has_low = 0, has_top = 0;
  Vec<u32, 4> low[kLoads] = {}, top[kLoads] = {};  // stay 0 where the lane has no digits
  float c[2] = {};

  using Terms = typename Parts::Terms;

  __device__ __forceinline__ void Begin(const W& weight, int low_row, int high_row) {
    const int rows[2] = {low_row, high_row};
    parts.Begin(weight, rows);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    has_low = g / 2 == t;
    has_top = g == 2 * t;
    low_at = g % 2 * kHalf + t * kAtOnce;
    top_at = 2 * kHalf + t * kAtOnce;
  }
  __device__ __forceinline__ void Enter(const char* stage, int) { parts.Enter(stage); }
  __device__ __forceinline__ Terms Fetch(int i) {
    column = i;
    return parts.Fetch(i);
  }
  __device__ __forceinline__ void Add(const Terms& terms, const u8* x) {
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const u8* const block = x + step * static_cast<int>(kX.BlockBytes());
      const auto* const sums = reinterpret_cast<const IntegerBlockSums*>(block + kX.SumsAt());
      const i32 begin = kSums ? reinterpret_cast<const i32*>(sums + 1)[threadIdx.x % 4] : 0;
      i32 lows[4] = {begin, 0, begin, 0}, tops[4] = {};
#pragma unroll
      for (int load = 0; load < kLoads; ++load) {
        const u8* const from = block + load * static_cast<int>(kXDigits) * kHalf;
        LoadSharedIf(has_low, from + low_at, &low[load]);
        LoadSharedIf(has_top, from + top_at, &top[load]);
#pragma unroll
        for (int i = 0; i < kAtOnce; i += 8) {
          u32 a[2][2];
          Bytes::Of(terms.codes[step][0], load * kAtOnce + i, a[0]);
          Bytes::Of(terms.codes[step][1], load * kAtOnce + i, a[1]);
          const u32 rows[4] = {a[0][0], a[1][0], a[0][1], a[1][1]};
          MultiplyAddBytes<typename Bytes::Byte, i8>(lows, rows, low[load].v[i / 4], low[load].v[i / 4 + 1]);
          MultiplyAddBytes<typename Bytes::Byte, i8>(tops, rows, top[load].v[i / 4], top[load].v[i / 4 + 1]);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const u32 first = lows[2 * j], second = lows[2 * j + 1], third = tops[2 * j];
        const auto sum = static_cast<float>(static_cast<i32>(first + (second << 8) + (third << 16)));
        c[j] += sums->step * parts.BlockScale(column + step * kColumns, j) * sum;
      }
    }
  }
  // to[16][1]
  __device__ __forceinline__ void Store(float* to, typename W::Made) const {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float sum = WarpReduce<4>(c[j], Sum()) * (1.0f / Bytes::kFactor);
      if (threadIdx.x % 4 == 0) to[g + 8 * j] = sum;
    }
  }

 private:
  int column = 0;  // of the stage, that was fetched
};

template <bool kOfLanes, class W, class S>
struct IntegerTileOf : IntegerTile<W, S> {};
template <class W, class S>
struct IntegerTileOf<true, W, S> : LaneBlockTile<W, S> {};
#endif

}  // namespace llmc
