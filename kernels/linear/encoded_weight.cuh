// The reader of weights of 8 bits or less, whose numbers stand for (code - zero) * scale * outer scale.
//
// What codes stand for less zero points, 16-bit floats hold exactly, or two of them do (code_pairs.cuh): that is what
// tensor cores multiply, and scales are applied to the sums in f32. So nothing is rounded that the language does not
// round, but for words (code_words.cuh). A zero point that is no code is taken off the sums: sum (q - z) x = sum q x -
// z sum x. Scales of f8 for less columns than are multiplied at once are applied before: such a product of numbers of
// few bits is exact, too.
#pragma once
#include "kernels/linear/code_pairs.cuh"
#include "kernels/linear/half_tile.cuh"
#include "kernels/linear/weight_reader.cuh"

namespace llmc {

// The index of the part for term i of column c, of k terms and n columns: those of blocks of kBlock terms have the
// columns, or runs of kBlockRows of them, in rows or one after the other.
template <int kKind, int kBlock, int kBlockRows, int kTransposed>
__device__ __forceinline__ i64 PartAt(i64 i, i64 c, i64 k, i64 n) {
  if constexpr (kKind == kOfBlocks) {
    c /= kBlockRows;
    n = (n + kBlockRows - 1) / kBlockRows;
    return kTransposed ? c * ((k + kBlock - 1) / kBlock) + i / kBlock : i / kBlock * n + c;
  } else {
    return kKind == kOfColumns ? c : 0;
  }
}

// Where x is codes: floats of 8 bits, C::XCodes, with scales of kind C::kXScale, one for each C::kXBlock columns where
// that is kOfBlocks.
template <class C, class = void>
inline constexpr PartKind kXScaleKind = kNoPart;
template <class C>
inline constexpr PartKind kXScaleKind<C, typename VoidOf<typename C::XCodes>::Type> = static_cast<PartKind>(C::kXScale);
template <class C>
inline constexpr bool kHasCodedX = kXScaleKind<C> != kNoPart;

// Over 250 lines: what weight_reader.cuh asks of a reader, for each type of x.
// C::T: of x.  C::Q: what codes stand for (code_pairs.cuh).  C::Scale, C::Zero: of scales and zero points.
// C::kScale, C::kZero: PartKinds.  C::kBlock, C::kBlockRows: of those of blocks, columns and rows that share one,
// else 1. C::kExponents: scales are powers of two, by their exponents plus 127.  C::kOuter: a PartKind, of outer
// scales: none, one, or one for each row.
// C::kPairTable: pairs of bytes of codes lie in a table in shared memory (FillTable); else they are made.
// C::kTransposed: the weight is [n, k].  C::kOuterMatrices: of several matrices, each has outer scales of its own.
template <class C>
struct EncodedWeight {
  using T = typename C::T;
  using Q = typename C::Q;
  using Storage = typename CodeKind<Q>::Storage;
  using Scale = typename C::Scale;
  using Zero = typename C::Zero;
  using X = T;
  using Accumulator = float;
  struct Made {
    float scale = 1;
  };
  struct OfRow {
    float outer = 1;
  };
  static constexpr int kBits = kCodeBits<Q>, kLane = kIntegerBlock<C> > 0 ? kIntegerBlock<C> / 4 : kCodesOfLane;
  static constexpr bool kIsDense = false, kPairsFourApart = sizeof(T) == 2 && !CodePairs<T, Q>::kOfNeighbours;
  static constexpr bool kCodesAreWords = CodeWords<Q>::kIsThere;
  static constexpr bool kCodesAreHalves = kSame<Q, f8e4m3> || kSame<Q, f8e5m2>;
  static constexpr int kMostSteps = kIntegerBlock<C> > 0 ? (kCodesAreWords ? 1 : 2)
                                    : sizeof(T) == 4     ? 1
                                    : kBits <= 4         ? 4
                                                         : 2;
  static constexpr bool kScaleInBlocks = C::kScale == kOfBlocks, kZeroInBlocks = C::kZero == kOfBlocks;
  static constexpr int kScaleBits = kScaleInBlocks ? 8 * static_cast<int>(sizeof(Scale)) : 0;
  static constexpr int kZeroBits = !kZeroInBlocks ? 0 : kPacked<Zero> ? 4 : 8 * static_cast<int>(sizeof(Zero));
  static constexpr int kPartBlock = C::kBlock, kBlockColumns = 0, kBlockBytes = 0;
  // Zero points that are codes, or as small, are taken off codes; with kShift none of them may be below 0.
  static constexpr bool kHasZero = C::kZero != kNoPart;
  static constexpr bool kExactZero = C::kZero == kNoPart || kSame<Zero, Q> || (kIsPackedInt<Q> && kSame<Zero, u4>);
  // Scales of less columns than 4 lanes multiply at once are applied to the numbers that codes stand for.
  static constexpr bool kScalesCodes = kScaleInBlocks && C::kBlock < 4 * kLane;
  static_assert(C::kTransposed == 0 || C::kTransposed == 1, "kTransposed: 0 or 1");
  static_assert(C::kBlock >= 1 && C::kBlockRows >= 1, "kBlock, kBlockRows: terms and rows of a scale");
  static_assert(C::kZero == kNoPart || CodeKind<Q>::kIsInteger, "kZero: of integers");

  const Storage* codes;
  const Scale* scale;
  const Zero* zero;
  const float* outer = nullptr;
  const float* x_scale = nullptr;  // where x is codes

  static __device__ __forceinline__ float ScaleNumber(Scale x) {
    if constexpr (C::kExponents) {
      const u32 exponent = static_cast<u32>(Widen(x));
      return __uint_as_float(exponent == 255 ? 0x7fc00000u : exponent == 0 ? 0x00400000u : exponent << 23);
    } else {
#if LLMC_SM90
      if constexpr (kSame<Scale, f8e4m3>) return ToFloat(f16{static_cast<u16>(HalvesOf<Scale>(x.bits))});
#endif
      return static_cast<float>(Widen(x));
    }
  }
  template <class X>
  __device__ __forceinline__ X ScaleOf(i64 i, i64 c, i64 k, i64 n) const {
    const Scale x = scale[PartAt<C::kScale, C::kBlock, C::kBlockRows, C::kTransposed>(i, c, k, n)];
    if constexpr (C::kExponents) return static_cast<X>(ScaleNumber(x));
    return static_cast<X>(Widen(x));
  }
  template <class X>
  __device__ __forceinline__ X ZeroOf(i64 i, i64 c, i64 k, i64 n) const {
    if constexpr (C::kZero == kNoPart) {
      return X(0);
    } else {
      return static_cast<X>(
          Widen(ReadElement(zero, PartAt<C::kZero, C::kBlock, C::kBlockRows, C::kTransposed>(i, c, k, n))));
    }
  }
  // What code `at` stands for.
  __device__ __forceinline__ float NumberAt(i64 at) const {
    const auto code = StoredCode<Q>(codes, at);
    if constexpr (CodeKind<Q>::kIsCodebook) return Q::Pick(static_cast<u32>(code));
    return static_cast<float>(code);
  }
  // Term i of column c of the matrix that begins at element `first`.
  template <class X>
  __device__ __forceinline__ X Get(i64 first, i64 i, i64 c, i64 k, i64 n) const {
    const X q = static_cast<X>(NumberAt(first + (C::kTransposed ? c * k + i : i * n + c)));
    const X scaled = (q - ZeroOf<X>(i, c, k, n)) * ScaleOf<X>(i, c, k, n);
    return C::kOuter ? scaled * static_cast<X>(OuterOf(c)) : scaled;
  }

  __device__ __forceinline__ const void* Row(i64 row, i64 column, i64 columns) const {
    return reinterpret_cast<const char*>(codes) + (row * columns + column) * kBits / 8;
  }
  __device__ __forceinline__ const char* Part(i64 row, i64 column, i64 columns, bool is_zero) const {
    const i64 at = (row / C::kBlockRows * columns + column) / C::kBlock * (is_zero ? kZeroBits : kScaleBits) / 8;
    return (is_zero ? reinterpret_cast<const char*>(zero) : reinterpret_cast<const char*>(scale)) + at;
  }

  // Matrices share the parts of tensors and of columns. k, and how many packed zero points a matrix has, are even.
  __device__ __forceinline__ EncodedWeight OfMatrix(i64 matrix, i64 n, i64 k) const {
    const i64 parts = matrix * ((n + C::kBlockRows - 1) / C::kBlockRows) * ((k + C::kBlock - 1) / C::kBlock);
    EncodedWeight of = *this;
    of.codes += matrix * (n * k * kBits / 8);
    if constexpr (kScaleInBlocks) of.scale += parts;
    if constexpr (kZeroInBlocks) of.zero += parts / (kPacked<Zero> ? 2 : 1);
    if constexpr (C::kOuter != kNoPart) of.outer += C::kOuterMatrices ? matrix * (C::kOuter == kOfColumns ? n : 1) : 0;
    return of;
  }

  // Scales of columns of x are applied where its codes become numbers.
  static constexpr bool kScalesSums = kXScaleKind<C> == kOneNumber || kXScaleKind<C> == kOfColumns;
  __device__ __forceinline__ Made AfterWait(int token) const {
    if constexpr (!kScalesSums) return {};
    return {x_scale[kXScaleKind<C> == kOfColumns ? token : 0]};
  }
  // That of a row of the weight.
  __device__ __forceinline__ float OuterOf(i64 row) const {
    if constexpr (C::kOuter == kNoPart) return 1.0f;
    return outer[C::kOuter == kOfColumns ? row : 0];
  }
  __device__ __forceinline__ OfRow Of(int row) const { return {OuterOf(row)}; }
  static __device__ __forceinline__ float Result(float sum, OfRow row, Made made) {
    if constexpr (kScalesSums) sum *= made.scale;
    return C::kOuter ? sum * row.outer : sum;
  }

  // ---- through stages ---------------------------------------------------------------------------------------------
#if LLMC_SM90
  // With kPairTable: the pairs of both parts of all bytes, by kThreads threads.
  template <int kThreads>
  static __device__ __forceinline__ void FillTable(char* table) {
    using Pairs = CodePairs<T, Q>;
    static_assert(Pairs::kParts == 2 && Pairs::kOfNeighbours, "a codebook that 16 bits do not hold");
    constexpr int kCopies = kPairTableLanes / 2;  // two lanes are stored at once
#pragma unroll 1
    for (int at = threadIdx.x; at < 64 * kCopies; at += kThreads) {
      const u32 four = static_cast<u32>(at) / kCopies;
      const Codes<Q, 8> codes = {{0x03020100u + four * 0x04040404u}};
      u32 pairs[2][4];
      Pairs::Dequantize(codes, 0, pairs);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Vec<u32, 4> both = {pairs[0][i], pairs[1][i], pairs[0][i], pairs[1][i]};
        *reinterpret_cast<Vec<u32, 4>*>(table + (4 * four + i) * (kPairTableLanes * 8) + at % kCopies * 16) = both;
      }
    }
  }
#endif

  // A number for block `block` of a row of the stage whose numbers begin at `at`.
  static __device__ __forceinline__ Zero ZeroAt(const char* at, int block) {
    return ReadElement(reinterpret_cast<const Zero*>(at), block);
  }

  // What the lane's two rows have besides codes: that of column or tensor, which stays for a tile, and where the
  // stage has that of blocks.
  template <class S>
  struct LaneParts {
    static_assert(C::kBlock % (4 * kLane) == 0 || !(kScaleInBlocks || kZeroInBlocks) ||
                      (kScalesCodes && kSame<Scale, f8e4m3> && FewBits<Q>::kValue) || C::kBlock == kLane,
                  "kBlock: 4 lanes multiply whole blocks of them, each has one, or products of codes and scales are "
                  "exact");
    const char *codes = nullptr, *scales = nullptr, *zeros = nullptr;
    float scale[2] = {1, 1}, zero[2] = {};

    __device__ __forceinline__ void Begin(const EncodedWeight& weight, const int (&rows)[2]) {
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
    // Of columns i + more, where 8 divides i and `more`.
    __device__ __forceinline__ Codes<Q, kLane> Load(int i, int more, int j) const {
      Codes<Q, kLane> q;
      q.Load(codes + static_cast<u32>(i) / 8 * kBits + (more / 8 * kBits + 8 * j * S::kWeightStrideBytes));
      return q;
    }
    // Of columns i on: S::kSteps times those of 4 lanes, of both rows.
    struct Terms {
      Codes<Q, kLane> codes[S::kSteps][2];
    };
    __device__ __forceinline__ Terms Fetch(int i) const {
      Terms terms;
#pragma unroll
      for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
        for (int j = 0; j < 2; ++j) terms.codes[step][j] = Load(i, step * 4 * kLane, j);
      }
      return terms;
    }
    // Where the scale lies for what the lane has of columns i to i + 31.
    __device__ __forceinline__ Scale StoredScale(int i, int j) const {
      const u32 column = kScalesCodes ? i + threadIdx.x % 4 * kLane : i;
      const char* at = scales + 8 * j * S::kLayout.PartStride(kScaleBits);
      return reinterpret_cast<const Scale*>(at)[column / C::kBlock];
    }
    __device__ __forceinline__ float BlockScale(int i, int j) const { return ScaleNumber(StoredScale(i, j)); }
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

  // On tensor cores, as TileSums: sums of products of 32 columns, several times, which are scaled as long as they are
  // of one block.
  template <class S, class Element>
  struct TileOf {
    using Pairs = CodePairs<T, Q>;
    static constexpr bool kByBlock = (kScaleInBlocks && !kScalesCodes) || (kZeroInBlocks && !kExactZero);
    static constexpr int kColumns = 4 * kLane;
    // How many times before the block ends.
    static constexpr int kRun = kByBlock || kZeroInBlocks ? GemvSteps(C::kBlock / kColumns, S::kSteps) : S::kSteps;
    LaneParts<S> parts;
    u32 table = 0;  // with kPairTable, the lane's
    float c[4] = {}, x_sum[2] = {};

    using Terms = typename LaneParts<S>::Terms;
    __device__ __forceinline__ Terms Fetch(int i) {
      column = i;
      return parts.Fetch(i);
    }
    __device__ __forceinline__ void Add(const Terms& terms, const T* x) {
      const int g = threadIdx.x % 32 / 4;
      const T* const row = x + (g < S::kTokens ? g : S::kTokens - 1) * S::kXStride;
#pragma unroll
      for (int run = 0; run < S::kSteps; run += kRun) {
        float sums[2][4] = {}, all[4] = {};
        u32 zeros[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) zeros[j] = Pairs::ZeroOf(parts.WholeZero(column + run * kColumns, j));
#pragma unroll
        for (int step = run; step < run + kRun; ++step) {
          Vec<u32, 4> b = llmc::Load<u32, 4>(reinterpret_cast<const u32*>(row + step * kColumns));
          if constexpr (kPairsFourApart && !S::kPairsX) b = PairFourApart(b);
          if constexpr (kPairTable<C>) {
            MultiplyByTable(terms.codes[step], b, sums);
          } else {
            MultiplyCodes(terms.codes[step], zeros, column + step * kColumns, b, sums);
          }
          if constexpr (!kExactZero) {
            constexpr u32 kOne = kSame<T, bf16> ? 0x3f803f80u : 0x3c003c00u;
            MultiplyAdd<T>(all, {kOne, kOne, kOne, kOne}, b.v[0], b.v[1]);
            MultiplyAdd<T>(all, {kOne, kOne, kOne, kOne}, b.v[2], b.v[3]);
          }
        }
        AddScaled(column + run * kColumns, sums, all);
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

   private:
    int column = 0;  // of the stage, that was fetched

    // Each sums[j] is of 8 rows, row g that of the pairs' first parts, row g + 8 that of their second ones: a product
    // takes what lies together in the table.
    __device__ __forceinline__ void MultiplyByTable(const Codes<Q, kLane> (&codes)[2], const Vec<u32, 4>& b,
                                                    float (&sums)[2][4]) const {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const Vec<u32, 2> first = LookUp(codes[j], i), second = LookUp(codes[j], i + 1);
          MultiplyAdd<T>(sums[j], {first.v[0], first.v[1], second.v[0], second.v[1]}, b.v[i], b.v[i + 1]);
        }
      }
    }
    // Of byte i of the codes.
    __device__ __forceinline__ Vec<u32, 2> LookUp(const Codes<Q, kLane>& codes, int i) const {
      u32 byte;
      asm("prmt.b32 %0, %1, 0, %2;" : "=r"(byte) : "r"(codes.word[0]), "r"(0x4440 + i));  // no shift and mask
      Vec<u32, 2> pairs;
      asm("ld.shared.v2.u32 {%0, %1}, [%2];"
          : "=r"(pairs.v[0]), "=r"(pairs.v[1])
          : "r"(byte * (kPairTableLanes * 8) + table));
      return pairs;
    }
    // sums += what codes from column i on stand for, less zero points, times b.
    __device__ __forceinline__ void MultiplyCodes(const Codes<Q, kLane> (&codes)[2], const u32 (&zeros)[2], int i,
                                                  const Vec<u32, 4>& b, float (&sums)[2][4]) const {
      u32 a[2][Pairs::kParts][4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        Pairs::Dequantize(codes[j], zeros[j], a[j]);
        if constexpr (kScalesCodes) {
          const u32 scale = OfHalves<T>(HalvesOf<Scale>(static_cast<u16>(parts.StoredScale(i, j).bits * 0x101)));
#pragma unroll
          for (int e = 0; e < 4; ++e) a[j][0][e] = MultiplyPairs<T>(a[j][0][e], scale);
        }
      }
#pragma unroll
      for (int part = 0; part < Pairs::kParts; ++part) {
        const u32(&low)[4] = a[0][part], (&high)[4] = a[1][part];
        MultiplyAdd<T>(sums[0], {low[0], high[0], low[1], high[1]}, b.v[0], b.v[1]);
        MultiplyAdd<T>(sums[1], {low[2], high[2], low[3], high[3]}, b.v[2], b.v[3]);
      }
    }
    // all: sums of x.
    __device__ __forceinline__ void AddScaled(int i, const float (&sums)[2][4], const float (&all)[4]) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float scale = kByBlock && kScaleInBlocks ? parts.BlockScale(i, j) : 1.0f;
        const float zero = kByBlock && !kExactZero ? parts.ZeroOf(i, j) : 0.0f;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float sum = kPairTable<C> ? sums[j][e] + sums[j][2 + e] : sums[0][2 * j + e] + sums[1][2 * j + e];
          c[2 * j + e] += scale * (kByBlock && !kExactZero ? sum - zero * all[e] : sum);
        }
      }
      if constexpr (!kExactZero && !kByBlock) {
        x_sum[0] += all[0];
        x_sum[1] += all[1];
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
        terms.q[j] = parts.Load(i, 0, j);
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

  template <class S, bool kIntegers>
  struct SumsOf : TileOf<S, T> {
    __device__ __forceinline__ void Begin(const EncodedWeight& weight, int low, int high) {
      const int rows[2] = {low, high};
      this->parts.Begin(weight, rows);
    }
    __device__ __forceinline__ void Enter(const char* stage, int) { this->parts.Enter(stage); }
  };
#if LLMC_SM90
  template <class S>
  struct SumsOf<S, true> : TileOfKeptX<EncodedWeight, S> {};
#endif
  template <class S>
  using Sums = SumsOf<S, (kIntegerBlock<C> > 0)>;

  // ---- without stages ---------------------------------------------------------------------------------------------
  // The most codes in 16 bytes that divide rows, and blocks if there are any.
  static __host__ __device__ constexpr int RunOf(int k) {
    int run = kBits == 8 || kBits == 4 || kBits == 2 ? 128 / kBits : kBits < 4 ? 32 : 16;
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

    __device__ __forceinline__ void Load(const EncodedWeight& weight, i64 row, i64 column) {
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
      for (int first = 0; first < kCount; first += 8) {
        float numbers[8];
        Numbers(first, numbers);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float value = ToFloat(x.vectors[(first + j) / kVec].v[(first + j) % kVec]);
          x_sum += value;
          dot += value * numbers[j];
        }
      }
      *sum += scale * (kExactZero ? dot : dot - zero * x_sum);
    }

   private:
    // Eight, from code `first` on. Beside x in f32 they are exact to its last bit.
    __device__ __forceinline__ void Numbers(int first, float (&numbers)[8]) const {
#if LLMC_SM90
      if constexpr (!CodeKind<Q>::kIsInteger && sizeof(T) == 2) return NumbersOfEight(q, first, numbers);
#endif
#pragma unroll
      for (int j = 0; j < 8; ++j) numbers[j] = q.Get(first + j, whole);
    }
  };
};

}  // namespace llmc
