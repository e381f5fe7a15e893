// How gemv.cuh fills its ring of stages: one thread copies rows of a weight, and of x where x comes with them; a warp
// copies scales and zero points.
#pragma once
#include "kernels/common/stage_ring.cuh"
#include "kernels/linear/gemv_prologue.cuh"

namespace llmc {

// The next launch may begin with so many stages to be copied: its copies are to fill memory when those of this one end.
// Earlier ones would make this one slower, and leave nothing to copy while x is waited for.
constexpr int kLastStages = 2;

#if LLMC_SM90
// A copy of kBytes from anywhere: it begins and ends at multiples of 16, as bulk copies must.
template <bool kAligned, int kBytes>
struct AlignedCopy {
  const char* from;
  int bytes = kBytes;

  __device__ __forceinline__ explicit AlignedCopy(const void* start) : from(static_cast<const char*>(start)) {
    if constexpr (!kAligned) {
      const auto before = static_cast<int>(reinterpret_cast<u64>(start) % 16);
      from -= before;
      bytes = (before + kBytes + 15) / 16 * 16;
    }
  }
};

// The columns of the result that a block makes.
struct GemvColumns {
  int first, count;

  template <class C>
  static __device__ __forceinline__ GemvColumns Of(u32 tile) {
    const int first = static_cast<int>(tile) * C::kRows;
    return {first, C::kOut - first < C::kRows ? C::kOut - first : C::kRows};
  }
};

// What the copying thread does. Its addresses depend on no thread's number, so that they are in uniform registers,
// where copies need them.
// Over 60 lines: one loop over stages, and the addresses that it keeps.
template <class C, class S, class Epilogue, class Context, class Ring>
__device__ __forceinline__ void StreamWeights(const Context& context, Ring& ring, const StoredX<C>* x,
                                              const Weight<C>& weight, const GemvColumns& columns, i64 tokens) {
  static_assert(!C::kXInRing || kRoleOf<Context> == Role::kAll, "x in the ring: in a launch of its own");
  static_assert(S::kTileOut % Ring::kParts == 0, "parts of as many rows");
  constexpr int kRowBytes = static_cast<int>(S::kLayout.RowBytes()), kXBytes = S::kChunk * S::kSize;
  constexpr bool kAligned = S::kLayout.IsAligned();
  constexpr int kHalves = Epilogue::kPaired ? 2 : 1;
  const auto copy_x = [&](int chunk, int slot) {
#pragma unroll 1
    for (int token = 0; token < tokens; ++token) {
      BulkCopy(ring.stages + slot * Ring::kStageBytes + S::kLayout.XAt() + token * S::kStride * S::kSize,
               x + static_cast<i64>(token) * C::kIn + chunk * S::kChunk, kXBytes, &ring.full[slot]);
    }
  };
  const int stages = (columns.count + S::kTileOut - 1) / S::kTileOut * S::kChunks;
  const int filled = stages < Ring::kStages ? stages : Ring::kStages;
  const int last = stages > kLastStages ? stages - kLastStages : 0;
  // In parts of stages: what is under way at a time when x is there, and before.
  constexpr int kInFlight = Ring::kParts == 1 ? C::kInFlight : Ring::kInFlight;
  // As many whole ones as come near it; twice as many of codes of 8 bits where the row of x comes in parts, of which
  // the first is short.
  constexpr bool kOfBytes = Weight<C>::kBits == 8 && Weight<C>::kBlockColumns == 0;
  constexpr int kTimes = kTakesParts<Context, C, S> && kOfBytes ? 2 : 1;
  constexpr int kAheadBytes = (kMostAheadBytes + kMostAheadBytes / 9) * kTimes;
  constexpr int kAheadParts = kAheadBytes * Ring::kParts / S::kStageBytes;
  constexpr int kAhead = kAheadParts < 1 ? 1 : kAheadParts < kInFlight ? kAheadParts : kInFlight;
  const auto has_x = [&](int stage) {
    if constexpr (kRoleOf<Context> == Role::kAll) {
      return stage >= filled;  // there is room again, so that x was multiplied
    } else {
      return context.HasInput();
    }
  };
  int column = 0, chunk = 0;
  // With scales or zero points beside the weight launches have not been timed so.
  constexpr bool kLeavesFirst = kRoleOf<Context> != Role::kAll || !S::kHasParts;
  const u64 policy = kLeavesFirst ? EvictFirst() : 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    ring.WaitForRoom();
    if constexpr (kRoleOf<Context> == Role::kAll) {
      if (stage == last) context.LaunchNext();
    }
    const int left = columns.count - column, rows = left < S::kTileOut ? left : S::kTileOut;
    const auto copy_of = [&](int row, int half) {
      return AlignedCopy<kAligned, kRowBytes>(
          weight.Row(Epilogue::Row(columns.first + column + row, half), chunk * S::kChunk, C::kIn));
    };
    char* const to = ring.Stage();
#pragma unroll 1
    for (int part = 0; part < Ring::kParts; ++part) {
      constexpr int kEach = S::kTileOut / Ring::kParts;
      const int first = part * kEach, end = first + kEach < rows ? first + kEach : rows;
      // The blocks of this and of other kernels wait for each other's copies. The first stages wait for x behind them.
      if (has_x(stage)) {
        ring.template WaitForOthers<kInFlight>(part);
      } else if constexpr (!C::kXInRing) {
        ring.template WaitForOthers<kAhead>(part);
      }
      int bytes = C::kXInRing ? static_cast<int>(tokens) * kXBytes : 0;
      if (kAligned && first < end) bytes += kHalves * (end - first) * kRowBytes;
#pragma unroll 1
      for (int i = kHalves * first; !kAligned && i < kHalves * end; ++i)
        bytes += copy_of(i / kHalves, i % kHalves).bytes;
      ArriveExpecting(ring.Full(part), bytes);
#pragma unroll 1
      for (int row = first; row < end; ++row) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          const auto copy = copy_of(row, half);
          char* const row_to = to + (half * S::kTileOut + row) * S::kWeightStrideBytes;
          if constexpr (kLeavesFirst) {
            BulkCopy(row_to, copy.from, copy.bytes, ring.Full(part), policy);
          } else {
            BulkCopy(row_to, copy.from, copy.bytes, ring.Full(part));
          }
        }
      }
    }
    if constexpr (C::kXInRing) {
      if (stage == filled - 1) {
        context.Wait();
        for (int i = 0; i < filled; ++i) copy_x(i % S::kChunks, i);
      } else if (stage >= filled) {
        copy_x(chunk, ring.slot);
      }
    }
    ring.Next();
    if (++chunk == S::kChunks) {
      chunk = 0;
      column += S::kTileOut;
    }
  }
}

// What the second copying warp does: the scales (or the zero points) of a stage, whose pieces are too small and not
// aligned enough for bulk copies, and so have no policy.
// kIsTask: of a persistent launch, which has more code than a multiprocessor keeps, so that its loop is not unrolled.
template <class C, class S, class Epilogue, bool kZeros, bool kIsTask>
__device__ __forceinline__ void CopyParts(char* stage, const Weight<C>& weight, int column, int rows, int chunk) {
  constexpr int kBits = kZeros ? Weight<C>::kZeroBits : Weight<C>::kScaleBits;
  if constexpr (kBits > 0) {
    constexpr int kBytes = static_cast<int>(S::kLayout.PartCopy(kBits));
    constexpr int kPieces = static_cast<int>(S::kLayout.PartBytes(kBits)) / kBytes;
    char* const to = stage + (kZeros ? S::kLayout.ZeroAt() : S::kLayout.ScaleAt());
#pragma unroll(kIsTask ? 1 : 2)
    for (int at = threadIdx.x % 32; at < S::kTile * kPieces; at += 32) {
      const int row = at / kPieces, byte = at % kPieces * kBytes, own = row % S::kTileOut;
      if (own >= rows) continue;
      const char* from = weight.Part(Epilogue::Row(column + own, row / S::kTileOut), chunk * S::kChunk, C::kIn, kZeros);
      const u32 at_stage = SharedAddress(to + row * S::kLayout.PartStride(kBits) + byte);
      CopyAsyncBytes<kBytes>(at_stage, from + byte);
    }
  }
}

template <class C, class S, class Epilogue, bool kIsTask, class Ring>
__device__ __forceinline__ void StreamParts(Ring& ring, const Weight<C>& weight, const GemvColumns& columns) {
#pragma unroll 1
  for (int column = 0; column < columns.count; column += S::kTileOut) {
    const int left = columns.count - column, rows = left < S::kTileOut ? left : S::kTileOut;
#pragma unroll 1
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
      ring.WaitForRoom();
      CopyParts<C, S, Epilogue, false, kIsTask>(ring.Stage(), weight, columns.first + column, rows, chunk);
      CopyParts<C, S, Epilogue, true, kIsTask>(ring.Stage(), weight, columns.first + column, rows, chunk);
      ArriveWithCopies(ring.Full());
      ring.Next();
    }
  }
}
#endif

}  // namespace llmc
