#include "runtime/host_tensor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/zeroed_memory.h"

namespace llmc {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 40;

absl::StatusOr<int64_t> CheckedBytes(DType type, absl::Span<const int64_t> shape) {
  int64_t size = 1;
  for (int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(size, dim, &size) || size > kMaxBytes) {
      return absl::InvalidArgumentError(absl::StrCat("tensor of shape [", absl::StrJoin(shape, ", "),
                                                     "]: a dimension is negative or the size too large"));
    }
  }
  return (size * DTypeBits(type) + 7) / 8;
}

template <class T>
absl::StatusOr<HostTensor> Copy(DType type, absl::Span<const T> values, std::vector<int64_t> shape) {
  auto tensor = HostTensor::Zeros(type, std::move(shape));
  if (!tensor.ok()) return tensor.status();
  if (tensor->size() != static_cast<int64_t>(values.size())) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor of shape [", absl::StrJoin(tensor->shape, ", "),
                                                   "] takes ", tensor->size(), " values, got ", values.size()));
  }
  if (!values.empty())
    std::memcpy(tensor->template mutable_values<T>().data(), values.data(), values.size() * sizeof(T));
  return tensor;
}

}  // namespace

absl::StatusOr<HostTensor> HostTensor::Zeros(DType type, std::vector<int64_t> shape) {
  const auto bytes = CheckedBytes(type, shape);
  if (!bytes.ok()) return bytes.status();
  // At least one byte, so that data() of an empty tensor is not null.
  return HostTensor{.type = type, .shape = std::move(shape), .bytes = ZeroedMemory(*bytes + 1)};
}

absl::StatusOr<HostTensor> HostTensor::FromFloats(absl::Span<const float> values, std::vector<int64_t> shape) {
  return Copy(DType::kF32, values, std::move(shape));
}

absl::StatusOr<HostTensor> HostTensor::FromInts(absl::Span<const int64_t> values, std::vector<int64_t> shape) {
  return Copy(DType::kI64, values, std::move(shape));
}

absl::StatusOr<HostTensor> HostTensor::FromInts(DType type, absl::Span<const int64_t> values,
                                                std::vector<int64_t> shape) {
  const int bytes = DTypeBits(type) / 8;
  if (IsFloat(type) || bytes == 0) return absl::InvalidArgumentError(absl::StrCat(DTypeName(type), " is no integer"));
  ASSIGN_OR_RETURN(const HostTensor wide, FromInts(values, shape));
  ASSIGN_OR_RETURN(HostTensor tensor, Zeros(type, std::move(shape)));
  char* to = const_cast<char*>(tensor.bytes.get());
  for (const int64_t value : wide.values<int64_t>()) to = std::copy_n(reinterpret_cast<const char*>(&value), bytes, to);
  return tensor;
}

absl::StatusOr<std::vector<float>> HostTensor::ToFloats() const {
  std::vector<float> floats(static_cast<size_t>(size()));
  switch (type) {
    case DType::kF32:
      absl::c_copy(values<float>(), floats.begin());
      break;
    case DType::kF64:
      absl::c_copy(values<double>(), floats.begin());
      break;
    case DType::kF16:
      HalvesToFloats(bytes.get(), size(), floats.data());
      break;
    case DType::kBF16:
      absl::c_transform(values<uint16_t>(), floats.begin(), BFloat16ToFloat);
      break;
    case DType::kF8E4M3:
      absl::c_transform(values<uint8_t>(), floats.begin(), F8E4M3ToFloat);
      break;
    case DType::kF8E5M2:
      absl::c_transform(values<uint8_t>(), floats.begin(), F8E5M2ToFloat);
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat(DTypeName(type), " is no float"));
  }
  return floats;
}

absl::Status HostTensor::Check() const {
  const auto size = CheckedBytes(type, shape);
  if (!size.ok()) return size.status();
  if (*size > 0 && bytes == nullptr) return absl::InvalidArgumentError("a tensor has no bytes");
  return absl::OkStatus();
}

int64_t HostTensor::size() const {
  int64_t size = 1;
  for (int64_t dim : shape) size *= dim;
  return size;
}

int64_t HostTensor::byte_size() const { return (size() * DTypeBits(type) + 7) / 8; }

}  // namespace llmc
