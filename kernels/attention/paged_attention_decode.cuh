// Causal attention of a few tokens of each sequence over its paged KV cache: decoding. Bound by the reading of the
// cache, so it is split over all blocks (flash-decoding, https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
//
// The cache is cut into units of kUnit positions of one sequence and KV head, counted through the whole step: sequence
// after sequence, in it head after head. Each of the kBlocks blocks takes an equal run of units, whatever the lengths
// of the sequences (stream-K). A run consists of pieces, each of one (sequence, head). Inside a piece the units go to
// the warps in turn; each warp copies its own, kStages - 1 ahead and across pieces, into a ring in shared memory, so
// that nothing but the end of a piece makes warps wait for each other. The query heads that share a KV head are the
// rows of one matrix, so each key and value is read once.
//
// A piece that is all of its (sequence, head) gives the result. Else its sums go to `scratch`, and the block that comes
// last, by a counter, merges the pieces: out = sum_i exp(top_i) out_i / sum_i exp(top_i) sum_i.
//
// C::kEarly: copies begin while the kernels before still run, of positions that were in the cache before the step, and
// so the reading of pages, lens and starts: no kernel that lets its successors start early may write them, as is so in
// the decode steps of language models.
//
// C::T: element type.  C::kKvHeads, C::kGroup: KV heads, and query heads of each.  C::kHeadDim, C::kPageSize.
// C::kTokens: a sequence that has more tokens in the step, or none, is left alone.
// C::kWindow: positions that a token sees, 0: all.  C::kSoftcap: whether scores are capped.
// C::kBlocks: blocks of the grid.  C::kThreads: of a block, fewer of which work where there is less memory.  C::kUnit:
// 16 or 32.  C::kStages: of a ring. C::kSharedBytes, C::kScratchBytes: the dynamic shared memory; what is used of
// scratch.
#pragma once
#include "kernels/attention/attention_tile.cuh"
#include "kernels/attention/paged_kv.cuh"

namespace llmc {

__host__ __device__ constexpr int DecodeTeams(int threads, int vectors) {
  return threads >= vectors ? threads / vectors : 1;
}

__host__ __device__ constexpr int DecodeSharedBytes(int warps, int warp_bytes, int vectors, int sum_bytes) {
  const int teams = DecodeTeams(32 * warps, vectors);
  return warps * warp_bytes + (warps > teams ? warps : teams) * sum_bytes;
}

// As many warps as have room.
__host__ __device__ constexpr int DecodeWarps(int warps, int warp_bytes, int vectors, int sum_bytes) {
  while (warps > 1 && DecodeSharedBytes(warps, warp_bytes, vectors, sum_bytes) > kMaxSharedBytes) warps /= 2;
  return warps;
}

template <class C>
struct DecodeShape {
  using T = typename C::T;
  static constexpr int kRows = C::kGroup * C::kTokens;  // of queries: token after token, in it head after head
  static constexpr int kDim = PaddedHeadDim(C::kHeadDim);
  static constexpr int kVec = 16 / sizeof(T);
  static constexpr int kChunks = kDim / kVec;           // of 16 bytes in a row
  static constexpr int kStride = (kChunks + 1) * kVec;  // an odd number of chunks: see attention_tile.cuh
  static constexpr int kPart = C::kUnit * kStride;      // keys; as many values follow
  static constexpr int kWarpBytes = C::kStages * 2 * kPart * static_cast<int>(sizeof(T));
  static constexpr int kVectors = kRows * kDim / 4;
  static constexpr int kSums = (kRows * (kDim + 2) + 3) / 4 * 4;  // floats: see DecodeSums
  static constexpr int kWarps = DecodeWarps(C::kThreads / 32, kWarpBytes, kVectors, kSums * 4);
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kTeams = DecodeTeams(kThreads, kVectors);  // that merge
  static constexpr int kRingBytes = kWarps * kWarpBytes;
  static constexpr int kSharedBytes = DecodeSharedBytes(kWarps, kWarpBytes, kVectors, kSums * 4);
  // In scratch: the counters, then two slots a block.
  static constexpr int kCounterBytes = 4096;
  static constexpr int kScratchBytes = kCounterBytes + C::kBlocks * 2 * kSums * 4;

  static_assert(kRows <= 16, "the query heads of a group are the rows of one matrix: 16 at the most");
  static_assert(C::kUnit == 16 || (C::kUnit == 32 && sizeof(T) == 2), "a lane looks up a position; see DecodeTile32");
  static_assert(C::kHeadDim % kVec == 0 && C::kHeadDim <= 256, "rows are copied in chunks of 16 bytes");
  static_assert(C::kStages >= 2, "one stage is read while another arrives");
  static_assert(C::kBlocks * 4 <= kCounterBytes, "each block has a counter");
  static_assert(C::kScratchBytes == kScratchBytes, "codegen reserves the memory that is used here");
  static_assert(C::kSharedBytes >= kSharedBytes && kMaxSharedBytes >= kSharedBytes,
                "codegen reserves the memory that is used here");
};

// The step as the blocks share it.
template <class C>
struct DecodeStep {
  const i32* __restrict__ pages;
  const i32* __restrict__ lens;
  const i32* __restrict__ starts;
  i32 sequences;
  i64 pages_per_sequence;
  i32 least;  // numbers that a (sequence, head) takes at the least, though it has fewer units

  // The first position that any token of this step sees.
  __device__ __forceinline__ i32 FirstKey(i32 length, i32 tokens) const { return FirstSeen<C>(length - tokens); }

  // For each KV head.
  __device__ __forceinline__ i32 Units(i32 sequence) const {
    if (sequence >= sequences) return 0;
    const i32 tokens = starts[sequence + 1] - starts[sequence], length = lens[sequence];
    if (tokens < 1 || tokens > C::kTokens) return 0;
    return (length + C::kUnit - 1) / C::kUnit - FirstKey(length, tokens) / C::kUnit;
  }
  __device__ __forceinline__ i32 Numbers(i32 units) const { return units == 0 ? 0 : max(units, least); }
};

__device__ __forceinline__ i32 WarpSum(i32 x) {
  i32 sum;
  asm("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(sum) : "r"(x));
  return sum;
}
__device__ __forceinline__ i32 WarpMax(i32 x) {
  i32 most;
  asm("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(most) : "r"(x));
  return most;
}

// A run of units of one (sequence, KV head).
template <class C>
struct DecodePiece {
  i32 sequence, head;
  i32 token, tokens, length;  // the sequence's first token, their number, and the positions in its cache
  i32 units, origin;          // of the (sequence, head): all its units, and the number of the first in the step
  i32 begin, end;             // of these, those of the piece

  // The piece of unit `from` of the step, if `to` is the end of the block's run. All lanes of a warp together.
  __device__ __forceinline__ void Find(const DecodeStep<C>& step, i32 from, i32 to) {
    i32 before = 0;
    for (i32 base = 0;; base += 32) {
      const i32 lane = threadIdx.x % 32, own = step.Numbers(step.Units(base + lane)) * C::kKvHeads;
      i32 through = own;  // numbers of sequences up to this lane's
#pragma unroll
      for (int offset = 1; offset < 32; offset *= 2) {
        const i32 other = __shfl_up_sync(~0u, through, offset);
        if (lane >= offset) through += other;
      }
      const u32 past = __ballot_sync(~0u, before + through > from);
      if (past != 0) {
        const i32 found = __ffs(static_cast<i32>(past)) - 1;
        before += __shfl_sync(~0u, through - own, found);
        sequence = base + found;
        break;
      }
      before += __shfl_sync(~0u, through, 31);
    }
    units = step.Units(sequence);
    head = (from - before) / step.Numbers(units);
    origin = before + head * step.Numbers(units);
    Enter(step, from, to);
  }

  // The next piece of the run; false if there is none.
  __device__ __forceinline__ bool Next(const DecodeStep<C>& step, i32 to) {
    origin += step.Numbers(units);
    if (origin >= to) return false;
    if (++head == C::kKvHeads) {
      head = 0;
      do units = step.Units(++sequence);
      while (units == 0);
    }
    Enter(step, origin, to);
    return true;
  }

  __device__ __forceinline__ bool IsWhole() const { return begin == 0 && end == units; }

  // Where row r of the queries, and of the result, begins in [T, heads * kHeadDim].
  __device__ __forceinline__ i64 Row(int r) const {
    const i64 first_head = (token + r / C::kGroup) * static_cast<i64>(C::kKvHeads * C::kGroup) + head * C::kGroup;
    return (first_head + r % C::kGroup) * C::kHeadDim;
  }

 private:
  __device__ __forceinline__ void Enter(const DecodeStep<C>& step, i32 from, i32 to) {
    token = step.starts[sequence];
    tokens = step.starts[sequence + 1] - token;
    length = step.lens[sequence];
    begin = from - origin;
    end = min(to - origin, units);
  }
};

// The units of one warp in the block's run, as they are copied.
template <class C>
struct DecodeCopies {
  using T = typename C::T;
  using S = DecodeShape<C>;

  const DecodeStep<C>& step;
  const T* __restrict__ kv;
  DecodePiece<C> piece;
  i32 unit, to;
  i32 row = -1;  // of the keys at position lane % kUnit of the unit; -1: not there
  bool done = false;

  __device__ __forceinline__ DecodeCopies(const DecodeStep<C>& step, const T* kv, const DecodePiece<C>& piece, i32 to)
      : step(step), kv(kv), piece(piece), unit(piece.begin + threadIdx.x / 32), to(to) {
    FindRow();
  }

  // Whether the next unit was in the cache before the step, so that no kernel of the step writes it.
  __device__ __forceinline__ bool IsOld() const {
    const i32 first = step.FirstKey(piece.length, piece.tokens) / C::kUnit;
    return done || (first + unit + 1) * C::kUnit <= piece.length - piece.tokens;
  }

  // Starts the copy of the next unit, if there is one.
  __device__ __forceinline__ void Issue(u32 stage) {
    if (!done) {
      constexpr i64 kRow = C::kKvHeads * C::kHeadDim;
      const T* base = kv + piece.head * C::kHeadDim;
#pragma unroll
      for (int i = 0; i < C::kUnit * S::kChunks / 32; ++i) {
        const int at = i * 32 + threadIdx.x % 32, r = at / S::kChunks, column = at % S::kChunks * S::kVec;
        const i32 from_row = __shfl_sync(~0u, row, r);
        const bool exists = from_row >= 0 && column < C::kHeadDim;
        const T* from = base + (exists ? from_row * kRow + column : 0);
        const u32 at_stage = stage + (r * S::kStride + column) * static_cast<u32>(sizeof(T));
        CopyAsync(at_stage, from, exists);
        CopyAsync(at_stage + S::kPart * sizeof(T), from + (exists ? C::kPageSize * kRow : 0), exists);
      }
      unit += S::kWarps;
      FindRow();
    }
    CommitCopies();
  }

 private:
  // Looked up one unit ahead, so that no copy waits for the page table.
  __device__ __forceinline__ void FindRow() {
    while (unit >= piece.end) {
      if (!piece.Next(step, to)) {
        done = true;
        return;
      }
      unit = piece.begin + threadIdx.x / 32;
    }
    const i32 first = step.FirstKey(piece.length, piece.tokens);
    const i32 position = (first / C::kUnit + unit) * C::kUnit + threadIdx.x % C::kUnit;
    const i32* table = step.pages + piece.sequence * step.pages_per_sequence;
    row = position >= first && position < piece.length ? KeyRow<C>(table, position) : -1;
  }
};

// What a warp computes: 16-bit elements on tensor cores.
template <class C>
struct DecodeTile16 {
  using T = typename C::T;
  using S = DecodeShape<C>;
  static constexpr bool kHalf = S::kRows <= 8;

  AttentionTile<T, S::kDim, C::kUnit, 1, kHalf> tile;
  u32 query[S::kDim / 16][4];

  // `Row(r)`: the address of row r of the queries, null if there is none.
  template <class Row>
  __device__ __forceinline__ void Begin(Row row_of) {
    tile.Reset();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* row = half == 1 && kHalf ? nullptr : row_of(threadIdx.x % 32 / 4 + 8 * half);
#pragma unroll
      for (int i = 0; i < S::kDim / 8; ++i) {
        const int column = i * 8 + threadIdx.x % 4 * 2;
        const bool exists = row != nullptr && column < C::kHeadDim;
        query[i / 2][i % 2 * 2 + half] = exists ? *reinterpret_cast<const u32*>(row + column) : 0;
      }
    }
  }

  template <class Sees>
  __device__ __forceinline__ void Add(const T* keys, const ScoreScale<C::kSoftcap>& scale, Sees sees) {
    const auto query_of = [&](int, int step, u32(&a)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = query[step][i];
    };
    const u32 address = SharedAddress(keys);
    tile.Multiply(query_of, address);
    tile.Cap(scale);
#pragma unroll
    for (int half = 0; half < tile.kHalves; ++half) {
      const int row = static_cast<int>(threadIdx.x) % 32 / 4 + 8 * half;
      tile.ChangeRow(0, half, [&](int, int, int key, float score) { return sees(row, key) ? score : -Infinity(); });
    }
    float rescale[1][2];
    tile.Weigh(scale.Factor(), rescale);
    tile.Rescale(rescale);
    tile.Accumulate(address + S::kPart * 2);
  }

  // As DecodeSums are stored.
  __device__ __forceinline__ void Store(float* to, const ScoreScale<C::kSoftcap>& scale) {
    tile.Finish();
#pragma unroll
    for (int half = 0; half < tile.kHalves; ++half) {
      const int r = threadIdx.x % 32 / 4 + 8 * half;
      if (r >= S::kRows) continue;
#pragma unroll
      for (int n = 0; n < S::kDim / 8; ++n) {
        const Vec<float, 2> pair = {tile.out[0][n][2 * half], tile.out[0][n][2 * half + 1]};
        llmc::Store(to + r * S::kDim + n * 8 + threadIdx.x % 4 * 2, pair);
      }
      const Vec<float, 2> pair = {tile.top[0][half] * scale.Factor(), tile.sum[0][half]};
      llmc::Store(to + S::kRows * S::kDim + r * 2, pair);
    }
  }
};

// The same in f32, exact: lane l computes the scores of key l % 16 for every other row, and columns 4 l… of the sums.
template <class C>
struct DecodeTile32 {
  using S = DecodeShape<C>;
  static constexpr int kHalfRows = (S::kRows + 1) / 2;
  static constexpr int kVectors = (S::kDim + 127) / 128;

  const float* rows[kHalfRows];
  float out[S::kRows][kVectors * 4];
  float top[kHalfRows], sum[kHalfRows];

  static __device__ __forceinline__ int Lane() { return threadIdx.x % 32; }

  template <class Row>
  __device__ __forceinline__ void Begin(Row row_of) {
#pragma unroll
    for (int i = 0; i < kHalfRows; ++i) {
      rows[i] = row_of(2 * i + Lane() / 16);
      top[i] = kLowestScore;
      sum[i] = 0;
    }
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kVectors * 4; ++j) out[r][j] = 0;
    }
  }

  template <class Sees>
  __device__ __forceinline__ void Add(const float* keys, const ScoreScale<C::kSoftcap>& scale, Sees sees) {
    float weights[kHalfRows] = {}, rescale[kHalfRows];
    const int key = Lane() % 16;
    for (int column = 0; column < C::kHeadDim; column += 4) {
      const Vec<float, 4> k = Load<float, 4>(keys + key * S::kStride + column);
#pragma unroll
      for (int i = 0; i < kHalfRows; ++i) {
        if (rows[i] == nullptr) continue;
        const Vec<float, 4> q = Load<float, 4>(rows[i] + column);
#pragma unroll
        for (int j = 0; j < 4; ++j) weights[i] += q.v[j] * k.v[j];
      }
    }
#pragma unroll
    for (int i = 0; i < kHalfRows; ++i) {
      float score = weights[i] * scale.scale;
      if constexpr (C::kSoftcap) score = scale.cap * tanhf(weights[i] * scale.tanh_scale * 0.34657359027997264f);
      if (!sees(2 * i + Lane() / 16, key)) score = -Infinity();
      const float new_top = fmaxf(top[i], WarpReduce<16>(score, Max()));
      rescale[i] = exp2f(top[i] - new_top);
      weights[i] = exp2f(score - new_top);
      top[i] = new_top;
      sum[i] = sum[i] * rescale[i] + WarpReduce<16>(weights[i], Sum());
    }
    const float* values = keys + S::kPart;
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      const float factor = __shfl_sync(~0u, rescale[r / 2], r % 2 * 16);
#pragma unroll
      for (int j = 0; j < kVectors * 4; ++j) out[r][j] *= factor;
    }
#pragma unroll 4
    for (int k = 0; k < C::kUnit; ++k) {
      Vec<float, 4> v[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int column = i * 128 + Lane() * 4;
        v[i] = Load<float, 4>(values + k * S::kStride + (column < S::kDim ? column : 0));
      }
#pragma unroll
      for (int r = 0; r < S::kRows; ++r) {
        const float weight = __shfl_sync(~0u, weights[r / 2], k + r % 2 * 16);
#pragma unroll
        for (int j = 0; j < kVectors * 4; ++j) out[r][j] += weight * v[j / 4].v[j % 4];
      }
    }
  }

  __device__ __forceinline__ void Store(float* to, const ScoreScale<C::kSoftcap>&) {
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kVectors * 4; ++j) {
        const int column = j / 4 * 128 + Lane() * 4 + j % 4;
        if (column < S::kDim) to[r * S::kDim + column] = out[r][j];
      }
    }
    if (Lane() % 16 != 0) return;
#pragma unroll
    for (int i = 0; i < kHalfRows; ++i) {
      const int r = 2 * i + Lane() / 16;
      if (r >= S::kRows) continue;
      to[S::kRows * S::kDim + r * 2] = top[i];
      to[S::kRows * S::kDim + r * 2 + 1] = sum[i];
    }
  }
};

template <class C, int kBytes>
struct DecodeTileOf {
  using Tile = DecodeTile16<C>;
};
template <class C>
struct DecodeTileOf<C, 4> {
  using Tile = DecodeTile32<C>;
};

// Four columns of a row of the result, and what they are relative to. Stored as kRows * kDim columns, then the top (for
// base 2) and the sum of weights of each row.
struct DecodeSums {
  float top = kLowestScore, sum = 0;
  Vec<float, 4> columns = {};

  __device__ __forceinline__ void Add(const DecodeSums& other) {
    const float new_top = fmaxf(top, other.top), own = Exp2(top - new_top), others = Exp2(other.top - new_top);
    top = new_top;
    sum = sum * own + other.sum * others;
#pragma unroll
    for (int i = 0; i < 4; ++i) columns.v[i] = columns.v[i] * own + other.columns.v[i] * others;
  }

  // Vector `at` of what lies at `from`.
  template <class S>
  static __device__ __forceinline__ DecodeSums Read(const float* from, int at) {
    const Vec<float, 2> row = Load<float, 2>(from + S::kRows * S::kDim + at * 4 / S::kDim * 2);
    return {row.v[0], row.v[1], Load<float, 4>(from + at * 4)};
  }
  // The same of what other blocks have just written: past the cache of this multiprocessor.
  template <class S>
  static __device__ __forceinline__ DecodeSums ReadOthers(const float* from, int at) {
    DecodeSums sums;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
                 : "=f"(sums.top), "=f"(sums.sum)
                 : "l"(from + S::kRows * S::kDim + at * 4 / S::kDim * 2)
                 : "memory");
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(sums.columns.v[0]), "=f"(sums.columns.v[1]), "=f"(sums.columns.v[2]), "=f"(sums.columns.v[3])
                 : "l"(from + at * 4)
                 : "memory");
    return sums;
  }
  // The row's top and sum by its first vector.
  template <class S>
  __device__ __forceinline__ void Write(float* to, int at) const {
    Store(to + at * 4, columns);
    const Vec<float, 2> row = {top, sum};
    if (at * 4 % S::kDim == 0) Store(to + S::kRows * S::kDim + at * 4 / S::kDim * 2, row);
  }
};

template <class C>
struct DecodeMerge {
  using T = typename C::T;
  using S = DecodeShape<C>;

  T* __restrict__ out;
  char* scratch;
  float* shared;  // S::kMergeSums times S::kSums
  i32 quantum;    // units of a block

  // From the sums of all warps in `shared` to the result, or to scratch. Between two barriers of the block.
  __device__ __forceinline__ void Finish(const DecodePiece<C>& piece) const {
    const bool whole = piece.IsWhole();
    for (int at = threadIdx.x; at < S::kVectors; at += S::kThreads) {
      DecodeSums sums = DecodeSums::Read<S>(shared, at);
#pragma unroll
      for (int w = 1; w < S::kWarps; ++w) sums.Add(DecodeSums::Read<S>(shared + w * S::kSums, at));
      if (whole) {
        Write(piece, at, sums);
      } else {
        sums.Write<S>(Slot(blockIdx.x, piece.begin == 0), at);
      }
    }
    if (!whole && IsLast(piece)) MergePieces(piece);
  }

 private:
  // The slot of the piece of a block: the second for one that goes on into the next block, the first for others.
  __device__ __forceinline__ float* Slot(i32 block, bool starts) const {
    return reinterpret_cast<float*>(scratch + S::kCounterBytes) + (block * 2 + (starts ? 1 : 0)) * S::kSums;
  }

  __device__ __forceinline__ void Write(const DecodePiece<C>& piece, int at, const DecodeSums& sums) const {
    const int r = at * 4 / S::kDim, column = at * 4 % S::kDim;
    if (r >= piece.tokens * C::kGroup || column >= C::kHeadDim) return;
    const float inverse = sums.sum > 0 ? 1 / sums.sum : 0.0f;
    Vec<T, 4> result;
#pragma unroll
    for (int i = 0; i < 4; ++i) result.v[i] = FromFloat<T>(sums.columns.v[i] * inverse);
    Store(out + piece.Row(r) + column, result);
  }

  // Counts the piece of its (sequence, head), and leaves the counter at 0.
  __device__ __forceinline__ bool IsLast(const DecodePiece<C>& piece) const {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
      const i32 first_block = piece.origin / quantum, blocks = (piece.origin + piece.units - 1) / quantum - first_block;
      i32* counter = reinterpret_cast<i32*>(scratch) + first_block;
      i32 before;
      asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
      last = before == blocks;
      if (last) *counter = 0;
    }
    __syncthreads();
    return last;
  }

  // By teams of kVectors threads; each team reads every kTeams-th piece.
  __device__ __forceinline__ void MergePieces(const DecodePiece<C>& piece) const {
    const i32 first_block = piece.origin / quantum;
    const i32 count = (piece.origin + piece.units - 1) / quantum - first_block + 1;
    const int team = S::kTeams > 1 ? threadIdx.x / S::kVectors : 0;
    for (int at = threadIdx.x - team * S::kVectors; at < S::kVectors && team < S::kTeams; at += S::kThreads) {
      DecodeSums sums;
      for (i32 first = team; first < count; first += 8 * S::kTeams) {
        DecodeSums others[8];  // all asked for before the first is used
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const i32 index = first + i * S::kTeams;
          if (index < count) others[i] = DecodeSums::ReadOthers<S>(Slot(first_block + index, index == 0), at);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) sums.Add(others[i]);
      }
      if constexpr (S::kTeams == 1) {
        Write(piece, at, sums);
      } else {
        sums.Write<S>(shared + team * S::kSums, at);
      }
    }
    if constexpr (S::kTeams == 1) return;
    __syncthreads();
    if (threadIdx.x >= S::kVectors) return;
    DecodeSums sums = DecodeSums::Read<S>(shared, threadIdx.x);
#pragma unroll
    for (int i = 1; i < S::kTeams; ++i) sums.Add(DecodeSums::Read<S>(shared + i * S::kSums, threadIdx.x));
    Write(piece, threadIdx.x, sums);
  }
};

template <class C>
__device__ __forceinline__ void PagedAttentionDecode(typename C::T* __restrict__ out,
                                                     const typename C::T* __restrict__ q,
                                                     const typename C::T* __restrict__ kv,
                                                     const i32* __restrict__ pages, const i32* __restrict__ lens,
                                                     const i32* __restrict__ starts, char* scratch, i64 sequences,
                                                     i64 pages_per_sequence, float scale_of_op, float softcap) {
  using T = typename C::T;
  using S = DecodeShape<C>;
  extern __shared__ __align__(1024) char dynamic_shared[];
  if (threadIdx.x >= S::kThreads) return;
  LaunchDependents();
  if constexpr (!C::kEarly) GridDependencyWait();
  float* merge_floats = reinterpret_cast<float*>(dynamic_shared + S::kRingBytes);
  const i32 warp = threadIdx.x / 32;
  T* ring = reinterpret_cast<T*>(dynamic_shared) + warp * C::kStages * 2 * S::kPart;

  DecodeStep<C> step = {pages, lens, starts, static_cast<i32>(sequences), pages_per_sequence, 0};
  i32 units = 0, most = 0, used = 0;
  for (i32 base = 0; base < step.sequences; base += 32) {
    const i32 own = step.Units(base + static_cast<i32>(threadIdx.x % 32));
    units += own;
    most = max(most, own);
    used += own > 0 ? 1 : 0;
  }
  units = WarpSum(units) * C::kKvHeads;
  most = WarpMax(most);
  used = WarpSum(used) * C::kKvHeads;
  // To split short sequences and merge them again takes longer than to read them.
  i32 quantum = max((units + C::kBlocks - 1) / C::kBlocks, S::kWarps);
  if (most <= 2 * S::kWarps && used <= C::kBlocks) {
    quantum = step.least = most;
    units = used * most;
  }
  const i32 from = static_cast<i32>(blockIdx.x) * quantum, to = min(from + quantum, units);
  if (from >= to) {
    GridDependencyWait();  // a kernel ends after all before it
    return;
  }

  DecodePiece<C> piece;
  piece.Find(step, from, to);
  DecodeCopies<C> copies(step, kv, piece, to);
  bool waited = !C::kEarly;
#pragma unroll
  for (int i = 0; i < C::kStages - 1; ++i) {
    if (!waited && !copies.IsOld()) {
      GridDependencyWait();
      waited = true;
    }
    copies.Issue(SharedAddress(ring + i * 2 * S::kPart));
  }
  if (!waited) GridDependencyWait();

  const ScoreScale<C::kSoftcap> scale(scale_of_op, softcap);
  const DecodeMerge<C> merge = {out, scratch, merge_floats, quantum};
  i32 stage = 0;  // to be computed
  do {
    typename DecodeTileOf<C, sizeof(T)>::Tile tile;
    tile.Begin([&](int r) { return r < piece.tokens * C::kGroup ? q + piece.Row(r) : nullptr; });
    const i32 first_unit = step.FirstKey(piece.length, piece.tokens) / C::kUnit;
    for (i32 unit = piece.begin + warp; unit < piece.end; unit += S::kWarps) {
      WaitForCopies<C::kStages - 2>();
      __syncwarp();  // all lanes' copies are here, and all have read the stage before
      const i32 filled = stage == 0 ? C::kStages - 1 : stage - 1;
      copies.Issue(SharedAddress(ring + filled * 2 * S::kPart));
      tile.Add(ring + stage * 2 * S::kPart, scale, [&](int r, int key) {
        const i32 position = (first_unit + unit) * C::kUnit + key, own = piece.length - piece.tokens + r / C::kGroup;
        return position <= own && position >= FirstSeen<C>(own);
      });
      stage = stage + 1 == C::kStages ? 0 : stage + 1;
    }
    tile.Store(merge_floats + warp * S::kSums, scale);
    __syncthreads();
    merge.Finish(piece);
    __syncthreads();  // the floats are read
  } while (piece.Next(step, to));
}

}  // namespace llmc
