// What kernels of some rows and an encoded weight share: which rows of the weight a tile has, x that may be codes, and
// what becomes of a tile's sums. The weight is the left operand of products of warpgroups, so that a tile has columns
// of the result as its rows.
#pragma once
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
      if constexpr (C::kOuter) scale[j] *= *weight.outer;
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
};

}  // namespace llmc
