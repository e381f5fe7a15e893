// What a warp of paged_attention_decode.cuh computes of a tile of keys and values in shared memory.
#pragma once
#include "kernels/attention/decode_codes.cuh"
#include "kernels/attention/decode_shape.cuh"

namespace llmc {

// What a warp computes: 16-bit elements on tensor cores.
template <class C>
struct DecodeTile16 {
  using T = typename C::T;
  using S = DecodeShape<C>;
  static constexpr bool kHalf = S::kRows <= 8;

  AttentionTile<T, S::kDim, C::kTile, 1, kHalf> tile;
  u32 query[S::kDim / 16][4];

  // Asks for the queries. `Row(r)`: the address of row r, null if there is none.
  template <class Row>
  __device__ __forceinline__ void Load(Row row_of) {
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
  // Behind Load.
  __device__ __forceinline__ void Begin() { tile.Reset(); }

  // `Join(r, key, score)`: the score of a key of the tile for row r, -Infinity() if it is not seen. `joins`: whether
  // that changes any, the same for all lanes.
  template <class Scale, class Join>
  __device__ __forceinline__ void Add(const T* keys, const Scale& scale, bool joins, Join join) {
    const auto query_of = [&](int, int step, u32(&a)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = query[step][i];
    };
    const u32 address = SharedAddress(keys);
    tile.Multiply(query_of, address);
    tile.Cap(scale);
    if (joins) {
#pragma unroll
      for (int half = 0; half < tile.kHalves; ++half) {
        const int row = static_cast<int>(threadIdx.x) % 32 / 4 + 8 * half;
        tile.ChangeRow(0, half, [&](int, int, int key, float score) { return join(row, key, score); });
      }
    }
    float rescale[1][2];
    tile.template Weigh<Scale::kFar>(scale.Factor(), rescale);
    tile.Rescale(rescale);
    tile.Accumulate(address + S::kPart * 2);
  }

  // As DecodeSums are stored.
  template <class Scale>
  __device__ __forceinline__ void Store(float* to, const Scale& scale) {
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
  __device__ __forceinline__ void Load(Row row_of) {
#pragma unroll
    for (int i = 0; i < kHalfRows; ++i) rows[i] = row_of(2 * i + Lane() / 16);
  }
  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int i = 0; i < kHalfRows; ++i) {
      top[i] = kLowestScore;
      sum[i] = 0;
    }
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
#pragma unroll
      for (int j = 0; j < kVectors * 4; ++j) out[r][j] = 0;
    }
  }

  template <class Scale, class Join>
  __device__ __forceinline__ void Add(const float* keys, const Scale& scale, bool joins, Join join) {
    float weights[kHalfRows] = {}, rescale[kHalfRows];
    const int key = Lane() % 16;
    for (int column = 0; column < C::kHeadDim; column += 4) {
      const Vec<float, 4> k = llmc::Load<float, 4>(keys + key * S::kStride + column);
#pragma unroll
      for (int i = 0; i < kHalfRows; ++i) {
        if (rows[i] == nullptr) continue;
        const Vec<float, 4> q = llmc::Load<float, 4>(rows[i] + column);
#pragma unroll
        for (int j = 0; j < 4; ++j) weights[i] += q.v[j] * k.v[j];
      }
    }
#pragma unroll
    for (int i = 0; i < kHalfRows; ++i) {
      float score = weights[i] * scale.scale;
      if constexpr (C::kSoftcap) score = scale.cap * tanhf(weights[i] * scale.tanh_scale * 0.34657359027997264f);
      if (joins) score = join(2 * i + Lane() / 16, key, score);
      if constexpr (Scale::kFar) score *= scale.Factor();
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
    for (int k = 0; k < C::kTile; ++k) {
      Vec<float, 4> v[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int column = i * 128 + Lane() * 4;
        v[i] = llmc::Load<float, 4>(values + k * S::kStride + (column < S::kDim ? column : 0));
      }
#pragma unroll
      for (int r = 0; r < S::kRows; ++r) {
        const float weight = __shfl_sync(~0u, weights[r / 2], k + r % 2 * 16);
#pragma unroll
        for (int j = 0; j < kVectors * 4; ++j) out[r][j] += weight * v[j / 4].v[j % 4];
      }
    }
  }

  template <class Scale>
  __device__ __forceinline__ void Store(float* to, const Scale&) {
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

// kBytes: of an element in shared memory, 0 of codes.
template <class C, int kBytes>
struct DecodeTileOf {
  using Tile = DecodeTile16<C>;
};
template <class C>
struct DecodeTileOf<C, 4> {
  using Tile = DecodeTile32<C>;
};
template <class C>
struct DecodeTileOf<C, 0> {
  using Tile = DecodeTileCodes<C>;
};

}  // namespace llmc
