// Element types, vector loads and reductions. Includes no CUDA header, so that NVRTC compiles a kernel in milliseconds;
// nvcc compiles it too.
#pragma once
#include "kernels/layout/base.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define LLMC_SM90 1
#else
#define LLMC_SM90 0
#endif

namespace llmc {

template <bool kCondition, class A, class B>
struct Choose {
  using Type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
  using Type = B;
};
// For specializations that need a member of T.
template <class T>
struct VoidOf {
  using Type = void;
};

// 16-bit floats are storage only: arithmetic is in float.
struct alignas(2) f16 {
  u16 bits;
};
struct alignas(2) bf16 {
  u16 bits;
};

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }
__device__ __forceinline__ float ToFloat(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

// What kernels of language models store.
template <class T>
inline constexpr bool kIsModelType = false;
template <>
inline constexpr bool kIsModelType<float> = true;
template <>
inline constexpr bool kIsModelType<f16> = true;
template <>
inline constexpr bool kIsModelType<bf16> = true;

// The gate of an MLP: silu(gate) * up. The quotient is within 2 units of the last place.
__device__ __forceinline__ float SiluMul(float gate, float up) { return __fdividef(gate, 1.0f + expf(-gate)) * up; }

// What a kernel's Config may ask for, for its static_asserts: threads of a block, threads that share a row, elements of
// one load or store.
__host__ __device__ constexpr bool IsBlock(int threads) { return threads > 0 && threads <= 1024 && threads % 32 == 0; }
__host__ __device__ constexpr bool IsTeam(int lanes, int threads) {
  return lanes == 1 || lanes == 32 || lanes == threads;
}
template <class T>
__host__ __device__ constexpr bool IsVector(int n) {
  return n > 0 && (n & (n - 1)) == 0 && n * static_cast<int>(sizeof(T)) <= 16;
}

// Rounds to nearest, halves to even.
template <class T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ bf16 FromFloat<bf16>(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <>
__device__ __forceinline__ f16 FromFloat<f16>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

// What a value of type T becomes when it is stored and read again.
template <class T>
__device__ __forceinline__ float Rounded(float x) {
  return ToFloat(FromFloat<T>(x));
}

// N elements of one load or store, 16 bytes at the most; addresses are multiples of its size.
template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  static_assert(sizeof(T) * N <= 16 && (N & (N - 1)) == 0, "a vector is one load");
  T v[N];
};
template <class T, int N>
__device__ __forceinline__ Vec<T, N> Load(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
template <class T, int N>
__device__ __forceinline__ void Store(T* p, const Vec<T, N>& x) {
  *reinterpret_cast<Vec<T, N>*>(p) = x;
}

// The most elements of type T, at most 16 bytes, that divide `size`.
template <class T>
__host__ __device__ constexpr int VectorOf(int size) {
  return ElementsOfVector(size, 8 * static_cast<int>(sizeof(T)));
}

struct Sum {
  static constexpr float kIdentity = 0;
  template <class X>
  __device__ X operator()(X a, X b) const {
    return a + b;
  }
};
struct Max {
  static constexpr float kIdentity = -3.402823466e38f;  // the smallest float: differences with it are finite
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Only the first kThreads threads of a block wait for each other, at barrier kId; 0 is that of a whole block.
template <int kId, int kThreads>
__device__ __forceinline__ void SyncThreads() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

// The same of threads that wait for nobody, but are waited for.
template <int kId, int kThreads>
__device__ __forceinline__ void ArriveThreads() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

// Over `kLanes` neighbouring lanes; every lane gets the result.
template <int kLanes = 32, class X, class Op>
__device__ __forceinline__ X WarpReduce(X x, Op op) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x = op(x, __shfl_xor_sync(~0u, x, offset));
  return x;
}

__device__ __forceinline__ i32 WarpSum(i32 x) {
  i32 sum;
  asm("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(sum) : "r"(x));
  return sum;
}
__device__ __forceinline__ i32 WarpMax(i32 x) {
  i32 most;
  asm("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(most) : "r"(x));
  return most;
}
// The sum over the lanes up to this one, with it.
__device__ __forceinline__ i32 WarpSumThrough(i32 x) {
  const i32 lane = threadIdx.x % 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const i32 other = __shfl_up_sync(~0u, x, offset);
    if (lane >= offset) x += other;
  }
  return x;
}

// What a body that reduces rows keeps in shared memory.
template <int kThreads>
struct RowShared {
  float warps[kThreads / 32];
};

// Over the threads of a body; every one gets the result. `warps` may be used again at once.
template <int kThreads, class Context, class Op>
__device__ __forceinline__ float BlockReduce(const Context& context, float (&warps)[kThreads / 32], float x, Op op) {
  static_assert(IsBlock(kThreads), "kThreads: whole warps, at most 1024 threads");
  x = WarpReduce(x, op);
  if constexpr (kThreads == 32) return x;
  context.Sync();  // a result of the last call may still be read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  context.Sync();
  float all = Op::kIdentity;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) all = op(all, warps[w]);
  return all;
}

}  // namespace llmc
