// What the headers of kernels/layout/ build on. These say what the host and the device must agree on, in one place:
// kernels include them, and codegen and the runtime do. NVRTC has no standard library, so they include each other
// alone.
#pragma once

// Functions that both call.
#ifdef __CUDACC__
#define LLMC_HOST_DEVICE __host__ __device__
#else
#define LLMC_HOST_DEVICE
#endif

namespace llmc {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

// How many groups of `size` hold `count`.
LLMC_HOST_DEVICE constexpr i64 CeilDiv(i64 count, i64 size) { return (count + size - 1) / size; }

// The most elements, at most 16 bytes, that divide `count`: rows of so many are then read in whole vectors.
LLMC_HOST_DEVICE constexpr int ElementsOfVector(i64 count, int element_bits) {
  int elements = 128 / element_bits;
  while (count % elements != 0) elements /= 2;
  return elements;
}

// Shared memory that a block can have on every GPU that runs code for an architecture, by the number that __CUDA_ARCH__
// has: code for 8.0 runs on 8.6, too.
LLMC_HOST_DEVICE constexpr int MaxSharedBytes(int architecture) {
  return (architecture >= 900 && architecture < 1200 ? 227 : 99) * 1024;
}
constexpr int kMostSharedBytes = MaxSharedBytes(900);  // of all architectures

// Of memory for counters, which a kernel takes to be zero and leaves so.
constexpr int kCounterBytes = 4096;

}  // namespace llmc
