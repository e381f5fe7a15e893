// Codes of 2 to 8 bits, several at a time: as floats, and as pairs of 16-bit floats, which tensor cores multiply. Q
// says what a code stands for: an integer (i8, u8, i4, u4, PackedInt), a float (f8e4m3, f8e5m2), or a number of a
// Codebook. Pairs are exact: numbers that 16 bits do not hold are made of two.
#pragma once
#include "kernels/common/float_pairs.cuh"
#include "kernels/elementwise/elementwise.cuh"

namespace llmc {

// 16 numbers, as the bits of f32, which codes of 4 bits stand for.
template <u32... kBits>
struct Codebook {
  static_assert(sizeof...(kBits) == 16, "kBits: of 16 numbers");
  static constexpr u32 Bits(int i) {
    constexpr u32 kAll[16] = {kBits...};
    return kAll[i];
  }
  // Bit by bit: an array that is indexed would lie on each thread's stack.
  template <int kFirst = 0, int kCount = 16>
  static __device__ __forceinline__ float Pick(u32 code) {
    if constexpr (kCount == 1) {
      return __uint_as_float(Bits(kFirst));
    } else {
      constexpr int kHalf = kCount / 2;
      return code & kHalf ? Pick<kFirst + kHalf, kHalf>(code) : Pick<kFirst, kHalf>(code);
    }
  }
};

// Integers of 2, 3, 5 or 6 bits, one after the other, the first in the lowest bits: 8 of them in as many bytes.
template <int kBits, bool kIsSigned>
struct PackedInt {
  static_assert(kBits >= 2 && kBits <= 6 && kBits != 4, "kBits: 4 and 8 are elements");
};
template <class Q>
inline constexpr bool kIsPackedInt = false;
template <int kBits, bool kIsSigned>
inline constexpr bool kIsPackedInt<PackedInt<kBits, kIsSigned>> = true;

// Storage: of the codes.  kIsInteger: they may have zero points.
template <class Q>
struct CodeKind {
  using Storage = Q;
  static constexpr bool kIsInteger = true, kIsCodebook = false;
};
template <>
struct CodeKind<f8e4m3> {
  using Storage = f8e4m3;
  static constexpr bool kIsInteger = false, kIsCodebook = false;
};
template <>
struct CodeKind<f8e5m2> {
  using Storage = f8e5m2;
  static constexpr bool kIsInteger = false, kIsCodebook = false;
};
template <int kBits, bool kIsSigned>
struct CodeKind<PackedInt<kBits, kIsSigned>> {
  using Storage = typename Choose<kIsSigned, i8, u8>::Type;
  static constexpr bool kIsInteger = true, kIsCodebook = false;
};
template <u32... kBits>
struct CodeKind<Codebook<kBits...>> {
  using Storage = u4;
  static constexpr bool kIsInteger = false, kIsCodebook = true;
};
// Bits of a code.
template <class Q>
inline constexpr int kCodeBits = kPacked<typename CodeKind<Q>::Storage> ? 4 : 8;
template <int kBits, bool kIsSigned>
inline constexpr int kCodeBits<PackedInt<kBits, kIsSigned>> = kBits;

// Integers as unsigned ones: those of signed types are greater by kShift, which zero points then are, too.
template <class Q>
inline constexpr int kShift = 0;
template <>
inline constexpr int kShift<i8> = 128;
template <>
inline constexpr int kShift<i4> = 8;
template <int kBits>
inline constexpr int kShift<PackedInt<kBits, true>> = 1 << (kBits - 1);

// What code i of a tensor is: the number, or the place in a codebook.
template <class Q>
__device__ __forceinline__ auto StoredCode(const typename CodeKind<Q>::Storage* codes, i64 i) {
  if constexpr (kIsPackedInt<Q>) {
    constexpr int kBits = kCodeBits<Q>;
    const u8* at = reinterpret_cast<const u8*>(codes) + i * kBits / 8;
    const int first = static_cast<int>(i * kBits % 8);
    u32 code = static_cast<u32>(at[0]) >> first;
    if (first + kBits > 8) code |= static_cast<u32>(at[1]) << (8 - first);
    code = (code & ((1u << kBits) - 1)) ^ static_cast<u32>(kShift<Q>);
    return static_cast<i64>(code) - kShift<Q>;
  } else {
    return Widen(ReadElement(codes, i));
  }
}

// kCount neighbours, 16 bytes at the most; their number divides the index of the first.
template <class Q, int kCount>
struct Codes {
  static constexpr bool kIsPacked = kCodeBits<Q> == 4;
  static constexpr int kWords = kCount * (kIsPacked ? 4 : 8) / 32;
  static constexpr float kRaised = 8388608.0f;  // 2^23
  u32 word[kWords];

  __device__ __forceinline__ void Load(const void* at) {
    const auto v = llmc::Load<u32, kWords>(static_cast<const u32*>(at));
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = v.v[i];
  }
  __device__ __forceinline__ u32 Code(int i) const {
    return kIsPacked ? word[i / 8] >> (i % 8 * 4) & 15 : word[kIsPacked ? 0 : i / 4] >> (i % 4 * 8) & 255;
  }
  // Four bytes, with kShift.
  __device__ __forceinline__ u32 Bytes(int i) const { return word[i] ^ (kShift<Q> == 0 ? 0 : 0x80808080u); }
  __device__ __forceinline__ float Raised(int i) const {
    const u32 bits = kIsPacked ? Code(i) ^ (0x4b000000u | kShift<Q>)
                               : __byte_perm(Bytes(kIsPacked ? 0 : i / 4), 0x4b000000u, 0x7440 + i % 4);
    return __uint_as_float(bits);
  }
  // Of an integer: less a whole zero point of 0 to 255.
  __device__ __forceinline__ float Get(int i, float zero = 0) const {
    if constexpr (CodeKind<Q>::kIsCodebook) {
      return Q::Pick(Code(i));
    } else if constexpr (!CodeKind<Q>::kIsInteger) {
      return Widen(Q{static_cast<u8>(Code(i))});
    } else {
      return Raised(i) - (kRaised + zero);
    }
  }
};

// Words hold eight codes as they lie in memory, or four where eight are more than a word.
template <int kBits, bool kIsSigned, int kCount>
struct Codes<PackedInt<kBits, kIsSigned>, kCount> {
  using Q = PackedInt<kBits, kIsSigned>;
  static constexpr int kOfWord = kBits < 4 ? 8 : 4, kWords = kCount / kOfWord, kBytes = kCount * kBits / 8;
  static constexpr float kRaised = 8388608.0f;  // 2^23
  u32 word[kWords];

  __device__ __forceinline__ void Load(const void* at) {
    constexpr int kUnit = kBytes % 4 == 0 ? 4 : kBytes % 2 == 0 ? 2 : 1;  // what divides the address
    u32 all[kBytes / 4 + 2] = {};
#pragma unroll
    for (int i = 0; i < kBytes; i += kUnit) {
      const u8* from = static_cast<const u8*>(at) + i;
      const u32 unit = kUnit == 4   ? *reinterpret_cast<const u32*>(from)
                       : kUnit == 2 ? *reinterpret_cast<const u16*>(from)
                                    : *from;
      all[i / 4] |= unit << (i % 4 * 8);
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int bit = i * kOfWord * kBits;
      word[i] = bit % 32 == 0 ? all[bit / 32] : __funnelshift_r(all[bit / 32], all[bit / 32 + 1], bit % 32);
    }
  }
  __device__ __forceinline__ u32 Code(int i) const {
    return word[i / kOfWord] >> (i % kOfWord * kBits) & ((1u << kBits) - 1);
  }
  __device__ __forceinline__ float Raised(int i) const { return __uint_as_float(Code(i) ^ (0x4b000000u | kShift<Q>)); }
  __device__ __forceinline__ float Get(int i, float zero = 0) const { return Raised(i) - (kRaised + zero); }
};

// A permutation of bytes by four bits of each place, of which __byte_perm takes three: where the fourth one is set it
// repeats the first bit of the byte.
__device__ __forceinline__ u32 Permute(u32 a, u32 b, u32 places) {
  u32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(places));
  return r;
}

// ---- pairs of 16-bit floats: eight codes are four pairs, for two products of tensor cores. From sm_90 on. -----------

// Integers less a zero point. Those of 4 bits are made of neighbours in a word that are four apart, and x has to be
// paired alike. They become floats as the last bits of a power of two, which a subtraction takes off.
//   kParts         pairs that make a number
//   kOfNeighbours  whether pairs are of neighbours
template <class T, class Q>
struct CodePairs {
  static constexpr bool kBf16 = kSame<T, bf16>;
  static constexpr int kParts = 1;
  static constexpr u32 kMagic = kRaisedPair<T>;
  static constexpr bool kByFloats = kBf16 && !kPacked<Q>;

  // zero: 0 to 255 with kShift
  static __device__ __forceinline__ u32 ZeroOf(u32 zero) {
    return kByFloats ? __float_as_uint(Codes<Q, 8>::kRaised + static_cast<float>(zero)) : zero * 0x10001u | kMagic;
  }
  static __device__ __forceinline__ void Dequantize(const Codes<Q, 8>& codes, u32 zero, u32 (&pairs)[1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kByFloats) {
        const float low = codes.Raised(2 * i) - __uint_as_float(zero);
        const float high = codes.Raised(2 * i + 1) - __uint_as_float(zero);
        pairs[0][i] = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
      } else if constexpr (kPacked<Q>) {
        const u32 raised = AndXor<0x000f000f>(codes.word[0] >> (4 * i), kMagic | kShift<Q> * 0x10001u);
        pairs[0][i] = SubtractPairs<T>(raised, zero);
      } else {
        pairs[0][i] = SubtractPairs<T>(
            __byte_perm(codes.Bytes(i / 2 % Codes<Q, 8>::kWords), kMagic, 0x5150 + i % 2 * 0x202), zero);
      }
    }
  }
  static constexpr bool kOfNeighbours = !kPacked<Q>;
};

// The same of those that are packed: the codes of a pair are moved to the two halves of a word.
template <class T, int kBits, bool kIsSigned>
struct CodePairs<T, PackedInt<kBits, kIsSigned>> {
  using Q = PackedInt<kBits, kIsSigned>;
  static constexpr bool kOfNeighbours = false;
  static constexpr int kParts = 1;
  static constexpr u32 kMagic = kRaisedPair<T>, kMask = ((1u << kBits) - 1) * 0x10001u;

  static __device__ __forceinline__ u32 ZeroOf(u32 zero) { return zero * 0x10001u | kMagic; }
  static __device__ __forceinline__ void Dequantize(const Codes<Q, 8>& codes, u32 zero, u32 (&pairs)[1][4]) {
    u32 halves = 0;  // the first four codes, and the others
    if constexpr (kBits == 2) halves = __byte_perm(codes.word[0], 0, 0x4140);
    if constexpr (kBits == 3) halves = (codes.word[0] & 0xfffu) | (codes.word[0] << 4 & 0x0fff0000u);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 pair = halves >> (kBits * i);
      if constexpr (kBits > 4) {
        pair = __byte_perm(codes.word[0] >> (kBits * i), codes.word[1] >> (kBits * i), 0x5410);
      }
      pairs[0][i] = SubtractPairs<T>(AndXor<kMask>(pair, kMagic | kShift<Q> * 0x10001u), zero);
    }
  }
};

// Eight elements of x, as pairs of such that are four apart.
__device__ __forceinline__ Vec<u32, 4> PairFourApart(const Vec<u32, 4>& x) {
  Vec<u32, 4> pairs;
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs.v[i] = __byte_perm(x.v[i / 2], x.v[2 + i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
  return pairs;
}

struct NeighbourPairs {
  static constexpr bool kOfNeighbours = true;
  static __device__ __forceinline__ u32 ZeroOf(u32) { return 0; }
};

template <class T, class Q>
struct SmallFloatPairs : NeighbourPairs {
  static constexpr int kParts = 1;
  static __device__ __forceinline__ void Dequantize(const Codes<Q, 8>& codes, u32, u32 (&pairs)[1][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      u32 halves[2];
      HalvesOfWord<Q>(codes.word[i], halves);
      pairs[0][2 * i] = OfHalves<T>(halves[0]);
      pairs[0][2 * i + 1] = OfHalves<T>(halves[1]);
    }
  }
};
template <class T>
struct CodePairs<T, f8e4m3> : SmallFloatPairs<T, f8e4m3> {};
template <class T>
struct CodePairs<T, f8e5m2> : SmallFloatPairs<T, f8e5m2> {};

// A number of f32 as one of T, without its last bits, and what is left of it, which is exact to as many bits again.
template <class T>
struct SplitNumber {
  static constexpr bool kBf16 = kSame<T, bf16>;
  static constexpr int kBits = kBf16 ? 8 : 11;  // of a number of T, with the first one

  static constexpr int LengthOf(u32 x) {
    int length = 0;
    while (x != 0) {
      x >>= 1;
      ++length;
    }
    return length;
  }
  static constexpr u32 Significand(u32 bits) {
    return (bits >> 23 & 255) == 0 ? bits & 0x7fffffu : (bits & 0x7fffffu) | 0x800000u;
  }
  static constexpr u32 Kept(u32 significand) {
    const int lost = LengthOf(significand) - kBits;
    return lost > 0 ? significand >> lost << lost : significand;
  }
  // significand * 2^(exponent of the number `bits`)
  static constexpr u32 Encode(u32 bits, u32 significand) {
    if (significand == 0) return 0;
    const int field = static_cast<int>(bits >> 23 & 255), exponent = (field == 0 ? 1 : field) - 150;
    const int length = LengthOf(significand), biased = exponent + length - 1 + (kBf16 ? 127 : 15);
    const u32 sign = bits >> 31 << 15;
    const int shift = biased > 0 ? kBits - length : exponent + (kBf16 ? 133 : 24);
    const u32 last = shift >= 0 ? significand << shift : significand >> -shift;
    return sign | (biased > 0 ? static_cast<u32>(biased) << (kBits - 1) | (last & ((1u << (kBits - 1)) - 1)) : last);
  }
  static constexpr u32 Part(u32 bits, int part) {
    const u32 all = Significand(bits), kept = Kept(all);
    return part == 0 && all == 0 ? bits >> 16 : Encode(bits, part == 0 ? kept : Kept(all - kept));
  }
};

// Whether the numbers have 4 bits at the most, so that their products with floats of 8 bits are exact in 16.
template <class Q>
struct FewBits {
  static constexpr bool kValue = false;
};
template <u32... kBits>
struct FewBits<Codebook<kBits...>> {
  static constexpr bool Holds() {
    for (int i = 0; i < 16; ++i) {
      if (Codebook<kBits...>::Bits(i) & 0xfffffu) return false;
    }
    return true;
  }
  static constexpr bool kValue = Holds();
};
// Whether the numbers are those of a float of 4 bits: a sign, two bits of exponent, one of mantissa.
template <u32... kBits>
constexpr bool IsE2M1() {
  constexpr u32 kNumbers[8] = {0,           0x3f000000u, 0x3f800000u, 0x3fc00000u,
                               0x40000000u, 0x40400000u, 0x40800000u, 0x40c00000u};
  for (int i = 0; i < 16; ++i) {
    if (Codebook<kBits...>::Bits(i) != (kNumbers[i % 8] | static_cast<u32>(i / 8) << 31)) return false;
  }
  return true;
}

// Floats of 4 bits: exponent and mantissa go to where T has its last bits of exponent and its first of mantissa, which
// is a number with another bias, subnormal ones among them; a multiplication by a power of two takes it off. Pairs are
// of such that are four apart.
template <class T, class Q>
struct E2M1Pairs {
  static constexpr bool kBf16 = kSame<T, bf16>, kOfNeighbours = false;
  static constexpr int kParts = 1;
  static constexpr int kMantissa = kBf16 ? 7 : 10;
  static constexpr u32 kPower = kBf16 ? 0x7e807e80u : 0x74007400u;  // 2^126, 2^14

  static __device__ __forceinline__ u32 ZeroOf(u32) { return 0; }
  static __device__ __forceinline__ void Dequantize(const Codes<Q, 8>& codes, u32, u32 (&pairs)[1][4]) {
    constexpr u32 kMagnitude = (7u << (kMantissa - 1)) * 0x10001u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int left = kMantissa - 1 - 4 * i;
      const u32 magnitude =
          left >= 0 ? codes.word[0] << (left >= 0 ? left : 0) : codes.word[0] >> (left < 0 ? -left : 0);
      const u32 sign = codes.word[0] << (12 - 4 * i);
      pairs[0][i] = MultiplyPairs<T>((sign & 0x80008000u) | (magnitude & kMagnitude), kPower);
    }
  }
};

// Numbers of a codebook are looked up byte by byte, those of four codes at a time: a permutation chooses from eight
// bytes by three bits of each code, of the first and of the last eight numbers, and another one by the fourth bit.
template <class T, u32... kBits>
struct CodebookPairs : NeighbourPairs {
  using Q = Codebook<kBits...>;
  using Split = SplitNumber<T>;
  static constexpr bool IsExact() {
    for (int i = 0; i < 16; ++i) {
      if (Split::Part(Q::Bits(i), 1) != 0) return false;
    }
    return true;
  }
  static constexpr int kParts = IsExact() ? 1 : 2;

  // Byte `byte` of part `part` of numbers 4 `four` to 4 `four` + 3.
  static constexpr u32 Table(int part, int byte, int four) {
    u32 table = 0;
    for (int i = 0; i < 4; ++i) table |= (Split::Part(Q::Bits(4 * four + i), part) >> (8 * byte) & 255) << (8 * i);
    return table;
  }
  template <int kPart, int kByte>
  static __device__ __forceinline__ u32 Look(u32 three_bits, u32 fourth_bit) {
    constexpr u32 kA = Table(kPart, kByte, 0), kB = Table(kPart, kByte, 1);
    constexpr u32 kC = Table(kPart, kByte, 2), kD = Table(kPart, kByte, 3);
    if constexpr ((kA | kB | kC | kD) == 0) return 0;
    return __byte_perm(__byte_perm(kA, kB, three_bits), __byte_perm(kC, kD, three_bits), fourth_bit);
  }
  template <int kPart>
  static __device__ __forceinline__ void DequantizePart(u32 three_bits, u32 fourth_bit, u32 (&pairs)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 low = Look<kPart, 0>(three_bits >> (16 * half), fourth_bit >> (16 * half));
      const u32 high = Look<kPart, 1>(three_bits >> (16 * half), fourth_bit >> (16 * half));
      pairs[2 * half] = __byte_perm(low, high, 0x5140);
      pairs[2 * half + 1] = __byte_perm(low, high, 0x7362);
    }
  }
  static __device__ __forceinline__ void Dequantize(const Codes<Q, 8>& codes, u32, u32 (&pairs)[kParts][4]) {
    const u32 three_bits = codes.word[0] & 0x77777777u, fourth_bit = (codes.word[0] >> 1 & 0x44444444u) | 0x32103210u;
    DequantizePart<0>(three_bits, fourth_bit, pairs[0]);
    if constexpr (kParts == 2) DequantizePart<1>(three_bits, fourth_bit, pairs[1]);
  }
};

template <class T, u32... kBits>
struct CodePairs<T, Codebook<kBits...>>
    : Choose<IsE2M1<kBits...>(), E2M1Pairs<T, Codebook<kBits...>>, CodebookPairs<T, kBits...>>::Type {};

// The numbers of eight codes that are no integers, by way of pairs: a codebook that is looked up bit by bit takes four
// times the instructions. Pairs are of the type that takes least: of bf16, a float of 4 bits, else f16.
template <class Q>
struct PairType {
  using Type = f16;
};
template <u32... kBits>
struct PairType<Codebook<kBits...>> {
  using Type = typename Choose<IsE2M1<kBits...>(), bf16, f16>::Type;
};
template <class Q, int kCount>
__device__ __forceinline__ void NumbersOfEight(const Codes<Q, kCount>& codes, int first, float* numbers) {
  using P = typename PairType<Q>::Type;
  using Pairs = CodePairs<P, Q>;
  Codes<Q, 8> eight;
#pragma unroll
  for (int i = 0; i < Codes<Q, 8>::kWords; ++i) eight.word[i] = codes.word[first / 8 * Codes<Q, 8>::kWords + i];
  u32 pairs[Pairs::kParts][4];
  Pairs::Dequantize(eight, 0, pairs);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int low = Pairs::kOfNeighbours ? 2 * i : i, high = Pairs::kOfNeighbours ? 2 * i + 1 : i + 4;
    float sums[2] = {};
#pragma unroll
    for (int part = Pairs::kParts - 1; part >= 0; --part) {
      sums[0] += LowOf<P>(pairs[part][i]);
      sums[1] += HighOf<P>(pairs[part][i]);
    }
    numbers[low] = sums[0];
    numbers[high] = sums[1];
  }
}

}  // namespace llmc
