// A row of numbers that blocks of a persistent launch pass to each other without a barrier: each number of 16 bits is
// the lower half of a word, and the upper half is a tag that says which task of which launch has written it. Who needs
// a number reads its word until the tag is right. A word is written and read at once, so that nothing has to be in any
// order; and reads past the cache of the multiprocessor take as long as a counter's, of which they save the wait.
#pragma once
#include "kernels/common/common.cuh"

namespace llmc {

// Whether what a body reads, or writes, passes as such a row: context.Taken(), context.Given().
template <class Context, class = void>
inline constexpr bool kTakesRow = false;
template <class Context>
inline constexpr bool kTakesRow<Context, decltype(static_cast<void>(Context::kTakes))> = Context::kTakes;
template <class Context, class = void>
inline constexpr bool kGivesRow = false;
template <class Context>
inline constexpr bool kGivesRow<Context, decltype(static_cast<void>(Context::kGives))> = Context::kGives;

// Words of vectors of eight numbers, which a thread has asked for.
template <int kCount>
struct AskedVectors {
  Vec<u32, 4> words[kCount][2];
};

// limit.Until(is_there): asks until that is true, or it is too late.
template <class Limit>
struct TaggedRow {
  static constexpr bool kIsPassed = true;  // by another task of the launch
  static constexpr int kMostVectors = 4;   // that a thread reads at a time, with their tags
  u32* words;
  u32 tag;  // in the upper half
  Limit limit;

  __device__ __forceinline__ const TaggedRow& Row(int) const { return *this; }

  // ---- who writes ----
  template <class T>
  __device__ __forceinline__ u32 WordOf(T number) const {
    static_assert(sizeof(T) == 2, "numbers of 16 bits");
    return tag | *reinterpret_cast<const u16*>(&number);
  }
  template <class T>
  __device__ __forceinline__ void Give(int index, T number) const {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(words + index), "r"(WordOf(number)) : "memory");
  }
  // Four neighbours; the index is a multiple of 4.
  template <class T>
  __device__ __forceinline__ void Give(int index, const Vec<T, 4>& numbers) const {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(words + index), "r"(WordOf(numbers.v[0])),
                 "r"(WordOf(numbers.v[1])), "r"(WordOf(numbers.v[2])), "r"(WordOf(numbers.v[3]))
                 : "memory");
  }

  // ---- who reads ----
  // Vectors first, first + step, … below `end` of eight numbers. Whole warps call it; `waits`: others of the row have
  // not been there yet.
  template <class V, int kCount>
  __device__ __forceinline__ void Read(V (&to)[kCount], int first, int step, int end, bool waits = true) const {
    static_assert(sizeof(V) == 16, "eight numbers");
    if (waits) WaitForFirst(first, end);
    limit.Until([&] {
      AskedVectors<kCount> asked;
      Ask(&asked, first, step, end);
      return Take(asked, to, first, step, end);
    });
  }
  // One lane waits before all ask, so that reads of what is not there do not fill memory.
  __device__ __forceinline__ void WaitForFirst(int first, int end) const {
    if (threadIdx.x % 32 == 0 && first < end) {
      limit.Until([&] {
        u32 word;
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(words + first * 8) : "memory");
        return (word ^ tag) >> 16 == 0;
      });
    }
    __syncwarp();
  }
  // Their words, which arrive while the thread does something else.
  template <int kCount>
  __device__ __forceinline__ void Ask(AskedVectors<kCount>* asked, int first, int step, int end) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = first + i * step;
      if (at >= end) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) asked->words[i][half] = FourWords(words + at * 8 + half * 4);
    }
  }
  // Their numbers; asks again until all are there.
  template <class V, int kCount>
  __device__ __forceinline__ void Wait(AskedVectors<kCount>* asked, V (&to)[kCount], int first, int step,
                                       int end) const {
    limit.Until([&] {
      if (Take(*asked, to, first, step, end)) return true;
      Ask(asked, first, step, end);
      return false;
    });
  }
  // kCount numbers from `first` on, both even, to shared memory. A whole warp calls it.
  template <int kCount>
  __device__ __forceinline__ void ReadTo(void* to, int first) const {
    constexpr int kPairs = kCount / 2, kEach = (kPairs + 31) / 32;
    const int lane = threadIdx.x % 32;
    u32 pairs[kEach];
    limit.Until([&] {
      u32 others = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        u32 low, high;
        if (lane + 32 * i >= kPairs) continue;
        asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                     : "=r"(low), "=r"(high)
                     : "l"(words + first + 2 * (lane + 32 * i))
                     : "memory");
        others |= (low ^ tag) | (high ^ tag);
        pairs[i] = Pair(low, high);
      }
      return others >> 16 == 0;
    });
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane + 32 * i < kPairs) static_cast<u32*>(to)[lane + 32 * i] = pairs[i];
    }
    __syncwarp();
  }

 private:
  // False if not all of them are there.
  template <class V, int kCount>
  __device__ __forceinline__ bool Take(const AskedVectors<kCount>& asked, V (&to)[kCount], int first, int step,
                                       int end) const {
    u32 others = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (first + i * step >= end) continue;
      Vec<u32, 4> numbers;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const u32 low = asked.words[i][j / 2].v[j % 2 * 2], high = asked.words[i][j / 2].v[j % 2 * 2 + 1];
        others |= (low ^ tag) | (high ^ tag);
        numbers.v[j] = Pair(low, high);
      }
      to[i] = *reinterpret_cast<const V*>(&numbers);
    }
    return others >> 16 == 0;
  }
  static __device__ __forceinline__ u32 Pair(u32 low, u32 high) { return __byte_perm(low, high, 0x5410); }
  static __device__ __forceinline__ Vec<u32, 4> FourWords(const u32* from) {
    Vec<u32, 4> v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.v[0]), "=r"(v.v[1]), "=r"(v.v[2]), "=r"(v.v[3])
                 : "l"(from)
                 : "memory");
    return v;
  }
};

// Rows that lie in memory one behind the other, read alike.
template <class T>
struct MemoryRows {
  static constexpr bool kIsPassed = false;
  static constexpr int kMostVectors = 8;
  const T* at;
  i64 stride;

  __device__ __forceinline__ MemoryRows Row(int row) const { return {at + row * stride, stride}; }
  template <class V, int kCount>
  __device__ __forceinline__ void Read(V (&to)[kCount], int first, int step, int end, bool = true) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (first + i * step < end) to[i] = reinterpret_cast<const V*>(at)[first + i * step];
    }
  }
};

}  // namespace llmc
