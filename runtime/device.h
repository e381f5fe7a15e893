// A CUDA device through the driver API, which is opened when first needed: nothing links CUDA, and building needs no
// toolkit. Only device.cc calls the driver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace llmc {

struct CudaDriver;  // the functions of libcuda.so.1

using DevicePointer = uint64_t;

// Device memory, freed with this. Movable.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const CudaDriver* driver, DevicePointer data, int64_t bytes)
      : driver_(driver), data_(data), bytes_(bytes) {}
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  DevicePointer data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  const CudaDriver* driver_ = nullptr;
  DevicePointer data_ = 0;
  int64_t bytes_ = 0;
};

// Page-locked host memory, which copies at full speed and beside the host's work. Movable.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(const CudaDriver* driver, char* data, int64_t bytes) : driver_(driver), data_(data), bytes_(bytes) {}
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  const CudaDriver* driver_ = nullptr;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

// An entry of a loaded module; lives as long as the device.
struct DeviceFunction {
  void* handle = nullptr;
};

struct LaunchShape {
  std::array<uint32_t, 3> grid = {1, 1, 1};
  uint32_t threads = 1;
  uint32_t shared_bytes = 0;
  // The launch may start while its predecessor ends; the kernel waits for it itself (griddepcontrol.wait).
  bool programmatic = false;
};

// A captured sequence of launches and copies, which replays with one call.
class DeviceGraph {
 public:
  DeviceGraph() = default;
  DeviceGraph(const CudaDriver* driver, void* executable) : driver_(driver), executable_(executable) {}
  DeviceGraph(DeviceGraph&& other) noexcept { *this = std::move(other); }
  DeviceGraph& operator=(DeviceGraph&& other) noexcept;
  ~DeviceGraph();
  void* executable() const { return executable_; }

 private:
  const CudaDriver* driver_ = nullptr;
  void* executable_ = nullptr;
};

// One device with one stream, on which everything below runs in order. One thread at a time.
class Device {
 public:
  // NotFound: there is no driver or no such device; the message says which.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int index = 0);
  ~Device();

  const std::string& name() const { return name_; }
  int capability() const { return capability_; }  // 90 for 9.0
  int multiprocessors() const { return multiprocessors_; }
  struct MemoryInfo {
    int64_t free = 0, total = 0;
  };
  absl::StatusOr<MemoryInfo> memory() const;

  // ResourceExhausted, with what is free, if it does not fit.
  absl::StatusOr<DeviceMemory> Allocate(int64_t bytes);
  absl::StatusOr<PinnedMemory> AllocatePinned(int64_t bytes);

  // In stream order; host memory must be pinned for them not to wait, and must stay until Synchronize.
  absl::Status CopyToDevice(DevicePointer to, const void* from, int64_t bytes);
  absl::Status CopyToHost(void* to, DevicePointer from, int64_t bytes);
  absl::Status CopyOnDevice(DevicePointer to, DevicePointer from, int64_t bytes);
  absl::Status FillBytes(DevicePointer to, uint8_t value, int64_t bytes);

  // `image` is a cubin or PTX. FailedPrecondition: it is for other devices.
  absl::StatusOr<void*> LoadModule(absl::string_view image);
  absl::StatusOr<DeviceFunction> FindFunction(void* module, const std::string& entry);
  // Allows `bytes` of dynamic shared memory, above the 48 KiB that need no permission.
  absl::Status AllowSharedBytes(DeviceFunction function, uint32_t bytes);
  // `arguments` point to the values.
  absl::Status Launch(DeviceFunction function, const LaunchShape& shape, absl::Span<void* const> arguments);

  // What runs between the two is captured and not run.
  absl::Status BeginCapture();
  absl::StatusOr<DeviceGraph> EndCapture();
  absl::Status Launch(const DeviceGraph& graph);

  // Waits for the stream. An error of a kernel shows here at the latest, and ends the device for good.
  absl::Status Synchronize();
  void* stream() const { return stream_; }

 private:
  Device() = default;
  absl::Status Check(int result, absl::string_view what) const;

  const CudaDriver* driver_ = nullptr;
  int index_ = 0;
  std::string name_;
  int capability_ = 0;
  int multiprocessors_ = 0;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  std::vector<void*> modules_;
};

}  // namespace llmc
