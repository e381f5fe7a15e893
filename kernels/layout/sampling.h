// The arithmetic of sampling, which gives the same tokens on the host and on the device, and the memory that the
// device's kernels share.
#pragma once
#include "kernels/layout/base.h"

namespace llmc {

// ---- arithmetic ---------------------------------------------------------------------------------------------------
// A token's weight is exp((logit - largest) / temperature) as an integer, kWeightBits for the likeliest: no sum depends
// on the order of its terms. Only operations that IEEE 754 defines: `fused(a, b, c)` is a * b + c, rounded once.
constexpr int kWeightBits = 40;

// 2^-x in units of 2^-kWeightBits, rounded down.
template <class Fused>
LLMC_HOST_DEVICE inline u64 TokenWeight(float x, Fused fused) {
  if (x > static_cast<float>(kWeightBits)) return 0;
  const int whole = static_cast<int>(x);
  const float f = x - static_cast<float>(whole);
  float p = 0.000114980925f;
  p = fused(p, f, -0.00129179028f);
  p = fused(p, f, 0.00959717017f);
  p = fused(p, f, -0.055499278f);
  p = fused(p, f, 0.240226105f);
  p = fused(p, f, -0.693147182f);
  p = fused(p, f, 1.0f);
  return (static_cast<u64>(p * 0x1p24f) << (kWeightBits - 24)) >> whole;
}

// ---- memory of the kernels ----------------------------------------------------------------------------------------
constexpr int kSampleThreads = 512;
constexpr int kSampleSlice = 8 * kSampleThreads;  // tokens of a row that a block treats
constexpr int kSampleBins = 256;                  // of the histogram of a row's logits
constexpr int kSampleCandidates = 4096;           // tokens in the bins of borders that are sorted

// What the blocks of one draw tell each other. Zero at first; tickets and num_candidates are left zero.
template <int kSlices>
struct SampleWork {
  u64 best[kSlices];  // the largest key
  u64 slice_weights[kSlices];
  u64 bin_weights[kSlices][kSampleBins];
  u64 candidates[kSampleCandidates];
  u64 base_weight, total;  // of bins before `first`, and of all
  u32 bin_counts[kSlices][kSampleBins];
  float smallest[kSlices];  // finite logit
  u32 tickets[3];
  u32 num_candidates;
  u32 first, last;        // bins that hold borders; first > last: all tokens are kept
  u32 base_count, count;  // tokens in bins before `first`, and in all
};

LLMC_HOST_DEVICE constexpr i64 SampleSlices(i64 vocabulary) { return CeilDiv(vocabulary, kSampleSlice); }

// sizeof(SampleWork<slices>).
LLMC_HOST_DEVICE constexpr i64 SampleWorkBytes(i64 slices) {
  const i64 bytes = slices * (8 + 8 + kSampleBins * (8 + 4) + 4) + kSampleCandidates * 8 + 2 * 8 + 8 * 4;
  return CeilDiv(bytes, 8) * 8;
}
static_assert(SampleWorkBytes(1) == sizeof(SampleWork<1>) && SampleWorkBytes(32) == sizeof(SampleWork<32>),
              "SampleWorkBytes adds up SampleWork");

}  // namespace llmc
