#include "ir/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/encoding_parts.h"
#include "ir/graph.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

// As a tensor of this type holds it.
float RoundedToType(DType dtype, float x) {
  switch (dtype) {
    case DType::kF16:
      return HalfToFloat(FloatToHalf(x));
    case DType::kBF16:
      return BFloat16ToFloat(FloatToBFloat16(x));
    case DType::kF8E4M3:
      return F8E4M3ToFloat(FloatToF8E4M3(x));
    default:
      return x;
  }
}

// The least number above 0.
float SmallestOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return HalfToFloat(1);
    case DType::kBF16:
      return BFloat16ToFloat(1);
    case DType::kF8E4M3:
      return F8E4M3ToFloat(1);
    default:
      return std::numeric_limits<float>::min();
  }
}

float LargestOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 65504;
    case DType::kBF16:
      return BFloat16ToFloat(0x7f7f);
    case DType::kF8E4M3:
      return 448;
    default:
      return std::numeric_limits<float>::max();
  }
}

constexpr int kExponentBias = 127;  // of e8m0

float FloatOfBits(DType dtype, int bits) {
  return dtype == DType::kF8E4M3 ? F8E4M3ToFloat(static_cast<uint8_t>(bits))
                                 : F8E5M2ToFloat(static_cast<uint8_t>(bits));
}

// The type of a part, with sizes.
Tensor NewPart(const Encoding& e, size_t component, const Shape& shape) {
  const TensorType type = e.ComponentType(component, Dims(shape.begin(), shape.end()));
  Shape sizes;
  for (const Dim& dim : type.shape) sizes.push_back(dim.value());
  return Tensor(type.dtype, sizes);
}

struct Extremes {
  std::vector<float> min, max;
  float amax = 0;
  bool is_finite = true;
};

// Whether no two rows have a number of the part in common.
bool IsOfOneRow(const Encoding& e, Granularity per) {
  return per == Granularity::kToken || (e.k_is_last && (per == Granularity::kGroup || per == Granularity::kChannel));
}

Extremes ExtremesOf(const Tensor& numbers, const Encoding& e, int64_t parts) {
  Extremes out{std::vector<float>(parts, 0), std::vector<float>(parts, 0)};
  const int64_t columns = numbers.shape().empty() ? 1 : numbers.shape().back();
  if (columns == 0) return out;
  const PartPlaces places(e, numbers.shape());
  const bool is_alone = IsOfOneRow(e, e.scale->per) && numbers.shape().size() <= 2;
  std::mutex mutex;
  ops::ParallelFor(numbers.size() / columns, static_cast<double>(numbers.size()), [&](int64_t first, int64_t last) {
    std::vector<float> row(columns);
    bool is_finite = true;
    for (int64_t r = first; r < last; ++r) {
      ops::Load<float>(numbers, r * columns, columns, row.data());
      const PartOfRow part = places.At(e.scale->per, r);
      std::unique_lock<std::mutex> lock(mutex, std::defer_lock);
      if (!is_alone) lock.lock();
      for (int64_t begin = 0, i = part.begin; begin < columns; ++i) {
        const int64_t end = part.run == 0 ? columns : std::min(columns, begin + part.run);
        for (; begin < end; ++begin) {
          out.min[i] = std::min(out.min[i], row[begin]);
          out.max[i] = std::max(out.max[i], row[begin]);
          is_finite = is_finite && std::isfinite(row[begin]);
        }
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    out.is_finite = out.is_finite && is_finite;
  });
  for (int64_t i = 0; i < parts; ++i) out.amax = std::max({out.amax, -out.min[i], out.max[i]});
  return out;
}

// Codes of a byte each as so many bits of each, one after the other.
Tensor PackedCodes(const Tensor& codes, int bits) {
  Shape shape = codes.shape();
  shape.back() = shape.back() / 8 * bits;
  Tensor out(codes.dtype(), std::move(shape));
  const auto* from = codes.data<uint8_t>();
  for (int64_t run = 0; run < codes.size() / 8; ++run) {
    uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word |= (from[run * 8 + i] & ((uint64_t{1} << bits) - 1)) << (i * bits);
    std::memcpy(out.mutable_raw() + run * bits, &word, static_cast<size_t>(bits));
  }
  return out;
}

}  // namespace

Quantizer::Quantizer(const Encoding& encoding, const QuantizeOptions& options, float outer_scale)
    : e_(encoding), outer_(outer_scale) {
  const EncodingFormat& format = *encoding.format;
  is_integer_ = format.is_integer();
  is_float_ = IsFloat(format.codes);
  if (is_integer_) {
    const bool is_signed = format.is_signed();
    const int codes = 1 << format.bits();
    lowest_ = static_cast<float>(is_signed ? -codes / 2 : 0);
    highest_ = lowest_ + static_cast<float>(codes - 1);
    const bool restricted = options.restricted && is_signed && !encoding.zero.has_value();
    if (restricted) lowest_ = -highest_;
    span_ = encoding.zero.has_value() ? highest_ - lowest_ : (highest_ - lowest_) / 2;
    return;
  }
  const int count = 1 << DTypeBits(format.codes);
  for (int code = 0; code < count; ++code) {
    const float number = is_float_ ? FloatOfBits(format.codes, code) : format.codebook[code];
    numbers_[static_cast<size_t>(code)] = number;
    if (std::isfinite(number)) highest_ = std::max(highest_, number);
    if (!is_float_) codebook_.emplace_back(number, code);
  }
  // -0 before 0.
  std::sort(codebook_.begin(), codebook_.end(), [](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    return std::signbit(a.first) && !std::signbit(b.first);
  });
  lowest_ = -highest_;
  span_ = highest_;
}

float Quantizer::OuterScaleFor(float amax) const {
  if (!e_.format->outer_scale || amax == 0) return 1;
  return std::max(amax / (highest_ * LargestOf(e_.scale->dtype)), std::numeric_limits<float>::min());
}

Quantizer::Grid Quantizer::GridFor(float min, float max) const {
  min = std::min(min, 0.0f);
  max = std::max(max, 0.0f);
  if (min == 0 && max == 0) return {};
  const float amax = std::max(-min, max);
  if (e_.format->scale_is_exponent) {
    const int exponent = std::ilogb(amax) - std::ilogb(highest_);
    return {std::ldexp(1.0f, std::clamp(exponent, -kExponentBias, kExponentBias)), 0};
  }
  const DType stored = e_.scale->dtype;
  const float exact = (e_.zero.has_value() ? max - min : amax) / span_ / outer_;
  // A scale that rounds to 0 or infinity would lose the numbers.
  Grid grid{RoundedToType(stored, std::clamp(exact, SmallestOf(stored), LargestOf(stored))), 0};
  if (!e_.zero.has_value()) return grid;
  grid.zero = std::clamp(lowest_ - min / grid.scale, lowest_, highest_);
  grid.zero = IsFloat(e_.zero->dtype) ? RoundedToType(e_.zero->dtype, grid.zero) : std::nearbyint(grid.zero);
  return grid;
}

int Quantizer::Code(float x, Grid grid) const {
  const float scaled = x / (grid.scale * outer_);
  const float y = std::clamp(grid.zero == 0 ? scaled : scaled + grid.zero, lowest_, highest_);
  if (is_integer_) return static_cast<int>(std::nearbyint(y));
  if (is_float_) return e_.format->codes == DType::kF8E4M3 ? FloatToF8E4M3(y) : FloatToF8E5M2(y);
  const auto above = std::upper_bound(codebook_.begin(), codebook_.end(), y,
                                      [](float number, const auto& entry) { return number < entry.first; });
  if (above == codebook_.begin()) return above->second;
  const auto below = above - 1;
  // -0 keeps its sign, if there is such a code.
  if (y == 0 && std::signbit(y) && below != codebook_.begin() && (below - 1)->first == 0) return (below - 1)->second;
  if (above == codebook_.end()) return below->second;
  const float to_below = y - below->first, to_above = above->first - y;
  if (to_below == to_above) return below->second % 2 == 0 ? below->second : above->second;
  return to_below < to_above ? below->second : above->second;
}

float Quantizer::Decoded(int code, Grid grid) const { return (NumberOf(code) - grid.zero) * grid.scale * outer_; }

absl::Status CheckQuantizable(const Encoding& e) {
  if (e.format->superblock > 0) {
    return absl::UnimplementedError(absl::StrCat("quantize: ", e.text, ": superblocks are read, not written"));
  }
  if (e.outer != OuterScale::kOfTensor) {
    return absl::UnimplementedError(absl::StrCat("quantize: ", e.text, ": only one outer scale is found"));
  }
  if (e.zero.has_value() && e.zero->per != e.scale->per) {
    return absl::UnimplementedError(absl::StrCat("quantize: ", e.text, ": each scale must have its own zero point"));
  }
  const bool is_unsigned = e.format->is_integer() && !e.format->is_signed();
  if (is_unsigned && !e.zero.has_value()) {
    return absl::UnimplementedError(absl::StrCat("quantize: ", e.text, ": unsigned codes need zero points"));
  }
  const bool fits = !e.zero.has_value() || is_unsigned || IsFloat(e.zero->dtype) ||
                    (e.zero->dtype != DType::kU8 && e.zero->dtype != DType::kU4);
  if (fits) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("quantize: ", e.text, ": zero points of signed codes are signed"));
}

Quantizer::Grid GridAt(const QuantizedParts& parts, const Encoding& e, int64_t i) {
  const auto scale = static_cast<float>(parts.scale.GetFloat(i));
  if (e.format->scale_is_exponent) return {std::ldexp(1.0f, static_cast<int>(scale) - kExponentBias), 0};
  return {scale, e.zero.has_value() ? static_cast<float>(parts.zero.GetFloat(i)) : 0};
}

void SetGrid(Quantizer::Grid grid, const Encoding& e, int64_t i, QuantizedParts* parts) {
  if (e.format->scale_is_exponent) {
    parts->scale.SetInt(i, std::ilogb(grid.scale) + kExponentBias);
  } else {
    parts->scale.SetFloat(i, grid.scale);
  }
  if (e.zero.has_value()) parts->zero.SetFloat(i, grid.zero);
}

absl::StatusOr<QuantizedParts> PartsFor(const Tensor& numbers, const Encoding& e, const QuantizeOptions& options) {
  RETURN_IF_ERROR(CheckQuantizable(e));
  RETURN_IF_ERROR(CheckEncoding(e, Dims(numbers.shape().begin(), numbers.shape().end())));
  QuantizedParts parts{.scale = NewPart(e, 1, numbers.shape())};
  if (e.zero.has_value()) parts.zero = NewPart(e, 2, numbers.shape());
  const Extremes extremes = ExtremesOf(numbers, e, parts.scale.size());
  if (!extremes.is_finite)
    return absl::InvalidArgumentError(
        "quantize: not all numbers are finite; get the weights again, or leave them as they are");
  Quantizer quantizer(e, options);
  if (e.format->outer_scale) {
    const float outer = quantizer.OuterScaleFor(std::max(extremes.amax, options.outer_amax));
    quantizer.set_outer_scale(outer);
    parts.outer = Tensor::FromValues(DType::kF32, {}, std::vector<float>{outer});
  }
  for (int64_t i = 0; i < parts.scale.size(); ++i) {
    SetGrid(quantizer.GridFor(extremes.min[i], extremes.max[i]), e, i, &parts);
  }
  return parts;
}

Tensor QuantizedWith(const Tensor& numbers, const Encoding* e, DType dtype, const QuantizedParts& parts,
                     const QuantizeOptions& options) {
  const int64_t columns = numbers.shape().empty() ? 1 : numbers.shape().back();
  const Quantizer quantizer(*e, options, e->format->outer_scale ? parts.outer.data<float>()[0] : 1);
  std::vector<Quantizer::Grid> grids;
  for (int64_t i = 0; i < parts.scale.size(); ++i) grids.push_back(GridAt(parts, *e, i));
  const PartPlaces places(*e, numbers.shape());
  Tensor stored(e->format->codes, numbers.shape());
  const int64_t rows = columns == 0 ? 0 : numbers.size() / columns;
  // Two threads must not write to one byte.
  const bool fills_bytes = columns * DTypeBits(e->format->codes) % 8 == 0;
  const double work = fills_bytes ? 16.0 * static_cast<double>(numbers.size()) : 0;
  ops::ParallelFor(rows, work, [&](int64_t first, int64_t last) {
    std::vector<float> row(columns);
    for (int64_t r = first; r < last; ++r) {
      ops::Load<float>(numbers, r * columns, columns, row.data());
      const PartOfRow part = places.At(e->scale->per, r);
      for (int64_t begin = 0, i = part.begin; begin < columns; ++i) {
        const int64_t end = part.run == 0 ? columns : std::min(columns, begin + part.run);
        for (; begin < end; ++begin) {
          const int code = quantizer.Code(row[begin], grids[i]);
          if (IsFloat(e->format->codes)) {
            stored.mutable_data<uint8_t>()[r * columns + begin] = static_cast<uint8_t>(code);
          } else {
            stored.SetInt(r * columns + begin, code);
          }
        }
      }
    }
  });
  if (e->format->packed_bits > 0) stored = PackedCodes(stored, e->format->packed_bits);
  std::vector<const Tensor*> components = {&stored, &parts.scale};
  if (e->zero.has_value()) components.push_back(&parts.zero);
  if (e->format->outer_scale) components.push_back(&parts.outer);
  return Bundle(e, dtype, numbers.shape(), components);
}

absl::StatusOr<Tensor> Quantized(const Tensor& numbers, const Encoding* encoding, DType dtype,
                                 const QuantizeOptions& options) {
  ASSIGN_OR_RETURN(const QuantizedParts parts, PartsFor(numbers, *encoding, options));
  return QuantizedWith(numbers, encoding, dtype, parts, options);
}

}  // namespace llmc
