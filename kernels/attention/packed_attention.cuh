// Attention within each of several texts that lie one after the other: those of text s are rows starts[s] to
// starts[s + 1] of q[T, kKvHeads * kGroup * kKeyDim], k[T, kKvHeads * kKeyDim] and v[T, kKvHeads * kValueDim]. On
// tensor cores (flash_attention_blocks.cuh), or of any type and size. Starts that are not in order from 0 to T are a
// device error; nothing is read or written then that is not there. On tensor cores the heads of a row of q, k or v lie
// one after the other, and rows anywhere.
//
// C::T: element type; on tensor cores 16 bits.  C::kKvHeads, C::kGroup: KV heads, and query heads of each.
// C::kKeyDim, C::kValueDim: elements of a key, of a value.  C::kWindow: how far away a token sees, 0: everywhere.
// C::kCausal: whether none sees a later one.  C::kSoftcap: whether scores are capped.
// On tensor cores also the rest of flash_attention_blocks.cuh, and C::kBlocks: blocks of the grid, which share the
// tiles; 0: one for each.
#pragma once
#include "kernels/attention/flash_attention_blocks.cuh"
#include "kernels/attention/paged_attention_prefill.cuh"
#include "kernels/common/device_error.cuh"
#include "kernels/common/strided_rows.cuh"
#include "kernels/elementwise/reduce.cuh"

namespace llmc {

// A text: its rows, and what token `own` of it sees.
template <class C>
struct PackedText {
  i32 begin, tokens;

  __device__ __forceinline__ PackedText() = default;
  __device__ __forceinline__ PackedText(const i32* starts, i32 text, i32 all) {
    begin = min(max(starts[text], 0), all);
    tokens = max(min(starts[text + 1], all) - begin, 0);
  }
  __device__ __forceinline__ i32 First(i32 own) const { return C::kWindow > 0 ? max(own - C::kWindow, 0) : 0; }
  __device__ __forceinline__ i32 Last(i32 own) const {
    if (C::kCausal) return own;
    return C::kWindow > 0 ? min(own + C::kWindow, tokens - 1) : tokens - 1;
  }
};

// By one block of the grid.
template <class C, class Context>
__device__ __forceinline__ void CheckStarts(const Context& context, const i32* starts, i32 texts, i32 tokens,
                                            const DeviceErrorSite& disorder) {
  if (context.TileX() != 0) return;
  if (texts <= 0 && threadIdx.x == 0 && (texts < 0 || tokens > 0 || starts[0] != 0)) disorder.Raise(tokens);
  for (i32 text = threadIdx.x; text < texts; text += C::kThreads) {
    const bool right = starts[text] <= starts[text + 1] && (text > 0 || starts[0] == 0) &&
                       (text < texts - 1 || starts[texts] == tokens);
    if (!right) disorder.Raise(tokens);
  }
}

// The rows of a tile, for FlashAttention: tokens, in each the query heads that share the KV head.
template <class C, int kRows>
struct PackedSource {
  using T = typename C::T;
  static constexpr int kKeyDim = C::kKeyDim, kValueDim = C::kValueDim;
  static constexpr bool kAdds = false;
  struct Row {
    i32 first, last;  // tokens of the text that it sees
  };
  struct Pair {};

  T* out;  // of the text and the first head; q, k and v, too
  const T* q;
  const T* k;
  const T* v;
  i64 q_of_row, k_of_row, v_of_row;  // strides
  PackedText<C> text;
  i32 first_row;
  i32 first_key, end_key;

  __device__ __forceinline__ bool Has(i32 at) const { return at < text.tokens * C::kGroup; }
  __device__ __forceinline__ const T* Query(int row) const {
    const i32 at = first_row + row;
    return Has(at) ? q + at / C::kGroup * q_of_row + at % C::kGroup * kKeyDim : nullptr;
  }
  __device__ __forceinline__ T* Out(int row) const {
    const i32 at = first_row + row;
    if (!Has(at)) return nullptr;
    return out + (static_cast<i64>(at / C::kGroup) * (C::kKvHeads * C::kGroup) + at % C::kGroup) * kValueDim;
  }
  __device__ __forceinline__ i32 OffsetOf(i32 key) const { return key; }
  __device__ __forceinline__ const T* Key(i32 offset) const { return k + offset * k_of_row; }
  __device__ __forceinline__ const T* Value(i32 offset) const { return v + offset * v_of_row; }
  // Rows that do not exist are as the last.
  __device__ __forceinline__ Row RowOf(int row) const {
    const i32 own = min((first_row + row) / C::kGroup, text.tokens - 1);
    return {text.First(own), text.Last(own)};
  }
  __device__ __forceinline__ bool Hides(i32 begin, i32 end) const {
    return end - 1 > RowOf(0).last || (C::kWindow > 0 && begin < RowOf(kRows - 1).first);
  }
  __device__ __forceinline__ bool Sees(const Row& row, i32 key) const { return key <= row.last && key >= row.first; }
  template <int kPairs>
  __device__ __forceinline__ void Load(const Row&, i32, MaskPairs<Pair, kPairs>*) const {}
  __device__ __forceinline__ float Join(Pair, int, float score) const { return score; }
  __device__ __forceinline__ float Inverse(int, float, float sum) const { return sum > 0 ? 1 / sum : 0.0f; }
};

// The tiles of a block.
template <class C>
struct PackedWork {
  static constexpr int kRows = FlashShape<C, (C::kKeyDim > C::kValueDim ? C::kKeyDim : C::kValueDim)>::kRows;
  using T = typename C::T;
  using Source = PackedSource<C, kRows>;
  struct Tiles : C {
    static constexpr int kTokens = 0;  // no text is left alone
  };

  T* out;
  const StridedRows<const T>& q;
  const StridedRows<const T>& k;
  const StridedRows<const T>& v;
  const i32* starts;
  i32 tokens, texts;

  // Every other time blocks take tiles in opposite order, so that each gets about as much to do.
  template <class Context>
  __device__ __forceinline__ bool Get(const Context& context, i32 turn, Source* source) const {
    const i32 block = context.TileX(), blocks = context.TilesX();
    if (C::kBlocks == 0 && turn > 0) return false;
    const i32 index = turn * blocks + (turn % 2 == 0 ? block : blocks - 1 - block), head = index % C::kKvHeads;
    // Starts that are in order have no more tiles than that.
    if (index / C::kKvHeads >= tokens * C::kGroup / kRows + texts) return false;
    PrefillTile at;
    ChunkedSequences<Tiles> all = {starts};
    if (!FindPrefillTile<Tiles, kRows>(all, texts, index / C::kKvHeads, &at)) return false;
    const PackedText<C> text(starts, at.sequence, tokens);
    const i64 first_head = static_cast<i64>(text.begin) * C::kKvHeads + head;
    source->out = out + first_head * C::kGroup * C::kValueDim;
    source->q = q.At(text.begin, head * C::kGroup);
    source->k = k.At(text.begin, head);
    source->v = v.At(text.begin, head);
    source->q_of_row = q.row;
    source->k_of_row = k.row;
    source->v_of_row = v.row;
    source->text = text;
    source->first_row = at.tile * kRows;
    const bool is_there = at.tile >= 0 && source->first_row < text.tokens * C::kGroup;
    if (!is_there) source->text.tokens = source->first_row = 0;
    source->first_key = is_there ? source->RowOf(0).first : 0;
    source->end_key = is_there ? source->RowOf(kRows - 1).last + 1 : 0;
    return true;
  }
};

// `scale_of_op`: the attention's scale, times log2(e) if scores are not capped.
template <class C, class Context>
__device__ __forceinline__ void PackedAttentionTiles(const Context& context, typename C::T* out,
                                                     const StridedRows<const typename C::T>& q,
                                                     const StridedRows<const typename C::T>& k,
                                                     const StridedRows<const typename C::T>& v, const i32* starts,
                                                     i64 tokens, i64 texts, float scale_of_op, float softcap,
                                                     const DeviceErrorSite& disorder) {
  using Work = PackedWork<C>;
  static_assert(C::kKvHeads > 0 && C::kGroup > 0, "kKvHeads, kGroup: heads");
  context.Wait();
  CheckStarts<C>(context, starts, static_cast<i32>(texts), static_cast<i32>(tokens), disorder);
  const Work work = {out, q, k, v, starts, static_cast<i32>(tokens), static_cast<i32>(texts)};
  FlashAttentionBlocks<C>(context, work, ScoreScale<C::kSoftcap, false>(scale_of_op, softcap));
}

// The text of a token: the last that begins at it or before, found in halves.
__device__ __forceinline__ i32 TextOf(const i32* starts, i32 texts, i32 token) {
  i32 low = 0, high = texts - 1;
  while (low < high) {
    const i32 middle = (low + high + 1) / 2;
    if (starts[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// A warp has a token and a query head: a lane scores one of 32 keys, then sums its columns of the values.
// Over 60 lines: one loop over keys, and what it keeps in registers.
template <class C, class Context>
__device__ __forceinline__ void PackedAttention(const Context& context, typename C::T* __restrict__ out,
                                                const typename C::T* __restrict__ q,
                                                const typename C::T* __restrict__ k,
                                                const typename C::T* __restrict__ v, const i32* __restrict__ starts,
                                                i64 tokens, i64 texts, Wide<typename C::T> scale,
                                                Wide<typename C::T> softcap, const DeviceErrorSite& disorder) {
  using T = typename C::T;
  using X = Wide<T>;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kKeyDim > 0 && C::kValueDim > 0, "kKeyDim, kValueDim: sizes of heads");
  constexpr int kHeads = C::kKvHeads * C::kGroup, kColumns = (C::kValueDim + 31) / 32;
  CheckStarts<C>(context, starts, static_cast<i32>(texts), static_cast<i32>(tokens), disorder);
  const i64 row = static_cast<i64>(context.TileX()) * (C::kThreads / 32) + threadIdx.x / 32;
  if (row >= tokens * kHeads) return;
  const i32 token = static_cast<i32>(row / kHeads), kv_head = static_cast<i32>(row % kHeads) / C::kGroup;
  const int lane = threadIdx.x % 32;
  PackedText<C> text = {};
  if (texts > 0) text = {starts, TextOf(starts, static_cast<i32>(texts), token), static_cast<i32>(tokens)};
  const i32 own = token - text.begin;
  X sum = 0, columns[kColumns] = {};
  if (own >= 0 && own < text.tokens) {
    q += row * C::kKeyDim;
    k += (static_cast<i64>(text.begin) * C::kKvHeads + kv_head) * C::kKeyDim;
    v += (static_cast<i64>(text.begin) * C::kKvHeads + kv_head) * C::kValueDim;
    constexpr X kHidden = kSame<X, double> ? -1.7976931348623157e308 : -3.402823466e38;
    const auto greater = [](X a, X b) { return a < b ? b : a; };
    const auto add = [](X a, X b) { return a + b; };
    const i32 last = text.Last(own);
    X top = kHidden;
    for (i32 begin = text.First(own); begin <= last; begin += 32) {
      const i32 key = begin + lane;
      const bool seen = key <= last;
      X score = kHidden;
      if (seen) {
        X dot = 0;
        for (int d = 0; d < C::kKeyDim; ++d) {
          dot += Widen(q[d]) * Widen(k[static_cast<i64>(key) * (C::kKvHeads * C::kKeyDim) + d]);
        }
        score = dot * scale;
        if constexpr (C::kSoftcap) score = softcap * op::Tanh(score / softcap);
      }
      const X highest = greater(top, ReduceLanes<32>(context, score, greater));
      const X rescale = op::Exp(top - highest), weight = seen ? op::Exp(score - highest) : X(0);
      top = highest;
      sum = sum * rescale + ReduceLanes<32>(context, weight, add);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) columns[c] *= rescale;
      for (int j = 0; j < 32 && begin + j <= last; ++j) {
        const X w = __shfl_sync(~0u, weight, j);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const int d = lane + 32 * c;
          if (d < C::kValueDim)
            columns[c] += w * Widen(v[(begin + j) * static_cast<i64>(C::kKvHeads * C::kValueDim) + d]);
        }
      }
    }
  }
  const X inverse = sum == 0 ? X(0) : 1 / sum;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (lane + 32 * c < C::kValueDim) out[row * C::kValueDim + lane + 32 * c] = Narrow<T>(columns[c] * inverse);
  }
}

}  // namespace llmc
