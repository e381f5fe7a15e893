// out[i] = mean + width * u[i], with u uniform in [-1, 1): weights for timing a model whose own are not there; integers
// are rounded, or, with kAllBits, bytes of which all bits are drawn. Each
// 64 bits of a counter-based generator give four numbers, so that the host draws the same ones and no thread waits for
// another: bound by writing.
#pragma once
#include "kernels/common/arithmetic.cuh"
#include "kernels/common/context.cuh"
#include "kernels/layout/random_numbers.h"

namespace llmc {

// A thread draws one vector of 16 bytes; the last may be cut off at `size` elements.
// C::T: element type.  C::kAllBits.  C::kThreads: threads per block.
template <class C, class Context>
__device__ __forceinline__ void RandomWeights(const Context& context, typename C::T* __restrict__ out, i64 size,
                                              i64 key, float mean, float width) {
  using T = typename C::T;
  static_assert(sizeof(T) <= 4, "T: float, f16 or bf16, or of 8 bits");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  constexpr int kVec = kRandomVectorBytes / static_cast<int>(sizeof(T));
  const i64 first = (static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x) * kVec;
  if (first >= size) return;
  Vec<T, kVec> numbers;
  if constexpr (C::kAllBits) {
    static_assert(sizeof(T) == 1, "kAllBits: of bytes");
#pragma unroll
    for (int i = 0; i < kVec; i += 8) {
      const u64 bits = RandomBits(static_cast<u64>(key), static_cast<u64>(first + i) / 8);
#pragma unroll
      for (int j = 0; j < 8; ++j) numbers.v[i + j] = static_cast<T>(bits >> 8 * j);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVec; i += kRandomNumbersOfBits) {
      const u64 bits = RandomBits(static_cast<u64>(key), static_cast<u64>(first + i) / kRandomNumbersOfBits);
#pragma unroll
      for (int j = 0; j < kRandomNumbersOfBits; ++j) {
        const float number = fmaf(width, RandomNumber(bits, j), mean);
        if constexpr (kSame<Wide<T>, float>) {
          numbers.v[i + j] = Narrow<T>(number);
        } else {
          numbers.v[i + j] = Narrow<T>(static_cast<Wide<T>>(rintf(number)));
        }
      }
    }
  }
  if (first + kVec <= size) {
    Store(out + first, numbers);
    return;
  }
  for (int i = 0; first + i < size; ++i) out[first + i] = numbers.v[i];
}

}  // namespace llmc
