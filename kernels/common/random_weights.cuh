// out[i] = mean + width * u[i], with u uniform in [-1, 1): weights for timing a model whose own are not there. Each
// 64 bits of a counter-based generator (splitmix64, as in files/random_source.h) give four numbers, so that the host
// draws the same ones and no thread waits for another: bound by writing.
#pragma once
#include "kernels/common/common.cuh"

namespace llmc {

__device__ __forceinline__ u64 RandomBits(u64 key, u64 n) {
  u64 z = key + (n + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

// A thread draws one vector of 16 bytes; the last may be cut off at `size` elements.
// C::T: element type.  C::kThreads: threads per block.
template <class C>
__device__ __forceinline__ void RandomWeights(typename C::T* __restrict__ out, i64 size, i64 key, float mean,
                                              float width) {
  using T = typename C::T;
  static_assert(kIsModelType<T>, "T: float, f16 or bf16");
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  constexpr int kVec = 16 / static_cast<int>(sizeof(T));
  const i64 first = (static_cast<i64>(blockIdx.x) * C::kThreads + threadIdx.x) * kVec;
  if (first >= size) return;
  Vec<T, kVec> numbers;
#pragma unroll
  for (int i = 0; i < kVec; i += 4) {
    const u64 bits = RandomBits(static_cast<u64>(key), static_cast<u64>(first + i) / 4);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float u = static_cast<float>(static_cast<i16>(bits >> 16 * j)) * 0x1p-15f;
      numbers.v[i + j] = FromFloat<T>(fmaf(width, u, mean));
    }
  }
  if (first + kVec <= size) {
    Store(out + first, numbers);
    return;
  }
  for (int i = 0; first + i < size; ++i) out[first + i] = numbers.v[i];
}

}  // namespace llmc
