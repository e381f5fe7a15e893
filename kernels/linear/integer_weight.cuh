// The reader of weights of 8 or 4 bits, whose numbers stand for (code - zero) * scale.
//
// Codes less zero points are small integers, which 16-bit floats hold exactly: they are what tensor cores multiply, and
// scales are applied to the sums in f32. So nothing is rounded that the language does not round. Integers become floats
// as the last bits of a power of two, which a subtraction takes off together with the zero point. A zero point that is
// no code is taken off the sums: sum (q - z) x = sum q x - z sum x.
#pragma once
#include "kernels/elementwise/elementwise.cuh"
#include "kernels/linear/weight_reader.cuh"

namespace llmc {

// The index of the part for term i of column c, of k terms and n columns: those of blocks of kBlock terms have the
// columns in rows or one after the other.
template <int kKind, int kBlock, int kTransposed>
__device__ __forceinline__ i64 PartAt(i64 i, i64 c, i64 k, i64 n) {
  if constexpr (kKind == kOfBlocks) {
    return kTransposed ? c * ((k + kBlock - 1) / kBlock) + i / kBlock : i / kBlock * n + c;
  } else {
    return kKind == kOfColumns ? c : 0;
  }
}

// Codes as unsigned ones: those of signed types are greater by kShift, which zero points then are, too.
template <class Q>
inline constexpr int kShift = 0;
template <>
inline constexpr int kShift<i8> = 128;
template <>
inline constexpr int kShift<i4> = 8;

// kCount neighbours, 16 bytes at the most; their number divides the index of the first.
template <class Q, int kCount>
struct Codes {
  static constexpr int kWords = kCount * (kPacked<Q> ? 4 : 8) / 32;
  static constexpr float kRaised = 8388608.0f;  // 2^23
  u32 word[kWords];

  __device__ __forceinline__ void Load(const void* at) {
    const auto v = llmc::Load<u32, kWords>(static_cast<const u32*>(at));
    constexpr u32 kSigns = kShift<Q> == 0 ? 0 : kPacked<Q> ? 0x88888888u : 0x80808080u;
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = v.v[i] ^ kSigns;
  }
  __device__ __forceinline__ float Raised(int i) const {
    const u32 bits = kPacked<Q> ? (word[i / 8] >> (i % 8 * 4) & 15) | 0x4b000000u
                                : __byte_perm(word[kPacked<Q> ? 0 : i / 4], 0x4b000000u, 0x7440 + i % 4);
    return __uint_as_float(bits);
  }
  // less a whole zero point of 0 to 255
  __device__ __forceinline__ float Get(int i, float zero = 0) const { return Raised(i) - (kRaised + zero); }
};

#if LLMC_SM90
// Pairs of 16-bit floats: eight codes less a zero point, four pairs for two products of tensor cores. Those of 4 bits
// are made of neighbours in a word that are four apart, and x has to be paired alike.
template <class T>
__device__ __forceinline__ u32 SubtractPairs(u32 a, u32 b);
template <>
__device__ __forceinline__ u32 SubtractPairs<f16>(u32 a, u32 b) {
  u32 r;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
template <>
__device__ __forceinline__ u32 SubtractPairs<bf16>(u32 a, u32 b) {
  u32 r;
  asm("sub.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

template <class T, class Q>
struct CodePairs {
  static constexpr bool kBf16 = kSame<T, bf16>;
  // Floats whose last bits count: 1024 + q in f16, 128 + q in bf16, which has room for 4 bits.
  static constexpr u32 kMagic = kBf16 ? 0x43004300u : 0x64006400u;
  static constexpr bool kByFloats = kBf16 && !kPacked<Q>;
  using Zero = u32;

  // zero: 0 to 255 with kShift
  static __device__ __forceinline__ Zero ZeroOf(u32 zero) {
    return kByFloats ? __float_as_uint(Codes<Q, 8>::kRaised + static_cast<float>(zero)) : zero * 0x10001u | kMagic;
  }
  static __device__ __forceinline__ void Dequantize(const Codes<Q, 8>& codes, Zero zero, u32 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kByFloats) {
        const float low = codes.Raised(2 * i) - __uint_as_float(zero);
        const float high = codes.Raised(2 * i + 1) - __uint_as_float(zero);
        pairs[i] = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
      } else if constexpr (kPacked<Q>) {
        pairs[i] = SubtractPairs<T>((codes.word[0] >> (4 * i) & 0x000f000fu) | kMagic, zero);
      } else {
        pairs[i] = SubtractPairs<T>(
            __byte_perm(codes.word[i / 2 % Codes<Q, 8>::kWords], kMagic, 0x5150 + i % 2 * 0x202), zero);
      }
    }
  }
  static __device__ __forceinline__ void Pair(const Vec<u32, 4>& x, u32 (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = kPacked<Q> ? __byte_perm(x.v[i / 2], x.v[2 + i / 2], i % 2 == 0 ? 0x5410 : 0x7632) : x.v[i];
    }
  }
};
#endif

// Over 250 lines: what weight_reader.cuh asks of a reader, for each type of x.
// C::T: of x.  C::Q: i8, u8, i4 or u4.  C::Scale, C::Zero: of scales and zero points.
// C::kScale, C::kZero: PartKinds.  C::kBlock: of those of blocks, else 1.  C::kTransposed: the weight is [n, k].
template <class C>
struct IntegerWeight {
  using T = typename C::T;
  using Q = typename C::Q;
  using Scale = typename C::Scale;
  using Zero = typename C::Zero;
  using X = T;
  using Accumulator = float;
  using Made = NothingMade;
  struct OfRow {};
  static constexpr int kBits = kPacked<Q> ? 4 : 8, kLane = kCodesOfLane;
  static constexpr bool kIsDense = false;
  static constexpr bool kScaleInBlocks = C::kScale == kOfBlocks, kZeroInBlocks = C::kZero == kOfBlocks;
  static constexpr int kScaleBits = kScaleInBlocks ? 8 * static_cast<int>(sizeof(Scale)) : 0;
  static constexpr int kZeroBits = !kZeroInBlocks ? 0 : kPacked<Zero> ? 4 : 8 * static_cast<int>(sizeof(Zero));
  static constexpr int kPartBlock = C::kBlock, kBlockColumns = 0, kBlockBytes = 0;
  static constexpr bool kExactZero = C::kZero == kNoPart || kSame<Zero, Q>;
  static_assert(C::kTransposed == 0 || C::kTransposed == 1, "kTransposed: 0 or 1");
  static_assert(C::kBlock >= 1, "kBlock: terms of a scale");

  const Q* codes;
  const Scale* scale;
  const Zero* zero;

  template <class X>
  __device__ __forceinline__ X ScaleOf(i64 i, i64 c, i64 k, i64 n) const {
    return static_cast<X>(Widen(scale[PartAt<C::kScale, C::kBlock, C::kTransposed>(i, c, k, n)]));
  }
  template <class X>
  __device__ __forceinline__ X ZeroOf(i64 i, i64 c, i64 k, i64 n) const {
    if constexpr (C::kZero == kNoPart) {
      return X(0);
    } else {
      return static_cast<X>(Widen(ReadElement(zero, PartAt<C::kZero, C::kBlock, C::kTransposed>(i, c, k, n))));
    }
  }
  // Term i of column c of the matrix that begins at element `first`.
  template <class X>
  __device__ __forceinline__ X Get(i64 first, i64 i, i64 c, i64 k, i64 n) const {
    const X q = static_cast<X>(Widen(ReadElement(codes, first + (C::kTransposed ? c * k + i : i * n + c))));
    return (q - ZeroOf<X>(i, c, k, n)) * ScaleOf<X>(i, c, k, n);
  }

  __device__ __forceinline__ const void* Row(i64 row, i64 column, i64 columns) const {
    const i64 at = row * columns + column;
    return codes + (kPacked<Q> ? at / 2 : at);
  }
  __device__ __forceinline__ const char* Part(i64 row, i64 column, i64 columns, bool is_zero) const {
    const i64 at = (row * columns + column) / C::kBlock * (is_zero ? kZeroBits : kScaleBits) / 8;
    return (is_zero ? reinterpret_cast<const char*>(zero) : reinterpret_cast<const char*>(scale)) + at;
  }

  __device__ __forceinline__ Made AfterWait() const { return {}; }
  __device__ __forceinline__ OfRow Of(int) const { return {}; }
  static __device__ __forceinline__ float Result(float sum, OfRow, Made) { return sum; }

  // ---- through stages ---------------------------------------------------------------------------------------------
  // A number for block `block` of a row of the stage whose numbers begin at `at`.
  static __device__ __forceinline__ Zero ZeroAt(const char* at, int block) {
    return ReadElement(reinterpret_cast<const Zero*>(at), block);
  }
  static __device__ __forceinline__ float ScaleAt(const char* at, int block) {
    return static_cast<float>(Widen(reinterpret_cast<const Scale*>(at)[block]));
  }

  // What the lane's two rows have besides codes: that of column or tensor, which stays for a tile, and where the
  // stage has that of blocks.
  template <class S>
  struct LaneParts {
    const char *codes = nullptr, *scales = nullptr, *zeros = nullptr;
    float scale[2] = {1, 1}, zero[2] = {};

    __device__ __forceinline__ void Begin(const IntegerWeight& weight, const int (&rows)[2]) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if constexpr (!kScaleInBlocks) scale[j] = weight.template ScaleOf<float>(0, rows[j], 0, 0);
        if constexpr (!kZeroInBlocks) zero[j] = weight.template ZeroOf<float>(0, rows[j], 0, 0);
      }
    }
    __device__ __forceinline__ void Enter(const char* stage) {
      const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
      codes = stage + g * S::kWeightStrideBytes + t * (kLane * kBits / 8);
      scales = stage + S::kLayout.ScaleAt() + g * S::kLayout.PartStride(kScaleBits);
      zeros = stage + S::kLayout.ZeroAt() + g * S::kLayout.PartStride(kZeroBits);
    }
    __device__ __forceinline__ Codes<Q, kLane> Load(int i, int j) const {
      Codes<Q, kLane> q;
      q.Load(codes + i * kBits / 8 + 8 * j * S::kWeightStrideBytes);
      return q;
    }
    __device__ __forceinline__ float BlockScale(int i, int j) const {
      return ScaleAt(scales + 8 * j * S::kLayout.PartStride(kScaleBits), static_cast<u32>(i) / C::kBlock);
    }
    __device__ __forceinline__ float ZeroOf(int i, int j) const {
      if constexpr (!kZeroInBlocks) return zero[j];
      return static_cast<float>(
          Widen(ZeroAt(zeros + 8 * j * S::kLayout.PartStride(kZeroBits), static_cast<u32>(i) / C::kBlock)));
    }
    // As a code, with kShift.
    __device__ __forceinline__ u32 WholeZero(int i, int j) const {
      if constexpr (C::kZero == kNoPart || !kExactZero) return kShift<Q>;
      if constexpr (!kZeroInBlocks) return static_cast<u32>(static_cast<int>(zero[j]) + kShift<Q>);
      const char* at = zeros + 8 * j * S::kLayout.PartStride(kZeroBits);
      return static_cast<u32>(static_cast<int>(Widen(ZeroAt(at, static_cast<u32>(i) / C::kBlock))) + kShift<Q>);
    }
  };

  // On tensor cores, as TileSums: sums of products of 32 columns, which are scaled as long as they are of one block.
  template <class S, class Element>
  struct TileOf {
    static constexpr bool kByBlock = kScaleInBlocks || (kZeroInBlocks && !kExactZero);
    LaneParts<S> parts;
    float c[4] = {}, x_sum[2] = {};

    // Codes less zero points as pairs, and what is done to the sums of their products.
    struct Terms {
      u32 pairs[2][4];
      float scale[2], zero[2];
    };
    __device__ __forceinline__ Terms Fetch(int i) const {
      using Pairs = CodePairs<T, Q>;
      Terms terms;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        Pairs::Dequantize(parts.Load(i, j), Pairs::ZeroOf(parts.WholeZero(i, j)), terms.pairs[j]);
        terms.scale[j] = kScaleInBlocks ? parts.BlockScale(i, j) : 1.0f;
        terms.zero[j] = !kExactZero && kByBlock ? parts.ZeroOf(i, j) : 0.0f;
      }
      return terms;
    }
    __device__ __forceinline__ void Add(const Terms& terms, const T* x) {
      const int g = threadIdx.x % 32 / 4;
      const auto& a = terms.pairs;
      u32 b[4];
      const T* row = x + (g < S::kTokens ? g : S::kTokens - 1) * S::kXStride;
      CodePairs<T, Q>::Pair(llmc::Load<u32, 4>(reinterpret_cast<const u32*>(row)), b);
      float sums[4] = {}, all[4] = {};
      MultiplyAdd<T>(sums, {a[0][0], a[1][0], a[0][1], a[1][1]}, b[0], b[1]);
      MultiplyAdd<T>(sums, {a[0][2], a[1][2], a[0][3], a[1][3]}, b[2], b[3]);
      if constexpr (!kExactZero) {
        constexpr u32 kOne = kSame<T, bf16> ? 0x3f803f80u : 0x3c003c00u;
        MultiplyAdd<T>(all, {kOne, kOne, kOne, kOne}, b[0], b[1]);
        MultiplyAdd<T>(all, {kOne, kOne, kOne, kOne}, b[2], b[3]);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float sum = sums[2 * j + e];
          if constexpr (!kByBlock) {
            c[2 * j + e] += sum;
          } else {
            c[2 * j + e] += terms.scale[j] * (kExactZero ? sum : sum - terms.zero[j] * all[e]);
          }
        }
      }
      if constexpr (!kExactZero && !kByBlock) {
        x_sum[0] += all[0];
        x_sum[1] += all[1];
      }
    }
    __device__ __forceinline__ void Store(float* to, Made) const {
      const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 2 * t + i % 2;
        const float sum = !kExactZero && !kByBlock ? c[i] - parts.zero[i / 2] * x_sum[i % 2] : c[i];
        if (token < S::kTokens) to[(g + i / 2 * 8) * S::kTokens + token] = sum * parts.scale[i / 2];
      }
    }
  };
  // In f32 each lane multiplies its codes with those of all rows of x.
  template <class S>
  struct TileOf<S, float> {
    static constexpr bool kByBlock = kScaleInBlocks;
    LaneParts<S> parts;
    float sums[2][S::kTokens] = {};

    struct Terms {
      Codes<Q, kLane> q[2];
      float whole[2], zero[2], scale[2];
    };
    __device__ __forceinline__ Terms Fetch(int i) const {
      Terms terms;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        terms.q[j] = parts.Load(i, j);
        terms.whole[j] = static_cast<float>(parts.WholeZero(i, j));
        terms.zero[j] = kExactZero ? 0.0f : parts.ZeroOf(i, j);
        terms.scale[j] = kByBlock ? parts.BlockScale(i, j) : 1.0f;
      }
      return terms;
    }
    __device__ __forceinline__ void Add(const Terms& terms, const float* x) {
#pragma unroll
      for (int token = 0; token < S::kTokens; ++token) {
        float dot[2] = {}, all = 0;
#pragma unroll
        for (int half = 0; half < kLane; half += 4) {
          const Vec<float, 4> v = llmc::Load<float, 4>(x + token * S::kXStride + half);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            all += v.v[e];
            dot[0] += terms.q[0].Get(half + e, terms.whole[0]) * v.v[e];
            dot[1] += terms.q[1].Get(half + e, terms.whole[1]) * v.v[e];
          }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          sums[j][token] += terms.scale[j] * (kExactZero ? dot[j] : dot[j] - terms.zero[j] * all);
        }
      }
    }
    __device__ __forceinline__ void Store(float* to, Made) const {
      const int g = threadIdx.x % 32 / 4;
#pragma unroll
      for (int i = 0; i < 2 * S::kTokens; ++i) {
        const float sum = WarpReduce<4>(sums[i / S::kTokens][i % S::kTokens], Sum()) * parts.scale[i / S::kTokens];
        if (threadIdx.x % 4 == 0) to[(g + i / S::kTokens * 8) * S::kTokens + i % S::kTokens] = sum;
      }
    }
  };

  template <class S>
  struct Sums : TileOf<S, T> {
    __device__ __forceinline__ void Begin(const IntegerWeight& weight, int low, int high) {
      const int rows[2] = {low, high};
      this->parts.Begin(weight, rows);
    }
    __device__ __forceinline__ void Enter(const char* stage, int) { this->parts.Enter(stage); }
  };

  // ---- without stages ---------------------------------------------------------------------------------------------
  // The most codes in 16 bytes that divide rows, and blocks if there are any.
  static __host__ __device__ constexpr int RunOf(int k) {
    int run = 128 / kBits;
    while (k % run != 0 || ((kScaleInBlocks || kZeroInBlocks) && C::kBlock % run != 0)) run /= 2;
    return run;
  }
  template <int k>
  struct Run {
    static constexpr int kCount = RunOf(k);
    static_assert(kCount >= 8, "8 divides rows, and blocks");
    // Of x, as many vectors as it takes.
    static constexpr int kVec = VectorOf<T>(kCount), kVectors = kCount / kVec;
    struct Terms {
      Vec<T, kVec> vectors[kVectors];
    };
    Codes<Q, kCount> q;
    float scale, whole, zero;

    __device__ __forceinline__ void Load(const IntegerWeight& weight, i64 row, i64 column) {
      q.Load(weight.Row(row, column, k));
      scale = weight.template ScaleOf<float>(column, row, k, 0);
      zero = weight.template ZeroOf<float>(column, row, k, 0);
      whole = kShift<Q> + (kExactZero ? zero : 0.0f);
    }
    static __device__ __forceinline__ Terms Fetch(const T* x) {
      Terms terms;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) terms.vectors[i] = llmc::Load<T, kVec>(x + i * kVec);
      return terms;
    }
    __device__ __forceinline__ void Add(const Terms& x, Made, float* sum) const {
      float dot = 0, x_sum = 0;
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const float value = ToFloat(x.vectors[j / kVec].v[j % kVec]);
        x_sum += value;
        dot += value * q.Get(j, whole);
      }
      *sum += scale * (kExactZero ? dot : dot - zero * x_sum);
    }
  };
};

}  // namespace llmc
