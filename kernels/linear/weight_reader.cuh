// How the formats of weights are read: what a format adds on the device is one reader, a header beside this one.
//
// A reader is a struct over the Config, made from the arguments of the kernel, with
//   X, Accumulator   types of x and of sums
//   kBits       of an element in memory
//   kIsDense    the elements are as large as those of x
//   kBlockColumns, kBlockBytes   of superblocks, which have scales of their own; 0 where there are none
//   kLane       columns that a lane multiplies at once when the weight is streamed; 4 lanes share a row
//   kCodesAreWords  whether codes become words where x becomes integers (code_words.cuh)
//   kCodesAreHalves  whether codes become f16 where x becomes such, with a power of two (half_tile.cuh)
//   kMostSteps  how often a warp does that with neighbouring columns, at the most, before it goes to others
//   kPairsFourApart  x is paired so in shared memory (code_pairs.cuh), if all of it is kept there
//   kScaleBits, kZeroBits, kPartBlock   of the numbers that come with the stages: bits of each, 0 where there are
//               none, and the columns that share one
//   Row(row, column, columns)           where an element lies, of a weight [n, columns] that is streamed
//   Part(row, column, columns, is_zero) where the number for it lies, of those that come with the stages
//   Sums<S>     the sums of a warp over a stage: Begin, once a tile, with the rows of the weight that the lane has;
//               Enter, once a stage, with its bytes and its number in the row; Fetch, of the columns of 4 lanes, which
//               needs no x; Add, of what was fetched; Store
//   Run<k>      kCount elements that a lane reads at once without stages: Load; Fetch, of as many of x; Add, to a sum
//   OfMatrix(matrix, n, k)              the reader of one of several matrices [n, k], which lie one after the other
//   Made, AfterWait(token)              what the reader needs of what the step makes, for Store, Add and, of a row of
//               x, Result
//   OfRow, Of(row), Result(sum, of_row, made)   the number that a whole sum is; what that takes of a row of the weight
// What a thread reads of it before the context's Wait is there before the step, but for AfterWait.
#pragma once
#include "kernels/linear/gemv_tile.cuh"

namespace llmc {

// The weight is of the type of x.
template <class C>
struct DenseWeight {
  using T = typename C::T;
  using X = T;
  using Accumulator = float;
  using Made = NothingMade;
  struct OfRow {};
  static constexpr int kBits = 8 * static_cast<int>(sizeof(T)), kLane = 16 / static_cast<int>(sizeof(T));
  static constexpr bool kIsDense = true, kPairsFourApart = false;
  static constexpr int kScaleBits = 0, kZeroBits = 0, kPartBlock = 1, kBlockColumns = 0, kBlockBytes = 0;
  static constexpr int kMostSteps = 1;
  static constexpr bool kCodesAreWords = false, kCodesAreHalves = false;
  const T* at;

  __device__ __forceinline__ DenseWeight(const T* at) : at(at) {}  // a pointer is one
  __device__ __forceinline__ const T* Row(i64 row, i64 column, i64 columns) const {
    return at + row * columns + column;
  }
  __device__ __forceinline__ const char* Part(i64, i64, i64, bool) const { return nullptr; }
  __device__ __forceinline__ DenseWeight OfMatrix(i64 matrix, i64 n, i64 k) const { return at + matrix * n * k; }
  __device__ __forceinline__ Made AfterWait(int) const { return {}; }
  __device__ __forceinline__ OfRow Of(int) const { return {}; }
  static __device__ __forceinline__ float Result(float sum, OfRow, Made) { return sum; }

  template <class S>
  struct Sums : TileSums<T, S::kTokens> {
    const T* rows = nullptr;

    __device__ __forceinline__ void Begin(const DenseWeight&, int, int) {}
    __device__ __forceinline__ void Enter(const char* stage, int) {
      const int lane = threadIdx.x % 32;
      rows = reinterpret_cast<const T*>(stage) + lane % 4 * S::kLane + lane / 4 * S::kStride;
    }
    struct Terms {
      typename TileSums<T, S::kTokens>::Terms low, high;
    };
    __device__ __forceinline__ Terms Fetch(int i) const {
      using Loaded = const typename TileSums<T, S::kTokens>::Terms*;
      return {*reinterpret_cast<Loaded>(rows + i), *reinterpret_cast<Loaded>(rows + 8 * S::kStride + i)};
    }
    __device__ __forceinline__ void Add(const Terms& terms, const T* x) {
      TileSums<T, S::kTokens>::Add(terms.low, terms.high, x, S::kXStride);
    }
  };

  template <int k>
  struct Run {
    static constexpr int kCount = VectorOf<T>(k);
    using Terms = Vec<T, kCount>;
    Terms elements;

    __device__ __forceinline__ void Load(const DenseWeight& weight, i64 row, i64 column) {
      elements = Fetch(weight.at + row * k + column);
    }
    static __device__ __forceinline__ Terms Fetch(const T* at) { return llmc::Load<T, kCount>(at); }
    __device__ __forceinline__ void Add(const Terms& x, Made, float* sum) const {
#pragma unroll
      for (int j = 0; j < kCount; ++j) *sum += ToFloat(x.v[j]) * ToFloat(elements.v[j]);
    }
  };
};

// C::Weight, the reader; DenseWeight where the Config names none.
template <class C, class = void>
struct WeightOf {
  using Type = DenseWeight<C>;
};
template <class C>
struct WeightOf<C, typename VoidOf<typename C::Weight>::Type> {
  using Type = typename C::Weight;
};
template <class C>
using Weight = typename WeightOf<C>::Type;

}  // namespace llmc
