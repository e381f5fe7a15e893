// Tiles of paged_attention_decode.cuh where the cache is encoded: codes lie in shared memory as they do in the cache,
// and become f16 in registers, as the left operand of mma.sync, whatever T is: that takes the fewest instructions. So
// rows of products are keys, or columns of values, and their columns are the queries, of which there are few.
// Scales of keys are multiplied to scores, those of values to weights, both in f32. What integers are more than they
// stand for (cached_pairs.cuh, and zero points) is taken off the sums: sum q (c - z) = sum q c - z sum q.
//
// f16 holds numbers of 29 binary orders with all bits. So rows of queries are multiplied by a power of two that brings
// their greatest element to 2^14, and weights times scales by one (the gain) that does so with the greatest scale of
// values so far; products with these are exact, and they are taken off in f32.
//
// Sums go over dims and keys in any order, and columns of values are computed in any order, so that a lane reads
// neighbouring codes of a row: of keys those that it multiplies with queries in one or two steps, of values all its
// columns of a group. Neighbours in a register are of two dims (keys) or of two keys (values).
#pragma once
#include "kernels/attention/decode_scales.cuh"

namespace llmc {

// An 8 x 8 matrix of 16-bit elements in the registers of a warp, two neighbours of a row in each: its transpose.
__device__ __forceinline__ u32 Transposed(u32 x) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
  return r;
}

// What a warp computes.
// Over 250 lines: one item, from queries to sums, in the layout of mma.sync.
template <class C>
struct DecodeTileCodes {
  using T = typename C::T;
  using S = DecodeShape<C>;
  using Pairs = CachedPairs<typename C::KvCode>;
  using Scales = TileScales<C>;
  using KeyBy = typename Scales::OfKey;
  static constexpr bool kIsInteger = !CodeFormat<typename C::KvCode>::kFloat;
  static constexpr int kBits = CodeFormat<typename C::KvCode>::kBits, kGroups = Scales::kGroups;
  static constexpr int kSpan = S::kDim / kGroups;             // dims of a group, those among them that only fill it up
  static constexpr int kLane = kSpan / 8;                     // of these, those of values that a lane reads of a row
  static constexpr int kSteps = Pairs::kPairs / 2;            // that a word of a key is good for
  static constexpr int kWords = kSpan / (4 * Pairs::kCodes);  // of a lane, of a key in a group
  static constexpr int kM = C::kTile / 16;                    // matrices of keys
  static constexpr int kN = (S::kRows + 7) / 8;               // matrices of rows of queries
  static_assert(kSpan % 32 == 0 && (kGroups == 1 || kSpan == C::kKvGroup), "groups of whole steps");

  // In the layout of mma.sync: elements of lane 4 o + q are those of rows o and o + 8, and columns 2 q and 2 q + 1,
  // which are rows of queries. Rows of `out` are dims: of the lane's columns, which lie one after the other in each
  // group, those with numbers 2 i and 2 i + 1. Rows of `scores` are keys.
  float out[kGroups * kLane / 2][kN][4];
  float scores[kM][kN][4];
  float top[kN][2], sum[kN][2];  // sums are over the lane's own keys until Store
  u32 query[S::kDim / 16][kN][2];
  float score_unit[kN][2];           // what products of the queries with codes are multiplied with
  float query_sums[kGroups][kN][2];  // where codes are integers: of what is multiplied with them
  // The gain is the power of two that brings a scale with this exponent to 2^14. `lowered`: what that did to sums so
  // far since the last tile.
  i32 greatest;
  float lowered;

  static __device__ __forceinline__ int Quad() { return threadIdx.x % 4; }
  static __device__ __forceinline__ int Octet() { return threadIdx.x % 32 / 4; }

  // As in DecodeTile16; dims are paired as codes of keys are.
  template <class Row>
  __device__ __forceinline__ void Load(Row row_of) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const T* const row = row_of(Octet() + 8 * n);
#pragma unroll
      for (int word = 0; word < S::kDim / (4 * Pairs::kCodes); ++word) {
        const int column = (word * 4 + Quad()) * Pairs::kCodes;
        Vec<T, Pairs::kCodes> x = {};
        if (row != nullptr && column < C::kHeadDim) x = llmc::Load<T, Pairs::kCodes>(row + column);
#pragma unroll
        for (int i = 0; i < Pairs::kPairs; ++i) {
          query[word * kSteps + i / 2][n][i % 2] =
              x.v[Pairs::First(i)].bits | static_cast<u32>(x.v[Pairs::Second(i)].bits) << 16;
        }
      }
    }
  }
  __device__ __forceinline__ void Begin() {
    greatest = 15;
    lowered = 1;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        top[n][j] = kLowestScore;
        sum[n][j] = 0;
      }
#pragma unroll
      for (int i = 0; i < kGroups * kLane / 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) out[i][n][j] = 0;
      }
      ScaleQuery(n);
    }
  }

  // For the scales that come next, of which the greatest has this exponent.
  __device__ __forceinline__ float RaiseGain(i32 exponent) {
    const i32 before = greatest;
    greatest = max(greatest, exponent);
    lowered = PowerOf(max(127 + before - greatest, 0));
    return Gain();
  }

  template <class Scale, class Join>
  __device__ __forceinline__ void Add(const char* keys, const Scales& scales, const Scale& scale, bool joins,
                                      Join join) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      Multiply(keys, scales, m);
      if constexpr (Scale::kCaps) {
        ChangeScores(m, [&](int, int, float score) { return scale.Capped(score); });
      }
      if (joins) ChangeScores(m, join);
    }
    float rescale[kN][2];
    Weigh<Scale::kFar>(scale.Factor(), rescale);
    KeyBy by[kM][2];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) by[m][half] = scales.Scales(1, m * 16 + half * 8 + Octet());
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) Accumulate(keys + S::kPartBytes, scales, by, group, rescale);
  }

  // As DecodeSums are stored.
  template <class Scale>
  __device__ __forceinline__ void Store(float* to, const Scale& scale) {
    const float unit = PowerOf(254 - ExponentOf(Gain()));
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float all = AcrossKeys(sum[n][j], Sum());
        const int r = 8 * n + 2 * Quad() + j;
        if (r >= S::kRows) continue;
#pragma unroll
        for (int column = 0; column < kGroups * kLane; column += 4) {
          Vec<float, 4> four;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            four.v[i] = out[column / 2 + i / 2][n][i % 2 * 2 + j] * unit * (Pairs::kUnits / Pairs::Weight(i));
          }
          llmc::Store(to + r * S::kDim + column / kLane * kSpan + Octet() * kLane + column % kLane, four);
        }
        const Vec<float, 2> pair = {top[n][j] * scale.Factor(), all};
        if (Octet() == 0) llmc::Store(to + S::kRows * S::kDim + r * 2, pair);
      }
    }
  }

 private:
  __device__ __forceinline__ float Gain() const { return PowerOf(127 + 14 + 127 - greatest); }

  // Over the lanes with the same queries.
  template <class Op>
  static __device__ __forceinline__ float AcrossKeys(float x, Op op) {
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) x = op(x, __shfl_xor_sync(~0u, x, lanes));
    return x;
  }

  // Row 8 n + Octet() of the queries.
  __device__ __forceinline__ void ScaleQuery(int n) {
    float most = 0;
#pragma unroll
    for (int step = 0; step < S::kDim / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const u32 pair = query[step][n][i];
        most = fmaxf(most, fmaxf(fabsf(LowOf<T>(pair)), fabsf(HighOf<T>(pair))));
      }
    }
    most = WarpReduce<4>(most, Max());
    const float factor = PowerOf(min(127 + 14 + 127 - ExponentOf(most), 229));
    const float unit = PowerOf(254 - ExponentOf(factor)) * Pairs::kUnits;
    float sums[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      sums[group] = 0;
#pragma unroll
      for (int word = group * kWords; word < (group + 1) * kWords; ++word) {
#pragma unroll
        for (int i = 0; i < Pairs::kPairs; ++i) {
          u32& pair = query[word * kSteps + i / 2][n][i % 2];
          const float by = factor * (1 / Pairs::Weight(i));
          pair = Pack<f16>(LowOf<T>(pair) * by, HighOf<T>(pair) * by);
          sums[group] += (LowOf<f16>(pair) + HighOf<f16>(pair)) * Pairs::Weight(i);
        }
      }
      if constexpr (kIsInteger) sums[group] = WarpReduce<4>(sums[group], Sum()) * (1 / Pairs::kUnits);
    }
    // From the lanes of a row to those of its products.
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int lane = (2 * Quad() + j) * 4;
      score_unit[n][j] = __shfl_sync(~0u, unit, lane);
      if constexpr (kIsInteger) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) query_sums[group][n][j] = __shfl_sync(~0u, sums[group], lane);
      }
    }
  }

  // Scores of matrix m of the keys.
  __device__ __forceinline__ void Multiply(const char* keys, const Scales& scales, int m) {
    const int key = m * 16 + Octet();
    const char* const row = keys + key * S::kStrideBytes + Quad() * 4;
    const KeyBy by[2] = {scales.Scales(0, key), scales.Scales(0, key + 8)};
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = 0;
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float sums[kN][4];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool known = kIsInteger && C::kKvZeros == 0;
          sums[n][i] = known ? query_sums[group][n][i % 2] * -static_cast<float>(Pairs::kOffset) : 0.0f;
        }
      }
#pragma unroll
      for (int word = group * kWords; word < (group + 1) * kWords; ++word) {
        u32 a[Pairs::kPairs], b[Pairs::kPairs];
        Pairs::Pairs(*reinterpret_cast<const u32*>(row + word * 16), a);
        Pairs::Pairs(*reinterpret_cast<const u32*>(row + 8 * S::kStrideBytes + word * 16), b);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          const u32 left[4] = {a[2 * step], b[2 * step], a[2 * step + 1], b[2 * step + 1]};
#pragma unroll
          for (int n = 0; n < kN; ++n) {
            const u32(&q)[2] = query[word * kSteps + step][n];
            MultiplyAdd<f16>(sums[n], left, q[0], q[1]);
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float offset = static_cast<float>(scales.OffsetOf(0, group, key + 8 * half));
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            float product = sums[n][2 * half + j];
            if constexpr (C::kKvZeros != 0) product -= offset * query_sums[group][n][j];
            scores[m][n][2 * half + j] += product * by[half].v[group];
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] *= score_unit[n][i % 2];
    }
  }

  // Scores of matrix m become `change(row, key, score)`.
  template <class F>
  __device__ __forceinline__ void ChangeScores(int m, F change) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[m][n][i];
        score = change(8 * n + 2 * Quad() + i % 2, m * 16 + i / 2 * 8 + Octet(), score);
      }
    }
  }

  // As AttentionTile::Weigh; `rescale` is also of the gain.
  template <bool kFar>
  __device__ __forceinline__ void Weigh(float factor, float (&rescale)[kN][2]) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float most = fmaxf(scores[0][n][j], scores[0][n][2 + j]);
#pragma unroll
        for (int m = 1; m < kM; ++m) most = fmaxf(most, fmaxf(scores[m][n][j], scores[m][n][2 + j]));
        const float new_top = fmaxf(top[n][j], AcrossKeys(most, Max()));
        const float own = Exp2((top[n][j] - new_top) * factor), offset = new_top * factor;
        top[n][j] = new_top;
        float added = 0;
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& score = scores[m][n][2 * half + j];
            score = Exp2(kFar ? (score - new_top) * factor : score * factor - offset);
            added += score;
          }
        }
        sum[n][j] = sum[n][j] * own + added;
        rescale[n][j] = own * lowered;
      }
    }
  }

  // The codes of a lane in a group of a row come in loads of kVec words, or in half words.
  static constexpr bool kHalfWords = kBits == 4 && kLane % 8 != 0;
  static constexpr int kValueWords = kHalfWords ? kLane / 4 : kLane * kBits / 32;
  static constexpr int kVec = kHalfWords ? 1 : kValueWords % 4 == 0 ? 4 : kValueWords % 2 == 0 ? 2 : 1;
  static constexpr int kWordCodes = kHalfWords ? 4 : Pairs::kCodes;
  static __device__ __forceinline__ Vec<u32, kVec> LoadWords(const char* at) {
    if constexpr (kHalfWords) {
      return {{*reinterpret_cast<const u16*>(at)}};
    } else {
      return llmc::Load<u32, kVec>(reinterpret_cast<const u32*>(at));
    }
  }

  // The columns of a group: as rescaled, with weights * values. `by`: scales of the lane's keys.
  __device__ __forceinline__ void Accumulate(const char* values, const Scales& scales, const KeyBy (&by)[kM][2],
                                             int group, const float (&rescale)[kN][2]) {
    u32 weights[kM][kN][2];
    float off[kN][4] = {};  // what integers are more, in all rows alike
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const int key = m * 16 + 2 * Quad();
      const u32 low = scales.OffsetsOf(1, group, key), high = scales.OffsetsOf(1, group, key + 8);
      const u32 offsets[4] = {low, low, high, high};
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float scale = by[m][half].v[group];
          const float(&s)[4] = scores[m][n];
          weights[m][n][half] = Transposed(Pack<f16>(s[2 * half] * scale, s[2 * half + 1] * scale));
        }
        if constexpr (kIsInteger) MultiplyAdd<f16>(off[n], offsets, weights[m][n][0], weights[m][n][1]);
      }
    }
#pragma unroll
    for (int column = group * kLane; column < (group + 1) * kLane; ++column) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& x = out[column / 2][n][column % 2 * 2 + j];
          x = x * rescale[n][j] - off[n][j] * Pairs::Weight(column);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const char* const row =
          values + (m * 16 + 2 * Quad()) * S::kStrideBytes + (group * kSpan + Octet() * kLane) * kBits / 8;
#pragma unroll
      for (int at = 0; at < kValueWords; at += kVec) {
        Vec<u32, kVec> rows[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          rows[k] = LoadWords(row + (k / 2 * 8 + k % 2) * S::kStrideBytes + at * kWordCodes * kBits / 8);
        }
#pragma unroll
        for (int word = 0; word < kVec; ++word) {
          const int column = group * kLane + (at + word) * kWordCodes;
          MultiplyValues(rows[0].v[word], rows[1].v[word], rows[2].v[word], rows[3].v[word], column, weights[m]);
        }
      }
    }
  }

  // Words of a lane's codes, of keys 2 q, 2 q + 1, 2 q + 8 and 2 q + 9; their first column.
  __device__ __forceinline__ void MultiplyValues(u32 w, u32 x, u32 y, u32 z, int column, const u32 (&weights)[kN][2]) {
#pragma unroll
    for (int half = 0; half < (kHalfWords ? 1 : 2); ++half) {
      u32 a[Pairs::kPairs], b[Pairs::kPairs];
      Pairs::Pairs(Pairs::Join(w, x, half), a);
      Pairs::Pairs(Pairs::Join(y, z, half), b);
#pragma unroll
      for (int i = 0; i < Pairs::kPairs; i += 2) {
        const u32 left[4] = {a[i], a[i + 1], b[i], b[i + 1]};
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          MultiplyAdd<f16>(out[(column + Pairs::JoinedCode(half, i)) / 2][n], left, weights[n][0], weights[n][1]);
        }
      }
    }
  }
};

}  // namespace llmc
