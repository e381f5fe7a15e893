// Reductions of rows to one number: sums, means, products, extremes and the index of the largest. Any axes may be
// reduced: a row is an index into the axes that stay, its elements lie along the axes that go.
#pragma once
#include "kernels/elementwise/elementwise.cuh"

namespace llmc {

// ---- what is reduced ----------------------------------------------------------------------------------------------
// Of elements of type T: Acc is what is kept, One an element's, Merge puts two in order together, Finish gives the
// result of n elements. Integers wrap around.
template <class X>
struct AccOf {
  using Type = X;
};
template <>
struct AccOf<bool> {
  using Type = i64;
};

template <class T>
struct SumOf {
  using Element = T;
  using Acc = typename AccOf<Wide<T>>::Type;
  static __device__ Acc Zero() { return Acc(0); }
  static __device__ Acc One(Wide<T> x, i64) { return x; }
  static __device__ Acc Merge(Acc a, Acc b) { return op::Add(a, b); }
  static __device__ T Finish(Acc a, i64) { return Narrow<T>(a); }
};
template <class T>
struct MeanOf : SumOf<T> {
  using Acc = typename SumOf<T>::Acc;
  static __device__ T Finish(Acc a, i64 n) { return Narrow<T>(op::Div(a, static_cast<Acc>(n))); }
};
template <class T>
struct ProductOf : SumOf<T> {
  using Acc = typename SumOf<T>::Acc;
  static __device__ Acc Zero() { return Acc(1); }
  static __device__ Acc Merge(Acc a, Acc b) { return op::Mul(a, b); }
};

template <class Acc>
__device__ __forceinline__ Acc Lowest() {
  if constexpr (kSame<Acc, i64>) return static_cast<i64>(1ull << 63);
  return -static_cast<Acc>(__uint_as_float(0x7f800000u));
}
// NaN if there is one.
template <class T>
struct MaxOf {
  using Element = T;
  using Acc = typename AccOf<Wide<T>>::Type;
  static __device__ Acc Zero() { return Lowest<Acc>(); }
  static __device__ Acc One(Wide<T> x, i64) { return x; }
  static __device__ Acc Merge(Acc a, Acc b) { return b != b || b > a ? b : a; }
  static __device__ T Finish(Acc a, i64) {
    if constexpr (kSame<T, bool>) return a != 0;
    return Narrow<T>(a);
  }
};
template <class T>
struct MinOf : MaxOf<T> {
  using Acc = typename MaxOf<T>::Acc;
  static __device__ Acc Zero() { return kSame<Acc, i64> ? static_cast<Acc>(~Lowest<i64>()) : -Lowest<Acc>(); }
  static __device__ Acc Merge(Acc a, Acc b) { return b != b || b < a ? b : a; }
};

// The first of equal ones; the first NaN is larger than all numbers.
template <class T>
struct ArgMaxOf {
  using Element = T;
  struct Acc {
    Wide<T> value;
    i64 index;  // -1: none
  };
  static __device__ Acc Zero() { return {Wide<T>(0), -1}; }
  static __device__ Acc One(Wide<T> x, i64 index) { return {x, index}; }
  static __device__ Acc Merge(Acc a, Acc b) {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool same = a_nan ? b_nan : a.value == b.value;
    if (same) return a.index < b.index ? a : b;
    return a_nan || (!b_nan && a.value > b.value) ? a : b;
  }
  static __device__ i64 Finish(Acc a, i64) { return a.index; }
};

// ---- threads that share a row -------------------------------------------------------------------------------------
template <class Acc>
__device__ __forceinline__ Acc ShuffleXor(Acc x, int mask) {
  if constexpr (sizeof(Acc) < 4) {
    return static_cast<Acc>(__shfl_xor_sync(~0u, static_cast<int>(x), mask));
  } else {
    u32 words[sizeof(Acc) / 4];
    static_assert(sizeof(words) == sizeof(Acc), "an accumulator is whole words");
    memcpy(words, &x, sizeof(x));
#pragma unroll
    for (u32& word : words) word = __shfl_xor_sync(~0u, word, mask);
    memcpy(&x, words, sizeof(x));
    return x;
  }
}

// Over kLanes threads: 1, a warp or the whole body. Every one gets the result. Whole bodies must call it together.
template <int kLanes, class Context, class Acc, class Merge>
__device__ __forceinline__ Acc ReduceLanes(const Context& context, Acc x, Merge merge) {
  if constexpr (kLanes == 1) return x;
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x = merge(x, ShuffleXor(x, mask));
  if constexpr (kLanes > 32) {
    struct OfWarps {
      Acc of[kLanes / 32];
    };
    auto& warps = context.template Shared<OfWarps>().of;
    context.Sync();  // a result of the last call may still be read
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
    context.Sync();
    x = warps[0];
    for (int w = 1; w < kLanes / 32; ++w) x = merge(x, warps[w]);
  }
  return x;
}

// Element `i`, and the next operand's turn.
template <class T>
__device__ __forceinline__ T ReadNext(const T* at, i64 i, int* next) {
  ++*next;
  return at[i];
}

// A tensor under the axes that stay and those that go: where its elements are, and how far it moves along each.
template <class T, int kKept, int kReduced>
struct RowOperand {
  T* at;
  i64 kept[kKept], reduced[kReduced];
};

// out[row] = body.Finish(the reduction of body.Element(elements) over row `row`, elements), where what Finish reads
// stays along the row. C::Op: one of the above.  C::kLanes: threads of a row, 1, 32 or kThreads.  C::kThreads: threads
// per block.
template <class C, class Context, class Out, int kKept, int kReduced, class... In>
__device__ __forceinline__ void Reduce(const Context& context, const C& body, Out* out, i64 rows,
                                       const Axes<kKept>& kept, const Axes<kReduced>& reduced,
                                       const RowOperand<In, kKept, kReduced>&... in) {
  using Op = typename C::Op;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(IsTeam(C::kLanes, C::kThreads), "kLanes: 1, 32 or kThreads");
  constexpr int N = sizeof...(In);
  context.Wait();
  i64 row = (static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x) / C::kLanes;
  const bool inside = row < rows;
  if (C::kLanes == 1 && !inside) return;
  if (!inside) row = 0;  // goes along with its warp
  i64 n = 1, begin[N], strides[N][kKept], steps[N][kReduced];
  for (int axis = 0; axis < kReduced; ++axis) n *= reduced.size[axis];
  int k = 0;
  const auto add = [&](const auto& operand) {
    for (int axis = 0; axis < kKept; ++axis) strides[k][axis] = operand.kept[axis];
    for (int axis = 0; axis < kReduced; ++axis) steps[k][axis] = operand.reduced[axis];
    ++k;
  };
  (add(in), ...);
  Locate<i64>(row, kept, strides, begin);
  typename Op::Acc all = Op::Zero();
  for (i64 i = threadIdx.x % C::kLanes; i < n; i += C::kLanes) {
    i64 at[N];
    Locate<i64>(i, reduced, steps, at);
    int next = 0;
    // Braces keep the order of the operands.
    struct Call {
      typename Op::Element element;
      __device__ Call(const C& f, typename Unconst<In>::Type... v) : element(f.Element(v...)) {}
    };
    const auto place = [&] { return begin[next] + at[next]; };
    const Call call{body, ReadNext(in.at, place(), &next)...};
    all = Op::Merge(all, Op::One(Widen(call.element), i));
  }
  all = ReduceLanes<C::kLanes>(context, all, [](auto a, auto b) { return Op::Merge(a, b); });
  if (!inside || threadIdx.x % C::kLanes != 0) return;
  int next = 0;
  struct Call {
    __device__ Call(const C& f, Out* to, decltype(Op::Finish(all, n)) x, typename Unconst<In>::Type... v) {
      *to = f.Finish(x, v...);
    }
  };
  const auto place = [&] { return begin[next]; };
  Call{body, out + row, Op::Finish(all, n), ReadNext(in.at, place(), &next)...};
}

}  // namespace llmc
