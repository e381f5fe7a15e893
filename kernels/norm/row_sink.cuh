// What becomes of a normalized row, which a block has in registers: it is stored, or quantized, or both.
#pragma once
#include "kernels/common/context.cuh"
#include "kernels/linear/codes.cuh"

namespace llmc {

// Stored as it is.
template <class T>
struct PlainSink {
  T* out;

  __device__ __forceinline__ PlainSink(T* out) : out(out) {}  // a pointer is one
  template <class C, int kVec, int kVecs, class Context, class Shared>
  __device__ __forceinline__ void Take(const Context&, Shared&, i64 row, const Vec<T, kVec> (&r)[kVecs]) const {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int col = kVec * (threadIdx.x + i * C::kThreads);
      if (col >= C::kDim) break;
      Store(out + row * C::kDim + col, r[i]);
    }
  }
};

// Codes of 8 bits, of rows or of groups of C::kGroup neighbours, with their scales in f32: as linear/quantize.cuh.
// C::Code: i8, f8e4m3 or f8e5m2.  C::kGroup: 0: a row.  C::kDynamic: scales are found, else given, one for all.
// C::kStores: the row is stored as well.  C::kInverse: as the language's `inverse`.
template <class C>
struct QuantizedSink {
  using T = typename C::T;
  using Code = typename C::Code;
  T* out;
  Code* codes;
  float* scale;  // where found ones go
  float limit;
  const float* given;

  template <class, int kVec, int kVecs, class Context, class Shared>
  __device__ __forceinline__ void Take(const Context& context, Shared& shared, i64 row,
                                       const Vec<T, kVec> (&r)[kVecs]) const {
    constexpr int kLanes = C::kGroup == 0 ? 32 : C::kGroup / kVec;  // that share a scale
    static_assert(C::kGroup == 0 || (C::kDim % C::kGroup == 0 && C::kGroup % kVec == 0 && 32 % kLanes == 0),
                  "kGroup: of neighbouring lanes of a warp");
    if constexpr (C::kStores) PlainSink<T>(out).template Take<C>(context, shared, row, r);
    float most[kVecs];
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      most[i] = 0;
      const bool is_there = kVec * (threadIdx.x + i * C::kThreads) < C::kDim;
#pragma unroll
      for (int j = 0; j < kVec && C::kDynamic; ++j) {
        if (is_there) most[i] = LargestMagnitude()(most[i], fabsf(ToFloat(r[i].v[j])));
      }
    }
    const auto scale_of = [&](float most) { return C::kInverse ? 1.0f / (limit * (1.0f / most)) : most / limit; };
    float of_row = 0;
    if constexpr (C::kDynamic && C::kGroup == 0) {
#pragma unroll
      for (int i = 0; i < kVecs; ++i) of_row = LargestMagnitude()(of_row, most[i]);
      of_row = scale_of(BlockReduce<C::kThreads>(context, shared.warps, of_row, LargestMagnitude()));
      if (threadIdx.x == 0) scale[row] = of_row;
    } else if constexpr (!C::kDynamic) {
      of_row = given[0];
    }
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int col = kVec * (threadIdx.x + i * C::kThreads);
      float own = of_row;
      if constexpr (C::kDynamic && C::kGroup != 0) {
        own = scale_of(WarpReduce<kLanes>(most[i], LargestMagnitude()));
        if (col < C::kDim && col % C::kGroup == 0) scale[row * (C::kDim / C::kGroup) + col / C::kGroup] = own;
      }
      if (col >= C::kDim) continue;  // not break: lanes reduce together
      const Quotients<C::kInverse> quotients(own);
      float q[kVec];
#pragma unroll
      for (int j = 0; j < kVec; ++j) q[j] = quotients.Of(ToFloat(r[i].v[j]));
      Store(codes + row * C::kDim + col, RoundedCodes<Code>::OfAll(q));
    }
  }
};

template <class T>
struct SinkVoid {
  using Type = void;
};
// C::Sink; where the Config names none, rows are stored.
template <class C, class = void>
struct SinkOf {
  using Type = PlainSink<typename C::T>;
};
template <class C>
struct SinkOf<C, typename SinkVoid<typename C::Sink>::Type> {
  using Type = typename C::Sink;
};
template <class C>
using RowSink = typename SinkOf<C>::Type;

}  // namespace llmc
