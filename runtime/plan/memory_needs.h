// What a device plan takes of the memory of a target's GPU, known before anything is loaded: what `llmc fit` prints is
// what the runtime goes by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/device_choice.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/target_code.h"

namespace llmc {

// In bytes, but for sizes of the KV cache.
struct MemoryNeeds {
  int64_t weights = 0;          // that steps read
  int64_t passing_weights = 0;  // at load, of weights that only `prepare` reads, and of what it makes for itself
  int64_t prepared = 0;         // made at load, such as merged weights
  int64_t constants = 0;
  int64_t arena = 0;       // activations, inputs and outputs of the widest step; without plans that plan each run
  int64_t run_arena = 0;   // of these: what a run at the bounds takes for itself; negative if that is not known
  int64_t persistent = 0;  // what kernels keep from one launch to the next
  int64_t counts = 0;      // of tokens, of sequences that sample with penalties
  int64_t workspace = 0;   // of library products
  int64_t code = 0;        // of kernels: an estimate
  int64_t graphs = 0;      // all that can be captured: an estimate
  // Of the KV cache; nothing for models without one.
  struct Pool {
    std::string dim;        // that counts its pages
    int64_t page = 0;       // of one page in all of its states
    int64_t page_size = 0;  // tokens
    int64_t window = 0;     // as in PoolLimits
    int64_t max_pages = 0;  // that it needs at most, at the bounds of a step
  };
  std::vector<Pool> pools;
  int64_t page_size = 0;      // tokens of the largest page, in which sizes of a cache are counted
  int64_t max_pages = 0;      // at the bounds of their dims, and such that slots are 32-bit numbers
  int64_t max_context = 0;    // tokens of a sequence
  int64_t max_sequences = 0;  // in a step

  // The size of a cache is its largest pages of each layer, or smaller ones that hold as many tokens; layers with a
  // window may need fewer.
  int64_t PagesOf(const Pool& pool, int64_t pages) const {
    const int64_t each = page_size / pool.page_size;
    return pages > pool.max_pages / each ? pool.max_pages : pages * each;
  }
  int64_t CacheBytes(int64_t pages) const;
  // The size of the cache that so many sequences of `context` tokens need, and how many have room in one.
  int64_t PagesOfSequences(int64_t sequences, int64_t context) const;
  int64_t SequencesIn(int64_t pages, int64_t context) const;
  int64_t SmallestPage() const;  // tokens
  // After loading, without the KV cache.
  int64_t Fixed() const {
    return weights + prepared + constants + arena + persistent + counts + workspace + code + graphs;
  }
  // While `prepare` runs, before the arena is there.
  int64_t Loading() const { return weights + passing_weights + prepared + constants + persistent + workspace; }
};

// InvalidArgument: a size in the plan is none.
absl::StatusOr<MemoryNeeds> MemoryNeedsOf(const TargetCode& code);

// Steps that a device is given before it has ended the first of them.
inline constexpr int64_t kDeviceStepsInFlight = 2;

// The largest sizes that the program runs with.
StepDims BoundsOf(const plan::Program& program);

// A GPU's memory before loading, in bytes, and the part of all of it that a plan may take.
struct GpuMemory {
  int64_t total = 0;
  int64_t free = 0;
  double fraction = kDefaultMemoryFraction;
};

// What a plan may take: total * fraction, whatever other programs take, but no more than what is free less a reserve,
// since allocations are rounded up and libraries take some.
int64_t UsableBytes(const GpuMemory& memory);

// Pages of the KV cache that there is room for beside everything else.
int64_t PagesThatFit(const MemoryNeeds& needs, const GpuMemory& memory);

// ResourceExhausted, naming what needs what, unless a cache of `pages` pages and everything else fits.
absl::Status CheckFits(const MemoryNeeds& needs, int64_t pages, const GpuMemory& memory);

// "13.96 GiB"
std::string BytesText(int64_t bytes);

}  // namespace llmc
