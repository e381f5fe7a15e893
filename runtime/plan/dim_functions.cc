#include "runtime/plan/dim_functions.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace llmc {
namespace {

using Args = absl::Span<const int64_t>;
using Value = std::optional<int64_t>;

struct SliceBounds {
  int64_t start = 0, count = 0;
};

// As ONNX Slice clamps them; the step is not 0.
SliceBounds Clamp(absl::Span<const int64_t> a) {
  const int64_t step = a[2], size = a[3];
  const auto clamp = [size](int64_t bound, int64_t low, int64_t high) {
    return std::clamp(bound < 0 ? bound + size : bound, low, std::max(low, high));
  };
  SliceBounds bounds;
  bounds.start = step > 0 ? clamp(a[0], 0, size) : clamp(a[0], -1, size - 1);
  const int64_t stop = step > 0 ? clamp(a[1], 0, size) : clamp(a[1], -1, size - 1);
  if (step > 0 && stop > bounds.start) bounds.count = (stop - bounds.start - 1) / step + 1;
  if (step < 0 && stop < bounds.start) bounds.count = (stop - bounds.start + 1) / step + 1;
  if (bounds.count == 0) bounds.start = 0;
  return bounds;
}

Value Within(absl::Span<const int64_t> a) {
  return 0 <= a[0] && a[0] <= a[1] && a[1] <= a[2] ? Value(a[1] - a[0]) : std::nullopt;
}
Value Broadcast(absl::Span<const int64_t> a) {
  if (a[0] == a[1] || a[1] == 1) return a[0];
  return a[0] == 1 ? Value(a[1]) : std::nullopt;
}
Value RangeSize(absl::Span<const int64_t> a) {
  if (a[2] == 0) return std::nullopt;
  const __int128 distance = a[2] > 0 ? static_cast<__int128>(a[1]) - a[0] : static_cast<__int128>(a[0]) - a[1];
  const __int128 delta = a[2] > 0 ? static_cast<__int128>(a[2]) : -static_cast<__int128>(a[2]);
  const __int128 size = distance <= 0 ? 0 : (distance + delta - 1) / delta;
  return size > INT64_MAX ? std::nullopt : Value(static_cast<int64_t>(size));
}

// ---- as the language computes elements of integers -------------------------------------------------------------
bool DividesWell(int64_t a, int64_t b) { return b != 0 && !(a == INT64_MIN && b == -1); }

Value Modulo(absl::Span<const int64_t> a) {
  if (!DividesWell(a[0], a[1])) return std::nullopt;
  const int64_t rest = a[0] % a[1];
  return rest != 0 && (rest < 0) != (a[1] < 0) ? rest + a[1] : rest;
}
Value Power(absl::Span<const int64_t> a) {
  int64_t power = 1;
  if (a[1] < 0 || (a[1] > 64 && a[0] != 0 && a[0] != 1)) return std::nullopt;
  for (int64_t i = 0; i < std::min<int64_t>(a[1], 64); ++i) {
    if (__builtin_mul_overflow(power, a[0], &power)) return std::nullopt;
  }
  return power;
}
// The lowest a[1] bits of a[0], with their sign.
Value Wrap(absl::Span<const int64_t> a) {
  if (a[1] < 1 || a[1] > 63) return std::nullopt;
  const int64_t shift = 64 - a[1];
  return static_cast<int64_t>(static_cast<uint64_t>(a[0]) << shift) >> shift;
}

// ---- numbers that are none of integers, as the bits of doubles --------------------------------------------------
double Real(int64_t bits) { return std::bit_cast<double>(bits); }
Value Bits(double real) { return std::bit_cast<int64_t>(real); }
double Single(double real) { return static_cast<double>(static_cast<float>(real)); }

// Rounded to so many bits, the lowest of which is worth 2^lowest at least; infinite from `limit` on.
double Rounded(double real, int bits, int lowest, double limit) {
  if (!std::isfinite(real) || real == 0) return real;
  int exponent = 0;
  std::frexp(real, &exponent);
  const int unit = std::max(exponent - bits, lowest);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(real, -unit)), unit);
  return std::abs(rounded) < limit ? rounded : std::copysign(HUGE_VAL, real);
}

Value Integer(absl::Span<const int64_t> a) {
  const double real = Real(a[0]);
  return real > -9.2e18 && real < 9.2e18 ? Value(static_cast<int64_t>(real)) : std::nullopt;
}
Value RealRangeSize(absl::Span<const int64_t> a) {
  const double start = Real(a[0]), limit = Real(a[1]), delta = Real(a[2]);
  const double size = std::max(0.0, std::ceil((limit - start) / delta));
  if (delta == 0 || !std::isfinite(start) || !(size < 9e18)) return std::nullopt;
  return static_cast<int64_t>(size);
}
// As max and min of the language: the first operand if it is no number.
Value RealMax(absl::Span<const int64_t> a) { return Real(a[0]) > Real(a[1]) || Real(a[0]) != Real(a[0]) ? a[0] : a[1]; }
Value RealMin(absl::Span<const int64_t> a) { return Real(a[0]) < Real(a[1]) || Real(a[0]) != Real(a[0]) ? a[0] : a[1]; }

constexpr DimFunction kFunctions[] = {
    {"step", 1, [](Args a) { return Value(a[0] == 1 ? 0 : 1); }},
    {"max", 2, [](Args a) { return Value(std::max(a[0], a[1])); }},
    {"broadcast", 2, Broadcast},
    {"within", 3, Within},
    {"slice_start", 4, [](Args a) { return a[2] == 0 || a[3] < 0 ? std::nullopt : Value(Clamp(a).start); }},
    {"slice_size", 4, [](Args a) { return a[2] == 0 || a[3] < 0 ? std::nullopt : Value(Clamp(a).count); }},
    {"range_size", 3, RangeSize},
    {"select", 3, [](Args a) { return Value(a[0] > 0    ? a[0]
                                            : a[0] == 0 ? a[1]
                                                        : a[2]); }},
    {"min", 2, [](Args a) { return Value(std::min(a[0], a[1])); }},
    {"quotient", 2, [](Args a) { return DividesWell(a[0], a[1]) ? Value(a[0] / a[1]) : std::nullopt; }},
    {"remainder", 2, [](Args a) { return DividesWell(a[0], a[1]) ? Value(a[0] % a[1]) : std::nullopt; }},
    {"modulo", 2, Modulo},
    {"power", 2, Power},
    {"wrap", 2, Wrap},
    {"less", 2, [](Args a) { return Value(a[0] < a[1] ? 1 : 0); }},
    {"less_equal", 2, [](Args a) { return Value(a[0] <= a[1] ? 1 : 0); }},
    {"equal", 2, [](Args a) { return Value(a[0] == a[1] ? 1 : 0); }},
    {"bit_and", 2, [](Args a) { return Value(a[0] & a[1]); }},
    {"bit_or", 2, [](Args a) { return Value(a[0] | a[1]); }},
    {"bit_xor", 2, [](Args a) { return Value(a[0] ^ a[1]); }},
    {"where", 3, [](Args a) { return Value(a[0] != 0 ? a[1] : a[2]); }},
    {"real", 1, [](Args a) { return Bits(static_cast<double>(a[0])); }},
    {"single_of", 1, [](Args a) { return Bits(static_cast<double>(static_cast<float>(a[0]))); }},
    {"half", 1, [](Args a) { return Bits(Rounded(Real(a[0]), 11, -24, 65536)); }},
    {"brain", 1, [](Args a) { return Bits(Rounded(Real(a[0]), 8, -133, 0x1p128)); }},
    {"single", 1, [](Args a) { return Bits(Single(Real(a[0]))); }},
    {"integer", 1, Integer},
    {"real_add", 2, [](Args a) { return Bits(Real(a[0]) + Real(a[1])); }},
    {"real_sub", 2, [](Args a) { return Bits(Real(a[0]) - Real(a[1])); }},
    {"real_mul", 2, [](Args a) { return Bits(Real(a[0]) * Real(a[1])); }},
    {"real_div", 2, [](Args a) { return Bits(Real(a[0]) / Real(a[1])); }},
    {"real_power", 2, [](Args a) { return Bits(std::pow(Real(a[0]), Real(a[1]))); }},
    {"real_max", 2, RealMax},
    {"real_min", 2, RealMin},
    {"real_less", 2, [](Args a) { return Value(Real(a[0]) < Real(a[1]) ? 1 : 0); }},
    {"real_less_equal", 2, [](Args a) { return Value(Real(a[0]) <= Real(a[1]) ? 1 : 0); }},
    {"real_equal", 2, [](Args a) { return Value(Real(a[0]) == Real(a[1]) ? 1 : 0); }},
    {"real_floor", 1, [](Args a) { return Bits(std::floor(Real(a[0]))); }},
    {"real_ceil", 1, [](Args a) { return Bits(std::ceil(Real(a[0]))); }},
    {"real_round", 1, [](Args a) { return Bits(std::nearbyint(Real(a[0]))); }},
    {"real_sqrt", 1, [](Args a) { return Bits(std::sqrt(Real(a[0]))); }},
    {"real_abs", 1, [](Args a) { return Bits(std::abs(Real(a[0]))); }},
    {"real_neg", 1, [](Args a) { return Bits(-(Real(a[0]))); }},
    {"real_range_size", 3, RealRangeSize},
};

}  // namespace

absl::Span<const DimFunction> DimFunctions() { return kFunctions; }

}  // namespace llmc
