// A CUDA device through the driver API, which is opened when first needed: nothing links CUDA, and building needs no
// toolkit. Only device.cc calls the driver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/layout/tile_map.h"

namespace llmc {

struct CudaDriver;  // the functions of libcuda.so.1
class Trace;

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

// Page-locked host memory, which copies at full speed and beside the host's work. Kernels can read and write it under
// the same address. Movable.
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

class Device;

// Waits until all streams of this process are done with what they were given on GPU `index`; at once, if there is none.
void WaitForDevice(int index);

// Copies to the device beside its stream, for a thread of its own: use and destroy it on the thread that made it.
class DeviceUpload {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceUpload>> Create(Device* device, size_t buffer_bytes);
  ~DeviceUpload();  // waits for the copies
  // Pinned memory of that many bytes, to fill and to copy from until the next call. There are two in turn: waits until
  // the copies from this one are done.
  absl::StatusOr<char*> NextBuffer();
  absl::Status Copy(DevicePointer to, const char* from, int64_t bytes);
  absl::Status Finish();  // waits for the copies

 private:
  explicit DeviceUpload(Device* device) : device_(device) {}

  Device* device_;
  void* stream_ = nullptr;
  std::array<PinnedMemory, 2> buffers_;
  std::array<void*, 2> copied_ = {};  // events
  size_t current_ = 0;
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
  bool pdl = false;
  // All blocks must be on the device at a time, since they wait for each other; an error if there is no room.
  bool cooperative = false;
};

// A place in the stream that can be waited for. Movable.
class DeviceEvent {
 public:
  DeviceEvent() = default;
  DeviceEvent(const CudaDriver* driver, void* handle) : driver_(driver), handle_(handle) {}
  DeviceEvent(DeviceEvent&& other) noexcept { *this = std::move(other); }
  DeviceEvent& operator=(DeviceEvent&& other) noexcept;
  ~DeviceEvent();
  void* handle() const { return handle_; }

 private:
  const CudaDriver* driver_ = nullptr;
  void* handle_ = nullptr;
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

struct DeviceInfo {
  std::string name;    // "NVIDIA H200"
  int capability = 0;  // 90 for 9.0
  // 0: the driver does not say.
  int64_t multiprocessors = 0;
  int64_t l2_bytes = 0;  // of the L2 cache
  double bandwidth = 0;  // of memory, in bytes a second: its clock times its width
};
// Which device that is, without taking anything of it. NotFound: there is no driver or no such device; the message says
// which.
absl::StatusOr<DeviceInfo> DescribeDevice(int index = 0);
// The same error, saying how to go on without a device, for what could do so.
absl::Status NeedsDevice(const absl::Status& status);

// One device with one stream, on which everything below runs in order. One thread at a time: it calls Use() first if
// another thread opened the device, or if another device was in use since.
class Device {
 public:
  // NotFound: as DescribeDevice.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int index = 0);
  ~Device();

  const std::string& name() const { return name_; }
  int index() const { return index_; }                           // as CUDA counts those that it sees
  int capability() const { return capability_; }                 // 90 for 9.0
  const std::string& pci_bus_id() const { return pci_bus_id_; }  // "0000:0f:00.0", as NVIDIA's tools name it
  int multiprocessors() const { return multiprocessors_; }
  uint32_t max_shared_bytes() const { return static_cast<uint32_t>(max_shared_bytes_); }  // of a block
  struct MemoryInfo {
    int64_t free = 0, total = 0;
  };
  absl::StatusOr<MemoryInfo> memory() const;

  // ResourceExhausted, with what is free, if it does not fit.
  absl::StatusOr<DeviceMemory> Allocate(int64_t bytes);
  absl::StatusOr<PinnedMemory> AllocatePinned(int64_t bytes);
  // The same for users, who may keep it when the device is gone and let go of it on any thread.
  absl::StatusOr<std::shared_ptr<char>> AllocateShared(int64_t bytes);
  // The same on the device: an address that the host cannot read.
  absl::StatusOr<std::shared_ptr<char>> AllocateSharedOnDevice(int64_t bytes);

  // In stream order; host memory must be pinned for them not to wait, and must stay until Synchronize.
  absl::Status CopyToDevice(DevicePointer to, const void* from, int64_t bytes);
  absl::Status CopyToHost(void* to, DevicePointer from, int64_t bytes);
  absl::Status CopyOnDevice(DevicePointer to, DevicePointer from, int64_t bytes);
  absl::Status FillBytes(DevicePointer to, uint8_t value, int64_t bytes);

  // `image` is a cubin or PTX. FailedPrecondition: it is for other devices.
  absl::StatusOr<void*> LoadModule(absl::string_view image);
  absl::StatusOr<DeviceFunction> FindFunction(void* module, const std::string& entry);
  absl::StatusOr<uint32_t> MaxThreads(DeviceFunction function) const;  // of a block
  // The bytes of each of its parameters; nothing if the driver is too old to know.
  absl::StatusOr<std::optional<std::vector<size_t>>> ParameterSizes(DeviceFunction function) const;
  // Allows `bytes` of dynamic shared memory, above the 48 KiB that need no permission.
  absl::Status AllowSharedBytes(DeviceFunction function, uint32_t bytes);
  // What a kernel copies tiles of `tile_rows` rows of a matrix with. A copy brings what it asks for to the cache of the
  // GPU, and, unless the matrix is read once, the 128 bytes beside it.
  absl::StatusOr<TileMap> MapTiles(DevicePointer matrix, int64_t rows, int64_t row_bytes, uint32_t tile_rows,
                                   bool read_once) const;
  // `arguments` point to the values.
  absl::Status Launch(DeviceFunction function, const LaunchShape& shape, absl::Span<void* const> arguments);

  // What runs between the two is captured and not run.
  absl::Status BeginCapture();
  absl::StatusOr<DeviceGraph> EndCapture();
  absl::Status Launch(const DeviceGraph& graph);

  absl::StatusOr<DeviceEvent> NewEvent();
  // Of what is in the stream so far.
  absl::Status Record(const DeviceEvent& event);
  absl::Status Wait(const DeviceEvent& event);
  // A new event at the end of what is in the stream now, to measure the time between two.
  absl::StatusOr<DeviceEvent> Mark();
  // Waits for `to`.
  absl::StatusOr<double> SecondsBetween(const DeviceEvent& from, const DeviceEvent& to);

  // Where launch calls are recorded from now on, if not nullptr. Must outlive this.
  void set_trace(Trace* trace) { trace_ = trace; }
  Trace* trace() const { return trace_; }

  // Makes this device that of the calling thread; Open does it too.
  absl::Status Use();

  // Waits for the stream. An error of a kernel shows here at the latest, and ends the device for good.
  absl::Status Synchronize();
  void* stream() const { return stream_; }

 private:
  friend class DeviceUpload;
  Device() = default;
  absl::Status Check(int result, absl::string_view what) const;
  absl::StatusOr<std::shared_ptr<char>> Shared(absl::FunctionRef<int(void** data)> allocate,
                                               void (*free)(const CudaDriver*, char*), absl::string_view what);

  const CudaDriver* driver_ = nullptr;
  int index_ = 0;
  std::string name_, pci_bus_id_;
  int capability_ = 0;
  int multiprocessors_ = 0;
  int max_shared_bytes_ = 0;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  Trace* trace_ = nullptr;
  std::vector<void*> modules_;
};

}  // namespace llmc
