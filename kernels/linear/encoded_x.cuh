// Rows of x in the order in which an encoded weight's codes are multiplied (encoded_gemm.cuh). Which term is which does
// not matter as long as both operands agree: lane t of four reads 16 neighbouring bytes of a row of the weight, of
// which eight codes are its operands of two products of 16 terms. x is put in that order: pair p of the lane's eight
// `e` lies in panel e / 2, of 64 terms, as pair 4 (e % 2 * 4 + p) + t of a row.
//
// A norm before the product writes its rows in order, and so do gates and attention of decode steps whose results it
// alone reads (x_order.cuh); of more than few rows else a launch of its own does (OrderEncodedX). Blocks copy tiles of
// it. Other few rows are put in order by each block that reads them, in shared memory. There codes of 4 bits whose
// pairs are not of neighbours are paired with those eight on: pair p of a panel then is of terms p of two neighbouring
// eights of the lane, so that x is transposed, 8x8 terms at a time.
#pragma once
#include "kernels/common/bulk_copy.cuh"
#include "kernels/linear/encoded_tile.cuh"
#include "kernels/linear/x_order.cuh"

namespace llmc {

// How a kernel is given x.  C::kOrdered: in order.
template <class C>
using EncodedGemmSource = typename Choose<C::kOrdered, const TileMap&, const typename TileX<C>::Stored*>::Type;

#if LLMC_SM90
// x in order, as the kernel that multiplies takes it: as a map of tiles of EncodedGemmBox(kTokens) rows.
template <class C, int kTokens>
struct OrderedX {
  using W = EncodedWeight<C>;
  using L = EncodedGemmLayout;
  static constexpr L kLayout = {W::kBits, W::kScaleBits, W::kZeroBits, C::kBlock, C::kHalves, C::kSlabs};
  static constexpr int kDepth = kLayout.Depth(), kChunks = C::kIn / kDepth, kPanelBytes = kTokens * 128;
  static constexpr int kBox = EncodedGemmBox(kTokens);
  static constexpr u32 kArrivals = 1;
  static constexpr bool kEightApart = false;
  static_assert(kTokens % kBox == 0, "kTokens: whole boxes");

  // A stage of rows `token` on, by one thread. What lies behind the last row is zero.
  static __device__ __forceinline__ void Copy(const TileMap& x, int token, int chunk, char* stage, u64* full) {
    ArriveExpecting(full, kTokens * kDepth * 2);
#pragma unroll
    for (int panel = 0; panel < kDepth / 64; ++panel) {
#pragma unroll
      for (int box = 0; box < kTokens; box += kBox) {
        CopyTile(SharedAddress(stage + panel * kPanelBytes + box * 128), x, (chunk * (kDepth / 64) + panel) * 128,
                 token + box, full);
      }
    }
  }
};

// What a warp has of stages, 8 of the kTokens rows in each, along the line of stages: chunks of k, again for each tile
// of the weight.
template <class C, int kTokens>
struct EncodedX {
  using T = typename C::T;
  using W = EncodedWeight<C>;
  using X = typename TileX<C>::Stored;
  using L = EncodedGemmLayout;
  using Pairs = CodePairs<T, typename C::Q>;
  static constexpr L kLayout = {W::kBits, W::kScaleBits, W::kZeroBits, C::kBlock, C::kHalves, C::kSlabs};
  static constexpr int kDepth = kLayout.Depth(), kSlabDepth = kLayout.SlabDepth(), kRun = kLayout.Run(),
                       kEights = kRun / 8, kChunks = C::kIn / kDepth;
  static constexpr u32 kArrivals = L::kXThreads;                                 // at a stage
  static constexpr int kPanelBytes = kTokens * 128;                              // of 64 terms
  static constexpr int kWeightSlab = kTokens * kSlabDepth * 2;                   // of those of a slab of the weight
  static constexpr int kRowEights = 4 * kEights, kCopyTokens = 32 / kRowEights;  // of a token; that are copied at once
  // Whether pairs are of terms that are eight apart.
  static constexpr bool kEightApart = !Pairs::kOfNeighbours && kEights == 4 && kSame<X, T> &&
                                      (!(W::kScaleInBlocks || W::kZeroInBlocks) || C::kBlock % 16 == 0);
  static_assert(8 * (L::kXThreads / 32) == kTokens, "kTokens: 8 for each warp that copies");
  const X* const x;
  const W& weight;
  const int tokens;
  int chunk;
  const X* from = nullptr;  // what the lane copies first of the stage

  static __device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  // The warp's first.
  static __device__ __forceinline__ int WarpToken() {
    return (static_cast<int>(threadIdx.x) - L::kMathThreads) / 32 * 8;
  }
  // Where terms 8 n to 8 n + 7 of a token lie in the stage before they are in order: so that eight lanes read, and
  // write, different banks.
  static __device__ __forceinline__ int CopiedAt(int token, int n) {
    const int chunk = n % 8 ^ (kEightApart ? n / 8 * 2 : kEights == 4 ? token % 2 * 2 + n / 8 : token % 2);
    return n / 8 * kPanelBytes + token * 128 + chunk * 16;
  }
  __device__ __forceinline__ void Enter() {
    from =
        x + (WarpToken() + Lane() / kRowEights) * static_cast<i64>(C::kIn) + Lane() % kRowEights * 8 + chunk * kDepth;
  }
  __device__ __forceinline__ void Advance() {
    from += kDepth;
    if (++chunk < kChunks) return;
    chunk = 0;
    Enter();
  }
  __device__ __forceinline__ void Copy(char* stage) const {
#pragma unroll
    for (int slab = 0; slab < C::kSlabs; ++slab) {
#pragma unroll
      for (int i = 0; i < 8 / kCopyTokens; ++i) {
        const int token = WarpToken() + i * kCopyTokens + Lane() / kRowEights;
        char* const to = stage + slab * kWeightSlab + CopiedAt(token, Lane() % kRowEights);
        CopyAsyncIf<8 * sizeof(X)>(SharedAddress(to), from + (i * (kCopyTokens * C::kIn) + slab * kSlabDepth),
                                   token < tokens);
      }
    }
  }
  // In place, when what the warp has copied is there.
  __device__ __forceinline__ void Order(char* stage) const {
#pragma unroll
    for (int slab = 0; slab < C::kSlabs; ++slab) {
      if constexpr (kEightApart) {
        Transpose(stage + slab * kWeightSlab);
      } else {
        Pair(stage + slab * kWeightSlab, chunk * kDepth + slab * kSlabDepth);
      }
    }
  }

 private:
  // The 64 terms of a token in a panel are a matrix whose rows are eights, two neighbours of each lane's part. Four
  // matrices are two tokens.
  static __device__ __forceinline__ void Transpose(char* stage) {
    const int row = Lane() % 8, panel = Lane() / 8 % 2, lane_token = Lane() / 16;
    const u32 first = SharedAddress(stage) + WarpToken() * 128;
    const u32 read = first + CopiedAt(lane_token, row / 2 * 4 + panel * 2 + row % 2);
    const int to = panel * kPanelBytes + lane_token * 128 + (row ^ lane_token) * 16;
    u32 v[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) LoadMatrices(v[i], read + i * 256);
#pragma unroll
    for (int i = 0; i < 4; ++i) StoreMatricesTransposed(first + (to ^ i * 32) + i * 256, v[i]);
  }
  // A lane has what a lane that multiplies reads of one token.
  __device__ __forceinline__ void Pair(char* stage, int first_term) const {
    const int lane_token = Lane() / 4, part = Lane() % 4, token = WarpToken() + lane_token;
    const int at = token * 128 + lane_token * 16 + part * 4;
    Vec<u32, 4> v[kEights];
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const char* const read = stage + CopiedAt(token, part * kEights + e);
      v[e] = TileX<C>::Numbers(reinterpret_cast<const X*>(read), weight, token < tokens ? token : 0,
                               first_term + part * kRun + 8 * e);
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
      const Vec<u32, 4> pairs = Pairs::kOfNeighbours ? v[e] : PairFourApart(v[e]);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        *reinterpret_cast<u32*>(stage + (at ^ (e % 2 * 4 + p) * 16) + e / 2 * kPanelBytes) = pairs.v[p];
      }
    }
  }
};
#endif

// Eight neighbours, from term `term` on, of a row of the order that OrderedX takes (OrderedPlace): four pairs, whose
// places are 8 apart.
template <class C>
__device__ __forceinline__ void StoreOrdered(typename C::T* row, int term, const Vec<u32, 4>& eight) {
  using Pairs = CodePairs<typename C::T, typename C::Q>;
  static_assert(sizeof(typename C::T) == 2 && C::kIn % kOrderedDepth<typename C::Q> == 0, "kIn: whole stages");
  u32* const to = reinterpret_cast<u32*>(row + OrderedPlace<typename C::T, typename C::Q>(term));
  const Vec<u32, 4> pairs = Pairs::kOfNeighbours ? eight : PairFourApart(eight);
#pragma unroll
  for (int p = 0; p < 4; ++p) to[4 * p] = pairs.v[p];
}

// out[token, k] of x[token, k] in that order, of `count` times 8 neighbours, a thread each.  C: that of the product.
template <class C, class Context>
__device__ __forceinline__ void OrderEncodedX(const Context& context, typename C::T* out,
                                              const typename TileX<C>::Stored* x, const EncodedWeight<C>& weight,
                                              i64 count) {
#if LLMC_SM90
  context.Wait();
  const i64 at = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (at >= count) return;
  const i64 token = at / (C::kIn / 8);
  const int term = static_cast<int>(at % (C::kIn / 8)) * 8;
  StoreOrdered<C>(out + token * C::kIn, term, TileX<C>::Numbers(x + at * 8, weight, static_cast<int>(token), term));
#endif
}

// Of a norm (norm/row_sink.cuh): its rows in that order.
template <class C>
struct OrderedSink {
  typename C::T* out;

  template <class, int kVec, int kVecs, class Context, class Shared>
  __device__ __forceinline__ void Take(const Context&, Shared&, i64 row,
                                       const Vec<typename C::T, kVec> (&r)[kVecs]) const {
#if LLMC_SM90
    static_assert(kVec == 8 && C::kIn == C::kDim, "kDim: whole stages");
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int term = kVec * (threadIdx.x + i * C::kThreads);
      if (term >= C::kDim) break;
      StoreOrdered<C>(out + row * C::kIn, term, Load<u32, 4>(reinterpret_cast<const u32*>(r[i].v)));
    }
#endif
  }
};

}  // namespace llmc
