// Matrices in the memory of a GPU, multiplied by cuBLASLt.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "quantize/matrices.h"
#include "runtime/device/cublaslt.h"
#include "runtime/device/device.h"

namespace llmc {

// What to do about memory of a GPU that a command's own models and matrices do not fit into.
inline constexpr char kDeviceIsFull[] = "; free memory of the GPU, give shorter samples, or run with --device=host";

class DeviceMatrices : public Matrices {
 public:
  // `device` must outlive this. NotFound: there is no cuBLASLt.
  static absl::StatusOr<std::unique_ptr<DeviceMatrices>> Create(Device* device);

  absl::StatusOr<std::unique_ptr<Memory>> Allocate(int64_t numbers) override;
  absl::Status Write(const float* from, int64_t count, const Place& to) override;
  absl::Status Read(const Place& from, int64_t count, float* to) override;
  absl::Status Multiply(const Product& product, const Place& x, const Place& w, const Place& out) override;

 private:
  explicit DeviceMatrices(Device* device) : device_(device) {}
  Device* device_;
  std::unique_ptr<MatrixProducts> products_;
};

}  // namespace llmc
