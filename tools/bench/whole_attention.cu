// Times kernels/attention/whole_attention.cuh, 32 heads in bf16, with each kind of mask, one JSON object a line;
// an argument: once and small, for a checker.
//   nvcc -std=c++17 -O3 -I. -arch=sm_90a -o whole_attention tools/bench/whole_attention.cu
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/attention/whole_attention.cuh"

namespace {

using llmc::bf16;
using llmc::i64;

constexpr int kHeads = 32;

// kMask: 0 none, 1 of booleans, 2 added.
template <int kMask, bool kIsCausal, int kDim, bool kWarpgroups>
struct Config {
  using T = bf16;
  using Mask = std::conditional_t<kMask == 1, bool, bf16>;
  static constexpr int kMasked = kMask != 0, kCausal = kIsCausal, kSoftcap = 0;
  static constexpr int kKvHeads = kHeads, kGroup = 1, kKeyDim = kDim, kValueDim = kDim;
  static constexpr int kHopper = kWarpgroups, kByMaps = kHopper, kBlocks = kHopper ? 132 : 0, kM = kHopper ? 1 : 2;
  static constexpr int kKeys = kHopper ? (kMasked && kDim != 64 ? 64 : 128) : kDim <= 64 ? 64 : 32;
  static constexpr int kThreads = kHopper ? 384 : 128;
  static constexpr int kSharedBytes =
      kHopper ? llmc::FlashHopperSharedBytes(kDim, kKeys, kByMaps) : llmc::FlashSharedBytes(kDim, 128, kKeys);
};

template <class C>
__global__ __launch_bounds__(C::kThreads) void Kernel(bf16* out, const bf16* q, const bf16* k, const bf16* v,
                                                      const typename C::Mask* mask, i64 batch, i64 length, float scale,
                                                      const __grid_constant__ llmc::TileMap k_map,
                                                      const __grid_constant__ llmc::TileMap v_map) {
  const i64 row = C::kKeyDim, head = length * row, sequence = C::kKvHeads * head;
  const auto heads = [&](auto* at) {
    return llmc::Strided<std::remove_pointer_t<decltype(at)>, 4>{at, {sequence, head, row, 1}};
  };
  const llmc::Strided<const typename C::Mask, 4> masks = {mask, {0, 0, length, 1}};
  if constexpr (C::kByMaps) {
    llmc::WholeAttentionByMaps<C>(llmc::LaunchContext(), heads(out), heads(q), heads(k), heads(v), masks, batch, length,
                                  length, 0, scale, 0.0f, k_map, v_map, k, v);
  } else {
    llmc::WholeAttention<C>(llmc::LaunchContext(), heads(out), heads(q), heads(k), heads(v), masks, batch, length,
                            length, 0, scale, 0.0f);
  }
}

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
T* Upload(const std::vector<unsigned char>& bytes) {
  void* to = nullptr;
  Check(cudaMalloc(&to, bytes.size()));
  Check(cudaMemcpy(to, bytes.data(), bytes.size(), cudaMemcpyDefault));
  return static_cast<T*>(to);
}

// Numbers in bf16 of magnitudes 0.5 to 1, others for each seed: equal factors would draw less power.
std::vector<unsigned char> RandomNumbers(size_t elements, unsigned seed) {
  std::vector<unsigned char> bytes(elements * 2);
  std::mt19937 random(seed);
  for (size_t i = 0; i < elements; ++i) {
    const unsigned bits = 0x3f00 | (random() & 0x807f);
    bytes[2 * i] = bits & 255;
    bytes[2 * i + 1] = bits >> 8;
  }
  return bytes;
}

// A matrix of bf16, as the runtime maps it (runtime/device/device.cc).
llmc::TileMap MapTiles(const bf16* matrix, size_t rows, int columns) {
  using Encode = int(void*, int, unsigned, const void*, const unsigned long long*, const unsigned long long*,
                     const unsigned*, const unsigned*, int, int, int, int);
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult result;
  Check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &result));
  const unsigned long long sizes[] = {2ull * columns, rows}, strides[] = {sizes[0]};
  const unsigned box[] = {llmc::kTileBytes, llmc::kFlashMapRows}, steps[] = {1, 1};
  llmc::TileMap map = {};
  if (reinterpret_cast<Encode*>(encode)(&map, 0, 2, matrix, sizes, strides, box, steps, 0, 3, 3, 0) != 0) std::exit(1);
  return map;
}

template <class C>
void Time(const char* form, const char* mask_name, int batch, int length, int runs) {
  const size_t elements = size_t(batch) * kHeads * length * C::kKeyDim, scores = size_t(length) * length;
  std::vector<unsigned char> mask_bytes(scores * sizeof(typename C::Mask));
  for (size_t i = 0; i < mask_bytes.size(); ++i) mask_bytes[i] = sizeof(typename C::Mask) == 1 ? i % 7 != 0 : 0;
  bf16 *q = Upload<bf16>(RandomNumbers(elements, 1)), *k = Upload<bf16>(RandomNumbers(elements, 2));
  bf16 *v = Upload<bf16>(RandomNumbers(elements, 3)), *out = Upload<bf16>(RandomNumbers(elements, 4));
  auto* mask = Upload<typename C::Mask>(mask_bytes);
  const bool adds = C::kMasked && sizeof(typename C::Mask) == 2;
  const float scale = (adds ? 1.0f : 1.4426950408889634f) / std::sqrt(float(C::kKeyDim));
  const int blocks = C::kHopper ? C::kBlocks : batch * kHeads * ((length + 127) / 128);
  const size_t rows = elements / C::kKeyDim;
  const llmc::TileMap k_map = MapTiles(k, rows, C::kKeyDim), v_map = MapTiles(v, rows, C::kKeyDim);
  const auto launch = [&] {
    Kernel<C><<<blocks, C::kThreads, C::kSharedBytes>>>(out, q, k, v, mask, batch, length, scale, k_map, v_map);
  };
  Check(cudaFuncSetAttribute(Kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes));
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) launch();
  Check(cudaEventRecord(begin));
  for (int i = 0; i < runs; ++i) launch();
  Check(cudaEventRecord(end));
  Check(cudaEventSynchronize(end));
  float ms = 0;
  Check(cudaEventElapsedTime(&ms, begin, end));
  ms /= float(runs);
  const double operations = 4.0 * batch * kHeads * double(scores) * C::kKeyDim * (C::kCausal ? 0.5 : 1);
  std::printf("{\"form\": \"%s\", \"mask\": \"%s\", \"head\": %d, \"batch\": %d, \"length\": %d, ", form, mask_name,
              C::kKeyDim, batch, length);
  std::printf("\"ms\": %.4f, \"tflops\": %.1f}\n", ms, operations / ms * 1e-9);
  for (void* p : {static_cast<void*>(q), static_cast<void*>(k), static_cast<void*>(v), static_cast<void*>(out),
                  static_cast<void*>(mask)}) {
    Check(cudaFree(p));
  }
}

template <int kDim, bool kWarpgroups>
void TimeMasks(int batch, int length, int runs) {
  const char* form = kWarpgroups ? "wgmma" : "mma.sync";
  Time<Config<0, false, kDim, kWarpgroups>>(form, "none", batch, length, runs);
  Time<Config<0, true, kDim, kWarpgroups>>(form, "causal", batch, length, runs);
  Time<Config<1, false, kDim, kWarpgroups>>(form, "of booleans", batch, length, runs);
  Time<Config<2, false, kDim, kWarpgroups>>(form, "added", batch, length, runs);
}

}  // namespace

int main(int arguments, char**) {
  if (arguments > 1) {
    TimeMasks<64, true>(1, 200, 1);
    TimeMasks<128, true>(1, 200, 1);
    TimeMasks<64, false>(1, 130, 1);
    return 0;
  }
  for (const auto& [batch, length] : {std::pair{8, 512}, {4, 2048}, {1, 8192}}) {
    TimeMasks<64, true>(batch, length, 20);
    TimeMasks<128, true>(batch, length, 20);
  }
  TimeMasks<64, false>(4, 2048, 20);
  TimeMasks<128, false>(4, 2048, 20);
}
