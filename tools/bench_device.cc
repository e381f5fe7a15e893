#include "tools/bench_device.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "codegen/kernel_headers.h"
#include "cubins/nvrtc.h"
#include "runtime/cublaslt.h"

namespace llmc {
namespace {

constexpr int64_t kReadBytes = int64_t{4} << 30;
constexpr int kReads = 20;
constexpr int64_t kMatrix = 8192;
constexpr int kProducts = 20;
constexpr uint32_t kThreads = 256;

constexpr char kSource[] = R"(
#include "kernels/random_weights.cuh"
#include "kernels/read_stream.cuh"
namespace {
template <class Type>
struct Config {
  using T = Type;
  static constexpr int kThreads = 256;
  static constexpr int kLoads = 8;
};
}  // namespace
#define FILL(NAME, TYPE)                                                                                  \
  extern "C" __global__ __launch_bounds__(256) void NAME(TYPE* out, llmc::i64 size, llmc::i64 key) {        \
    llmc::RandomWeights<Config<TYPE>>(out, size, key, 0.0f, 1.0f);                                         \
  }
FILL(fill_f32, float)
FILL(fill_f16, llmc::f16)
FILL(fill_bf16, llmc::bf16)
extern "C" __global__ __launch_bounds__(256) void read(llmc::u32* out, const llmc::u32* x) {
  llmc::ReadStream<Config<float>>(out, x);
}
)";

absl::StatusOr<DeviceMemory> RandomMemory(BenchKernels* kernels, Device* device, ElementType type, int64_t bytes) {
  absl::StatusOr<DeviceMemory> memory = device->Allocate(bytes);
  if (!memory.ok()) return memory;
  if (absl::Status status = kernels->FillRandom(*memory, type); !status.ok()) return status;
  return memory;
}

// The fastest of some runs: what the device can do, whatever else happens.
template <class F>
absl::StatusOr<double> Fastest(Device* device, int runs, F run) {
  if (absl::Status status = run(); !status.ok()) return status;  // warms up
  double fastest = 1e30;
  for (int i = 0; i < runs; ++i) {
    absl::StatusOr<DeviceEvent> begin = device->Mark();
    if (!begin.ok()) return begin.status();
    if (absl::Status status = run(); !status.ok()) return status;
    absl::StatusOr<DeviceEvent> end = device->Mark();
    if (!end.ok()) return end.status();
    const absl::StatusOr<double> seconds = device->SecondsBetween(*begin, *end);
    if (!seconds.ok()) return seconds;
    fastest = std::min(fastest, *seconds);
  }
  return fastest;
}

absl::StatusOr<double> MeasureRead(BenchKernels* kernels, Device* device) {
  const absl::StatusOr<Device::MemoryInfo> info = device->memory();
  if (!info.ok()) return info.status();
  const int64_t bytes = std::min(kReadBytes, info->free / 2) / BenchKernels::kPieceBytes * BenchKernels::kPieceBytes;
  absl::StatusOr<DeviceMemory> memory = RandomMemory(kernels, device, ElementType::kF32, bytes);
  if (!memory.ok()) return memory.status();
  const absl::StatusOr<double> seconds = Fastest(device, kReads, [&] { return kernels->Read(*memory); });
  if (!seconds.ok()) return seconds;
  return static_cast<double>(bytes) / *seconds;
}

absl::StatusOr<double> MeasureProduct(BenchKernels* kernels, Device* device) {
  absl::StatusOr<std::unique_ptr<MatrixProducts>> products = MatrixProducts::Create(device);
  if (!products.ok()) return products.status();
  std::vector<DeviceMemory> matrices;
  for (int i = 0; i < 3; ++i) {
    absl::StatusOr<DeviceMemory> matrix = RandomMemory(kernels, device, ElementType::kBF16, 2 * kMatrix * kMatrix);
    if (!matrix.ok()) return matrix.status();
    matrices.push_back(*std::move(matrix));
  }
  const absl::StatusOr<double> seconds = Fastest(device, kProducts, [&] {
    return (*products)->Multiply({.m = kMatrix, .n = kMatrix, .k = kMatrix},
                                 {.out = matrices[0].data(), .x = matrices[1].data(), .weight = matrices[2].data()});
  });
  if (!seconds.ok()) return seconds;
  return 2.0 * kMatrix * kMatrix * kMatrix / *seconds;
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

absl::StatusOr<BenchKernels> BenchKernels::Create(Device* device) {
  const absl::StatusOr<std::string> cubin =
      CompileToCubin(kSource, "bench.cu", absl::StrCat("sm_", device->capability()), KernelHeaders());
  if (!cubin.ok()) return cubin.status();
  const absl::StatusOr<void*> module = device->LoadModule(*cubin);
  if (!module.ok()) return module.status();
  BenchKernels kernels;
  kernels.device_ = device;
  const std::pair<const char*, DeviceFunction*> functions[] = {{"fill_f32", &kernels.fill_[0]},
                                                               {"fill_f16", &kernels.fill_[1]},
                                                               {"fill_bf16", &kernels.fill_[2]},
                                                               {"read", &kernels.read_}};
  for (const auto& [name, function] : functions) {
    const absl::StatusOr<DeviceFunction> found = device->FindFunction(*module, name);
    if (!found.ok()) return found.status();
    *function = *found;
  }
  return kernels;
}

absl::Status BenchKernels::FillRandom(const DeviceMemory& memory, ElementType type) {
  const int index = type == ElementType::kF32 ? 0 : type == ElementType::kF16 ? 1 : 2;
  DevicePointer out = memory.data();
  int64_t size = memory.bytes() / (ElementTypeBits(type) / 8), key = 1;
  void* arguments[] = {&out, &size, &key};
  const int64_t blocks = (memory.bytes() + kThreads * 16 - 1) / (kThreads * 16);
  const LaunchShape shape = {.grid = {static_cast<uint32_t>(blocks), 1, 1}, .threads = kThreads};
  return device_->Launch(fill_[index], shape, arguments);
}

absl::Status BenchKernels::Read(const DeviceMemory& memory) {
  DevicePointer out = memory.data(), x = memory.data();
  void* arguments[] = {&out, &x};
  const LaunchShape shape = {.grid = {static_cast<uint32_t>(memory.bytes() / kPieceBytes), 1, 1}, .threads = kThreads};
  return device_->Launch(read_, shape, arguments);
}

absl::StatusOr<DeviceRates> MeasureRates(Device* device) {
  absl::StatusOr<BenchKernels> kernels = BenchKernels::Create(device);
  if (!kernels.ok()) return kernels.status();
  const absl::StatusOr<double> read = MeasureRead(&*kernels, device);
  if (!read.ok()) return read.status();
  const absl::StatusOr<double> flops = MeasureProduct(&*kernels, device);
  if (!flops.ok()) return flops.status();
  return DeviceRates{.read_bytes = *read, .flops = *flops};
}

}  // namespace llmc
