// Codes of an encoded weight to numbers of 16 bits, scales among them, each rounded once: what products of many rows
// take.
#pragma once
#include "kernels/linear/encoded_weight.cuh"

namespace llmc {

// As C, but with codes whose scales are left for the sums.
template <class C>
struct WithoutScale : C {
  static constexpr PartKind kScale = kNoPart;
};

// Eight codes of a row to four pairs, with what they share.
template <class C>
struct RowDecoder {
  using W = EncodedWeight<C>;
  using T = typename C::T;
  using Q = typename C::Q;
  using Pairs = CodePairs<T, Q>;
  static constexpr bool kBf16 = kSame<T, bf16>;
  static constexpr bool kScaled = W::kScaleInBlocks;
  // What 16 bits hold of a scale, and whether that is all of it.
  static constexpr bool kScaleIsExact =
      kSame<typename C::Scale, T> || kSame<typename C::Scale, f8e4m3> || C::kExponents;
  // Else each number is computed in f32: of zero points that are no codes, of scales that f16 may not hold.
  static constexpr bool kInPairs =
      W::kExactZero && (Pairs::kParts == 1 || kScaled) && (!kScaled || kBf16 || (kScaleIsExact && !C::kExponents));

  static_assert(sizeof(T) == 2 && C::kTransposed, "T: f16 or bf16, kTransposed: the weight is [n, k]");

  u32 scale = 0, rest = 0, whole_zero = 0;  // in pairs
  float scale_number = 1, zero_number = 0;

  __device__ __forceinline__ void SetScale(typename C::Scale stored) {
    scale_number = W::ScaleNumber(stored);
    if constexpr (kInPairs) {
      scale = Pack<T>(scale_number, scale_number);
      if constexpr (!kScaleIsExact) {
        const float left = scale_number - ToFloat(T{static_cast<u16>(scale)});
        rest = Pack<T>(left, left);
      }
    }
  }
  __device__ __forceinline__ void SetZero(typename C::Zero stored) {
    if constexpr (!W::kExactZero) {
      zero_number = static_cast<float>(Widen(stored));
    } else if constexpr (CodeKind<Q>::kIsInteger) {
      SetWholeZero(static_cast<u32>(static_cast<int>(Widen(stored)) + kShift<Q>));
    }
  }
  __device__ __forceinline__ void SetWholeZero(u32 zero) {
    whole_zero = Pairs::ZeroOf(zero);
    zero_number = static_cast<float>(zero);
  }

  __device__ __forceinline__ void Decode(const Codes<Q, 8>& codes, u32 (&to)[4]) const {
    if constexpr (kInPairs) {
      u32 numbers[Pairs::kParts][4];
      Pairs::Dequantize(codes, whole_zero, numbers);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (!kScaled) {
          to[i] = numbers[0][i];
        } else {
          // The small parts first, so that one rounding counts.
          u32 small = 0;
          if constexpr (!kScaleIsExact) small = MultiplyPairs<T>(numbers[0][i], rest);
          if constexpr (Pairs::kParts == 2) {
            small = kScaleIsExact ? MultiplyPairs<T>(numbers[1][i], scale)
                                  : MultiplyAddPairs<T>(numbers[1][i], scale, small);
          }
          to[i] = kScaleIsExact && Pairs::kParts == 1 ? MultiplyPairs<T>(numbers[0][i], scale)
                                                      : MultiplyAddPairs<T>(numbers[0][i], scale, small);
        }
      }
    } else {
      const float of_codes = W::kExactZero ? zero_number : static_cast<float>(kShift<Q>);
      const float less = W::kExactZero ? 0.0f : zero_number, factor = kScaled ? scale_number : 1.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int low = Pairs::kOfNeighbours ? 2 * i : i, high = Pairs::kOfNeighbours ? low + 1 : i + 4;
        to[i] = Pack<T>((codes.Get(low, of_codes) - less) * factor, (codes.Get(high, of_codes) - less) * factor);
      }
    }
  }
};

}  // namespace llmc
