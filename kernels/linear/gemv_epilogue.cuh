// What becomes of the sums of gemv.cuh.
#pragma once
#include "kernels/attention/rope.cuh"
#include "kernels/common/read_back.cuh"
#include "kernels/linear/x_order.cuh"

namespace llmc {

// Row: the row of the weight that is half `half` of a column.  Prepare: what Store needs besides the sums, read while
// they are made.  kEarly: it reads nothing that a kernel of the same step has written.  Store returns what it has
// stored; kReadsBack: all of it.
template <class C>
struct StoreSum {
  static constexpr bool kPaired = false, kEarly = true, kReadsBack = true;
  struct Prepared {};
  using Result = Written<typename C::Out, 1>;
  typename C::Out* out;

  static __device__ __forceinline__ int Row(int column, int) { return column; }
  __device__ __forceinline__ Prepared Prepare(int, int) const { return {}; }
  __device__ __forceinline__ Result Store(int token, int column, float sum, float, Prepared) const {
    const auto number = FromFloat<typename C::Out>(Rounded<typename C::T>(sum));
    out[static_cast<i64>(token) * C::kOut + column] = number;
    return {{out + static_cast<i64>(token) * C::kOut + column}, {number}, {column}};
  }
};

// The sum plus another tensor: a residual, or a bias that all rows share.
template <class C, bool kShared>
struct StoreAdded {
  static constexpr bool kPaired = false, kEarly = kShared, kReadsBack = true;
  using Prepared = typename C::T;
  using Result = Written<typename C::T, 1>;
  typename C::T* out;
  const typename C::T* addend;

  static __device__ __forceinline__ int Row(int column, int) { return column; }
  __device__ __forceinline__ Prepared Prepare(int token, int column) const {
    return addend[(kShared ? 0 : static_cast<i64>(token) * C::kOut) + column];
  }
  __device__ __forceinline__ Result Store(int token, int column, float sum, float, Prepared added) const {
    const auto number = FromFloat<typename C::T>(Rounded<typename C::T>(sum) + ToFloat(added));
    out[static_cast<i64>(token) * C::kOut + column] = number;
    return {{out + static_cast<i64>(token) * C::kOut + column}, {number}, {column}};
  }
};

// silu(gate) * up, of columns n and n + kOut of the product, in the order of what reads it (x_order.cuh).
template <class C>
struct StoreSiluMul {
  static constexpr bool kPaired = true, kEarly = true, kReadsBack = true;
  struct Prepared {};
  using Result = Written<typename C::T, 1>;
  typename C::T* out;

  static __device__ __forceinline__ int Row(int column, int half) { return column + half * C::kOut; }
  __device__ __forceinline__ Prepared Prepare(int, int) const { return {}; }
  __device__ __forceinline__ Result Store(int token, int column, float gate, float up, Prepared) const {
    using T = typename C::T;
    const T number = FromFloat<T>(SiluMul(Rounded<T>(gate), Rounded<T>(up)));
    T* const to = out + static_cast<i64>(token) * C::kOut + RowOrder<C>::Place(column);
    *to = number;
    return {{to}, {number}, {column}};
  }
};

// Queries, keys and values of heads as RopeKvWrite takes them, with an optional bias. A column is a pair of elements
// that turn together; those past kRotary are paired with each other and stay. C::kHeads, C::kKvHeads, C::kHeadDim,
// C::kRotary, C::kInterleaved: as in rope.cuh; where heads go: paged_kv.cuh.  C::kBias.
template <class C>
struct StoreQkvRope {
  static constexpr bool kPaired = true, kEarly = true, kReadsBack = !kIsEncoded<C>;
  using Result = Written<typename C::T, 2>;
  static constexpr int kHalf = C::kHeadDim / 2, kTurning = C::kRotary / 2;
  static_assert(C::kHeadDim % 2 == 0 && C::kRotary % 2 == 0 && C::kRotary <= C::kHeadDim, "kRotary: pairs of a head");
  struct Prepared {
    float sin, cos, first_bias, second_bias;
    i64 slot;
  };
  typename C::T* out;
  CacheElement<C>* kv;
  const typename C::T* bias;
  const i32* pos;
  const float* inv_freq;
  const i32* slots;
  float scale;
  StaticScales scales = {};  // of a cache that is encoded

  // The element of its head that half `half` of pair `pair` is.
  static __device__ __forceinline__ int Element(int pair, int half) {
    if (pair >= kTurning) return C::kRotary + pair - kTurning + half * (kHalf - kTurning);
    return C::kInterleaved ? 2 * pair + half : pair + half * kTurning;
  }
  static __device__ __forceinline__ int Row(int column, int half) {
    return column / kHalf * C::kHeadDim + Element(column % kHalf, half);
  }
  __device__ __forceinline__ Prepared Prepare(int token, int column) const {
    Prepared p = {0, 1, 0, 0, slots[token]};
    if constexpr (C::kBias) {
      p.first_bias = ToFloat(bias[Row(column, 0)]);
      p.second_bias = ToFloat(bias[Row(column, 1)]);
    }
    if (column / kHalf < C::kHeads + C::kKvHeads && column % kHalf < kTurning) {
      sincosf(static_cast<float>(pos[token]) * inv_freq[column % kHalf], &p.sin, &p.cos);
      p.sin *= scale;
      p.cos *= scale;
    }
    return p;
  }
  __device__ __forceinline__ Result Store(int token, int column, float first, float second, const Prepared& p) const {
    using T = typename C::T;
    const int head = column / kHalf, pair = column % kHalf;
    float x = Rounded<T>(first), y = Rounded<T>(second);
    if constexpr (C::kBias) {
      x = Rounded<T>(x + p.first_bias);
      y = Rounded<T>(y + p.second_bias);
    }
    const T turned[] = {FromFloat<T>(x * p.cos - y * p.sin), FromFloat<T>(y * p.cos + x * p.sin)};
    const int places[] = {head * C::kHeadDim + Element(pair, 0), head * C::kHeadDim + Element(pair, 1)};
    T* to = out + (static_cast<i64>(token) * C::kHeads + head) * C::kHeadDim;
    if (head >= C::kHeads) {
      if (p.slot < 0) return {{}, {turned[0], turned[1]}, {places[0], places[1]}};
      const bool is_value = head >= C::kHeads + C::kKvHeads;
      if constexpr (kIsEncoded<C>) {
        const int kv_head = head - C::kHeads - (is_value ? C::kKvHeads : 0);
        const auto write = [&](int half) {
          WriteCode<C>(kv, static_cast<u32>(p.slot), is_value ? 1 : 0, kv_head, Element(pair, half),
                       ToFloat(turned[half]), scales);
        };
        write(0);
        write(1);
        return {};
      } else {
        to = kv + KvOffset<C>(p.slot, is_value ? 1 : 0, head - C::kHeads - (is_value ? C::kKvHeads : 0));
      }
    }
    to[Element(pair, 0)] = turned[0];
    to[Element(pair, 1)] = turned[1];
    return {{to + Element(pair, 0), to + Element(pair, 1)}, {turned[0], turned[1]}, {places[0], places[1]}};
  }
};

}  // namespace llmc
