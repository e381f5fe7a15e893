// A tensor in memory: element type, shape and a shared view of bytes (owned, or part of a mapped file).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"

namespace llmc {

using Shape = std::vector<int64_t>;
struct Encoding;

// The number of elements, or an error when a dimension is negative or the product or its bytes overflow.
absl::StatusOr<int64_t> CheckedElements(DType dtype, absl::Span<const int64_t> shape);

class Tensor {
 public:
  Tensor() = default;
  // Zero-filled, owned. The shape must have passed CheckedElements.
  Tensor(DType dtype, Shape shape);
  // A read-only view of `bytes`, whose owner is kept alive. Elements are row-major, little-endian; 4-bit elements are
  // packed two in a byte, the first in the low half.
  Tensor(DType dtype, Shape shape, std::shared_ptr<const char> bytes);
  // Zero-filled, owned: the bytes of a tensor of this logical type that is encoded (ir/encoding.h). Its elements are
  // reached by Decoded alone.
  Tensor(const Encoding* encoding, DType dtype, Shape shape);

  template <class T>
  static Tensor FromValues(DType dtype, Shape shape, const std::vector<T>& values) {
    Tensor t(dtype, std::move(shape));
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_integral_v<T>) {
        t.SetInt(i, static_cast<int64_t>(values[i]));
      } else {
        t.SetFloat(i, static_cast<double>(values[i]));
      }
    }
    return t;
  }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return static_cast<int>(shape_.size()); }
  int64_t size() const { return size_; }                  // elements
  const Encoding* encoding() const { return encoding_; }  // nullptr: elements lie one after the other
  int64_t bytes() const {
    if (encoding_ != nullptr) return encoded_bytes_;
    return DTypeBits(dtype_) < 8 ? (size_ + 1) / 2 : size_ * (DTypeBits(dtype_) / 8);
  }

  const char* raw() const { return bytes_.get(); }
  char* mutable_raw() { return const_cast<char*>(bytes_.get()); }  // Only of a tensor that this process allocated.
  const std::shared_ptr<const char>& owner() const { return bytes_; }
  template <class T>
  const T* data() const {
    return reinterpret_cast<const T*>(bytes_.get());
  }
  template <class T>
  T* mutable_data() {
    return reinterpret_cast<T*>(mutable_raw());
  }

  // Element by flat index, converted; Set rounds to the element type. Int forms keep all 64 bits.
  double GetFloat(int64_t i) const;
  int64_t GetInt(int64_t i) const;
  void SetFloat(int64_t i, double value);
  void SetInt(int64_t i, int64_t value);

  // Whole contents as f32 / i64 (converted).
  std::vector<float> ToFloats() const;
  std::vector<double> ToDoubles() const;
  std::vector<int64_t> ToInts() const;

  // The same bytes under another shape of as many elements.
  Tensor Reshaped(Shape shape) const;
  bool operator==(const Tensor& other) const;  // dtype, encoding, shape and bytes

 private:
  DType dtype_ = DType::kF32;
  Shape shape_{0};
  int64_t size_ = 0;
  const Encoding* encoding_ = nullptr;
  int64_t encoded_bytes_ = 0;
  std::shared_ptr<const char> bytes_;
};

using Tensors = std::vector<Tensor>;
std::string ShapeToString(absl::Span<const int64_t> shape);  // "[2, 3]"

}  // namespace llmc
