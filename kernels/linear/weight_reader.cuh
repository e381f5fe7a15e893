// How the formats of weights are read: what a format adds on the device is one reader, a header beside this one.
//
// A reader is a struct over the Config, made from the arguments of the kernel, with
//   kBits       of an element in memory
//   kIsDense    the elements are of the type of x
//   kLane       columns that a lane multiplies at once when the weight is streamed; 4 lanes share a row
//   kScaleBits, kZeroBits, kPartBlock   of the numbers that come with the stages: bits of each, 0 where there are
//               none, and the columns that share one
//   Row(row, column, columns)           where an element lies, of a weight [n, columns] that is streamed
//   Part(row, column, columns, is_zero) where the number for it lies, of those that come with the stages
//   Sums<S>     the sums of a warp over a stage: Begin, once a tile, with the rows of the weight that the lane has;
//               Enter, once a stage; Add, for the columns of 4 lanes; Store
//   Run<k>      elements that a lane reads at once without stages, as gemv.cuh's DirectGemv takes them: kCount, Load,
//               Get(j) for one of them as float, times Scale(), which is one for all
// What a thread reads of it before the context's Wait is there before the step.
#pragma once
#include "kernels/linear/gemv_tile.cuh"

namespace llmc {

// The weight is of the type of x.
template <class C>
struct DenseWeight {
  using T = typename C::T;
  static constexpr int kBits = 8 * static_cast<int>(sizeof(T)), kLane = 16 / static_cast<int>(sizeof(T));
  static constexpr bool kIsDense = true;
  static constexpr int kScaleBits = 0, kZeroBits = 0, kPartBlock = 1;
  const T* at;

  __device__ __forceinline__ DenseWeight(const T* at) : at(at) {}  // a pointer is one
  __device__ __forceinline__ const T* Row(i64 row, i64 column, i64 columns) const {
    return at + row * columns + column;
  }
  __device__ __forceinline__ const char* Part(i64, i64, i64, bool) const { return nullptr; }

  template <class S>
  struct Sums : TileSums<T, S::kTokens> {
    const T* rows = nullptr;

    __device__ __forceinline__ void Begin(const DenseWeight&, int, int) {}
    __device__ __forceinline__ void Enter(const char* stage) {
      const int lane = threadIdx.x % 32;
      rows = reinterpret_cast<const T*>(stage) + lane % 4 * S::kLane + lane / 4 * S::kStride;
    }
    __device__ __forceinline__ void Add(int i, const T* x) {
      TileSums<T, S::kTokens>::Add(rows + i, rows + 8 * S::kStride + i, x, S::kXStride);
    }
  };

  template <int k>
  struct Run {
    static constexpr int kCount = VectorOf<T>(k);
    Vec<T, kCount> elements;

    __device__ __forceinline__ void Load(const DenseWeight& weight, i64 row, i64 column) {
      elements = llmc::Load<T, kCount>(weight.at + row * k + column);
    }
    __device__ __forceinline__ float Get(int j) const { return ToFloat(elements.v[j]); }
  };
};

template <class T>
struct VoidOf {
  using Type = void;
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
