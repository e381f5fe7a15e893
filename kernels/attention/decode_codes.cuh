// Tiles of paged_attention_decode.cuh where the cache is encoded: codes lie in shared memory as they do in the cache,
// and become f16 in registers, as the right operand of mma.sync, whatever T is: that takes the fewest instructions.
// Scales of keys are multiplied to scores, those of values to weights, both in f32. What integers are more than they
// stand for (cached_pairs.cuh, and zero points) is taken off the sums: sum q (c - z) = sum q c - z sum q.
//
// f16 holds numbers of 29 binary orders with all bits. So rows of queries are multiplied by a power of two that brings
// their greatest element to 2^14, and weights times scales by one (the gain) that does so with the greatest scale of
// values so far; products with these are exact, and they are taken off in f32.
//
// Sums go over dims and keys in any order, and columns of the result are computed in any order, so that a lane reads
// neighbouring codes of a row: of keys those that it multiplies with queries in one or two steps, of values all its
// columns of a group. Neighbours in a register are of two dims (keys) or of two keys (values).
#pragma once
#include "kernels/attention/cached_pairs.cuh"
#include "kernels/attention/decode_shape.cuh"

namespace llmc {

// The exponent of a float, as its bits have it; a power of two by such an exponent.
__device__ __forceinline__ i32 ExponentOf(float x) { return static_cast<i32>(__float_as_uint(x) >> 23 & 255); }
__device__ __forceinline__ float PowerOf(i32 exponent) { return __uint_as_float(static_cast<u32>(exponent) << 23); }

// The scales of a tile in shared memory: [part, group, key], in f32, those of values by the gain; then what is taken
// off codes, integers of 16 bits.
template <class C>
struct TileScales {
  using Pairs = CachedPairs<typename C::KvCode>;
  static constexpr int kGroups = CodePlaces<C>::kGroups, kPart = kGroups * C::kTile;
  static_assert(DecodeShape<C>::kLayout.ScaleBytes() == 2 * kPart * 6, "the layout has what is used here");

  float* scales;

  __device__ __forceinline__ u16* Offsets() const { return reinterpret_cast<u16*>(scales + 2 * kPart); }
  // Of keys `key` and the next, which is even.
  __device__ __forceinline__ Vec<float, 2> Scales(int part, int group, int key) const {
    return Load<float, 2>(scales + part * kPart + group * C::kTile + key);
  }
  __device__ __forceinline__ u32 OffsetsOf(int part, int group, int key) const {
    if constexpr (C::kKvZeros == 0) return Pairs::kOffset * 0x10001u;
    return *reinterpret_cast<const u32*>(Offsets() + part * kPart + group * C::kTile + key);
  }
};

// What a lane has read of its key, on the way there.
template <class C>
struct KeyScales {
  using P = CodePlaces<C>;
  using Scale = typename C::KvScale;
  static constexpr int kScaleBytes = P::kGroups * static_cast<int>(sizeof(Scale));
  // In one load each where that is possible.
  static constexpr bool kWhole = (P::kGroups & (P::kGroups - 1)) == 0 && kScaleBytes <= 16;
  static constexpr int kScaleLoad = kWhole ? kScaleBytes : static_cast<int>(sizeof(Scale));
  static constexpr int kZeroLoad = kWhole ? P::kGroups : 1;
  static constexpr int kScaleWords = (kScaleLoad + 3) / 4, kZeroWords = (kZeroLoad + 3) / 4;
  u32 scales[2][kScaleBytes / kScaleLoad][kScaleWords];
  u32 zeros[2][P::kGroups / kZeroLoad][kZeroWords];
  float of_all[2];
  bool exists;

  // slot < 0: there is no such key.
  __device__ __forceinline__ void Load(const u8* cache, i32 slot, int head, const StaticScales& static_scales) {
    exists = slot >= 0;
    const u32 at = exists ? static_cast<u32>(slot) : 0;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      if constexpr (C::kStaticScales > 0) {
        of_all[part] = static_scales.Of<C>(part, head);
      } else {
        const u8* const scale = cache + P::Scales(at, part, head);
#pragma unroll
        for (int i = 0; i < kScaleBytes / kScaleLoad; ++i)
          LoadCached<kScaleLoad>(scale + i * kScaleLoad, scales[part][i]);
        if constexpr (C::kKvZeros != 0) {
          const u8* const zero = cache + P::Zeros(at, part, head);
#pragma unroll
          for (int i = 0; i < P::kGroups / kZeroLoad; ++i) LoadCached<kZeroLoad>(zero + i * kZeroLoad, zeros[part][i]);
        }
      }
    }
  }

  // The exponent of the greatest scale of values, of all lanes.
  __device__ __forceinline__ i32 GreatestOfValues() const {
    i32 most = 0;
#pragma unroll
    for (int group = 0; group < P::kGroups; ++group) {
      if (exists) most = max(most, ExponentOf(ScaleAt(1, group)));
    }
    return WarpMax(most);
  }

  __device__ __forceinline__ void Store(const TileScales<C>& to, float gain) const {
    using Tile = TileScales<C>;
    const int key = threadIdx.x % C::kTile;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) {
        const int at = part * Tile::kPart + group * C::kTile + key;
        const float scale = exists ? ScaleAt(part, group) : 0.0f;
        to.scales[at] = part == 0 ? scale : scale * gain;
        if constexpr (C::kKvZeros != 0) {
          const int byte = group % kZeroLoad;
          const u32 zero = zeros[part][group / kZeroLoad][byte / 4] >> (byte % 4 * 8) & 255;
          to.Offsets()[at] = static_cast<u16>(Tile::Pairs::kOffset + zero);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ float ScaleAt(int part, int group) const {
    if constexpr (C::kStaticScales > 0) {
      return of_all[part];
    } else {
      constexpr int kOfLoad = kScaleLoad / static_cast<int>(sizeof(Scale)),
                    kOfWord = 4 / static_cast<int>(sizeof(Scale));
      const int i = group % kOfLoad;
      const u32 word = scales[part][group / kOfLoad][i / kOfWord];
      if constexpr (sizeof(Scale) == 4) {
        return __uint_as_float(word);
      } else {
        return ToFloat(Scale{static_cast<u16>(word >> (i % kOfWord * 16))});
      }
    }
  }
};

// What a warp computes.
// Over 250 lines: one item, from queries to sums, in the layout of mma.sync.
template <class C>
struct DecodeTileCodes {
  using T = typename C::T;
  using S = DecodeShape<C>;
  using Pairs = CachedPairs<typename C::KvCode>;
  using Scales = TileScales<C>;
  static constexpr bool kHalf = S::kRows <= 8, kIsInteger = !CodeFormat<typename C::KvCode>::kFloat;
  static constexpr int kBits = CodeFormat<typename C::KvCode>::kBits, kGroups = Scales::kGroups;
  static constexpr int kSpan = S::kDim / kGroups;             // dims of a group, those among them that only fill it up
  static constexpr int kLane = kSpan / 8;                     // of these, those of values that a lane reads of a row
  static constexpr int kSteps = Pairs::kPairs / 2;            // that a word of a key is good for
  static constexpr int kWords = kSpan / (4 * Pairs::kCodes);  // of a lane, of a key in a group
  static_assert(kSpan % 32 == 0 && (kGroups == 1 || kSpan == C::kKvGroup), "groups of whole steps");

  using Tile = AttentionTile<f16, S::kDim, C::kTile, 1, kHalf>;
  static constexpr int kHalves = Tile::kHalves;
  Tile tile;
  u32 query[S::kDim / 16][4];
  float score_unit[kHalves];           // of rows, what products of their queries with codes are multiplied with
  float query_sums[kGroups][kHalves];  // where codes are integers: of what is multiplied with them
  // The gain is the power of two that brings a scale with this exponent to 2^14. `lowered`: what that did to sums so
  // far since the last tile.
  i32 greatest = 15;
  float lowered = 1;

  static __device__ __forceinline__ int Quad() { return threadIdx.x % 4; }
  static __device__ __forceinline__ int Octet() { return threadIdx.x % 32 / 4; }

  // As in DecodeTile16; dims are paired as codes of keys are.
  template <class Row>
  __device__ __forceinline__ void Begin(Row row_of) {
    tile.Reset();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* row = half == 1 && kHalf ? nullptr : row_of(Octet() + 8 * half);
      float most = 0;
#pragma unroll
      for (int word = 0; word < S::kDim / (4 * Pairs::kCodes); ++word) {
        const int column = (word * 4 + Quad()) * Pairs::kCodes;
        const bool exists = row != nullptr && column < C::kHeadDim;
#pragma unroll
        for (int i = 0; i < Pairs::kPairs; ++i) {
          const u32 low = exists ? row[column + Pairs::First(i)].bits : 0;
          const u32 high = exists ? row[column + Pairs::Second(i)].bits : 0;
          query[word * kSteps + i / 2][i % 2 * 2 + half] = low | high << 16;
          most = fmaxf(most, fmaxf(fabsf(LowOf<T>(low)), fabsf(LowOf<T>(high))));
        }
      }
      if (half < kHalves) ScaleQuery(half, WarpReduce<4>(most, Max()));
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
    Multiply(keys, scales);
    tile.Cap(scale);
    if (joins) {
#pragma unroll
      for (int half = 0; half < tile.kHalves; ++half) {
        const int row = Octet() + 8 * half;
        tile.ChangeRow(0, half, [&](int, int, int key, float score) { return join(row, key, score); });
      }
    }
    float rescale[1][2];
    tile.template Weigh<Scale::kFar>(scale.Factor(), rescale);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) rescale[0][half] *= lowered;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) Accumulate(keys + S::kPartBytes, scales, group, rescale[0]);
  }

  // As DecodeSums are stored.
  template <class Scale>
  __device__ __forceinline__ void Store(float* to, const Scale& scale) {
    tile.Finish();
    const float unit = PowerOf(254 - ExponentOf(Gain()));
#pragma unroll
    for (int half = 0; half < tile.kHalves; ++half) {
      const int r = Octet() + 8 * half;
      if (r >= S::kRows) continue;
#pragma unroll
      for (int n = 0; n < S::kDim / 8; n += 4) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          Vec<float, 4> four;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            four.v[j] = tile.out[0][n + j][2 * half + i] * unit * (Pairs::kUnits / Pairs::Weight(j));
          }
          llmc::Store(to + r * S::kDim + n / kLane * kSpan + (2 * Quad() + i) * kLane + n % kLane, four);
        }
      }
      const Vec<float, 2> pair = {tile.top[0][half] * scale.Factor(), tile.sum[0][half]};
      llmc::Store(to + S::kRows * S::kDim + r * 2, pair);
    }
  }

 private:
  __device__ __forceinline__ float Gain() const { return PowerOf(127 + 14 + 127 - greatest); }

  // The greatest magnitude of the row is `most`.
  __device__ __forceinline__ void ScaleQuery(int half, float most) {
    const float factor = PowerOf(min(127 + 14 + 127 - ExponentOf(most), 229));
    score_unit[half] = PowerOf(254 - ExponentOf(factor)) * Pairs::kUnits;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float sum = 0;
#pragma unroll
      for (int word = group * kWords; word < (group + 1) * kWords; ++word) {
#pragma unroll
        for (int i = 0; i < Pairs::kPairs; ++i) {
          u32& pair = query[word * kSteps + i / 2][i % 2 * 2 + half];
          const float by = factor * (1 / Pairs::Weight(i));
          pair = Pack<f16>(LowOf<T>(pair) * by, HighOf<T>(pair) * by);
          sum += (LowOf<f16>(pair) + HighOf<f16>(pair)) * Pairs::Weight(i);
        }
      }
      if constexpr (kIsInteger) query_sums[group][half] = WarpReduce<4>(sum, Sum()) * (1 / Pairs::kUnits);
    }
  }

  __device__ __forceinline__ void Multiply(const char* keys, const Scales& scales) {
#pragma unroll
    for (int n = 0; n < C::kTile / 8; ++n) {
      const char* const row = keys + (n * 8 + Octet()) * S::kStrideBytes + Quad() * 4;
      float(&scores)[4] = tile.scores[0][n];
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[i] = 0;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        float sums[4] = {0, 0, 0, 0};
        if constexpr (kIsInteger && C::kKvZeros == 0) {
#pragma unroll
          for (int i = 0; i < 2 * kHalves; ++i)
            sums[i] = query_sums[group][i / 2] * -static_cast<float>(Pairs::kOffset);
        }
#pragma unroll
        for (int word = group * kWords; word < (group + 1) * kWords; ++word) {
          u32 b[Pairs::kPairs];
          Pairs::Pairs(*reinterpret_cast<const u32*>(row + word * 16), b);
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            MultiplyAdd<f16>(sums, query[word * kSteps + step], b[2 * step], b[2 * step + 1]);
          }
        }
        const int key = n * 8 + 2 * Quad();
        const Vec<float, 2> by = scales.Scales(0, group, key);
        const u32 offsets = scales.OffsetsOf(0, group, key);
#pragma unroll
        for (int i = 0; i < 2 * kHalves; ++i) {
          if constexpr (C::kKvZeros != 0) {
            sums[i] -= static_cast<float>(i % 2 == 0 ? offsets & 0xffff : offsets >> 16) * query_sums[group][i / 2];
          }
          scores[i] += sums[i] * by.v[i % 2];
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * kHalves; ++i) scores[i] *= score_unit[i / 2];
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
      return Load<u32, kVec>(reinterpret_cast<const u32*>(at));
    }
  }

  // The columns of a group: as rescaled, with weights * values.
  __device__ __forceinline__ void Accumulate(const char* values, const Scales& scales, int group,
                                             const float (&rescale)[2]) {
    constexpr int kKeySteps = C::kTile / 16;
    const auto& s = tile.scores[0];
    u32 a[kKeySteps][4];
    float off[4] = {0, 0, 0, 0};  // what integers are more, in all columns alike
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      const int key = step * 16 + 2 * Quad();
      const Vec<float, 2> x = scales.Scales(1, group, key), y = scales.Scales(1, group, key + 8);
      a[step][0] = Pack<f16>(s[2 * step][0] * x.v[0], s[2 * step][1] * x.v[1]);
      a[step][1] = kHalf ? 0 : Pack<f16>(s[2 * step][2] * x.v[0], s[2 * step][3] * x.v[1]);
      a[step][2] = Pack<f16>(s[2 * step + 1][0] * y.v[0], s[2 * step + 1][1] * y.v[1]);
      a[step][3] = kHalf ? 0 : Pack<f16>(s[2 * step + 1][2] * y.v[0], s[2 * step + 1][3] * y.v[1]);
      if constexpr (kIsInteger) {
        MultiplyAdd<f16>(off, a[step], scales.OffsetsOf(1, group, key), scales.OffsetsOf(1, group, key + 8));
      }
    }
#pragma unroll
    for (int column = 0; column < kLane; ++column) {
#pragma unroll
      for (int i = 0; i < 2 * kHalves; ++i) {
        float& out = tile.out[0][group * kLane + column][i];
        out = out * rescale[i / 2] - off[i / 2 * 2] * Pairs::Weight(column);
      }
    }
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) {
      const char* const row =
          values + (step * 16 + 2 * Quad()) * S::kStrideBytes + (group * kSpan + Octet() * kLane) * kBits / 8;
#pragma unroll
      for (int at = 0; at < kValueWords; at += kVec) {
        Vec<u32, kVec> rows[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          rows[k] = LoadWords(row + (k / 2 * 8 + k % 2) * S::kStrideBytes + at * kWordCodes * kBits / 8);
        }
#pragma unroll
        for (int word = 0; word < kVec; ++word) {
#pragma unroll
          for (int half = 0; half < (kHalfWords ? 1 : 2); ++half) {
            u32 b0[Pairs::kPairs], b1[Pairs::kPairs];
            Pairs::Pairs(Pairs::Join(rows[0].v[word], rows[1].v[word], half), b0);
            Pairs::Pairs(Pairs::Join(rows[2].v[word], rows[3].v[word], half), b1);
#pragma unroll
            for (int i = 0; i < Pairs::kPairs; ++i) {
              const int column = group * kLane + (at + word) * kWordCodes + Pairs::JoinedCode(half, i);
              MultiplyAdd<f16>(tile.out[0][column], a[step], b0[i], b1[i]);
            }
          }
        }
      }
    }
  }
};

}  // namespace llmc
