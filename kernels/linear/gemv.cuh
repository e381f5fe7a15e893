// out[m, n] = sum over k of x[m, k] * weight[n, k] for 1 to 8 rows m, at the speed of memory; with what comes before (a
// norm) and after (an addition, silu_mul, rotary positions and the write to the KV cache) in the same kernel.
//
// A block makes kRows neighbouring columns of the result. One warp copies the rows of the weight that they need into a
// ring of stages in shared memory, 16 rows x kChunk columns each. It begins before the kernel's predecessor has ended,
// so that memory does not rest between two products, and the compiler cannot move such copies behind the wait as it
// does with loads. The other warps share the columns of each stage and multiply 16 rows of the weight with up to 8 rows
// of x at a time, on tensor cores if the type has 16 bits. After each tile of 16 rows their sums are added in the order
// of the warps: a result depends on nothing but its row of x and of the weight. Code that runs once a launch has to be
// fetched first: loops are kept rolled.
#pragma once
#include "kernels/attention/rope.cuh"
#include "kernels/common/bulk_copy.cuh"
#include "kernels/common/common.cuh"

namespace llmc {

// C::T: element type.  C::kIn: length of the sums.  C::kOut: columns of the result; of all heads in QkvRope.
// C::kTokens: the most rows of x.  C::kRows: columns of the result that a block makes; half of them are pairs.
// C::kChunk: columns of the weight in a stage; 0: weights are read without stages, which works for all sizes and GPUs.
// C::kStages.  C::kInFlight: the most stages that are copied at a time.
// C::kXInRing: whether x comes with the stages; else all of it is kept in shared memory.
// C::kThreads: threads per block, of which a warp copies.  C::kSharedBytes: of dynamic shared memory.
template <class C, class Prologue, class Epilogue>
struct GemvShape {
  using T = typename C::T;
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr bool kStreams = LLMC_SM90 && C::kChunk > 0;
  static constexpr int kVec = kStreams ? 16 / kSize : VectorOf<T>(C::kIn);  // elements of a lane's load
  static constexpr int kWarps = C::kThreads / 32 - (kStreams ? 1 : 0);      // that multiply
  static constexpr int kMathThreads = 32 * kWarps;
  static constexpr int kBlock = 4 * kVec;  // columns that the 4 lanes of a row load at once
  static constexpr int kTile = 16;         // rows of the weight in a stage, of which two make a column if it is paired
  static constexpr int kTileOut = Epilogue::kPaired ? kTile / 2 : kTile;
  static constexpr int kChunk = C::kChunk > 0 ? C::kChunk : kBlock;
  static constexpr int kChunks = C::kIn / kChunk;
  static constexpr int kBlocks = kChunk / kBlock;
  // Rows are apart by an odd number of blocks, so that the lanes of two rows read different banks.
  static constexpr int kStride = kBlocks % 2 == 0 ? kChunk + kBlock : kChunk;
  static constexpr int kStageBytes = (kTile + (C::kXInRing ? C::kTokens : 0)) * kStride * kSize;
  static constexpr int kXStride = C::kXInRing ? kStride : C::kIn + (C::kIn / kBlock % 2 == 0 ? kBlock : 0);
  static constexpr int kXBytes = C::kXInRing ? 0 : C::kTokens * kXStride * kSize;

  static_assert(C::kTokens >= 1 && C::kTokens <= 8, "1 to 8 rows of x");
  static_assert(C::kThreads >= 160 && C::kThreads % 32 == 0, "4 warps or more multiply, and one copies");
  static_assert(C::kChunk == 0 || (C::kIn % kChunk == 0 && kChunk * kSize % 64 == 0),
                "a row is whole chunks, and these are whole blocks of 64 bytes");
};

// ---- the product of 16 rows of the weight and kTokens rows of x ---------------------------------------------------

// The sums of a warp over its columns: lane 4g + t has those of rows g and g + 8. These are the accumulators of mma,
// for rows 2t and 2t + 1 of x. A lane's elements are neighbours in k: the order of k does not matter to mma, as long as
// both operands have the same. Two accumulators take turns, because each mma waits for the last that had its own.
template <class T, int kTokens>
struct TileSums {
  float c[2][4] = {};

  // w0 and w1: the lane's elements of rows g and g + 8.  x: the lane's elements of the first row of x.
  __device__ __forceinline__ void Add(const T* w0, const T* w1, const T* x, int x_stride) {
    const int g = threadIdx.x % 32 / 4;
    const Vec<u32, 4> a = Load<u32, 4>(reinterpret_cast<const u32*>(w0));
    const Vec<u32, 4> b = Load<u32, 4>(reinterpret_cast<const u32*>(w1));
    const Vec<u32, 4> v = Load<u32, 4>(reinterpret_cast<const u32*>(x + (g < kTokens ? g : kTokens - 1) * x_stride));
    MultiplyAdd<T>(c[0], {a.v[0], b.v[0], a.v[1], b.v[1]}, v.v[0], v.v[1]);
    MultiplyAdd<T>(c[1], {a.v[2], b.v[2], a.v[3], b.v[3]}, v.v[2], v.v[3]);
  }
  // to[16][kTokens]
  __device__ __forceinline__ void Store(float* to) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = 2 * t + i % 2;
      if (token < kTokens) to[(g + i / 2 * 8) * kTokens + token] = c[0][i] + c[1][i];
    }
  }
};

// In f32 each lane multiplies its elements with those of all rows of x.
template <int kTokens>
struct TileSums<float, kTokens> {
  float sums[2][kTokens] = {};

  __device__ __forceinline__ void Add(const float* w0, const float* w1, const float* x, int x_stride) {
    const Vec<float, 4> a = Load<float, 4>(w0), b = Load<float, 4>(w1);
#pragma unroll
    for (int token = 0; token < kTokens; ++token) {
      const Vec<float, 4> v = Load<float, 4>(x + token * x_stride);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[0][token] += a.v[j] * v.v[j];
        sums[1][token] += b.v[j] * v.v[j];
      }
    }
  }
  __device__ __forceinline__ void Store(float* to) const {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2 * kTokens; ++i) {
      const float sum = WarpReduce<4>(sums[i / kTokens][i % kTokens], Sum());
      if (threadIdx.x % 4 == 0) to[(g + i / kTokens * 8) * kTokens + i % kTokens] = sum;
    }
  }
};

// ---- what x is before it is multiplied ----------------------------------------------------------------------------

// x as it is.
template <class T>
struct PlainX {
  static constexpr bool kNormalizes = false;

  // To shared memory; the first S::kMathThreads threads call it.
  template <class C, class S>
  __device__ __forceinline__ void Load(T* to, const T* x, const T*, i64 tokens) const {
    using V = Vec<u32, 4>;
    constexpr int kVectors = C::kIn / S::kVec, kEach = (C::kTokens * kVectors + S::kMathThreads - 1) / S::kMathThreads;
    constexpr int kBatch = kEach < 8 ? kEach : 8;
    const int vectors = static_cast<int>(tokens) * kVectors;
#pragma unroll 1
    for (int first = threadIdx.x; first < vectors; first += kBatch * S::kMathThreads) {
      V v[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = first + i * S::kMathThreads;
        if (at < vectors) v[i] = reinterpret_cast<const V*>(x)[at];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = first + i * S::kMathThreads;
        if (at < vectors) *reinterpret_cast<V*>(to + at / kVectors * S::kXStride + at % kVectors * S::kVec) = v[i];
      }
    }
  }
};

// rms_norm of x. Every block does it anew, which is faster than to wait for another kernel.
template <class T>
struct NormalizedX {
  static constexpr bool kNormalizes = true;
  const T* weight;
  float eps;

  // `norm` is `weight`, or a copy of it where the first row of x goes: a thread reads what it overwrites.
  template <class C, class S>
  __device__ __forceinline__ void Load(T* to, const T* x, const T* norm, i64 tokens) const {
    static_assert(!C::kXInRing, "normalized rows are kept in shared memory");
    constexpr int kVec = S::kVec, kEach = (C::kIn / kVec + S::kMathThreads - 1) / S::kMathThreads;
    __shared__ float squares[C::kTokens][S::kWarps];
    Vec<T, kVec> v[C::kTokens][kEach] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int column = kVec * (i * S::kMathThreads + threadIdx.x);
      if (column >= C::kIn) break;
#pragma unroll
      for (int token = 0; token < C::kTokens; ++token) {
        if (token < tokens) v[token][i] = llmc::Load<T, kVec>(x + static_cast<i64>(token) * C::kIn + column);
      }
    }
#pragma unroll
    for (int token = 0; token < C::kTokens; ++token) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) sum += ToFloat(v[token][i].v[j]) * ToFloat(v[token][i].v[j]);
      }
      sum = WarpReduce(sum, Sum());
      if (threadIdx.x % 32 == 0) squares[token][threadIdx.x / 32] = sum;
    }
    SyncThreads<1, S::kMathThreads>();
    float scale[C::kTokens];
#pragma unroll
    for (int token = 0; token < C::kTokens; ++token) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < S::kWarps; ++i) sum += squares[token][i];
      scale[token] = rsqrtf(sum / C::kIn + eps);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int column = kVec * (i * S::kMathThreads + threadIdx.x);
      if (column >= C::kIn) break;
      const Vec<T, kVec> w = llmc::Load<T, kVec>(norm + column);
#pragma unroll
      for (int token = 0; token < C::kTokens; ++token) {
        Vec<T, kVec> r;
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          r.v[j] = FromFloat<T>(ToFloat(v[token][i].v[j]) * scale[token] * ToFloat(w.v[j]));
        }
        Store(to + token * S::kXStride + column, r);
      }
    }
  }
};

// ---- what becomes of the sums --------------------------------------------------------------------------------------

// Row: the row of the weight that is half `half` of a column.  Prepare: what Store needs besides the sums, read while
// they are made.  kEarly: it reads nothing that a kernel of the same step has written.
template <class C>
struct StoreSum {
  static constexpr bool kPaired = false, kEarly = true;
  struct Prepared {};
  typename C::Out* out;

  static __device__ __forceinline__ int Row(int column, int) { return column; }
  __device__ __forceinline__ Prepared Prepare(int, int) const { return {}; }
  __device__ __forceinline__ void Store(int token, int column, float sum, float, Prepared) const {
    out[static_cast<i64>(token) * C::kOut + column] = FromFloat<typename C::Out>(sum);
  }
};

// The sum plus another tensor: a residual, or a bias that all rows share.
template <class C, bool kShared>
struct StoreAdded {
  static constexpr bool kPaired = false, kEarly = kShared;
  using Prepared = float;
  typename C::T* out;
  const typename C::T* addend;

  static __device__ __forceinline__ int Row(int column, int) { return column; }
  __device__ __forceinline__ Prepared Prepare(int token, int column) const {
    return ToFloat(addend[(kShared ? 0 : static_cast<i64>(token) * C::kOut) + column]);
  }
  __device__ __forceinline__ void Store(int token, int column, float sum, float, Prepared added) const {
    out[static_cast<i64>(token) * C::kOut + column] = FromFloat<typename C::T>(Rounded<typename C::T>(sum) + added);
  }
};

// silu(gate) * up, of columns n and n + kOut of the product.
template <class C>
struct StoreSiluMul {
  static constexpr bool kPaired = true, kEarly = true;
  struct Prepared {};
  typename C::T* out;

  static __device__ __forceinline__ int Row(int column, int half) { return column + half * C::kOut; }
  __device__ __forceinline__ Prepared Prepare(int, int) const { return {}; }
  __device__ __forceinline__ void Store(int token, int column, float gate, float up, Prepared) const {
    const float g = Rounded<typename C::T>(gate), u = Rounded<typename C::T>(up);
    out[static_cast<i64>(token) * C::kOut + column] = FromFloat<typename C::T>(__fdividef(g, 1.0f + expf(-g)) * u);
  }
};

// Queries, keys and values of heads as RopeKvWrite takes them, with an optional bias. A column is a pair of elements
// that turn together; those past kRotary are paired with each other and stay. C::kHeads, C::kKvHeads, C::kHeadDim,
// C::kRotary, C::kInterleaved, C::kPageSize: as in rope.cuh.  C::kBias.
template <class C>
struct StoreQkvRope {
  static constexpr bool kPaired = true, kEarly = true;
  static constexpr int kHalf = C::kHeadDim / 2, kTurning = C::kRotary / 2;
  struct Prepared {
    float sin, cos, first_bias, second_bias;
    i64 slot;
  };
  typename C::T* out;
  typename C::T* kv;
  const typename C::T* bias;
  const i32* pos;
  const float* inv_freq;
  const i32* slots;
  float scale;

  // The element of its head that half `half` of pair `pair` is.
  static __device__ __forceinline__ int Element(int pair, int half) {
    if (pair >= kTurning) return C::kRotary + pair - kTurning + half * (kHalf - kTurning);
    return C::kInterleaved ? 2 * pair + half : pair + half * kTurning;
  }
  static __device__ __forceinline__ int Row(int column, int half) {
    return column / kHalf * C::kHeadDim + Element(column % kHalf, half);
  }
  __device__ __forceinline__ Prepared Prepare(int token, int column) const {
    Prepared p = {0, 1, 0, 0, slots[token]};
    if constexpr (C::kBias) {
      p.first_bias = ToFloat(bias[Row(column, 0)]);
      p.second_bias = ToFloat(bias[Row(column, 1)]);
    }
    if (column / kHalf < C::kHeads + C::kKvHeads && column % kHalf < kTurning) {
      sincosf(static_cast<float>(pos[token]) * inv_freq[column % kHalf], &p.sin, &p.cos);
      p.sin *= scale;
      p.cos *= scale;
    }
    return p;
  }
  __device__ __forceinline__ void Store(int token, int column, float first, float second, const Prepared& p) const {
    using T = typename C::T;
    const int head = column / kHalf, pair = column % kHalf;
    float x = Rounded<T>(first), y = Rounded<T>(second);
    if constexpr (C::kBias) {
      x = Rounded<T>(x + p.first_bias);
      y = Rounded<T>(y + p.second_bias);
    }
    T* to = out + (static_cast<i64>(token) * C::kHeads + head) * C::kHeadDim;
    if (head >= C::kHeads) {
      if (p.slot < 0) return;
      const bool is_value = head >= C::kHeads + C::kKvHeads;
      to = kv + KvOffset<C>(p.slot, is_value ? 1 : 0, head - C::kHeads - (is_value ? C::kKvHeads : 0));
    }
    to[Element(pair, 0)] = FromFloat<T>(x * p.cos - y * p.sin);
    to[Element(pair, 1)] = FromFloat<T>(y * p.cos + x * p.sin);
  }
};

// ---- the kernel ---------------------------------------------------------------------------------------------------

#if LLMC_SM90
// What the copying thread does. Its addresses depend on no thread's number, so that they are in uniform registers,
// where copies need them.
template <class C, class Prologue, class Epilogue>
__device__ __forceinline__ void StreamWeights(char* ring, u64* full, u64* empty, const typename C::T* x,
                                              const typename C::T* weight, int first, int columns, i64 tokens) {
  using S = GemvShape<C, Prologue, Epilogue>;
  constexpr int kRowBytes = S::kChunk * S::kSize, kStrideBytes = S::kStride * S::kSize;
  constexpr int kHalves = Epilogue::kPaired ? 2 : 1;
  const auto copy_x = [&](int chunk, int slot) {
#pragma unroll 1
    for (int token = 0; token < tokens; ++token) {
      BulkCopy(ring + slot * S::kStageBytes + (S::kTile + token) * kStrideBytes,
               x + static_cast<i64>(token) * C::kIn + chunk * S::kChunk, kRowBytes, &full[slot]);
    }
  };
  const int stages = (columns + S::kTileOut - 1) / S::kTileOut * S::kChunks;
  const int filled = stages < C::kStages ? stages : C::kStages;
  int slot = 0, round = 0, column = 0, chunk = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    if (stage >= C::kStages) WaitAt(&empty[slot], (round - 1) & 1);
    // More copies at once make memory slower, and the blocks of this and of other kernels wait for each other's.
    if (C::kInFlight < C::kStages && stage >= (C::kXInRing ? filled : C::kInFlight)) {
      WaitAt(&full[(stage - C::kInFlight) % C::kStages], (stage - C::kInFlight) / C::kStages % 2);
    }
    const int left = columns - column, rows = left < S::kTileOut ? left : S::kTileOut;
    ArriveExpecting(&full[slot], (kHalves * rows + (C::kXInRing ? static_cast<int>(tokens) : 0)) * kRowBytes);
    char* const to = ring + slot * S::kStageBytes;
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const i64 from = static_cast<i64>(Epilogue::Row(first + column + row, half)) * C::kIn + chunk * S::kChunk;
        BulkCopy(to + (half * S::kTileOut + row) * kStrideBytes, weight + from, kRowBytes, &full[slot]);
      }
    }
    if constexpr (C::kXInRing) {
      if (stage == filled - 1) {
        GridDependencyWait();
        for (int i = 0; i < filled; ++i) copy_x(i % S::kChunks, i);
      } else if (stage >= filled) {
        copy_x(chunk, slot);
      }
    }
    if (++slot == C::kStages) {
      slot = 0;
      ++round;
    }
    if (++chunk == S::kChunks) {
      chunk = 0;
      column += S::kTileOut;
    }
  }
}

template <class C, class Prologue, class Epilogue>
__device__ __forceinline__ void StreamingGemv(const Prologue& prologue, const Epilogue& epilogue,
                                              const typename C::T* x, const typename C::T* weight, i64 tokens) {
  using T = typename C::T;
  using S = GemvShape<C, Prologue, Epilogue>;
  static_assert(C::kStages * S::kStageBytes + S::kXBytes <= C::kSharedBytes, "less than the stages and x take");
  extern __shared__ __align__(128) char shared[];
  __shared__ u64 full[C::kStages], empty[C::kStages], norm_there;
  __shared__ float partials[2][S::kWarps][S::kTile * C::kTokens];
  const int first = static_cast<int>(blockIdx.x) * C::kRows;
  const int columns = C::kOut - first < C::kRows ? C::kOut - first : C::kRows;
  if (threadIdx.x < C::kStages) {
    InitBarrier(&full[threadIdx.x], 1);
    InitBarrier(&empty[threadIdx.x], S::kWarps);
    if (threadIdx.x == 0) InitBarrier(&norm_there, 1);
    FenceBarriers();
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  T* const all_x = reinterpret_cast<T*>(shared + C::kStages * S::kStageBytes);
  if (warp == S::kWarps) {
    if constexpr (Prologue::kNormalizes) {
      if (lane == 0) {
        ArriveExpecting(&norm_there, C::kIn * S::kSize);
        BulkCopy(all_x, prologue.weight, C::kIn * S::kSize, &norm_there);
      }
    }
    if (lane == 0) StreamWeights<C, Prologue, Epilogue>(shared, full, empty, x, weight, first, columns, tokens);
    return;
  }

  // Thread token * kTileOut + column stores a result of each tile.
  const int token = threadIdx.x / S::kTileOut;
  int column = threadIdx.x % S::kTileOut;
  typename Epilogue::Prepared prepared = {};
  const int lane_column = lane % 4 * S::kVec;
  int slot = 0, round = 0, parity = 0;
#pragma unroll 1
  for (int tile = 0; tile < columns; tile += S::kTileOut) {
    const bool stores = token < tokens && column < columns;
    if (Epilogue::kEarly && stores) prepared = epilogue.Prepare(token, first + column);
    if (tile == 0) {
      GridDependencyWait();
      if constexpr (!C::kXInRing) {
        if constexpr (Prologue::kNormalizes) WaitAt(&norm_there, 0);
        prologue.template Load<C, S>(all_x, x, all_x, tokens);
        SyncThreads<1, S::kMathThreads>();
      }
    }
    if (!Epilogue::kEarly && stores) prepared = epilogue.Prepare(token, first + column);
    TileSums<T, C::kTokens> sums;
#pragma unroll 1
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
      WaitAt(&full[slot], round & 1);
      const T* stage = reinterpret_cast<const T*>(shared + slot * S::kStageBytes) + lane_column;
      const T* stage_x = C::kXInRing ? stage + S::kTile * S::kStride : all_x + chunk * S::kChunk + lane_column;
      stage += lane / 4 * S::kStride;
#pragma unroll 2
      for (int i = warp * S::kBlock; i < S::kChunk; i += S::kWarps * S::kBlock) {
        sums.Add(stage + i, stage + 8 * S::kStride + i, stage_x + i, S::kXStride);
      }
      __syncwarp();
      if (lane == 0) ArriveAt(&empty[slot]);
      if (++slot == C::kStages) {
        slot = 0;
        ++round;
      }
    }
    float(*const mine)[S::kTile * C::kTokens] = partials[parity];  // the others may still be read
    parity ^= 1;
    sums.Store(mine[warp]);
    SyncThreads<1, S::kMathThreads>();
    if (stores) {
      float half[2] = {};
      const int at = threadIdx.x % S::kTileOut * C::kTokens + token;
#pragma unroll
      for (int w = 0; w < S::kWarps; ++w) {
        half[0] += mine[w][at];
        if constexpr (Epilogue::kPaired) half[1] += mine[w][at + S::kTileOut * C::kTokens];
      }
      epilogue.Store(token, first + column, half[0], half[1], prepared);
    }
    column += S::kTileOut;
  }
}
#endif

// A warp makes a column.
template <class C, class Prologue, class Epilogue>
__device__ __forceinline__ void DirectGemv(const Prologue& prologue, const Epilogue& epilogue, const typename C::T* x,
                                           const typename C::T* weight, i64 tokens) {
  using T = typename C::T;
  using S = GemvShape<C, Prologue, Epilogue>;
  constexpr int kHalves = Epilogue::kPaired ? 2 : 1;
  GridDependencyWait();
  i64 x_stride = C::kIn;
  if constexpr (Prologue::kNormalizes) {
    extern __shared__ __align__(128) char shared[];
    T* const all_x = reinterpret_cast<T*>(shared);
    prologue.template Load<C, S>(all_x, x, prologue.weight, tokens);
    __syncthreads();
    x = all_x;
    x_stride = S::kXStride;
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = static_cast<int>(blockIdx.x) * C::kRows;
  for (int column = first + warp; column < first + C::kRows && column < C::kOut; column += S::kWarps) {
    float sums[C::kTokens][kHalves] = {};
#pragma unroll 2
    for (int i = S::kVec * lane; i < C::kIn; i += S::kVec * 32) {
      Vec<T, S::kVec> w[kHalves];
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        w[h] = Load<T, S::kVec>(weight + static_cast<i64>(Epilogue::Row(column, h)) * C::kIn + i);
      }
#pragma unroll
      for (int t = 0; t < C::kTokens; ++t) {
        if (t >= tokens) break;
        const Vec<T, S::kVec> v = Load<T, S::kVec>(x + t * x_stride + i);
#pragma unroll
        for (int j = 0; j < kHalves * S::kVec; ++j) {
          sums[t][j / S::kVec] += ToFloat(v.v[j % S::kVec]) * ToFloat(w[j / S::kVec].v[j % S::kVec]);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < C::kTokens; ++t) {
      if (t >= tokens) break;
      float half[2] = {};
#pragma unroll
      for (int h = 0; h < kHalves; ++h) half[h] = WarpReduce(sums[t][h], Sum());
      if (lane == 0) epilogue.Store(t, column, half[0], half[1], epilogue.Prepare(t, column));
    }
  }
}

template <class C, class Prologue, class Epilogue>
__device__ __forceinline__ void GemvKernel(const Prologue& prologue, const Epilogue& epilogue, const typename C::T* x,
                                           const typename C::T* weight, i64 tokens) {
  LaunchDependents();
#if LLMC_SM90
  if constexpr (C::kChunk > 0) {
    StreamingGemv<C>(prologue, epilogue, x, weight, tokens);
    return;
  }
#endif
  DirectGemv<C>(prologue, epilogue, x, weight, tokens);
}

// ---- entry points: what comes before and after the product --------------------------------------------------------

template <class C>
__device__ __forceinline__ void Gemv(typename C::Out* out, const typename C::T* x, const typename C::T* weight,
                                     i64 tokens) {
  GemvKernel<C>(PlainX<typename C::T>{}, StoreSum<C>{out}, x, weight, tokens);
}
// addend[tokens, kOut]
template <class C>
__device__ __forceinline__ void GemvAdd(typename C::T* out, const typename C::T* x, const typename C::T* weight,
                                        const typename C::T* addend, i64 tokens) {
  GemvKernel<C>(PlainX<typename C::T>{}, StoreAdded<C, false>{out, addend}, x, weight, tokens);
}
// bias[kOut]
template <class C>
__device__ __forceinline__ void GemvBias(typename C::T* out, const typename C::T* x, const typename C::T* weight,
                                         const typename C::T* bias, i64 tokens) {
  GemvKernel<C>(PlainX<typename C::T>{}, StoreAdded<C, true>{out, bias}, x, weight, tokens);
}
template <class C>
__device__ __forceinline__ void GemvSiluMul(typename C::T* out, const typename C::T* x, const typename C::T* weight,
                                            i64 tokens) {
  GemvKernel<C>(PlainX<typename C::T>{}, StoreSiluMul<C>{out}, x, weight, tokens);
}
// bias[all columns of q, k and v] if C::kBias; else it is not read.
template <class C>
__device__ __forceinline__ void GemvQkvRope(typename C::T* out, const typename C::T* x, const typename C::T* weight,
                                            const typename C::T* bias, typename C::T* kv, const i32* pos,
                                            const float* inv_freq, const i32* slots, float scale, i64 tokens) {
  GemvKernel<C>(PlainX<typename C::T>{}, StoreQkvRope<C>{out, kv, bias, pos, inv_freq, slots, scale}, x, weight,
                tokens);
}

// The same of rms_norm of x, with weight `norm`.
template <class C>
__device__ __forceinline__ void NormGemv(typename C::Out* out, const typename C::T* x, const typename C::T* norm,
                                         const typename C::T* weight, float eps, i64 tokens) {
  GemvKernel<C>(NormalizedX<typename C::T>{norm, eps}, StoreSum<C>{out}, x, weight, tokens);
}
template <class C>
__device__ __forceinline__ void NormGemvBias(typename C::T* out, const typename C::T* x, const typename C::T* norm,
                                             const typename C::T* weight, const typename C::T* bias, float eps,
                                             i64 tokens) {
  GemvKernel<C>(NormalizedX<typename C::T>{norm, eps}, StoreAdded<C, true>{out, bias}, x, weight, tokens);
}
template <class C>
__device__ __forceinline__ void NormGemvSiluMul(typename C::T* out, const typename C::T* x, const typename C::T* norm,
                                                const typename C::T* weight, float eps, i64 tokens) {
  GemvKernel<C>(NormalizedX<typename C::T>{norm, eps}, StoreSiluMul<C>{out}, x, weight, tokens);
}
template <class C>
__device__ __forceinline__ void NormGemvQkvRope(typename C::T* out, const typename C::T* x, const typename C::T* norm,
                                                const typename C::T* weight, const typename C::T* bias,
                                                typename C::T* kv, const i32* pos, const float* inv_freq,
                                                const i32* slots, float scale, float eps, i64 tokens) {
  GemvKernel<C>(NormalizedX<typename C::T>{norm, eps}, StoreQkvRope<C>{out, kv, bias, pos, inv_freq, slots, scale}, x,
                weight, tokens);
}

}  // namespace llmc
