// Arithmetic of pairs of 16-bit floats, two in a register as tensor cores take them, and how small integers and floats
// of 8 bits become such. To subtract and multiply those of bf16 takes sm_90; a fused product, sm_80.
#pragma once
#include "kernels/common/arithmetic.cuh"
#include "kernels/common/mma.cuh"

namespace llmc {

// a * b + c, rounded once.
template <class T>
__device__ __forceinline__ u32 MultiplyAddPairs(u32 a, u32 b, u32 c);
template <>
__device__ __forceinline__ u32 MultiplyAddPairs<f16>(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
template <>
__device__ __forceinline__ u32 MultiplyAddPairs<bf16>(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

template <class T>
__device__ __forceinline__ u32 SubtractPairs(u32 a, u32 b);
template <>
__device__ __forceinline__ u32 SubtractPairs<f16>(u32 a, u32 b) {
  u32 r;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
template <>
__device__ __forceinline__ u32 SubtractPairs<bf16>(u32 a, u32 b) {
  u32 r;
  asm("sub.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

template <class T>
__device__ __forceinline__ u32 MultiplyPairs(u32 a, u32 b);
template <>
__device__ __forceinline__ u32 MultiplyPairs<f16>(u32 a, u32 b) {
  u32 r;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
template <>
__device__ __forceinline__ u32 MultiplyPairs<bf16>(u32 a, u32 b) {
  u32 r;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// What a small integer in the last bits of a 16-bit float is added to, of which a subtraction leaves the integer: 1024
// in f16; 128 in bf16, which has room for 7 bits.
template <class T>
inline constexpr u32 kRaisedBits = 0;
template <>
inline constexpr u32 kRaisedBits<f16> = 0x6400;
template <>
inline constexpr u32 kRaisedBits<bf16> = 0x4300;
template <class T>
inline constexpr u32 kRaisedPair = kRaisedBits<T> * 0x10001u;

// In one instruction; of two constants, one is an operand of it, and the other one has to be in a register.
template <u32 kMask>
__device__ __forceinline__ u32 AndXor(u32 x, u32 bits) {
  u32 r;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(r) : "r"(x), "n"(kMask), "r"(bits));
  return r;
}

// The floats of a pair.
template <class T>
__device__ __forceinline__ float LowOf(u32 pair) {
  return ToFloat(T{static_cast<u16>(pair)});
}
template <class T>
__device__ __forceinline__ float HighOf(u32 pair) {
  return ToFloat(T{static_cast<u16>(pair >> 16)});
}

// Two floats of 8 bits as a pair of f16, which holds all of them.
template <class Code>
__device__ __forceinline__ u32 HalvesOf(u16 two);
template <>
__device__ __forceinline__ u32 HalvesOf<f8e4m3>(u16 two) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  u32 r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(two));
  return r;
#else
  return Pack<f16>(E4M3::Widen(two & 255), E4M3::Widen(two >> 8));
#endif
}
template <>
__device__ __forceinline__ u32 HalvesOf<f8e5m2>(u16 two) {  // the first half of an f16
  return __byte_perm(two, 0, 0x1404);
}
// Of four in a word: no instruction takes the word apart.
template <class Code>
__device__ __forceinline__ void HalvesOfWord(u32 word, u32 (&halves)[2]) {
  u16 low, high;
  asm("mov.b32 {%0, %1}, %2;" : "=h"(low), "=h"(high) : "r"(word));
  halves[0] = HalvesOf<Code>(low);
  halves[1] = HalvesOf<Code>(high);
}

// As T: numbers of few bits, which are the same in either type.
template <class T>
__device__ __forceinline__ u32 OfHalves(u32 halves) {
  if constexpr (kSame<T, f16>) return halves;
  return Pack<T>(LowOf<f16>(halves), HighOf<f16>(halves));
}

}  // namespace llmc
