// out[i] = Body(in0[i], in1[i], …) over a shape, operands broadcast as numpy does. Body is the only generated code.
#pragma once
#include "kernels/common.cuh"

namespace llmc {

// How an operand is read: an element for each of the result's (flat), one for all (scalar), or one for each of the last
// axis (row). Anything else is expanded before.
enum class Broadcast { kFlat, kScalar, kRow };

template <Broadcast kBroadcast, class T>
__device__ __forceinline__ T Element(const T* __restrict__ in, i64 i, i64 columns) {
  if constexpr (kBroadcast == Broadcast::kScalar) return in[0];
  if constexpr (kBroadcast == Broadcast::kRow) return in[i % columns];
  return in[i];
}

// C::Body: static Out Apply(In0, In1): the arithmetic.  C::kIn0, C::kIn1: how operands are read.  C::kThreads.
template <class C, class Out, class In0>
__device__ __forceinline__ void Elementwise1(Out* out, const In0* in0, i64 n, i64 columns) {
  const i64 i = static_cast<i64>(blockIdx.x) * C::kThreads + threadIdx.x;
  if (i < n) out[i] = C::Apply(Element<static_cast<Broadcast>(C::kIn0)>(in0, i, columns));
}
template <class C, class Out, class In0, class In1>
__device__ __forceinline__ void Elementwise2(Out* out, const In0* in0, const In1* in1, i64 n, i64 columns) {
  const i64 i = static_cast<i64>(blockIdx.x) * C::kThreads + threadIdx.x;
  if (i >= n) return;
  out[i] = C::Apply(Element<static_cast<Broadcast>(C::kIn0)>(in0, i, columns),
                    Element<static_cast<Broadcast>(C::kIn1)>(in1, i, columns));
}

}  // namespace llmc
