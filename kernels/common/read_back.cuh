// How a block of a persistent launch knows that memory has its results.
#pragma once
#include "kernels/common/common.cuh"

namespace llmc {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
inline constexpr bool kReadBackHolds = true;
#else
inline constexpr bool kReadBackHolds = false;
#endif

// Numbers that a thread has stored, and where; null: nowhere. And their places in the row that a task gives to the
// next.
template <class T, int kCount>
struct Written {
  using Number = T;
  static constexpr int kSize = kCount;
  const T* at[kCount];
  T numbers[kCount];
  int places[kCount];
};

// Numbers that a thread has stored, as it reads them back past the cache of its multiprocessor. Once they are what they
// should be, memory has them for all, so that no fence is needed before others are told. A fence waits for all
// partitions of memory, behind whatever they read: 1.2 to 2.4 us where copies of weights fill them (H100).
//
// This rests on how these GPUs are built, not on PTX's memory model, which knows no such order: stores and such reads
// of an address meet in the one L2 in their order. It was seen to hold on an H100, and is not for other architectures
// (kReadBackHolds).
template <class Result>
class ReadBack {
 public:
  __device__ __forceinline__ void Begin(const Result& written) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      stored_[i] = Bits(written.numbers[i]);
      there_[i] = written.at[i] != nullptr ? Read(written.at[i]) : stored_[i];
    }
  }
  // Waits for what Begin has asked for.
  __device__ __forceinline__ void Finish() const {
    bool is_there = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) is_there = is_there && there_[i] == stored_[i];
    if (!is_there) __threadfence();
  }

 private:
  using T = typename Result::Number;
  static constexpr int kCount = Result::kSize;

  static __device__ __forceinline__ u32 Bits(T number) {
    if constexpr (sizeof(T) == 4) return *reinterpret_cast<const u32*>(&number);
    return *reinterpret_cast<const u16*>(&number);
  }
  static __device__ __forceinline__ u32 Read(const T* from) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4, "words of 16 or 32 bits");
    u32 bits;
    if constexpr (sizeof(T) == 4) {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(bits) : "l"(from) : "memory");
    } else {
      asm volatile("{\n.reg .u16 half;\nld.relaxed.gpu.global.u16 half, [%1];\ncvt.u32.u16 %0, half;\n}"
                   : "=r"(bits)
                   : "l"(from)
                   : "memory");
    }
    return bits;
  }

  u32 stored_[kCount] = {}, there_[kCount] = {};
};

}  // namespace llmc
