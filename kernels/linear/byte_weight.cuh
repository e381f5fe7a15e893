// The reader of weights of bytes that are multiplied with bytes, in sums of 32 bits, which are exact: they may pass
// 2^31 on the way, but the whole, of at most kWholeTerms products of numbers from -255 to 255, does not: zero
// points are of the types of their codes. They are taken off as in quantized_parts.cuh; each warp does so for its
// terms, but for k a b.
#pragma once
#include "kernels/linear/quantized_parts.cuh"
#include "kernels/linear/weight_reader.cuh"

namespace llmc {

// C::A, C::B, C::Scale, C::ZeroA, C::ZeroB, C::kZeroA, C::kScaleA, C::kScale, C::kZero: as quantized_parts.cuh has
// them.  C::T: of what sums become.  C::kIn: terms.
template <class C>
struct ByteWeight {
  using X = typename C::A;
  using B = typename C::B;
  using Accumulator = u32;
  static constexpr int kBits = 8, kLane = 16, kScaleBits = 0, kZeroBits = 0, kPartBlock = 1, kMostSteps = 1;
  static constexpr bool kCodesAreWords = false, kCodesAreHalves = false;
  static constexpr int kBlockColumns = 0, kBlockBytes = 0;
  static constexpr bool kIsDense = true, kPairsFourApart = false, kHasZero = C::kZero != kNoPart;
  static_assert(!C::kZeroA || kSame<typename C::ZeroA, X>,
                "ZeroA: the type of the codes, so that 32 bits hold the sums");
  static_assert(!kHasZero || kSame<typename C::ZeroB, B>,
                "ZeroB: the type of the codes, so that 32 bits hold the sums");
  static_assert(C::kIn <= kWholeTerms, "32 bits hold the sum of so many products");

  const B* codes;
  QuantizedParts<C> parts;

  __device__ __forceinline__ const void* Row(i64 row, i64 column, i64 columns) const {
    return codes + row * columns + column;
  }
  __device__ __forceinline__ const char* Part(i64, i64, i64, bool) const { return nullptr; }

  struct Made {
    u32 zero = 0;
    float scale = 0;
  };
  __device__ __forceinline__ Made AfterWait(int token) const {
    return {C::kZeroA ? static_cast<u32>(Widen(ReadElement(parts.zero_a, 0))) : 0,
            Widen(parts.scale_a[C::kScaleA == kOfColumns ? token : 0])};
  }
  struct OfRow {
    u32 zero = 0;
    float scale = 0;
  };
  __device__ __forceinline__ u32 ZeroOf(int row) const {
    if constexpr (!kHasZero) return 0;
    return static_cast<u32>(Widen(ReadElement(parts.zero, C::kZero == kOfColumns ? row : 0)));
  }
  __device__ __forceinline__ OfRow Of(int row) const {
    return {ZeroOf(row), Widen(parts.scale[C::kScale == kOfColumns ? row : 0])};
  }
  static __device__ __forceinline__ float Result(Accumulator sum, const OfRow& row, const Made& made) {
    return static_cast<float>(static_cast<i32>(sum + C::kIn * made.zero * row.zero)) * (made.scale * row.scale);
  }
  // Of the products of some terms, of these terms of x and of those of the weight.
  static __device__ __forceinline__ Accumulator WithoutZeros(i32 sum, i32 x_sum, i32 own_sum, u32 zero,
                                                             const Made& made) {
    return static_cast<u32>(sum) - made.zero * static_cast<u32>(own_sum) - zero * static_cast<u32>(x_sum);
  }

  // On tensor cores: lane 4 g + t has terms of rows g and g + 8, and the sums of rows 2 t and 2 t + 1 of x.
  template <class S>
  struct Sums {
    const B* rows = nullptr;
    i32 c[4] = {}, x_sums[4] = {}, own_sums[2] = {};
    u32 zero[2] = {};

    __device__ __forceinline__ void Begin(const ByteWeight& weight, int low, int high) {
      zero[0] = weight.ZeroOf(low);
      zero[1] = weight.ZeroOf(high);
    }
    __device__ __forceinline__ void Enter(const char* stage, int) {
      const int lane = threadIdx.x % 32;
      rows = reinterpret_cast<const B*>(stage) + lane % 4 * kLane + lane / 4 * S::kStride;
    }
    struct Terms {
      Vec<u32, 4> low, high;
    };
    __device__ __forceinline__ Terms Fetch(int i) const {
      return {Load<u32, 4>(reinterpret_cast<const u32*>(rows + i)),
              Load<u32, 4>(reinterpret_cast<const u32*>(rows + 8 * S::kStride + i))};
    }
    __device__ __forceinline__ void Add(const Terms& terms, const X* x) {
      const int g = threadIdx.x % 32 / 4;
      const X* row = x + (g < S::kTokens ? g : S::kTokens - 1) * S::kXStride;
      const Vec<u32, 4> v = Load<u32, 4>(reinterpret_cast<const u32*>(row));
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const u32 a[4] = {terms.low.v[i], terms.high.v[i], terms.low.v[i + 1], terms.high.v[i + 1]};
        MultiplyAddBytes<B, X>(c, a, v.v[i], v.v[i + 1]);
        if constexpr (kHasZero) MultiplyAddBytes<u8, X>(x_sums, {kOnes, kOnes, kOnes, kOnes}, v.v[i], v.v[i + 1]);
      }
      if constexpr (C::kZeroA) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          own_sums[0] = Dot4<B, u8>(terms.low.v[i], kOnes, own_sums[0]);
          own_sums[1] = Dot4<B, u8>(terms.high.v[i], kOnes, own_sums[1]);
        }
      }
    }
    __device__ __forceinline__ void Store(Accumulator* to, const Made& made) const {
      const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const i32 own = C::kZeroA ? WarpReduce<4>(own_sums[i / 2], Sum()) : 0;
        const int token = 2 * t + i % 2;
        if (token < S::kTokens) {
          to[(g + i / 2 * 8) * S::kTokens + token] = WithoutZeros(c[i], x_sums[i % 2], own, zero[i / 2], made);
        }
      }
    }
  };

  // The most bytes that divide rows, up to 16.
  template <int k>
  struct Run {
    static constexpr int kCount = k % 16 == 0 ? 16 : k % 8 == 0 ? 8 : 4, kWords = kCount / 4;
    static_assert(k % 4 == 0, "rows are whole words");
    using Terms = Vec<u32, kWords>;
    Terms own;
    u32 zero;

    __device__ __forceinline__ void Load(const ByteWeight& weight, i64 row, i64 column) {
      own = llmc::Load<u32, kWords>(static_cast<const u32*>(weight.Row(row, column, k)));
      zero = weight.ZeroOf(static_cast<int>(row));
    }
    static __device__ __forceinline__ Terms Fetch(const X* x) {
      return llmc::Load<u32, kWords>(reinterpret_cast<const u32*>(x));
    }
    __device__ __forceinline__ void Add(const Terms& x, const Made& made, Accumulator* to) const {
      i32 sum = 0, x_sum = 0, own_sum = 0;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        sum = Dot4<X, B>(x.v[i], own.v[i], sum);
        if constexpr (kHasZero) x_sum = Dot4<X, u8>(x.v[i], kOnes, x_sum);
        if constexpr (C::kZeroA) own_sum = Dot4<B, u8>(own.v[i], kOnes, own_sum);
      }
      *to += WithoutZeros(sum, x_sum, own_sum, zero, made);
    }
  };
};

}  // namespace llmc
