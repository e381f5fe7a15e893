// What a GPU can do at best, measured: the roofs that the times of a model stand under.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/device/device.h"
#include "runtime/host_tensor.h"
#include "tools/gpu_monitor.h"

namespace llmc {

// A rate that the device holds: once its clocks have settled under the load.
struct HotRate {
  double rate = 0;     // a second
  double seconds = 0;  // of load before it was measured
  bool settled = false;
  GpuState gpu;
};

struct DeviceRates {
  double read_bytes = 0;  // a second, of one large buffer of random numbers: the fastest of some short runs
  double flops = 0;       // a second, of a large product of bf16 matrices of random numbers through cuBLASLt; likewise
  HotRate hot_read, hot_flops;
};
// Each load is held for `seconds`, and up to twice as long until its rate settles. `monitor` may be nullptr.
// NotFound: there is no NVRTC on this machine, which compiles the kernel that reads.
absl::StatusOr<DeviceRates> MeasureRates(Device* device, double seconds, GpuMonitor* monitor);

// Whether the last kSettledStretches rates lie within 1 % of the largest of them.
constexpr size_t kSettledStretches = 8;
bool HasSettled(absl::Span<const double> rates);

// Kernels that measurements need, compiled for this device.
class BenchKernels {
 public:
  static absl::StatusOr<BenchKernels> Create(Device* device);
  // Random numbers in [-1, 1) of a float type. Of types of at most 8 bits: bytes of 49 to 63, which are finite numbers
  // as floats of any size and small ones as integers, so that they may be codes and scales.
  absl::Status FillRandom(const DeviceMemory& memory, DType type);
  // Reads whole pieces of kPieceBytes.
  static constexpr int64_t kPieceBytes = int64_t{256} * 8 * 16;
  absl::Status Read(const DeviceMemory& memory);

 private:
  Device* device_ = nullptr;
  DeviceFunction fill_[4];  // f32, f16, bf16, bytes
  DeviceFunction read_;
};

}  // namespace llmc
