// Tiles of paged_attention_decode.cuh where the cache is encoded: codes lie in shared memory as they do in the cache,
// and become 16-bit elements in registers, as the right operand of mma.sync. Scales of keys are multiplied to scores,
// those of values to weights, both in f32.
//
// Sums go over dims and keys in any order, and columns of the result are computed in any order, so that a lane reads
// neighbouring codes of a row: of keys those that it multiplies with queries in one or two steps, of values all its
// columns of a group. Neighbours in a register are of two dims (keys) or of two keys (values).
#pragma once
#include "kernels/attention/cached_pairs.cuh"
#include "kernels/attention/decode_shape.cuh"

namespace llmc {

// The scales of a tile in shared memory: [part, group, key], in f32, then the negatives of zero points, raised, in T.
// Those of values are multiplied by kGain, so that weights by them do not get small for f16, which Store takes back.
template <class C>
struct TileScales {
  using T = typename C::T;
  using Pairs = CachedPairs<T, typename C::KvCode>;
  static constexpr int kGroups = CodePlaces<C>::kGroups, kPart = kGroups * C::kTile;
  static constexpr float kHigh = CodeFormat<typename C::KvCode>::kHigh;
  static constexpr float kGain = kHigh > 50000 ? 32768 : kHigh > 400 ? 256 : kHigh > 100 ? 128 : 8;
  static_assert(DecodeShape<C>::kLayout.ScaleBytes() == 2 * kPart * 6, "the layout has what is used here");

  float* scales;

  __device__ __forceinline__ u16* Offsets() const { return reinterpret_cast<u16*>(scales + 2 * kPart); }
  // Of keys `key` and the next, which is even.
  __device__ __forceinline__ Vec<float, 2> Scales(int part, int group, int key) const {
    return Load<float, 2>(scales + part * kPart + group * C::kTile + key);
  }
  __device__ __forceinline__ u32 OffsetOfPair(int part, int group, int key) const {
    if constexpr (C::kKvZeros == 0) return 0;
    return *reinterpret_cast<const u32*>(Offsets() + part * kPart + group * C::kTile + key);
  }
  __device__ __forceinline__ u32 OffsetOfKey(int part, int group, int key) const {
    if constexpr (C::kKvZeros == 0) return 0;
    return __byte_perm(Offsets()[part * kPart + group * C::kTile + key], 0, 0x1010);
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

  __device__ __forceinline__ void Store(const TileScales<C>& to) const {
    using Tile = TileScales<C>;
    const int key = threadIdx.x % C::kTile;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
#pragma unroll
      for (int group = 0; group < P::kGroups; ++group) {
        const int at = part * Tile::kPart + group * C::kTile + key;
        const float scale = exists ? ScaleAt(part, group) : 0.0f;
        to.scales[at] = part == 0 ? scale : scale * Tile::kGain;
        if constexpr (C::kKvZeros != 0) {
          const int byte = group % kZeroLoad;
          const u32 zero = zeros[part][group / kZeroLoad][byte / 4] >> (byte % 4 * 8) & 255;
          to.Offsets()[at] = FromFloat<typename C::T>(-(Tile::Pairs::kOffset + static_cast<float>(zero))).bits;
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
template <class C>
struct DecodeTileCodes {
  using T = typename C::T;
  using S = DecodeShape<C>;
  using Pairs = CachedPairs<T, typename C::KvCode>;
  using Scales = TileScales<C>;
  static constexpr bool kHalf = S::kRows <= 8;
  static constexpr int kBits = CodeFormat<typename C::KvCode>::kBits, kGroups = Scales::kGroups;
  static constexpr int kSpan = S::kDim / kGroups;   // dims of a group, those among them that only fill it up
  static constexpr int kLane = kSpan / 8;           // of these, those of values that a lane reads of a row
  static constexpr int kSteps = Pairs::kPairs / 2;  // that a word of a key is good for
  static_assert(kSpan % 32 == 0 && (kGroups == 1 || kSpan == C::kKvGroup), "groups of whole steps");

  AttentionTile<T, S::kDim, C::kTile, 1, kHalf> tile;
  u32 query[S::kDim / 16][4];

  static __device__ __forceinline__ int Quad() { return threadIdx.x % 4; }
  static __device__ __forceinline__ int Octet() { return threadIdx.x % 32 / 4; }

  // As in DecodeTile16; dims are paired as codes of keys are.
  template <class Row>
  __device__ __forceinline__ void Begin(Row row_of) {
    tile.Reset();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* row = half == 1 && kHalf ? nullptr : row_of(Octet() + 8 * half);
#pragma unroll
      for (int word = 0; word < S::kDim / (4 * Pairs::kCodes); ++word) {
        const int column = (word * 4 + Quad()) * Pairs::kCodes;
        const bool exists = row != nullptr && column < C::kHeadDim;
#pragma unroll
        for (int i = 0; i < Pairs::kPairs; ++i) {
          const u32 low = exists ? row[column + Pairs::First(i)].bits : 0;
          const u32 high = exists ? row[column + Pairs::Second(i)].bits : 0;
          query[word * kSteps + i / 2][i % 2 * 2 + half] = low | high << 16;
        }
      }
    }
  }

  template <class Scale, class Join>
  __device__ __forceinline__ void Add(const char* keys, const Scales& scales, const Scale& scale, Join join) {
    Multiply(keys, scales);
    tile.Cap(scale);
#pragma unroll
    for (int half = 0; half < tile.kHalves; ++half) {
      const int row = Octet() + 8 * half;
      tile.ChangeRow(0, half, [&](int, int, int key, float score) { return join(row, key, score); });
    }
    float rescale[1][2];
    tile.template Weigh<Scale::kFar>(scale.Factor(), rescale);
    tile.Rescale(rescale);
    Accumulate(keys + S::kPartBytes, scales);
  }

  // As DecodeSums are stored.
  template <class Scale>
  __device__ __forceinline__ void Store(float* to, const Scale& scale) {
    tile.Finish();
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
          for (int j = 0; j < 4; ++j) four.v[j] = tile.out[0][n + j][2 * half + i] * (1 / Scales::kGain);
          llmc::Store(to + r * S::kDim + n / kLane * kSpan + (2 * Quad() + i) * kLane + n % kLane, four);
        }
      }
      const Vec<float, 2> pair = {tile.top[0][half] * scale.Factor(), tile.sum[0][half]};
      llmc::Store(to + S::kRows * S::kDim + r * 2, pair);
    }
  }

 private:
  __device__ __forceinline__ void Multiply(const char* keys, const Scales& scales) {
    constexpr int kWords = kSpan / (4 * Pairs::kCodes);  // of a lane, of a key in a group
#pragma unroll
    for (int n = 0; n < C::kTile / 8; ++n) {
      const char* const row = keys + (n * 8 + Octet()) * S::kStrideBytes + Quad() * 4;
      float(&scores)[4] = tile.scores[0][n];
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[i] = 0;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        float sums[4] = {0, 0, 0, 0};
        const u32 offset = scales.OffsetOfKey(0, group, n * 8 + Octet());
#pragma unroll
        for (int word = group * kWords; word < (group + 1) * kWords; ++word) {
          u32 b[Pairs::kPairs];
          Pairs::Pairs(*reinterpret_cast<const u32*>(row + word * 16), offset, b);
#pragma unroll
          for (int step = 0; step < kSteps; ++step) {
            MultiplyAdd<T>(sums, query[word * kSteps + step], b[2 * step], b[2 * step + 1]);
          }
        }
        const Vec<float, 2> by = scales.Scales(0, group, n * 8 + 2 * Quad());
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[i] += sums[i] * by.v[i % 2];
      }
    }
  }

  // The codes of a lane in a group of a row come in loads of kVec words, or in half words.
  static constexpr bool kHalfWords = kBits == 4 && kLane % 8 != 0;
  static constexpr int kWords = kHalfWords ? kLane / 4 : kLane * kBits / 32;
  static constexpr int kVec = kHalfWords ? 1 : kWords % 4 == 0 ? 4 : kWords % 2 == 0 ? 2 : 1;
  static constexpr int kWordCodes = kHalfWords ? 4 : Pairs::kCodes;
  static __device__ __forceinline__ Vec<u32, kVec> LoadWords(const char* at) {
    if constexpr (kHalfWords) {
      return {{*reinterpret_cast<const u16*>(at)}};
    } else {
      return Load<u32, kVec>(reinterpret_cast<const u32*>(at));
    }
  }

  __device__ __forceinline__ void Accumulate(const char* values, const Scales& scales) {
    const auto& s = tile.scores[0];
#pragma unroll
    for (int step = 0; step < C::kTile / 16; ++step) {
      const int key = step * 16 + 2 * Quad();
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const Vec<float, 2> x = scales.Scales(1, group, key), y = scales.Scales(1, group, key + 8);
        u32 a[4];
        a[0] = Pack<T>(s[2 * step][0] * x.v[0], s[2 * step][1] * x.v[1]);
        a[1] = kHalf ? 0 : Pack<T>(s[2 * step][2] * x.v[0], s[2 * step][3] * x.v[1]);
        a[2] = Pack<T>(s[2 * step + 1][0] * y.v[0], s[2 * step + 1][1] * y.v[1]);
        a[3] = kHalf ? 0 : Pack<T>(s[2 * step + 1][2] * y.v[0], s[2 * step + 1][3] * y.v[1]);
        const u32 x_offset = scales.OffsetOfPair(1, group, key), y_offset = scales.OffsetOfPair(1, group, key + 8);
        const char* const row = values + key * S::kStrideBytes + (group * kSpan + Octet() * kLane) * kBits / 8;
#pragma unroll
        for (int at = 0; at < kWords; at += kVec) {
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
              Pairs::Pairs(Pairs::Join(rows[0].v[word], rows[1].v[word], half), x_offset, b0);
              Pairs::Pairs(Pairs::Join(rows[2].v[word], rows[3].v[word], half), y_offset, b1);
#pragma unroll
              for (int i = 0; i < Pairs::kPairs; ++i) {
                const int column = group * kLane + (at + word) * kWordCodes + Pairs::JoinedCode(half, i);
                MultiplyAdd<T>(tile.out[0][column], a, b0[i], b1[i]);
              }
            }
          }
        }
      }
    }
  }
};

}  // namespace llmc
