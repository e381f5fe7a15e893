// Named arrays in host memory, as programs that use the runtime give and get them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"

namespace llmc {

// Elements are row-major and little-endian; 4-bit elements are packed two in a byte, the first in the low half.
// Copies share the bytes.
struct HostTensor {
  DType type = DType::kF32;
  std::vector<int64_t> shape = {0};
  std::shared_ptr<const char> bytes;  // byte_size() of them

  // Zero-filled. InvalidArgument: a dimension is negative, or the size overflows or is above 1 TiB.
  static absl::StatusOr<HostTensor> Zeros(DType type, std::vector<int64_t> shape);
  // A copy of `values`, as many as the shape says.
  static absl::StatusOr<HostTensor> FromFloats(absl::Span<const float> values, std::vector<int64_t> shape);
  static absl::StatusOr<HostTensor> FromInts(absl::Span<const int64_t> values, std::vector<int64_t> shape);
  // Of any type of integers of 8 bits or more, or bool.
  static absl::StatusOr<HostTensor> FromInts(DType type, absl::Span<const int64_t> values, std::vector<int64_t> shape);

  // InvalidArgument: a dimension is negative, the size overflows or is above 1 TiB, or there are no bytes. What gets
  // tensors from users calls it first; the functions below rely on it.
  absl::Status Check() const;

  // The elements in f32. InvalidArgument: they are no floats.
  absl::StatusOr<std::vector<float>> ToFloats() const;

  int64_t size() const;  // elements
  int64_t byte_size() const;

  // T must be the C++ type of the elements.
  template <class T>
  absl::Span<const T> values() const {
    return {reinterpret_cast<const T*>(bytes.get()), static_cast<size_t>(size())};
  }
  // Only for tensors that the caller made and did not share.
  template <class T>
  absl::Span<T> mutable_values() {
    return {reinterpret_cast<T*>(const_cast<char*>(bytes.get())), static_cast<size_t>(size())};
  }
};

using NamedHostTensors = std::map<std::string, HostTensor>;

// An input or output of a model. Dims are numbers, symbols, or expressions of symbols, such as "past + 1".
struct TensorInfo {
  std::string name;
  DType type = DType::kF32;
  std::vector<std::string> shape;
  bool optional = false;

  bool operator==(const TensorInfo&) const = default;
};

}  // namespace llmc
