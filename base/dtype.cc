#include "base/dtype.h"

#include <array>
#include <cstring>
#include <string>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "absl/base/casts.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

struct DTypeRow {
  absl::string_view name;
  int bits;
  bool is_float;
  bool is_integer;
};

constexpr std::array<DTypeRow, kNumDTypes> kRows = {{
    {"f64", 64, true, false},
    {"f32", 32, true, false},
    {"f16", 16, true, false},
    {"bf16", 16, true, false},
    {"f8e4m3", 8, true, false},
    {"f8e5m2", 8, true, false},
    {"i64", 64, false, true},
    {"i32", 32, false, true},
    {"i16", 16, false, true},
    {"i8", 8, false, true},
    {"i4", 4, false, true},
    {"u8", 8, false, true},
    {"u4", 4, false, true},
    {"bool", 8, false, false},
}};

const DTypeRow& Row(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

// A binary floating-point format narrower than f32. `kFinite`: the largest exponent holds numbers too, and only
// all-ones is NaN.
template <int kExponentBits, int kMantissaBits, bool kFinite>
struct Narrow {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kExponentMask = (1u << kExponentBits) - 1;
  static constexpr uint32_t kMantissaMask = (1u << kMantissaBits) - 1;
  static constexpr uint32_t kAllOnes = (kExponentMask << kMantissaBits) | kMantissaMask;
  static constexpr uint32_t kInfinity = kExponentMask << kMantissaBits;
  static constexpr int kShift = 23 - kMantissaBits;

  static float Widen(uint32_t bits) {
    const uint32_t sign = (bits >> (kExponentBits + kMantissaBits)) << 31;
    const uint32_t magnitude = bits & kAllOnes;
    if (kFinite ? magnitude == kAllOnes : magnitude > kInfinity) {
      return absl::bit_cast<float>(sign | 0x7fc00000u | ((magnitude & kMantissaMask) << kShift));
    }
    if (!kFinite && magnitude == kInfinity) return absl::bit_cast<float>(sign | 0x7f800000u);
    if (magnitude > kMantissaMask) {
      return absl::bit_cast<float>(sign | ((magnitude << kShift) + (static_cast<uint32_t>(127 - kBias) << 23)));
    }
    // Subnormal: mantissa * 2^(1 - bias - mantissa bits), exact in f32.
    const float unit = absl::bit_cast<float>(static_cast<uint32_t>(127 + 1 - kBias - kMantissaBits) << 23);
    const float value = static_cast<float>(magnitude) * unit;
    return absl::bit_cast<float>(sign | absl::bit_cast<uint32_t>(value));
  }

  static uint32_t Round(float value) {
    const uint32_t bits = absl::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 31) << (kExponentBits + kMantissaBits);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
      if (kFinite) return sign | kAllOnes;
      return sign | kInfinity | (1u << (kMantissaBits - 1)) | ((magnitude >> kShift) & kMantissaMask);
    }
    const uint32_t rounded = RoundMagnitude(magnitude);
    if (kFinite) return sign | (rounded >= kAllOnes ? kAllOnes : rounded);
    return sign | (rounded >= kInfinity ? kInfinity : rounded);
  }

 private:
  static uint32_t RoundMagnitude(uint32_t magnitude) {
    const int exponent = static_cast<int>(magnitude >> 23) - 127 + kBias;  // biased as in the narrow format
    if (exponent >= 1) {
      const uint32_t odd = (magnitude >> kShift) & 1;
      const uint32_t sum = magnitude + (1u << (kShift - 1)) - 1 + odd;
      return (sum >> kShift) - (static_cast<uint32_t>(127 - kBias) << kMantissaBits);
    }
    const int shift = kShift + 1 - exponent;
    if (shift > 24) return 0;  // less than half of the smallest subnormal
    const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t kept = significand >> shift;
    const uint32_t lost = significand & ((1u << shift) - 1);
    const uint32_t half = 1u << (shift - 1);
    return kept + ((lost > half || (lost == half && (kept & 1))) ? 1 : 0);
  }
};

using Half = Narrow<5, 10, false>;
using E4M3 = Narrow<4, 3, true>;
using E5M2 = Narrow<5, 2, false>;

}  // namespace

absl::string_view DTypeName(DType dtype) { return Row(dtype).name; }

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (kRows[i].name == name) return static_cast<DType>(i);
  }
  std::string known;
  for (const DTypeRow& row : kRows) absl::StrAppend(&known, known.empty() ? "" : ", ", row.name);
  return absl::InvalidArgumentError(absl::StrCat("unknown element type \"", name, "\"; the types are ", known));
}

int DTypeBits(DType dtype) { return Row(dtype).bits; }
bool IsFloat(DType dtype) { return Row(dtype).is_float; }
bool IsInteger(DType dtype) { return Row(dtype).is_integer; }

float HalfToFloat(uint16_t bits) { return Half::Widen(bits); }
uint16_t FloatToHalf(float value) { return static_cast<uint16_t>(Half::Round(value)); }

void HalvesToFloats(const char* raw, int64_t n, float* out) {
  int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(raw + 2 * i))));
  }
#endif
  for (; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, raw + 2 * i, sizeof(bits));
    out[i] = HalfToFloat(bits);
  }
}

float BFloat16ToFloat(uint16_t bits) { return absl::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = absl::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // stays a NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

float F8E4M3ToFloat(uint8_t bits) { return E4M3::Widen(bits); }
uint8_t FloatToF8E4M3(float value) { return static_cast<uint8_t>(E4M3::Round(value)); }
float F8E5M2ToFloat(uint8_t bits) { return E5M2::Widen(bits); }
uint8_t FloatToF8E5M2(float value) { return static_cast<uint8_t>(E5M2::Round(value)); }

}  // namespace llmc
