#include "runtime/host_tensor.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace llmc {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 40;

struct ElementTypeRow {
  absl::string_view name;
  int bits;
};
constexpr ElementTypeRow kRows[kNumElementTypes] = {
    {"f64", 64}, {"f32", 32}, {"f16", 16}, {"bf16", 16}, {"f8e4m3", 8}, {"f8e5m2", 8}, {"i64", 64},
    {"i32", 32}, {"i16", 16}, {"i8", 8},   {"i4", 4},    {"u8", 8},     {"u4", 4},     {"bool", 8}};

absl::StatusOr<int64_t> CheckedBytes(ElementType type, absl::Span<const int64_t> shape) {
  int64_t size = 1;
  for (int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(size, dim, &size) || size > kMaxBytes) {
      return absl::InvalidArgumentError(absl::StrCat("tensor of shape [", absl::StrJoin(shape, ", "),
                                                     "]: a dimension is negative or the size too large"));
    }
  }
  return (size * ElementTypeBits(type) + 7) / 8;
}

template <class T>
absl::StatusOr<HostTensor> Copy(ElementType type, absl::Span<const T> values, std::vector<int64_t> shape) {
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

absl::string_view ElementTypeName(ElementType type) { return kRows[static_cast<size_t>(type)].name; }
int ElementTypeBits(ElementType type) { return kRows[static_cast<size_t>(type)].bits; }

absl::StatusOr<ElementType> ElementTypeNamed(absl::string_view name) {
  for (int i = 0; i < kNumElementTypes; ++i) {
    if (kRows[i].name == name) return static_cast<ElementType>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("'", name, "' is no element type"));
}

absl::StatusOr<HostTensor> HostTensor::Zeros(ElementType type, std::vector<int64_t> shape) {
  const auto bytes = CheckedBytes(type, shape);
  if (!bytes.ok()) return bytes.status();
  // At least one byte, so that data() of an empty tensor is not null.
  std::shared_ptr<char> data(new char[*bytes + 1](), std::default_delete<char[]>());
  return HostTensor{.type = type, .shape = std::move(shape), .bytes = std::move(data)};
}

absl::StatusOr<HostTensor> HostTensor::FromFloats(absl::Span<const float> values, std::vector<int64_t> shape) {
  return Copy(ElementType::kF32, values, std::move(shape));
}

absl::StatusOr<HostTensor> HostTensor::FromInts(absl::Span<const int64_t> values, std::vector<int64_t> shape) {
  return Copy(ElementType::kI64, values, std::move(shape));
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

int64_t HostTensor::byte_size() const { return (size() * ElementTypeBits(type) + 7) / 8; }

}  // namespace llmc
