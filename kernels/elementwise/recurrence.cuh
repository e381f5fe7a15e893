// One direction of an LSTM (Hochreiter and Schmidhuber, 1997), a GRU (arXiv:1406.1078) or a simple recurrent layer: a
// block goes through the steps of one sequence, its state in shared memory.
#pragma once
#include "kernels/elementwise/reduce.cuh"
#include "kernels/layout/recurrence.h"

namespace llmc {

// out[rows] = weight[rows, kHidden] h, a warp for a row.
template <class C, class Context, class X>
__device__ __forceinline__ void TimesState(const Context& context, X* out, const typename C::T* __restrict__ weight,
                                           const X* h, int rows) {
  const int lane = threadIdx.x % 32;
  for (int row = threadIdx.x / 32; row < rows; row += C::kThreads / 32) {
    X sum = 0;
    for (int k = lane; k < C::kHidden; k += 32) {
      sum += static_cast<X>(Widen(weight[static_cast<i64>(row) * C::kHidden + k])) * h[k];
    }
    sum = ReduceLanes<32>(context, sum, [](X a, X b) { return a + b; });
    if (lane == 0) out[row] = sum;
  }
}

// x[steps, batch, kGates * kHidden], weight[kGates * kHidden, kHidden], h[batch, kHidden], c as h, lens[batch],
// bias[kHidden], out[steps, batch, kHidden], last[1 or 2, batch, kHidden]. Dynamic shared memory:
// RecurrenceSharedElements().
// C::T: element type.  C::kHidden.  C::kGates.  C::kKind: a RecurrenceKind.  C::kReverse: from the last step.
// C::kLens, C::kBias: whether there are any.  C::kThreads: threads per block.
// Over 60 lines: the steps of a sequence, and how each kind of layer ends one.
template <class C, class Context>
__device__ __forceinline__ void Recurrence(const Context& context, typename C::T* __restrict__ out,
                                           typename C::T* __restrict__ last, const typename C::T* __restrict__ x,
                                           const typename C::T* __restrict__ weight,
                                           const typename C::T* __restrict__ h_first,
                                           const typename C::T* __restrict__ c_first, const i64* __restrict__ lens,
                                           const typename C::T* __restrict__ bias, i64 steps, i64 batch) {
  using T = typename C::T;
  using X = Wide<T>;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kHidden > 0, "kHidden: a state has elements");
  static_assert(!kSame<X, i64> && !kSame<X, bool>, "T: floats");
  constexpr bool kIsLstm = C::kKind == kLstm, kIsGru = C::kKind == kGru || C::kKind == kGruResetAfter;
  static_assert(C::kGates == (kIsLstm ? 4 : kIsGru ? 3 : 1), "kGates: those of kKind");
  X* const h = reinterpret_cast<X*>(context.template Arena<128>());
  X* const c = h + C::kHidden;        // of a GRU: r h
  X* const product = c + C::kHidden;  // [kGates][kHidden]
  const i64 sequence = context.TileX();
  if (sequence >= batch) return;
  for (int j = threadIdx.x; j < C::kHidden; j += C::kThreads) {
    h[j] = Widen(h_first[sequence * C::kHidden + j]);
    if constexpr (kIsLstm) c[j] = Widen(c_first[sequence * C::kHidden + j]);
  }
  i64 length = steps;
  if constexpr (C::kLens) length = lens[sequence];
  for (i64 k = 0; k < steps; ++k) {
    const i64 t = C::kReverse ? steps - 1 - k : k;
    T* const y = out + (t * batch + sequence) * C::kHidden;
    if (t >= length) {
      for (int j = threadIdx.x; j < C::kHidden; j += C::kThreads) y[j] = Narrow<T>(X(0));
      continue;
    }
    const T* const own = x + (t * batch + sequence) * C::kGates * C::kHidden;
    const auto gate = [&](int i, int j) {
      return static_cast<X>(Widen(own[i * C::kHidden + j])) + product[i * C::kHidden + j];
    };
    context.Sync();
    TimesState<C>(context, product, weight, h, (C::kKind == kGru ? 2 : C::kGates) * C::kHidden);
    context.Sync();
    if constexpr (C::kKind == kGru) {
      for (int j = threadIdx.x; j < C::kHidden; j += C::kThreads) c[j] = h[j] * op::Sigmoid(gate(1, j));
      context.Sync();
      TimesState<C>(context, product + 2 * C::kHidden, weight + static_cast<i64>(2) * C::kHidden * C::kHidden, c,
                    C::kHidden);
      context.Sync();
    }
    for (int j = threadIdx.x; j < C::kHidden; j += C::kThreads) {
      if constexpr (kIsLstm) {
        c[j] = op::Sigmoid(gate(2, j)) * c[j] + op::Sigmoid(gate(0, j)) * op::Tanh(gate(3, j));
        h[j] = op::Sigmoid(gate(1, j)) * op::Tanh(c[j]);
      } else if constexpr (kIsGru) {
        X candidate = product[2 * C::kHidden + j];
        if constexpr (C::kBias) candidate += static_cast<X>(Widen(bias[j]));
        if constexpr (C::kKind == kGruResetAfter) candidate *= op::Sigmoid(gate(1, j));
        candidate = op::Tanh(candidate + static_cast<X>(Widen(own[2 * C::kHidden + j])));
        const X update = op::Sigmoid(gate(0, j));
        h[j] = (X(1) - update) * candidate + update * h[j];
      } else {
        const X sum = gate(0, j);
        h[j] = C::kKind == kRnnTanh ? op::Tanh(sum) : sum < 0 ? X(0) : sum;
      }
      y[j] = Narrow<T>(h[j]);
    }
  }
  for (int j = threadIdx.x; j < C::kHidden; j += C::kThreads) {
    last[sequence * C::kHidden + j] = Narrow<T>(h[j]);
    if constexpr (kIsLstm) last[(batch + sequence) * C::kHidden + j] = Narrow<T>(c[j]);
  }
}

}  // namespace llmc
