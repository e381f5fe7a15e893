// The scales of an encoded cache that decode_codes.cuh multiplies: from the cache to the warp's part of shared memory.
#pragma once
#include "kernels/attention/cached_pairs.cuh"
#include "kernels/attention/decode_shape.cuh"

namespace llmc {

// The exponent of a float, as its bits have it; a power of two by such an exponent.
__device__ __forceinline__ i32 ExponentOf(float x) { return static_cast<i32>(__float_as_uint(x) >> 23 & 255); }
__device__ __forceinline__ float PowerOf(i32 exponent) { return __uint_as_float(static_cast<u32>(exponent) << 23); }

// The scales of a tile in shared memory: [part, key, group], in f32, those of values by the gain; then what is taken
// off codes, integers of 16 bits: [part, group, key].
template <class C>
struct TileScales {
  using Pairs = CachedPairs<typename C::KvCode>;
  static constexpr int kGroups = CodePlaces<C>::kGroups, kPart = kGroups * C::kTile;
  static_assert(DecodeShape<C>::kLayout.ScaleBytes() == 2 * kPart * 6, "the layout has what is used here");

  float* scales;

  __device__ __forceinline__ u16* Offsets() const { return reinterpret_cast<u16*>(scales + 2 * kPart); }
  struct OfKey {
    float v[kGroups];
  };
  __device__ __forceinline__ OfKey Scales(int part, int key) const {
    OfKey x;
    constexpr int kVec = ElementsOfVector(kGroups, 32);
#pragma unroll
    for (int i = 0; i < kGroups; i += kVec) {
      const Vec<float, kVec> some = Load<float, kVec>(scales + part * kPart + key * kGroups + i);
#pragma unroll
      for (int j = 0; j < kVec; ++j) x.v[i + j] = some.v[j];
    }
    return x;
  }
  __device__ __forceinline__ u32 OffsetOf(int part, int group, int key) const {
    if constexpr (C::kKvZeros == 0) return Pairs::kOffset;
    return Offsets()[part * kPart + group * C::kTile + key];
  }
  // Of keys `key`, which is even, and the next.
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
        const float scale = exists ? ScaleAt(part, group) : 0.0f;
        to.scales[part * Tile::kPart + key * P::kGroups + group] = part == 0 ? scale : scale * gain;
        if constexpr (C::kKvZeros != 0) {
          const int byte = group % kZeroLoad;
          const u32 zero = zeros[part][group / kZeroLoad][byte / 4] >> (byte % 4 * 8) & 255;
          to.Offsets()[part * Tile::kPart + group * C::kTile + key] = static_cast<u16>(Tile::Pairs::kOffset + zero);
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

}  // namespace llmc
