// Matrix products through cuBLASLt, which is opened when first needed. Only cublaslt.cc calls it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device.h"
#include "runtime/host_tensor.h"

namespace llmc {

struct CublasLt;  // the functions of libcublasLt

inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;  // device memory that products share

// The products of one device. One thread at a time.
class MatrixProducts {
 public:
  // NotFound: there is no cuBLASLt on this machine; the message says how to get it.
  static absl::Status Find();
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Create(Device* device);
  ~MatrixProducts();

  struct Shape {
    int64_t m = 0, n = 0, k = 0;
    ElementType in = ElementType::kBF16, out = ElementType::kBF16;  // f32, f16 or bf16
    bool transposed = true;                                         // weight is [n, k], else [k, n]
    int64_t batch = 1, x_stride = 0, weight_stride = 0;             // in elements, from one product to the next
    auto operator<=>(const Shape&) const = default;
  };
  // out[m, n] = x[m, k] * weight, row-major, with sums in f32 (f32 operands are not rounded to TF32), on the device's
  // stream. Finds an algorithm when it meets a shape for the first time, which a capture must not do.
  absl::Status Multiply(const Shape& shape, DevicePointer out, DevicePointer x, DevicePointer weight);

 private:
  struct Prepared;
  MatrixProducts() = default;
  absl::StatusOr<const Prepared*> Prepare(const Shape& shape);

  Device* device_ = nullptr;
  const CublasLt* library_ = nullptr;
  void* handle_ = nullptr;
  DeviceMemory workspace_;
  std::map<Shape, std::unique_ptr<Prepared>> prepared_;  // the latest kMaxPrepared
  std::deque<Shape> prepared_order_;
};

}  // namespace llmc
