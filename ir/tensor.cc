#include "ir/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/base/casts.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/zeroed_memory.h"
#include "ir/encoding.h"

namespace llmc {
namespace {

int64_t NumElements(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

// The nearest f32, but an inexact one gets an odd last bit, so that rounding it again to at most 22 bits gives what
// rounding `value` itself would.
float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  uint32_t bits = absl::bit_cast<uint32_t>(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // toward zero
  return absl::bit_cast<float>(bits | 1);
}

// Exact up to 2^53, with the lost bits gathered in the last one above that, for the same reason.
double IntToDoubleOdd(int64_t value) {
  uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  if (magnitude >> 53) magnitude = (magnitude & ~uint64_t{2047}) | ((magnitude & 2047) ? 2048 : 0);
  const double result = static_cast<double>(magnitude);
  return value < 0 ? -result : result;
}

template <class T>
T Saturate(double value) {
  if (std::isnan(value)) return 0;
  // 2^digits is exact; the largest 64-bit integer is not.
  const double limit = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (value >= limit) return std::numeric_limits<T>::max();
  if (value <= (std::is_signed_v<T> ? -limit : 0.0)) return std::numeric_limits<T>::min();
  return static_cast<T>(value);
}

uint8_t Nibble(const char* raw, int64_t i) { return (static_cast<uint8_t>(raw[i / 2]) >> (4 * (i & 1))) & 15; }
void SetNibble(char* raw, int64_t i, uint8_t value) {
  const int shift = 4 * static_cast<int>(i & 1);
  const uint8_t old = static_cast<uint8_t>(raw[i / 2]);
  raw[i / 2] = static_cast<char>((old & ~(15 << shift)) | ((value & 15) << shift));
}
int64_t SignedNibble(uint8_t nibble) { return nibble >= 8 ? static_cast<int64_t>(nibble) - 16 : nibble; }

// Mapped files give no promise of alignment.
template <class T>
T Load(const char* raw, int64_t i) {
  T value;
  std::memcpy(&value, raw + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void Store(char* raw, int64_t i, T value) {
  std::memcpy(raw + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

}  // namespace

absl::StatusOr<int64_t> CheckedElements(DType dtype, absl::Span<const int64_t> shape) {
  int64_t n = 1;
  bool empty = false;
  for (int64_t d : shape) {
    if (d < 0) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", ShapeToString(shape), " has a negative dimension"));
    }
    empty |= d == 0;
  }
  if (empty) return 0;
  int64_t bits = 0;
  for (int64_t d : shape) {
    if (__builtin_mul_overflow(n, d, &n) || __builtin_mul_overflow(n, int64_t{DTypeBits(dtype)}, &bits) ||
        bits > std::numeric_limits<int64_t>::max() - 1024) {
      return absl::InvalidArgumentError(absl::StrCat(DTypeName(dtype), ShapeToString(shape), " is too large"));
    }
  }
  return n;
}

Tensor::Tensor(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)), size_(NumElements(shape_)) {
  bytes_ = ZeroedMemory(bytes());
}

Tensor::Tensor(DType dtype, Shape shape, std::shared_ptr<const char> bytes)
    : dtype_(dtype), shape_(std::move(shape)), size_(NumElements(shape_)), bytes_(std::move(bytes)) {}

Tensor::Tensor(const Encoding* encoding, DType dtype, Shape shape)
    : dtype_(dtype), shape_(std::move(shape)), size_(NumElements(shape_)), encoding_(encoding) {
  encoded_bytes_ = EncodedBytes(*encoding, shape_);
  bytes_ = ZeroedMemory(encoded_bytes_);
}

double Tensor::GetFloat(int64_t i) const {
  switch (dtype_) {
    case DType::kF64:
      return Load<double>(raw(), i);
    case DType::kF32:
      return Load<float>(raw(), i);
    case DType::kF16:
      return HalfToFloat(Load<uint16_t>(raw(), i));
    case DType::kBF16:
      return BFloat16ToFloat(Load<uint16_t>(raw(), i));
    case DType::kF8E4M3:
      return F8E4M3ToFloat(Load<uint8_t>(raw(), i));
    case DType::kF8E5M2:
      return F8E5M2ToFloat(Load<uint8_t>(raw(), i));
    default:
      return static_cast<double>(GetInt(i));
  }
}

int64_t Tensor::GetInt(int64_t i) const {
  switch (dtype_) {
    case DType::kI64:
      return Load<int64_t>(raw(), i);
    case DType::kI32:
      return Load<int32_t>(raw(), i);
    case DType::kI16:
      return Load<int16_t>(raw(), i);
    case DType::kI8:
      return Load<int8_t>(raw(), i);
    case DType::kU8:
      return Load<uint8_t>(raw(), i);
    case DType::kI4:
      return SignedNibble(Nibble(raw(), i));
    case DType::kU4:
      return Nibble(raw(), i);
    case DType::kBool:
      return Load<uint8_t>(raw(), i) != 0;
    default:
      return Saturate<int64_t>(GetFloat(i));
  }
}

void Tensor::SetFloat(int64_t i, double value) {
  char* raw = mutable_raw();
  switch (dtype_) {
    case DType::kF64:
      return Store(raw, i, value);
    case DType::kF32:
      return Store(raw, i, static_cast<float>(value));
    case DType::kF16:
      return Store(raw, i, FloatToHalf(RoundToOdd(value)));
    case DType::kBF16:
      return Store(raw, i, FloatToBFloat16(RoundToOdd(value)));
    case DType::kF8E4M3:
      return Store(raw, i, FloatToF8E4M3(RoundToOdd(value)));
    case DType::kF8E5M2:
      return Store(raw, i, FloatToF8E5M2(RoundToOdd(value)));
    case DType::kI64:
      return Store(raw, i, Saturate<int64_t>(value));
    case DType::kI32:
      return Store(raw, i, Saturate<int32_t>(value));
    case DType::kI16:
      return Store(raw, i, Saturate<int16_t>(value));
    case DType::kI8:
      return Store(raw, i, Saturate<int8_t>(value));
    case DType::kU8:
      return Store(raw, i, Saturate<uint8_t>(value));
    case DType::kI4:
      return SetNibble(raw, i, static_cast<uint8_t>(std::clamp<int64_t>(Saturate<int64_t>(value), -8, 7)));
    case DType::kU4:
      return SetNibble(raw, i, static_cast<uint8_t>(std::clamp<int64_t>(Saturate<int64_t>(value), 0, 15)));
    case DType::kBool:
      return Store(raw, i, static_cast<uint8_t>(value != 0));  // NaN is true, as in C
  }
}

void Tensor::SetInt(int64_t i, int64_t value) {
  char* raw = mutable_raw();
  switch (dtype_) {
    case DType::kF64:
      return Store(raw, i, static_cast<double>(value));
    case DType::kF32:
      return Store(raw, i, static_cast<float>(value));
    case DType::kI64:
      return Store(raw, i, value);
    case DType::kI32:
      return Store(raw, i, static_cast<int32_t>(value));
    case DType::kI16:
      return Store(raw, i, static_cast<int16_t>(value));
    case DType::kI8:
      return Store(raw, i, static_cast<int8_t>(value));
    case DType::kU8:
      return Store(raw, i, static_cast<uint8_t>(value));
    case DType::kI4:
    case DType::kU4:
      return SetNibble(raw, i, static_cast<uint8_t>(value & 15));
    case DType::kBool:
      return Store(raw, i, static_cast<uint8_t>(value != 0));
    default:
      return SetFloat(i, IntToDoubleOdd(value));
  }
}

std::vector<float> Tensor::ToFloats() const {
  std::vector<float> out(static_cast<size_t>(size_));
  if (size_ == 0) return out;
  if (dtype_ == DType::kF32) {
    std::memcpy(out.data(), raw(), out.size() * sizeof(float));
  } else if (dtype_ == DType::kF16) {
    HalvesToFloats(raw(), size_, out.data());
  } else if (dtype_ == DType::kBF16) {
    const char* in = raw();
    for (int64_t i = 0; i < size_; ++i) out[i] = BFloat16ToFloat(Load<uint16_t>(in, i));
  } else if (IsFloat(dtype_)) {
    for (int64_t i = 0; i < size_; ++i) out[i] = static_cast<float>(GetFloat(i));
  } else {
    for (int64_t i = 0; i < size_; ++i) out[i] = static_cast<float>(GetInt(i));
  }
  return out;
}

std::vector<double> Tensor::ToDoubles() const {
  std::vector<double> out(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) out[i] = GetFloat(i);
  return out;
}

std::vector<int64_t> Tensor::ToInts() const {
  std::vector<int64_t> out(static_cast<size_t>(size_));
  for (int64_t i = 0; i < size_; ++i) out[i] = GetInt(i);
  return out;
}

Tensor Tensor::Reshaped(Shape shape) const {
  Tensor result = *this;
  result.shape_ = std::move(shape);
  return result;
}

bool Tensor::operator==(const Tensor& other) const {
  if (dtype_ != other.dtype_ || encoding_ != other.encoding_ || shape_ != other.shape_) return false;
  if (size_ == 0) return true;
  if (encoding_ != nullptr) return std::memcmp(raw(), other.raw(), bytes()) == 0;
  const bool half_byte = DTypeBits(dtype_) == 4 && (size_ & 1) != 0;
  if (std::memcmp(raw(), other.raw(), bytes() - (half_byte ? 1 : 0)) != 0) return false;
  return !half_byte || Nibble(raw(), size_ - 1) == Nibble(other.raw(), size_ - 1);
}

std::string ShapeToString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace llmc
