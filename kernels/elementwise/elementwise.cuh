// out[i] = Apply(in0[…], in1[…], …) over the axes of a result: any arithmetic on elements, broadcasts, and every copy
// that is one of strides (slices, transposes, expansions, parts of a concatenation). Apply is the only generated code.
#pragma once
#include "kernels/common/arithmetic.cuh"

namespace llmc {

// The sizes of the axes; adjacent axes along which all operands move alike are one.
template <int kRank>
struct Axes {
  i64 size[kRank];
};

// A tensor, and how many elements it moves along each axis: 0 where it is broadcast. Strides are literals in emitted
// code where they are known, so that the compiler folds what is computed from them.
template <class T, int kRank>
struct Strided {
  T* at;
  i64 stride[kRank];
};

template <class T>
inline constexpr bool kPacked = false;  // two elements in a byte
template <>
inline constexpr bool kPacked<i4> = true;
template <>
inline constexpr bool kPacked<u4> = true;
template <>
inline constexpr bool kPacked<const i4> = true;
template <>
inline constexpr bool kPacked<const u4> = true;

template <class T>
struct Unconst {
  using Type = T;
};
template <class T>
struct Unconst<const T> {
  using Type = T;
};

template <class T>
__device__ __forceinline__ typename Unconst<T>::Type ReadElement(T* at, i64 i) {
  if constexpr (kPacked<T>) {
    return {static_cast<u8>(at[i / 2].bits >> (4 * (i & 1)) & 15)};
  } else {
    return at[i];
  }
}

// The offset of element i of the result in each of N tensors. Index is 32 bits wide where that is enough: divisions are
// slow in 64.
template <class Index, int N, int kRank>
__device__ __forceinline__ void Locate(Index i, const Axes<kRank>& axes, const i64 (&strides)[N][kRank], i64 (&at)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) at[k] = 0;
#pragma unroll
  for (int axis = kRank - 1; axis >= 0; --axis) {
    const Index size = static_cast<Index>(axes.size[axis]);
    const Index rest = axis == 0 ? 0 : i / size, index = axis == 0 ? i : i - rest * size;
#pragma unroll
    for (int k = 0; k < N; ++k) at[k] += static_cast<i64>(index) * strides[k][axis];
    i = rest;
  }
}

// kVec neighbours along the last axis, along which the tensor moves by 1 or stays.
template <int kVec, class T, int kRank>
__device__ __forceinline__ Vec<typename Unconst<T>::Type, kVec> ReadVector(const Strided<T, kRank>& in, i64 at) {
  using Element = typename Unconst<T>::Type;
  if (in.stride[kRank - 1] == 1) return Load<Element, kVec>(in.at + at);
  Vec<Element, kVec> all;
  const Element one = in.at[at];
#pragma unroll
  for (int j = 0; j < kVec; ++j) all.v[j] = one;
  return all;
}

template <class C, class Index, class Out, int kRank, class... In>
__device__ __forceinline__ void ElementwiseAt(const C& body, i64 begin, i64 n, const Axes<kRank>& axes,
                                              const Strided<Out, kRank>& out, const Strided<In, kRank>&... in) {
  constexpr int N = sizeof...(In) + 1;
  i64 strides[N][kRank], at[N];
  int k = 0;
  const auto add = [&](const auto& tensor) {
#pragma unroll
    for (int axis = 0; axis < kRank; ++axis) strides[k][axis] = tensor.stride[axis];
    ++k;
  };
  add(out);
  (add(in), ...);
  if constexpr (C::kWhole) {
    if (begin + C::kVec <= n) {
      Locate<Index>(static_cast<Index>(begin), axes, strides, at);
      int next = 1;
      // Braces keep the order of the operands.
      const auto apply = [&](const auto&... vectors) {
        Vec<Out, C::kVec> result;
#pragma unroll
        for (int j = 0; j < C::kVec; ++j) result.v[j] = body.Apply(vectors.v[j]...);
        Store(out.at + at[0], result);
      };
      struct Call {
        __device__ Call(const decltype(apply)& f, const Vec<typename Unconst<In>::Type, C::kVec>&... v) { f(v...); }
      };
      Call{apply, ReadVector<C::kVec>(in, at[next++])...};
      return;
    }
  }
  Out pair[2];
#pragma unroll 1
  for (int j = 0; j < C::kVec && begin + j < n; ++j) {
    Locate<Index>(static_cast<Index>(begin + j), axes, strides, at);
    int next = 1;
    Out result;
    struct Call {
      __device__ Call(const C& f, Out* to, typename Unconst<In>::Type... v) { *to = f.Apply(v...); }
    };
    Call{body, &result, ReadElement(in.at, at[next++])...};
    if constexpr (kPacked<Out>) {
      pair[j % 2] = result;
      if (j % 2 == 1 || begin + j + 1 == n) {
        out.at[(begin + j) / 2].bits = static_cast<u8>(pair[0].bits | (j % 2 == 1 ? pair[1].bits << 4 : 0));
      }
    } else {
      out.at[at[0]] = result;
    }
  }
}

// n elements. body.Apply(elements): the arithmetic.  C::kVec: neighbours that a thread computes.  C::kWhole: they are
// read and written at once, for which the last axis and the strides of the others are multiples of kVec; flat
// tensors may have any size.  C::kThreads: threads per block.
// A result may take the place of an operand that moves as it does.
template <class C, class Context, class Out, int kRank, class... In>
__device__ __forceinline__ void Elementwise(const Context& context, const C& body, i64 n, const Axes<kRank>& axes,
                                            const Strided<Out, kRank>& out, const Strided<In, kRank>&... in) {
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kVec > 0 && (C::kVec & (C::kVec - 1)) == 0, "kVec: a power of two");
  static_assert(!C::kWhole || (IsVector<Out>(C::kVec) && (IsVector<In>(C::kVec) && ...)), "kVec: at most 16 bytes");
  static_assert(!C::kWhole || !(kPacked<Out> || (kPacked<In> || ...)), "kWhole: no elements of 4 bits");
  static_assert(!kPacked<Out> || C::kVec % 2 == 0, "kVec: threads write whole bytes");
  context.Wait();
  const i64 begin = (static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x) * C::kVec;
  if (begin >= n) return;
  if (n <= 0x7fffffff) {
    ElementwiseAt<C, u32>(body, begin, n, axes, out, in...);
  } else {
    ElementwiseAt<C, i64>(body, begin, n, axes, out, in...);
  }
}

}  // namespace llmc
