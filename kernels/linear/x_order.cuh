// Where a kernel stores what one product with an encoded weight alone reads: in its order (encoded_x.cuh), if the
// Config names the codes, as C::OrderedBy; else as it is.
#pragma once
#include "kernels/layout/linear.h"
#include "kernels/linear/code_pairs.cuh"

namespace llmc {

// Terms that are put in order together, those of a slab of the weight.
template <class Q>
inline constexpr int kOrderedDepth = EncodedGemmLayout{kCodeBits<Q>, 0, 0, 1, 1}.SlabDepth();

// The place of element `at`, 0 or more, of a row or of rows one after the other, of T, for codes of Q.
template <class T, class Q, class Index>
__device__ __forceinline__ Index OrderedPlace(Index at) {
  constexpr int kDepth = kOrderedDepth<Q>, kRun = kDepth / 4;
  constexpr bool kNeighbours = CodePairs<T, Q>::kOfNeighbours;
  const u32 term = static_cast<u32>(at) % kDepth, lane = term / kRun, e = term % kRun / 8, i = term % 8;
  const u32 pair = kNeighbours ? i / 2 : i % 4, second = kNeighbours ? i % 2 : i / 4;
  return at - static_cast<int>(term) + static_cast<int>((e / 2 * 32 + (e % 2 * 4 + pair) * 4 + lane) * 2 + second);
}

template <class C, class = void>
struct RowOrder {
  static constexpr bool kIsPlain = true;
  template <class Index>
  static __device__ __forceinline__ Index Place(Index at) {
    return at;
  }
};
template <class C>
struct RowOrder<C, typename VoidOf<typename C::OrderedBy>::Type> {
  static constexpr bool kIsPlain = false;
  template <class Index>
  static __device__ __forceinline__ Index Place(Index at) {
    return OrderedPlace<typename C::T, typename C::OrderedBy>(at);
  }
};

}  // namespace llmc
