// A ring of stages in shared memory: one thread, or one warp, fills them, and other warps read them. Those who fill and
// those who read go from stage to stage in the same order, each with a ring of their own over the same barriers.
#pragma once
#include "kernels/common/bulk_copy.cuh"

#if LLMC_SM90
namespace llmc {

// A place in a ring, of those who fill it or of those who read it.
template <int kStages>
struct RingPlace {
  int slot = 0;
  u32 parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// What a multiprocessor copies of weights at a time before x is there: what it reads of x then waits behind it.
constexpr int kMostAheadBytes = 36 * 1024;

// So who fills a ring with weights waits in its first round, before each stage, until all but the last few are there.
// kBytes: of such few stages of kStageBytes.
template <int kStageBytes, int kBytes>
struct RingStart {
  static constexpr int kAhead = kBytes < kStageBytes ? 1 : kBytes / kStageBytes;
  bool is_first_round = true;
  __device__ __forceinline__ void WaitForOthers(u64* full, int slot, int stages) {
    if (is_first_round && slot >= kAhead) WaitAt(&full[slot - kAhead], 0);
    if (slot + 1 == stages) is_first_round = false;
  }
};

// What is waited for in a persistent launch: each has a device error, in this order.
enum class RunWait { kBlocks, kNumbers, kStage, kRoom, kCopies };

struct EndlessWait {
  __device__ __forceinline__ void operator()(u64* barrier, u32 parity, RunWait) const { WaitAt(barrier, parity); }
};

// kInFlight: the most parts that are copied at a time.  kParts: of a stage, each of which is there by itself.  Wait:
// waits for the end of a phase.
template <int kStages_, int kStageBytes_, int kInFlight_, int kParts_ = 1, class Wait = EndlessWait>
struct StageRing {
  static constexpr int kStages = kStages_, kStageBytes = kStageBytes_, kInFlight = kInFlight_, kParts = kParts_;
  char* stages;
  u64* full;   // of each part of each stage: ends a phase when it is there
  u64* empty;  // of each stage: ends a phase when it has been read
  Wait wait = {};
  int slot = 0, round = 0;

  __device__ __forceinline__ char* Stage() const { return stages + slot * kStageBytes; }
  __device__ __forceinline__ u64* Full(int part = 0) const { return &full[slot * kParts + part]; }
  __device__ __forceinline__ void Next() {
    if (++slot == kStages) {
      slot = 0;
      ++round;
    }
  }

  // Who fills the stage waits until what was there has been read.
  __device__ __forceinline__ void WaitForRoom() const {
    if (round > 0) wait(&empty[slot], (round - 1) & 1, RunWait::kRoom);
  }
  // And before a part, until all parts are there but the kMost before it: more copies at once make memory slower for
  // all others.
  template <int kMost = kInFlight>
  __device__ __forceinline__ void WaitForOthers(int part = 0) const {
    constexpr int kAll = kStages * kParts;
    if constexpr (kMost < kAll) {
      const int at = slot * kParts + part;
      const bool wraps = at < kMost;
      if (wraps && round == 0) return;
      wait(&full[wraps ? at + kAll - kMost : at - kMost], (round - (wraps ? 1 : 0)) & 1, RunWait::kCopies);
    }
  }

  __device__ __forceinline__ void WaitForStage() const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) wait(Full(part), round & 1, RunWait::kStage);
  }
  // By one lane of each warp that reads, when all of its lanes have.
  __device__ __forceinline__ void Release() const { ArriveAt(&empty[slot]); }
};

}  // namespace llmc
#endif
