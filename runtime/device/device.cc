// Over 500 lines: all that calls the driver.
#include "runtime/device/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "runtime/device/trace.h"

namespace llmc {

// The part of the driver API in use, by its documented binary interface (CUDA 12 and later). Handles are pointers,
// results 0 for success.
struct CudaDriver {
  int (*cuInit)(unsigned);
  int (*cuGetErrorName)(int, const char**);
  int (*cuGetErrorString)(int, const char**);
  int (*cuDeviceGetCount)(int*);
  int (*cuDeviceGet)(int*, int);
  int (*cuDeviceGetName)(char*, int, int);
  int (*cuDeviceGetAttribute)(int*, int, int);
  int (*cuDevicePrimaryCtxRetain)(void**, int);
  int (*cuDevicePrimaryCtxRelease_v2)(int);
  int (*cuCtxSetCurrent)(void*);
  int (*cuCtxSynchronize)();
  int (*cuCtxPushCurrent_v2)(void*);
  int (*cuCtxPopCurrent_v2)(void**);
  int (*cuMemGetInfo_v2)(size_t*, size_t*);
  int (*cuMemAlloc_v2)(DevicePointer*, size_t);
  int (*cuMemFree_v2)(DevicePointer);
  int (*cuMemHostAlloc)(void**, size_t, unsigned);
  int (*cuMemFreeHost)(void*);
  int (*cuMemcpyHtoDAsync_v2)(DevicePointer, const void*, size_t, void*);
  int (*cuMemcpyDtoHAsync_v2)(void*, DevicePointer, size_t, void*);
  int (*cuMemcpyDtoDAsync_v2)(DevicePointer, DevicePointer, size_t, void*);
  int (*cuMemsetD8Async)(DevicePointer, unsigned char, size_t, void*);
  int (*cuModuleLoadData)(void**, const void*);
  int (*cuModuleUnload)(void*);
  int (*cuModuleGetFunction)(void**, void*, const char*);
  int (*cuFuncGetAttribute)(int*, int, void*);
  int (*cuFuncSetAttribute)(void*, int, int);
  int (*cuLaunchKernelEx)(const void*, void*, void**, void**);
  int (*cuStreamCreate)(void**, unsigned);
  int (*cuStreamDestroy_v2)(void*);
  int (*cuStreamSynchronize)(void*);
  int (*cuStreamBeginCapture_v2)(void*, int);
  int (*cuStreamEndCapture)(void*, void**);
  int (*cuGraphInstantiateWithFlags)(void**, void*, unsigned long long);
  int (*cuGraphDestroy)(void*);
  int (*cuGraphExecDestroy)(void*);
  int (*cuGraphLaunch)(void*, void*);
  int (*cuEventCreate)(void**, unsigned);
  int (*cuEventDestroy_v2)(void*);
  int (*cuEventRecord)(void*, void*);
  int (*cuEventSynchronize)(void*);
  int (*cuEventElapsedTime)(float*, void*, void*);
  // CUDA 12.0; nullptr before.
  int (*cuTensorMapEncodeTiled)(void*, int type, uint32_t rank, void*, const uint64_t* sizes, const uint64_t* strides,
                                const uint32_t* box, const uint32_t* steps, int interleave, int swizzle, int promotion,
                                int fill);
  // CUDA 12.4; nullptr before.
  int (*cuFuncGetParamInfo)(void*, size_t, size_t*, size_t*);
};

namespace {

constexpr int kAttributeMultiprocessors = 16;
constexpr int kAttributeMaxSharedBytes = 97;  // with permission
constexpr int kAttributePciBus = 33;
constexpr int kAttributePciDevice = 34;
constexpr int kAttributeMemoryKilohertz = 36;
constexpr int kAttributeMemoryBits = 37;
constexpr int kAttributeL2Bytes = 38;
constexpr int kAttributePciDomain = 50;
constexpr int kAttributeMajor = 75;
constexpr int kAttributeMinor = 76;
constexpr int kFunctionMaxThreads = 0;
constexpr int kFunctionMaxDynamicShared = 8;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventBlockingSync = 1;  // who waits for it sleeps
constexpr unsigned kEventDisableTiming = 2;
constexpr int kCaptureThreadLocal = 1;
constexpr int kErrorInvalidValue = 1;
constexpr int kErrorOutOfMemory = 2;
constexpr int kErrorInvalidImage = 200;
constexpr int kErrorNoBinary = 209;
constexpr int kErrorUnsupportedPtx = 222;

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    int flag;
    char bytes[64];
  } value;
};
constexpr int kCooperative = 2, kProgrammaticSerialization = 6;
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

template <class F>
bool Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<CudaDriver> OpenDriver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError("there is no NVIDIA driver on this machine (libcuda.so.1)");
  }
  CudaDriver d = {};
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto* function) {
    if (!Find(library, name, function) && missing == nullptr) missing = name;
  };
  find("cuInit", &d.cuInit);
  find("cuGetErrorName", &d.cuGetErrorName);
  find("cuGetErrorString", &d.cuGetErrorString);
  find("cuDeviceGetCount", &d.cuDeviceGetCount);
  find("cuDeviceGet", &d.cuDeviceGet);
  find("cuDeviceGetName", &d.cuDeviceGetName);
  find("cuDeviceGetAttribute", &d.cuDeviceGetAttribute);
  find("cuDevicePrimaryCtxRetain", &d.cuDevicePrimaryCtxRetain);
  find("cuDevicePrimaryCtxRelease_v2", &d.cuDevicePrimaryCtxRelease_v2);
  find("cuCtxSetCurrent", &d.cuCtxSetCurrent);
  find("cuCtxSynchronize", &d.cuCtxSynchronize);
  find("cuCtxPushCurrent_v2", &d.cuCtxPushCurrent_v2);
  find("cuCtxPopCurrent_v2", &d.cuCtxPopCurrent_v2);
  find("cuMemGetInfo_v2", &d.cuMemGetInfo_v2);
  find("cuMemAlloc_v2", &d.cuMemAlloc_v2);
  find("cuMemFree_v2", &d.cuMemFree_v2);
  find("cuMemHostAlloc", &d.cuMemHostAlloc);
  find("cuMemFreeHost", &d.cuMemFreeHost);
  find("cuMemcpyHtoDAsync_v2", &d.cuMemcpyHtoDAsync_v2);
  find("cuMemcpyDtoHAsync_v2", &d.cuMemcpyDtoHAsync_v2);
  find("cuMemcpyDtoDAsync_v2", &d.cuMemcpyDtoDAsync_v2);
  find("cuMemsetD8Async", &d.cuMemsetD8Async);
  find("cuModuleLoadData", &d.cuModuleLoadData);
  find("cuModuleUnload", &d.cuModuleUnload);
  find("cuModuleGetFunction", &d.cuModuleGetFunction);
  find("cuFuncGetAttribute", &d.cuFuncGetAttribute);
  find("cuFuncSetAttribute", &d.cuFuncSetAttribute);
  find("cuLaunchKernelEx", &d.cuLaunchKernelEx);
  find("cuStreamCreate", &d.cuStreamCreate);
  find("cuStreamDestroy_v2", &d.cuStreamDestroy_v2);
  find("cuStreamSynchronize", &d.cuStreamSynchronize);
  find("cuStreamBeginCapture_v2", &d.cuStreamBeginCapture_v2);
  find("cuStreamEndCapture", &d.cuStreamEndCapture);
  find("cuGraphInstantiateWithFlags", &d.cuGraphInstantiateWithFlags);
  find("cuGraphDestroy", &d.cuGraphDestroy);
  find("cuGraphExecDestroy", &d.cuGraphExecDestroy);
  find("cuGraphLaunch", &d.cuGraphLaunch);
  find("cuEventCreate", &d.cuEventCreate);
  find("cuEventDestroy_v2", &d.cuEventDestroy_v2);
  find("cuEventRecord", &d.cuEventRecord);
  find("cuEventSynchronize", &d.cuEventSynchronize);
  find("cuEventElapsedTime", &d.cuEventElapsedTime);
  Find(library, "cuTensorMapEncodeTiled", &d.cuTensorMapEncodeTiled);
  Find(library, "cuFuncGetParamInfo", &d.cuFuncGetParamInfo);
  if (missing != nullptr) {
    return absl::NotFoundError(absl::StrCat("the NVIDIA driver on this machine is too old: it lacks ", missing,
                                            "; llmc needs one for CUDA 12 or later"));
  }
  return d;
}

// Opened once and never closed: devices and their memory refer to it.
absl::StatusOr<const CudaDriver*> Driver() {
  static const absl::StatusOr<CudaDriver>* driver = new absl::StatusOr<CudaDriver>(OpenDriver());
  if (!driver->ok()) return driver->status();
  return &**driver;
}

}  // namespace

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
DeviceMemory::~DeviceMemory() {
  if (data_ != 0) driver_->cuMemFree_v2(data_);
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
PinnedMemory::~PinnedMemory() {
  if (data_ != nullptr) driver_->cuMemFreeHost(data_);
}

DeviceEvent& DeviceEvent::operator=(DeviceEvent&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(handle_, other.handle_);
  return *this;
}
DeviceEvent::~DeviceEvent() {
  if (handle_ != nullptr) driver_->cuEventDestroy_v2(handle_);
}

DeviceGraph& DeviceGraph::operator=(DeviceGraph&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(executable_, other.executable_);
  return *this;
}
DeviceGraph::~DeviceGraph() {
  if (executable_ != nullptr) driver_->cuGraphExecDestroy(executable_);
}

absl::Status Device::Check(int result, absl::string_view what) const {
  if (result == 0) return absl::OkStatus();
  const char *name = nullptr, *text = nullptr;
  driver_->cuGetErrorName(result, &name);
  driver_->cuGetErrorString(result, &text);
  const std::string message =
      absl::StrCat(name_.empty() ? "CUDA" : name_, ": ", what, ": ", text == nullptr ? "unknown error" : text, " (",
                   name == nullptr ? absl::StrCat(result) : name, ")");
  switch (result) {
    case kErrorOutOfMemory:
      return absl::ResourceExhaustedError(message);
    case kErrorInvalidImage:
    case kErrorNoBinary:
    case kErrorUnsupportedPtx:
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status NeedsDevice(const absl::Status& status) {
  if (!absl::IsNotFound(status)) return status;
  return absl::NotFoundError(absl::StrCat(status.message(), "; run with --device=host"));
}

void WaitForDevice(int index) {
  const absl::StatusOr<const CudaDriver*> driver = Driver();
  if (!driver.ok() || (*driver)->cuInit(0) != 0) return;
  void *context = nullptr, *before = nullptr;
  int handle = 0;
  if ((*driver)->cuDeviceGet(&handle, index) != 0) return;
  if ((*driver)->cuDevicePrimaryCtxRetain(&context, handle) != 0) return;
  if ((*driver)->cuCtxPushCurrent_v2(context) == 0) {
    (*driver)->cuCtxSynchronize();
    (*driver)->cuCtxPopCurrent_v2(&before);
  }
  (*driver)->cuDevicePrimaryCtxRelease_v2(handle);
}

absl::StatusOr<DeviceInfo> DescribeDevice(int index) {
  ASSIGN_OR_RETURN(const CudaDriver* driver, Driver());
  const CudaDriver& d = *driver;
  int count = 0, handle = 0, major = 0, minor = 0;
  if (d.cuInit(0) != 0 || d.cuDeviceGetCount(&count) != 0 || count == 0) {
    return absl::NotFoundError("there is no NVIDIA GPU on this machine");
  }
  if (index < 0 || index >= count) {
    return absl::NotFoundError(
        absl::StrCat("there is no GPU cuda:", index, " on this machine, which has ", count,
                     count == 1 ? " (cuda:0)" : absl::StrCat(" (cuda:0 to cuda:", count - 1, ")")));
  }
  char name[256] = {};
  if (d.cuDeviceGet(&handle, index) != 0 || d.cuDeviceGetName(name, sizeof(name) - 1, handle) != 0 ||
      d.cuDeviceGetAttribute(&major, kAttributeMajor, handle) != 0 ||
      d.cuDeviceGetAttribute(&minor, kAttributeMinor, handle) != 0) {
    return absl::InternalError(absl::StrCat("the NVIDIA driver does not say what GPU ", index, " is"));
  }
  const auto attribute = [&](int which) {
    int value = 0;
    return d.cuDeviceGetAttribute(&value, which, handle) == 0 ? value : 0;
  };
  constexpr double kBytesPerTick = 2.0 / 8;  // of a bit of width: memory transfers at both edges of its clock
  return DeviceInfo{
      .name = name,
      .capability = 10 * major + minor,
      .multiprocessors = attribute(kAttributeMultiprocessors),
      .l2_bytes = attribute(kAttributeL2Bytes),
      .bandwidth = 1e3 * attribute(kAttributeMemoryKilohertz) * attribute(kAttributeMemoryBits) * kBytesPerTick};
}

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int index) {
  ASSIGN_OR_RETURN(const DeviceInfo info, DescribeDevice(index));
  const CudaDriver& d = **Driver();
  auto device = std::unique_ptr<Device>(new Device());
  device->driver_ = &d;
  device->name_ = info.name;
  device->capability_ = info.capability;
  int handle = 0;
  absl::Status status = device->Check(d.cuDeviceGet(&handle, index), "open");
  status.Update(
      device->Check(d.cuDeviceGetAttribute(&device->multiprocessors_, kAttributeMultiprocessors, handle), "attribute"));
  status.Update(
      device->Check(d.cuDeviceGetAttribute(&device->max_shared_bytes_, kAttributeMaxSharedBytes, handle), "attribute"));
  int domain = 0, bus = 0, slot = 0;
  status.Update(device->Check(d.cuDeviceGetAttribute(&domain, kAttributePciDomain, handle), "attribute"));
  status.Update(device->Check(d.cuDeviceGetAttribute(&bus, kAttributePciBus, handle), "attribute"));
  status.Update(device->Check(d.cuDeviceGetAttribute(&slot, kAttributePciDevice, handle), "attribute"));
  if (!status.ok()) return status;
  device->pci_bus_id_ = absl::StrFormat("%04x:%02x:%02x.0", domain, bus, slot);
  device->index_ = handle;
  status = device->Check(d.cuDevicePrimaryCtxRetain(&device->context_, handle), "make a context");
  if (!status.ok()) return status;
  status = device->Use();
  status.Update(device->Check(d.cuStreamCreate(&device->stream_, kStreamNonBlocking), "make a stream"));
  if (!status.ok()) return status;
  return device;
}

Device::~Device() {
  if (stream_ != nullptr) {
    driver_->cuStreamSynchronize(stream_);
    driver_->cuStreamDestroy_v2(stream_);
  }
  for (void* module : modules_) driver_->cuModuleUnload(module);
  if (context_ != nullptr) driver_->cuDevicePrimaryCtxRelease_v2(index_);
}

absl::StatusOr<Device::MemoryInfo> Device::memory() const {
  size_t free = 0, total = 0;
  RETURN_IF_ERROR(Check(driver_->cuMemGetInfo_v2(&free, &total), "memory"));
  return MemoryInfo{.free = static_cast<int64_t>(free), .total = static_cast<int64_t>(total)};
}

absl::StatusOr<DeviceMemory> Device::Allocate(int64_t bytes) {
  DevicePointer data = 0;
  const int result = driver_->cuMemAlloc_v2(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (result == kErrorOutOfMemory) {
    const absl::StatusOr<MemoryInfo> info = memory();
    return absl::ResourceExhaustedError(
        absl::StrCat(name_, ": ", bytes, " bytes of device memory do not fit; free are ", info.ok() ? info->free : 0));
  }
  RETURN_IF_ERROR(Check(result, "allocate"));
  return DeviceMemory(driver_, data, bytes);
}

absl::StatusOr<PinnedMemory> Device::AllocatePinned(int64_t bytes) {
  void* data = nullptr;
  const int result = driver_->cuMemHostAlloc(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1)), 0);
  RETURN_IF_ERROR(Check(result, absl::StrCat("allocate ", bytes, " bytes of pinned memory")));
  return PinnedMemory(driver_, static_cast<char*>(data), bytes);
}

// Memory that keeps the context: `free` is called in it, on any thread.
absl::StatusOr<std::shared_ptr<char>> Device::Shared(absl::FunctionRef<int(void** data)> allocate,
                                                     void (*free)(const CudaDriver*, char*), absl::string_view what) {
  void* context = nullptr;
  RETURN_IF_ERROR(Check(driver_->cuDevicePrimaryCtxRetain(&context, index_), "use the context"));
  void* data = nullptr;
  const int result = allocate(&data);
  if (result != 0) driver_->cuDevicePrimaryCtxRelease_v2(index_);
  RETURN_IF_ERROR(Check(result, what));
  const auto give_back = [driver = driver_, index = index_, context, free](char* memory) {
    void* before = nullptr;
    if (driver->cuCtxPushCurrent_v2(context) == 0) {
      free(driver, memory);
      driver->cuCtxPopCurrent_v2(&before);
    }
    driver->cuDevicePrimaryCtxRelease_v2(index);
  };
  return std::shared_ptr<char>(static_cast<char*>(data), give_back);
}

absl::StatusOr<std::shared_ptr<char>> Device::AllocateShared(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  return Shared([&](void** data) { return driver_->cuMemHostAlloc(data, size, 0); },
                [](const CudaDriver* driver, char* memory) { driver->cuMemFreeHost(memory); },
                absl::StrCat("allocate ", bytes, " bytes of pinned memory"));
}

absl::StatusOr<std::shared_ptr<char>> Device::AllocateSharedOnDevice(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  const auto allocate = [&](void** data) {
    DevicePointer address = 0;
    const int result = driver_->cuMemAlloc_v2(&address, size);
    *data = reinterpret_cast<void*>(address);
    return result;
  };
  return Shared(
      allocate,
      [](const CudaDriver* driver, char* memory) { driver->cuMemFree_v2(reinterpret_cast<DevicePointer>(memory)); },
      absl::StrCat("allocate ", bytes, " bytes of device memory"));
}

absl::Status Device::CopyToDevice(DevicePointer to, const void* from, int64_t bytes) {
  return Check(driver_->cuMemcpyHtoDAsync_v2(to, from, static_cast<size_t>(bytes), stream_), "copy to the device");
}
absl::Status Device::CopyToHost(void* to, DevicePointer from, int64_t bytes) {
  return Check(driver_->cuMemcpyDtoHAsync_v2(to, from, static_cast<size_t>(bytes), stream_), "copy to the host");
}
absl::Status Device::CopyOnDevice(DevicePointer to, DevicePointer from, int64_t bytes) {
  return Check(driver_->cuMemcpyDtoDAsync_v2(to, from, static_cast<size_t>(bytes), stream_), "copy on the device");
}
absl::Status Device::FillBytes(DevicePointer to, uint8_t value, int64_t bytes) {
  return Check(driver_->cuMemsetD8Async(to, value, static_cast<size_t>(bytes), stream_), "fill");
}

absl::StatusOr<void*> Device::LoadModule(absl::string_view image) {
  void* module = nullptr;
  // PTX is a string that ends in a zero.
  const std::string copy(image);
  RETURN_IF_ERROR(Check(driver_->cuModuleLoadData(&module, copy.c_str()), "load kernels"));
  modules_.push_back(module);
  return module;
}

absl::StatusOr<DeviceFunction> Device::FindFunction(void* module, const std::string& entry) {
  DeviceFunction function;
  const int result = driver_->cuModuleGetFunction(&function.handle, module, entry.c_str());
  RETURN_IF_ERROR(Check(result, absl::StrCat("find kernel ", entry)));
  return function;
}

absl::StatusOr<uint32_t> Device::MaxThreads(DeviceFunction function) const {
  int threads = 0;
  const int result = driver_->cuFuncGetAttribute(&threads, kFunctionMaxThreads, function.handle);
  RETURN_IF_ERROR(Check(result, "read the limits of a kernel"));
  return static_cast<uint32_t>(threads);
}

absl::StatusOr<std::optional<std::vector<size_t>>> Device::ParameterSizes(DeviceFunction function) const {
  if (driver_->cuFuncGetParamInfo == nullptr) return std::optional<std::vector<size_t>>();
  std::vector<size_t> sizes;
  size_t offset = 0, size = 0;
  int result = 0;
  while ((result = driver_->cuFuncGetParamInfo(function.handle, sizes.size(), &offset, &size)) == 0) {
    sizes.push_back(size);
  }
  if (result != kErrorInvalidValue) return Check(result, "read the parameters");  // what follows the last
  return std::optional<std::vector<size_t>>(std::move(sizes));
}

absl::Status Device::AllowSharedBytes(DeviceFunction function, uint32_t bytes) {
  return Check(driver_->cuFuncSetAttribute(function.handle, kFunctionMaxDynamicShared, static_cast<int>(bytes)),
               absl::StrCat("use ", bytes, " bytes of shared memory"));
}

absl::StatusOr<TileMap> Device::MapTiles(DevicePointer matrix, int64_t rows, int64_t row_bytes, uint32_t tile_rows,
                                         bool read_once) const {
  constexpr int kBytes = 0, kNoInterleave = 0, kSwizzle128 = 3, kPromoteTo128 = 2, kPromoteTo256 = 3, kFillZeros = 0;
  if (driver_->cuTensorMapEncodeTiled == nullptr) {
    return absl::FailedPreconditionError("maps of tiles need a driver for CUDA 12 or later");
  }
  TileMap map = {};
  const uint64_t sizes[] = {static_cast<uint64_t>(row_bytes), static_cast<uint64_t>(rows)}, strides[] = {sizes[0]};
  const uint32_t box[] = {kTileBytes, tile_rows}, steps[] = {1, 1};
  RETURN_IF_ERROR(Check(driver_->cuTensorMapEncodeTiled(&map, kBytes, 2, reinterpret_cast<void*>(matrix), sizes,
                                                        strides, box, steps, kNoInterleave, kSwizzle128,
                                                        read_once ? kPromoteTo128 : kPromoteTo256, kFillZeros),
                        absl::StrCat("map tiles of ", rows, " rows of ", row_bytes, " bytes")));
  return map;
}

absl::Status Device::Launch(DeviceFunction function, const LaunchShape& shape, absl::Span<void* const> arguments) {
  const TraceSpan span(trace_, "cuLaunchKernelEx");
  LaunchAttribute attribute = {};
  attribute.id = shape.cooperative ? kCooperative : kProgrammaticSerialization;
  attribute.value.flag = 1;
  const LaunchConfig config = {.grid = {shape.grid[0], shape.grid[1], shape.grid[2]},
                               .block = {shape.threads, 1, 1},
                               .shared_bytes = shape.shared_bytes,
                               .stream = stream_,
                               .attributes = &attribute,
                               .num_attributes = shape.pdl || shape.cooperative ? 1u : 0u};
  return Check(driver_->cuLaunchKernelEx(&config, function.handle, const_cast<void**>(arguments.data()), nullptr),
               "launch");
}

absl::Status Device::BeginCapture() {
  return Check(driver_->cuStreamBeginCapture_v2(stream_, kCaptureThreadLocal), "begin a capture");
}

absl::StatusOr<DeviceGraph> Device::EndCapture() {
  void *graph = nullptr, *executable = nullptr;
  absl::Status status = Check(driver_->cuStreamEndCapture(stream_, &graph), "end a capture");
  if (!status.ok()) return status;
  status = Check(driver_->cuGraphInstantiateWithFlags(&executable, graph, 0), "make a graph");
  driver_->cuGraphDestroy(graph);
  if (!status.ok()) return status;
  return DeviceGraph(driver_, executable);
}

absl::Status Device::Launch(const DeviceGraph& graph) {
  const TraceSpan span(trace_, "cuGraphLaunch");
  return Check(driver_->cuGraphLaunch(graph.executable(), stream_), "launch a graph");
}

absl::StatusOr<DeviceEvent> Device::NewEvent() {
  void* handle = nullptr;
  absl::Status status = Check(driver_->cuEventCreate(&handle, kEventDisableTiming), "make an event");
  if (!status.ok()) return status;
  return DeviceEvent(driver_, handle);
}

absl::Status Device::Record(const DeviceEvent& event) {
  return Check(driver_->cuEventRecord(event.handle(), stream_), "record an event");
}

absl::Status Device::Wait(const DeviceEvent& event) {
  return Check(driver_->cuEventSynchronize(event.handle()), "run");
}

absl::StatusOr<DeviceEvent> Device::Mark() {
  void* handle = nullptr;
  RETURN_IF_ERROR(Check(driver_->cuEventCreate(&handle, 0), "make an event"));
  DeviceEvent event(driver_, handle);
  RETURN_IF_ERROR(Check(driver_->cuEventRecord(handle, stream_), "record"));
  return event;
}

absl::StatusOr<double> Device::SecondsBetween(const DeviceEvent& from, const DeviceEvent& to) {
  float milliseconds = 0;
  absl::Status status = Check(driver_->cuEventSynchronize(to.handle()), "run");
  status.Update(Check(driver_->cuEventElapsedTime(&milliseconds, from.handle(), to.handle()), "measure time"));
  if (!status.ok()) return status;
  return milliseconds * 1e-3;
}

absl::Status Device::Use() { return Check(driver_->cuCtxSetCurrent(context_), "use the context"); }

absl::Status Device::Synchronize() { return Check(driver_->cuStreamSynchronize(stream_), "run"); }

absl::StatusOr<std::unique_ptr<DeviceUpload>> DeviceUpload::Create(Device* device, size_t buffer_bytes) {
  const CudaDriver& d = *device->driver_;
  auto upload = std::unique_ptr<DeviceUpload>(new DeviceUpload(device));
  absl::Status status = device->Check(d.cuCtxSetCurrent(device->context_), "use the context");
  status.Update(device->Check(d.cuStreamCreate(&upload->stream_, kStreamNonBlocking), "make a stream"));
  for (void*& event : upload->copied_) {
    status.Update(device->Check(d.cuEventCreate(&event, kEventDisableTiming | kEventBlockingSync), "make an event"));
  }
  for (PinnedMemory& buffer : upload->buffers_) {
    ASSIGN_OR_RETURN(PinnedMemory memory, device->AllocatePinned(static_cast<int64_t>(buffer_bytes)));
    buffer = std::move(memory);
  }
  if (!status.ok()) return status;
  return upload;
}

DeviceUpload::~DeviceUpload() {
  const CudaDriver& d = *device_->driver_;
  if (stream_ != nullptr) {
    d.cuStreamSynchronize(stream_);
    d.cuStreamDestroy_v2(stream_);
  }
  for (void* event : copied_) {
    if (event != nullptr) d.cuEventDestroy_v2(event);
  }
}

absl::StatusOr<char*> DeviceUpload::NextBuffer() {
  const CudaDriver& d = *device_->driver_;
  absl::Status status = device_->Check(d.cuEventRecord(copied_[current_], stream_), "record an event");
  current_ = 1 - current_;
  status.Update(device_->Check(d.cuEventSynchronize(copied_[current_]), "copy to the device"));
  if (!status.ok()) return status;
  return buffers_[current_].data();
}

absl::Status DeviceUpload::Copy(DevicePointer to, const char* from, int64_t bytes) {
  return device_->Check(device_->driver_->cuMemcpyHtoDAsync_v2(to, from, static_cast<size_t>(bytes), stream_),
                        "copy to the device");
}

absl::Status DeviceUpload::Finish() {
  return device_->Check(device_->driver_->cuStreamSynchronize(stream_), "copy to the device");
}

}  // namespace llmc
