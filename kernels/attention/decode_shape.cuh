// The sizes of paged_attention_decode.cuh, which says what C has.
#pragma once
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/cached_codes.cuh"
#include "kernels/common/context.cuh"

namespace llmc {

template <class C>
constexpr DecodeLayout DecodeLayoutOf() {
  if constexpr (kIsEncoded<C>) {
    return {C::kGroup * C::kTokens,
            C::kHeadDim,
            sizeof(typename C::T),
            C::kTile,
            C::kStages,
            CodeFormat<typename C::KvCode>::kBits,
            C::kHeadDim / C::kKvGroup};
  } else {
    return {C::kGroup * C::kTokens, C::kHeadDim, sizeof(typename C::T), C::kTile, C::kStages};
  }
}

template <class C>
struct DecodeShape {
  using T = typename C::T;
  static constexpr DecodeLayout kLayout = DecodeLayoutOf<C>();
  static constexpr int kRows = kLayout.rows;  // of queries: token after token, in it head after head
  static constexpr int kDim = kLayout.Dim();
  static constexpr int kVec = 16 / sizeof(T);
  static constexpr int kChunks = kDim / kVec;                 // of 16 bytes in a row
  static constexpr int kPartBytes = kLayout.TileBytes();      // keys; as many values follow
  static constexpr int kStrideBytes = kPartBytes / C::kTile;  // an odd number of chunks: see attention_tile.cuh
  static constexpr int kPart = kPartBytes / static_cast<int>(sizeof(T)),
                       kStride = kStrideBytes / static_cast<int>(sizeof(T));
  static constexpr int kAhead = C::kStages > 1 ? C::kStages - 1 : 1;  // copies of a warp before it reads the first
  static constexpr int kVectors = kLayout.Vectors();
  static constexpr int kSums = kLayout.SumFloats();  // see DecodeSums
  static constexpr int kWarps = kLayout.Warps(C::kThreads / 32, kMaxSharedBytes);
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kTeams = kLayout.Teams(kWarps);  // that merge
  static constexpr int kRingBytes = kWarps * kLayout.RingBytes();
  static constexpr int kSharedBytes = kLayout.SharedBytes(kWarps);

  static_assert(kRows <= kMaxDecodeRows, "the query heads of a group are the rows of one matrix: 16 at the most");
  static_assert(C::kTile == 16 || (C::kTile == 32 && sizeof(T) == 2), "a lane looks up a position; see DecodeTile32");
  static_assert(kIsEncoded<C> || C::kHeadDim % kVec == 0, "rows are copied in chunks of 16 bytes");
  static_assert(C::kHeadDim <= kMaxHeadDim, "sums lie in registers");
  static_assert(C::kStages >= 1, "tiles are copied to shared memory");
  static_assert(C::kBlocks * 4 <= kCounterBytes, "each block has a counter");
  static_assert(C::kSharedBytes >= kSharedBytes && kMaxSharedBytes >= kSharedBytes,
                "codegen reserves the memory that is used here");
};

}  // namespace llmc
