// What a GPU can do at best, measured: the roofs that the times of a model stand under.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device.h"
#include "runtime/host_tensor.h"

namespace llmc {

struct DeviceRates {
  double read_bytes = 0;  // a second, of one large buffer of random numbers
  double flops = 0;       // a second, of a large product of bf16 matrices of random numbers through cuBLASLt
};
// NotFound: there is no NVRTC on this machine, which compiles the kernel that reads.
absl::StatusOr<DeviceRates> MeasureRates(Device* device);

// Kernels that measurements need, compiled for this device.
class BenchKernels {
 public:
  static absl::StatusOr<BenchKernels> Create(Device* device);
  // Random numbers in [-1, 1) of a float type.
  absl::Status FillRandom(const DeviceMemory& memory, ElementType type);
  // Reads whole pieces of kPieceBytes.
  static constexpr int64_t kPieceBytes = int64_t{256} * 8 * 16;
  absl::Status Read(const DeviceMemory& memory);

 private:
  Device* device_ = nullptr;
  DeviceFunction fill_[3];  // f32, f16, bf16
  DeviceFunction read_;
};

double Median(std::vector<double> values);

}  // namespace llmc
