// What kernels of some rows and an encoded weight share: which rows of the weight a tile has, x that may be codes, and
// what becomes of a tile's sums. The weight is the left operand of products of warpgroups, so that a tile has columns
// of the result as its rows.
#pragma once
#include "kernels/common/hopper.cuh"
#include "kernels/linear/gemv_epilogue.cuh"
#include "kernels/linear/row_decoder.cuh"

namespace llmc {

// Eight neighbours of a row of x, as pairs of T. Those of codes are exact, or with scales of runs of columns rounded.
template <class C, class = void>
struct TileX {
  using Stored = typename C::T;
  static __device__ __forceinline__ Vec<u32, 4> Numbers(const Stored* eight, const EncodedWeight<C>&, int, int) {
    return Load<u32, 4>(reinterpret_cast<const u32*>(eight));
  }
};
template <class C>
struct TileX<C, typename VoidOf<typename C::XCodes>::Type> {
  using Stored = typename C::XCodes;
  // Of term `term` of row `token` and those behind it.
  static __device__ __forceinline__ Vec<u32, 4> Numbers(const Stored* eight, const EncodedWeight<C>& weight, int token,
                                                        int term) {
    static_assert(C::kXBlock % 8 == 0, "kXBlock: whole eights");
    constexpr bool kScales = kXScaleKind<C> == kOfBlocks;
    constexpr int kRuns = (C::kIn + C::kXBlock - 1) / C::kXBlock;
    const auto codes = Load<u32, 2>(reinterpret_cast<const u32*>(eight));
    const float factor = kScales ? weight.x_scale[token * kRuns + term / C::kXBlock] : 1.0f;
    Vec<u32, 4> v;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 halves = HalvesOf<Stored>(static_cast<u16>(codes.v[i / 2] >> (i % 2 * 16)));
      v.v[i] = kScales ? Pack<typename C::T>(ToFloat(f16{static_cast<u16>(halves)}) * factor,
                                             ToFloat(f16{static_cast<u16>(halves >> 16)}) * factor)
                       : OfHalves<typename C::T>(halves);
    }
    return v;
  }
};

// kRows: of the weight, in a tile; each of two warpgroups has 64 of them, or several times.
template <class C, class Epilogue, int kRows>
struct EncodedTile {
  using W = EncodedWeight<C>;
  using L = EncodedGemmLayout;
  static constexpr int kColumns = Epilogue::kPaired ? kRows / 2 : kRows;  // of the result
  static constexpr int kTiles = (C::kOut + kColumns - 1) / kColumns;

  // Of each 64 rows of its warpgroup a thread has this row, and that eight on.
  static __device__ __forceinline__ int OwnRow(int half) {
    const int thread = static_cast<int>(threadIdx.x);
    return thread / 128 * (kRows / 2) + half * 64 + thread % 128 / 32 * 16 + thread % 32 / 4;
  }
  static __device__ __forceinline__ int Column(int tile, int row) {
    return tile * kColumns + (Epilogue::kPaired ? row / 16 * 8 + row % 8 : row);
  }
  // Row `row` of a tile, in the weight. A row that is not there is as good as the last.
  static __device__ __forceinline__ int WeightRow(int tile, int row) {
    const int column = Column(tile, row);
    return Epilogue::Row(column < C::kOut ? column : C::kOut - 1, Epilogue::kPaired ? row / 8 % 2 : 0);
  }

  // What both rows have of columns and of all: zero points go into decoders, scales are for the sums.
  template <class Decoder>
  static __device__ __forceinline__ void Begin(const W& weight, int tile, int half, Decoder (&rows)[2],
                                               float (&scale)[2]) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = WeightRow(tile, OwnRow(half) + 8 * j);
      if constexpr (C::kZero == kNoPart) rows[j].SetWholeZero(kShift<typename C::Q>);
      if constexpr (C::kZero != kNoPart && !W::kZeroInBlocks) {
        rows[j].SetZero(ReadElement(weight.zero, C::kZero == kOfColumns ? row : 0));
      }
      scale[j] = W::kScaleInBlocks ? 1.0f : weight.template ScaleOf<float>(0, row, C::kIn, C::kOut);
      if constexpr (C::kOuter != kNoPart) scale[j] *= weight.OuterOf(row);
    }
  }

  // Of tokens from `first_token` on; what codes of x are to be multiplied with is read here, after the wait. What is
  // read is read for several blocks of 8 tokens at once, and of those that are not there as of the last: nothing waits
  // for it one by one.
  template <int kBlocks>
  static __device__ __forceinline__ void Store(const Epilogue& epilogue, const W& weight, int tile, int half,
                                               int first_token, int tokens, const float (&scale)[2],
                                               const float (&c)[kBlocks][4]) {
    const int column = Column(tile, OwnRow(half)), own = first_token + static_cast<int>(threadIdx.x % 4) * 2;
    constexpr int kColumns = Epilogue::kPaired ? 1 : 2;
    using Prepared = typename Epilogue::Prepared;
    const auto store = [&](int token, const float(&sums)[4], int e, float of_x, const auto& prepare) {
      const float low = sums[e] * scale[0] * of_x, high = sums[2 + e] * scale[1] * of_x;
      if (column < C::kOut) epilogue.Store(token, column, low, Epilogue::kPaired ? high : 0, prepare(0));
      if constexpr (!Epilogue::kPaired) {
        if (column + 8 < C::kOut) epilogue.Store(token, column + 8, high, 0, prepare(1));
      }
    };
    // What takes many registers, and instructions to make, is made as it is needed.
    constexpr bool kIsLarge = sizeof(Prepared) > 4;
    constexpr int kAtOnce = kIsLarge ? 1 : kBlocks < 4 ? 2 * kBlocks : 8;
#pragma unroll
    for (int first = 0; first < 2 * kBlocks; first += kAtOnce) {
      if constexpr (kIsLarge) {
        const int token = own + first / 2 * 8 + first % 2;
        if (token >= tokens) continue;
        store(token, c[first / 2], first % 2, weight.AfterWait(token).scale,
              [&](int j) { return epilogue.Prepare(token, column + 8 * j); });
      } else {
        Prepared prepared[kAtOnce][kColumns];
        float of_x[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int there = own + (first + i) / 2 * 8 + i % 2, token = there < tokens ? there : tokens - 1;
          of_x[i] = weight.AfterWait(token).scale;
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            prepared[i][j] = epilogue.Prepare(token, column + 8 * j < C::kOut ? column + 8 * j : C::kOut - 1);
          }
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int token = own + (first + i) / 2 * 8 + i % 2;
          if (token < tokens) store(token, c[(first + i) / 2], i % 2, of_x[i], [&](int j) { return prepared[i][j]; });
        }
      }
    }
  }

  // Of the first 64 rows and the first tokens, one token of a lane at a time: its token `i` of 8 for each 4 lanes.
  class LaneStore {
   public:
    struct Prepared {
      typename Epilogue::Prepared of[Epilogue::kPaired ? 1 : 2];
      float of_x;
    };
    __device__ __forceinline__ LaneStore(const Epilogue& epilogue, const W& weight, int tile, int tokens)
        : epilogue_(epilogue), weight_(weight), tokens_(tokens), column_(Column(tile, OwnRow(0))) {}

    __device__ __forceinline__ Prepared Prepare(int i) const {
      const int there = TokenOf(i), token = there < tokens_ ? there : tokens_ - 1;
      Prepared prepared;
      prepared.of_x = weight_.AfterWait(token).scale;
#pragma unroll
      for (int j = 0; j < (Epilogue::kPaired ? 1 : 2); ++j) {
        const int column = column_ + 8 * j;
        prepared.of[j] = epilogue_.Prepare(token, column < C::kOut ? column : C::kOut - 1);
      }
      return prepared;
    }
    __device__ __forceinline__ void Store(int i, float low, float high, const Prepared& prepared) const {
      const int token = TokenOf(i);
      if (token >= tokens_) return;
      low *= prepared.of_x;
      high *= prepared.of_x;
      if (column_ < C::kOut) epilogue_.Store(token, column_, low, Epilogue::kPaired ? high : 0, prepared.of[0]);
      if constexpr (!Epilogue::kPaired) {
        if (column_ + 8 < C::kOut) epilogue_.Store(token, column_ + 8, high, 0, prepared.of[1]);
      }
    }

   private:
    static __device__ __forceinline__ int TokenOf(int i) {
      return static_cast<int>(threadIdx.x % 4) * 2 + i / 2 * 8 + i % 2;
    }
    const Epilogue& epilogue_;
    const W& weight_;
    const int tokens_, column_;
  };

  // The same of many tokens, by a warpgroup, some tokens at a time through shared memory of its own: one loop for all,
  // since code that a warp runs once takes longer to come than to run, and a warp stores neighbours of a row.
  template <int kBlocks>
  static __device__ __forceinline__ void StoreInTurn(const Epilogue& epilogue, const W& weight, int tile, int half,
                                                     int first_token, int tokens, const float (&scale)[2],
                                                     const float (&c)[kBlocks][4], float* staged) {
    constexpr int kBlocksAtOnce = L::kStagedTokens / 8, kStride = L::kStagedStride;
    static_assert(kBlocks % kBlocksAtOnce == 0, "kBlocks: whole turns");
    const int thread = static_cast<int>(threadIdx.x) % 128, row = thread / 32 * 16 + thread % 32 / 4;
    // Halves of columns lie apart.
    const int at = Epilogue::kPaired ? row / 16 * 8 + row % 8 : row;
    float* const own = staged + thread % 4 * 2 * kStride + at;
#pragma unroll 1
    for (int first = 0; first < kBlocks; first += kBlocksAtOnce) {
      if (first_token + first * 8 >= tokens) break;
#pragma unroll
      for (int begin = 0; begin < kBlocks; begin += kBlocksAtOnce) {
        if (begin != first) continue;
#pragma unroll
        for (int i = 0; i < kBlocksAtOnce; ++i) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float* const to = own + (i * 8 + e) * kStride;
            to[0] = c[begin + i][e] * scale[0];
            to[Epilogue::kPaired ? 32 : 8] = c[begin + i][2 + e] * scale[1];
          }
        }
      }
      SyncNamed(1 + static_cast<int>(threadIdx.x) / 128, 128);
      StoreStaged(epilogue, weight, tile, half, first_token + first * 8, tokens, staged);
      SyncNamed(1 + static_cast<int>(threadIdx.x) / 128, 128);
    }
  }

 private:
  // A warp has every fourth token, a lane the same columns of each.
  static __device__ __forceinline__ void StoreStaged(const Epilogue& epilogue, const W& weight, int tile, int half,
                                                     int first_token, int tokens, const float* staged) {
    using Prepared = typename Epilogue::Prepared;
    constexpr int kOwn = Epilogue::kPaired ? 1 : 2, kAtOnce = sizeof(Prepared) > 4 ? 2 : 8;
    static_assert(L::kStagedTokens % (4 * kAtOnce) == 0, "kStagedTokens: whole turns of four warps");
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % 128 / 32;
    const int warpgroup = static_cast<int>(threadIdx.x) / 128;
    const int first_column = tile * kColumns + warpgroup * (kColumns / 2) + half * (Epilogue::kPaired ? 32 : 64) + lane;
#pragma unroll 1
    for (int first = warp; first < L::kStagedTokens; first += 4 * kAtOnce) {
      Prepared prepared[kAtOnce][kOwn];
      float of_x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int there = first_token + first + 4 * i, token = there < tokens ? there : tokens - 1;
        of_x[i] = weight.AfterWait(token).scale;
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
          const int column = first_column + 32 * j;
          prepared[i][j] = epilogue.Prepare(token, column < C::kOut ? column : C::kOut - 1);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int of_turn = first + 4 * i, token = first_token + of_turn;
        const float* const sums = staged + of_turn * L::kStagedStride + lane;
        if (token >= tokens) break;
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
          const int column = first_column + 32 * j;
          const float low = sums[32 * j] * of_x[i], high = Epilogue::kPaired ? sums[32] * of_x[i] : 0;
          if (column < C::kOut) epilogue.Store(token, column, low, high, prepared[i][j]);
        }
      }
    }
  }
};

}  // namespace llmc
