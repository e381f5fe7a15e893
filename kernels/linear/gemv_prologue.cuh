// What x is before gemv.cuh multiplies it.
#pragma once
#include "kernels/common/tagged_row.cuh"
#include "kernels/linear/encoded_weight.cuh"

namespace llmc {

// Eight elements, or as many as 16 bytes hold, to shared memory as the weight's reader takes them: paired, or as
// integers, for which lanes come as StoreIntegers says.
template <class C, class S>
__device__ __forceinline__ void StoreX(typename S::Kept* to, int token, int column, bool is_there,
                                       const Vec<u32, 4>& x) {
  if constexpr (S::kLayout.of_halves) {
    StoreHalves<S, typename S::X>(to, column, is_there, x);
  } else if constexpr (S::kIntegers) {
    StoreIntegers<S, typename S::X, typename Weight<C>::template Sums<S>>(to, column, is_there, x);
  } else {
    auto* const at = reinterpret_cast<Vec<u32, 4>*>(to + token * S::kXStride + column);
    if (is_there) *at = S::kPairsX ? PairFourApart(x) : x;
  }
}

// x as it is.
template <class T>
struct PlainX {
  static constexpr bool kNormalizes = false;

  // To shared memory; the first S::kMathThreads threads call it. Rows: MemoryRows, or a TaggedRow.
  template <class C, class S, class Rows, class Norm>
  __device__ __forceinline__ void Load(typename S::Kept* to, const Rows& x, const Norm&, typename S::Squares&,
                                       i64 tokens) const {
    using V = Vec<u32, 4>;
    constexpr int kVectors = C::kIn / S::kVec, kEach = (C::kTokens * kVectors + S::kMathThreads - 1) / S::kMathThreads;
    constexpr int kMost = Rows::kMostVectors, kBatch = kEach < kMost ? kEach : kMost;
    const int vectors = static_cast<int>(tokens) * kVectors;
    if constexpr (S::kIntegers) {
      LoadIntegers<C, S, kBatch>(to, x, vectors);
    } else {
#pragma unroll 1
      for (int begin = 0; begin < vectors; begin += kBatch * S::kMathThreads) {
        const int first = begin + static_cast<int>(threadIdx.x);
        V v[kBatch];
        x.Read(v, first, S::kMathThreads, vectors, begin == 0);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int at = first + i * S::kMathThreads;
          if (at < vectors) StoreX<C, S>(to, at / kVectors, at % kVectors * S::kVec, true, v[i]);
        }
      }
    }
  }

 private:
  // Whole warps store integers. That takes many instructions, which have to be fetched: their loop is rolled.
  template <class C, class S, int kBatch, class Rows>
  static __device__ __forceinline__ void LoadIntegers(u8* to, const Rows& x, int vectors) {
    constexpr int kVectors = C::kIn / S::kVec;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int begin = 0; begin < vectors; begin += kBatch * S::kMathThreads) {
      const int first = begin + static_cast<int>(threadIdx.x);
      Vec<u32, 4> v[kBatch] = {};
      x.Read(v, first, S::kMathThreads, vectors, begin == 0);
#pragma unroll 1
      for (int i = 0; i < kBatch; ++i) {
        const int at = first + i * S::kMathThreads;
        const Vec<u32, 4> now = v[0];
#pragma unroll
        for (int j = 1; j < kBatch; ++j) v[j - 1] = v[j];
        const u32 vector = static_cast<u32>(at) % kVectors;
        if (at - lane < vectors) StoreX<C, S>(to, static_cast<u32>(at) / kVectors, vector * S::kVec, at < vectors, now);
      }
    }
  }
};

// A row of a persistent launch in parts of two vectors a thread: a product begins with the first, and asks for the next
// one before it multiplies.
template <class C, class S>
struct PartsOfX {
  static constexpr int kVectors = 2, kMostColumns = kVectors * S::kMathThreads * S::kVec;
  static constexpr int kStages = kMostColumns / S::kChunk;  // of the ring, that have the columns of a part
  static constexpr bool kAreSeveral = C::kTokens == 1 && !C::kXInRing && kStages > 0 && kStages < S::kChunks;
  AskedVectors<kVectors> asked;

  template <class Row>
  __device__ __forceinline__ void Begin(const Row& row) {
    row.WaitForFirst(First(0), End(0));
    row.Ask(&asked, First(0), S::kMathThreads, End(0));
  }
  // To shared memory what the stages from `chunk` on need.
  template <class Row>
  __device__ __forceinline__ void Load(typename S::Kept* to, const Row& row, int chunk) {
    Vec<u32, 4> v[kVectors];
    row.Wait(&asked, v, First(chunk), S::kMathThreads, End(chunk));
#pragma unroll 1
    for (int i = 0; i < kVectors; ++i) {
      const int at = First(chunk) + i * S::kMathThreads, lane = threadIdx.x % 32;
      if (at - lane < End(chunk)) StoreX<C, S>(to, 0, at * S::kVec, at < End(chunk), v[0]);
      v[0] = v[1];
    }
    const int next = chunk + kStages;
    if (next < S::kChunks) row.Ask(&asked, First(next), S::kMathThreads, End(next));
  }

 private:
  static __device__ __forceinline__ int First(int chunk) {
    return chunk * (S::kChunk / S::kVec) + static_cast<int>(threadIdx.x);
  }
  static __device__ __forceinline__ int End(int chunk) {
    return (chunk + kStages < S::kChunks ? chunk + kStages : S::kChunks) * (S::kChunk / S::kVec);
  }
};

template <class Context, class C, class S>
inline constexpr bool kTakesParts = kTakesRow<Context> && !S::kNormalizes && PartsOfX<C, S>::kAreSeveral;

// x of codes, which 16 bits hold exactly; with scales of runs of columns it is rounded to T.
template <class T, class Codes>
struct CodedX {
  static constexpr bool kNormalizes = false;
  const float* scale;

  template <class C, class S, class Norm>
  __device__ __forceinline__ void Load(typename S::Kept* to, const MemoryRows<Codes>& rows, const Norm&,
                                       typename S::Squares&, i64 tokens) const {
    const Codes* const x = rows.at;
    static_assert(C::kXBlock % S::kVec == 0 && C::kIn % S::kVec == 0, "kXBlock: whole vectors");
    constexpr bool kScales = kXScaleKind<C> == kOfBlocks;
    constexpr int kVectors = C::kIn / S::kVec, kRuns = (C::kIn + C::kXBlock - 1) / C::kXBlock;
    const int vectors = static_cast<int>(tokens) * kVectors;
#pragma unroll 4
    for (int at = threadIdx.x; at < vectors; at += S::kMathThreads) {
      const auto codes = llmc::Load<u32, S::kVec / 4>(reinterpret_cast<const u32*>(x + at * S::kVec));
      const int token = at / kVectors, column = at % kVectors * S::kVec;
      const float factor = kScales ? scale[token * kRuns + column / C::kXBlock] : 1.0f;
      Vec<u32, 4> v;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (sizeof(T) == 4) {
          const u32 halves = HalvesOf<Codes>(static_cast<u16>(codes.v[0] >> (i / 2 * 16)));
          v.v[i] = __float_as_uint(ToFloat(f16{static_cast<u16>(halves >> (i % 2 * 16))}) * factor);
        } else {
          const u32 halves = HalvesOf<Codes>(static_cast<u16>(codes.v[i / 2] >> (i % 2 * 16)));
          v.v[i] = kScales ? Pack<T>(ToFloat(f16{static_cast<u16>(halves)}) * factor,
                                     ToFloat(f16{static_cast<u16>(halves >> 16)}) * factor)
                           : OfHalves<T>(halves);
        }
      }
      StoreX<C, S>(to, token, column, true, v);
    }
  }
};

// x as it lies in memory, and how it comes from there.
template <class C, class = void>
struct GivenXOf {
  using Stored = typename Weight<C>::X;
  static __device__ __forceinline__ PlainX<Stored> Of(const Weight<C>&) { return {}; }
};
template <class C>
struct GivenXOf<C, typename VoidOf<typename C::XCodes>::Type> {
  using Stored = typename C::XCodes;
  static __device__ __forceinline__ CodedX<typename Weight<C>::X, Stored> Of(const Weight<C>& weight) {
    return {weight.x_scale};
  }
};
template <class C>
using StoredX = typename GivenXOf<C>::Stored;
template <class C>
__device__ __forceinline__ auto GivenX(const Weight<C>& weight) {
  return GivenXOf<C>::Of(weight);
}

// The weight of a norm, or a copy of it where the first row of x goes: a thread reads what it overwrites.
template <class S, class T>
struct NormInMemory {
  const T* weight;
  __device__ __forceinline__ Vec<T, S::kVec> At(int, int column) const { return Load<T, S::kVec>(weight + column); }
};
// What a thread multiplies of it, which it reads before x is there: volatile reads stay before the wait.
template <class C, class S, class T>
struct NormOfThread {
  static constexpr int kEach = (C::kIn / S::kVec + S::kMathThreads - 1) / S::kMathThreads;
  Vec<T, S::kVec> vectors[kEach];

  __device__ __forceinline__ explicit NormOfThread(const T* weight) {
    static_assert(sizeof(vectors[0]) == 16, "vectors of 16 bytes");
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int column = S::kVec * (i * S::kMathThreads + threadIdx.x);
      Vec<u32, 4> v = {};
      if (column < C::kIn) {
        asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.v[0]), "=r"(v.v[1]), "=r"(v.v[2]), "=r"(v.v[3])
                     : "l"(weight + column));
      }
      vectors[i] = *reinterpret_cast<const Vec<T, S::kVec>*>(&v);
    }
  }
  __device__ __forceinline__ const Vec<T, S::kVec>& At(int i, int) const { return vectors[i]; }
  __device__ __forceinline__ Vec<u32, 4> WordsAt(int i) const {
    return *reinterpret_cast<const Vec<u32, 4>*>(&vectors[i]);
  }
};
struct NoNorm {};

// rms_norm of x. Every block does it anew, which is faster than to wait for another kernel.
template <class T>
struct NormalizedX {
  static constexpr bool kNormalizes = true;
  const T* weight;
  float eps;

  // norm: NormInMemory or NormOfThread.  squares: shared memory for the sums of the warps.
  template <class C, class S, class Rows, class Norm>
  __device__ __forceinline__ void Load(typename S::Kept* to, const Rows& x, const Norm& norm,
                                       typename S::Squares& squares, i64 tokens) const {
    static_assert(!C::kXInRing, "normalized rows are kept in shared memory");
    if constexpr (S::kIntegers && Rows::kIsPassed) {
      LoadIntegers<C, S>(to, x, norm, squares);
      return;
    }
    constexpr int kVec = S::kVec, kEach = (C::kIn / kVec + S::kMathThreads - 1) / S::kMathThreads;
    Vec<T, kVec> v[C::kTokens][kEach] = {};
#pragma unroll
    for (int token = 0; token < C::kTokens; ++token) {
      if (token < tokens) x.Row(token).Read(v[token], threadIdx.x, S::kMathThreads, C::kIn / kVec);
    }
#pragma unroll
    for (int token = 0; token < C::kTokens; ++token) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) sum += ToFloat(v[token][i].v[j]) * ToFloat(v[token][i].v[j]);
      }
      sum = WarpReduce(sum, Sum());
      if (threadIdx.x % 32 == 0) squares.of[token][threadIdx.x / 32] = sum;
    }
    SyncThreads<1, S::kMathThreads>();
    float scale[C::kTokens];
#pragma unroll
    for (int token = 0; token < C::kTokens; ++token) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < S::kWarps; ++i) sum += squares.of[token][i];
      scale[token] = rsqrtf(sum / C::kIn + eps);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int column = ColumnOf<S>(i);
      if (column - (S::kIntegers ? kVec * static_cast<int>(threadIdx.x % 32) : 0) >= C::kIn) break;
      const Vec<T, kVec> w = norm.At(i, column);
#pragma unroll
      for (int token = 0; token < C::kTokens; ++token) {
        const Vec<T, kVec> r = Normalized(v[token][i], w, scale[token]);
        if constexpr (S::kIntegers || S::kPairsX) {
          StoreX<C, S>(to, token, column, column < C::kIn, *reinterpret_cast<const Vec<u32, 4>*>(&r));
        } else {
          Store(to + token * S::kXStride + column, r);
        }
      }
    }
  }

 private:
  // Column of the first element of vector i of the thread.
  template <class S>
  static __device__ __forceinline__ int ColumnOf(int i) {
    return S::kVec * (i * S::kMathThreads + static_cast<int>(threadIdx.x));
  }
  template <int kVec>
  static __device__ __forceinline__ Vec<T, kVec> Normalized(const Vec<T, kVec>& x, const Vec<T, kVec>& w, float scale) {
    Vec<T, kVec> r;
#pragma unroll
    for (int j = 0; j < kVec; ++j) r.v[j] = FromFloat<T>(ToFloat(x.v[j]) * scale * ToFloat(w.v[j]));
    return r;
  }
  // A row of a persistent launch as integers, by whole words.
  template <class C, class S, class Rows, class Norm>
  __device__ __forceinline__ void LoadIntegers(typename S::Kept* to, const Rows& x, const Norm& norm,
                                               typename S::Squares& squares) const {
    static_assert(S::kVec == 8, "numbers of 16 bits");
    constexpr int kVectors = C::kIn / 8, kEach = (kVectors + S::kMathThreads - 1) / S::kMathThreads;
    constexpr bool kIsWhole = kVectors % S::kMathThreads == 0;
    Vec<u32, 4> v[kEach] = {};
    x.Row(0).Read(v, threadIdx.x, S::kMathThreads, kVectors);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4 * kEach; ++i) {
      const float low = LowOf<T>(v[i / 4].v[i % 4]), high = HighOf<T>(v[i / 4].v[i % 4]);
      sum += low * low;
      sum += high * high;
    }
    sum = WarpReduce(sum, Sum());
    if (threadIdx.x % 32 == 0) squares.of[0][threadIdx.x / 32] = sum;
    SyncThreads<1, S::kMathThreads>();
    sum = 0;
#pragma unroll
    for (int i = 0; i < S::kWarps; ++i) sum += squares.of[0][i];
    const float scale = rsqrtf(sum / C::kIn + eps);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * S::kMathThreads + static_cast<int>(threadIdx.x);
      if (!kIsWhole && at - static_cast<int>(threadIdx.x % 32) >= kVectors) break;
      const auto w = norm.WordsAt(i);
      Vec<u32, 4> r;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        r.v[j] =
            Pack<T>(LowOf<T>(v[i].v[j]) * scale * LowOf<T>(w.v[j]), HighOf<T>(v[i].v[j]) * scale * HighOf<T>(w.v[j]));
      }
      StoreX<C, S>(to, 0, 8 * at, kIsWhole || at < kVectors, r);
    }
  }
};

}  // namespace llmc
