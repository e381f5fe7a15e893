// Keys and values of a cache that is encoded, decoded once for all blocks of paged_attention_prefill.cuh that read
// them: with 128 rows of queries a block, a prompt's keys are read many times. They lie in scratch memory of
// C::kDecodedRows rows for each KV head, each a key and then a value of kHeadDim elements.
//
// Of the sequences with chunks, the last ones of the step are decoded, as many as there is room for; attention reads
// the codes of the others, with the same results.
#pragma once
#include "kernels/attention/cached_pairs.cuh"
#include "kernels/attention/paged_kv.cuh"
#include "kernels/common/context.cuh"

namespace llmc {

// 0 where nothing is decoded.
template <class C, class = void>
inline constexpr int kDecodedRows = 0;
template <class C>
inline constexpr int kDecodedRows<C, Void<decltype(C::kDecodedRows)>> = C::kDecodedRows;

// Where decoded rows of sequences begin, of 32 sequences after the other, from the last to the first. Rows are of the
// positions that any token of the step sees. C::kTokens: sequences of so few tokens have no chunk.
template <class C>
struct DecodedSequences {
  const i32* __restrict__ starts;
  const i32* __restrict__ lens;
  i32 taken = 0;  // rows of the sequences before these

  // Of the lane's sequence.
  i32 begin = 0, rows = 0;
  i32 position = 0;  // of its first row

  // All lanes of a warp together; a negative sequence does not exist.
  __device__ __forceinline__ void Enter(i32 sequence) {
    rows = 0;
    if (sequence >= 0) {
      const i32 tokens = starts[sequence + 1] - starts[sequence], length = lens[sequence];
      position = FirstSeen<C>(length - tokens);
      if (tokens > C::kTokens) rows = length - position;
    }
    const i32 through = taken + WarpSumThrough(rows);
    begin = through - rows;
    taken = __shfl_sync(~0u, through, 31);
  }
  __device__ __forceinline__ bool AreDecoded() const { return rows > 0 && begin + rows <= kDecodedRows<C>; }
};

// Row `row` of a head, of those decoded.
template <class C>
__device__ __forceinline__ i64 DecodedRow(int head, i32 row) {
  return (static_cast<i64>(head) * kDecodedRows<C> + row) * (2 * C::kHeadDim);
}

// A piece of the work: up to kDecodedAtOnce neighbouring positions of a sequence, one KV head.
constexpr int kDecodedAtOnce = 16;
struct DecodedPiece {
  i32 sequence, position, row, rows;
};

// Piece number `index` of the step; false if there are not so many. All lanes of a warp together.
template <class C>
__device__ __forceinline__ bool FindDecodedPiece(const i32* starts, const i32* lens, i32 sequences, i32 index,
                                                 DecodedPiece* found) {
  DecodedSequences<C> all = {starts, lens};
  i32 before = 0;
  for (i32 base = 0; base < sequences; base += 32) {
    const i32 sequence = sequences - 1 - (base + static_cast<i32>(threadIdx.x % 32));
    all.Enter(sequence);
    const i32 pieces = all.AreDecoded() ? (all.rows + kDecodedAtOnce - 1) / kDecodedAtOnce : 0;
    const i32 through = before + WarpSumThrough(pieces);
    const u32 past = __ballot_sync(~0u, through > index);
    if (past != 0) {
      const i32 lane = __ffs(static_cast<i32>(past)) - 1;
      const i32 first = (index - __shfl_sync(~0u, through - pieces, lane)) * kDecodedAtOnce;
      found->sequence = __shfl_sync(~0u, sequence, lane);
      found->position = __shfl_sync(~0u, all.position, lane) + first;
      found->row = __shfl_sync(~0u, all.begin, lane) + first;
      found->rows = min(__shfl_sync(~0u, all.rows, lane) - first, kDecodedAtOnce);
      return true;
    }
    before = __shfl_sync(~0u, through, 31);
  }
  return false;
}

// Decodes what attention of the step reads decoded. C: as of paged_attention_prefill.cuh over codes.
template <class C, class Context>
__device__ __forceinline__ void DecodeCachedRows(const Context& context, typename C::T* __restrict__ out, const u8* kv,
                                                 const i32* __restrict__ pages, const i32* __restrict__ lens,
                                                 const i32* __restrict__ starts, i64 sequences, i64 pages_per_sequence,
                                                 const StaticScales& static_scales = {}) {
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kHeadDim % 8 == 0 && kDecodedRows<C> > 0, "kHeadDim, kDecodedRows: chunks of 8 elements of rows");
  constexpr int kChunks = C::kHeadDim / 8, kOfPart = kDecodedAtOnce * kChunks;
  constexpr int kTurns = (2 * kOfPart + C::kThreads - 1) / C::kThreads;
  context.Wait();
  DecodedPiece piece;
  for (i32 index = context.TileX();
       FindDecodedPiece<C>(starts, lens, static_cast<i32>(sequences), index / C::kKvHeads, &piece);
       index += context.TilesX()) {
    const i32* const table = pages + piece.sequence * pages_per_sequence;
    const int head = index % C::kKvHeads;
    CachedChunk<C> chunks[kTurns];  // all on their way before the first is decoded
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int at = min(static_cast<int>(threadIdx.x) + i * C::kThreads, 2 * kOfPart - 1);
      const i32 slot = SlotOf<C>(table, piece.position + min(at % kOfPart / kChunks, piece.rows - 1));
      chunks[i].Load(kv, static_cast<u32>(slot), at / kOfPart, head, at % kChunks * 8, static_scales);
    }
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * C::kThreads, row = at % kOfPart / kChunks;
      if (at >= 2 * kOfPart || row >= piece.rows) continue;
      Vec<u32, 4> numbers;
      chunks[i].Decode(numbers.v);
      typename C::T* const to =
          out + DecodedRow<C>(head, piece.row + row) + at / kOfPart * C::kHeadDim + at % kChunks * 8;
      Store(reinterpret_cast<u32*>(to), numbers);
    }
  }
}

}  // namespace llmc
