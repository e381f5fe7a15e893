#include "tools/bench_device.h"

#include <algorithm>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "codegen/kernel_headers.h"
#include "cubins/nvrtc.h"
#include "runtime/device/cublaslt.h"

namespace llmc {
namespace {

constexpr int64_t kReadBytes = int64_t{4} << 30;
constexpr int64_t kMatrix = 8192;
constexpr int kColdRuns = 20;
constexpr double kStretchSeconds = 0.05;
constexpr uint32_t kThreads = 256;

constexpr char kSource[] = R"(
#include "kernels/common/random_weights.cuh"
#include "kernels/common/read_stream.cuh"
namespace {
template <class Type>
struct Config {
  using T = Type;
  static constexpr int kThreads = 256;
  static constexpr int kLoads = 8;
  static constexpr bool kAllBits = false;
};
}  // namespace
#define FILL(NAME, TYPE, MEAN, WIDTH)                                                                     \
  extern "C" __global__ __launch_bounds__(256) void NAME(TYPE* out, llmc::i64 size, llmc::i64 key) {        \
    llmc::RandomWeights<Config<TYPE>>(llmc::LaunchContext(), out, size, key, MEAN, WIDTH);                                         \
  }
FILL(fill_f32, float, 0.0f, 1.0f)
FILL(fill_f16, llmc::f16, 0.0f, 1.0f)
FILL(fill_bf16, llmc::bf16, 0.0f, 1.0f)
FILL(fill_bytes, llmc::u8, 56.0f, 7.0f)
extern "C" __global__ __launch_bounds__(256) void read(llmc::u32* out, const llmc::u32* x) {
  llmc::ReadStream<Config<float>>(llmc::LaunchContext(), out, x);
}
)";

absl::StatusOr<DeviceMemory> RandomMemory(BenchKernels* kernels, Device* device, DType type, int64_t bytes) {
  absl::StatusOr<DeviceMemory> memory = device->Allocate(bytes);
  if (!memory.ok()) return memory;
  RETURN_IF_ERROR(kernels->FillRandom(*memory, type));
  return memory;
}

// Seconds of `runs` runs.
absl::StatusOr<double> SecondsOf(Device* device, int runs, absl::FunctionRef<absl::Status()> run) {
  ASSIGN_OR_RETURN(DeviceEvent begin, device->Mark());
  for (int i = 0; i < runs; ++i) {
    RETURN_IF_ERROR(run());
  }
  ASSIGN_OR_RETURN(DeviceEvent end, device->Mark());
  return device->SecondsBetween(begin, end);
}

// The fastest of some runs: what the device can do in a short time.
absl::StatusOr<double> Fastest(Device* device, int runs, absl::FunctionRef<absl::Status()> run) {
  RETURN_IF_ERROR(run());  // warms up
  double fastest = 1e30;
  for (int i = 0; i < runs; ++i) {
    const absl::StatusOr<double> seconds = SecondsOf(device, 1, run);
    if (!seconds.ok()) return seconds;
    fastest = std::min(fastest, *seconds);
  }
  return fastest;
}

struct Load {
  double work = 0;     // of a run
  double fastest = 0;  // seconds of a run
  absl::FunctionRef<absl::Status()> run;
};

// What the device does of `load` in a second when it has done so for a while.
absl::StatusOr<HotRate> Sustain(Device* device, const Load& load, double seconds, GpuMonitor* monitor) {
  const int runs = std::max(1, static_cast<int>(kStretchSeconds / load.fastest));
  std::vector<double> rates;
  const auto stretch = [&]() -> absl::StatusOr<double> {
    const absl::StatusOr<double> time = SecondsOf(device, runs, load.run);
    if (time.ok()) rates.push_back(load.work * runs / *time);
    return time;
  };
  HotRate hot;
  while (hot.seconds < seconds || (hot.seconds < 2 * seconds && !HasSettled(rates))) {
    ASSIGN_OR_RETURN(const double time, stretch());
    hot.seconds += time;
  }
  hot.settled = HasSettled(rates);
  rates.clear();
  if (monitor != nullptr) monitor->Start();
  for (size_t i = 0; i < kSettledStretches; ++i) {
    if (const absl::StatusOr<double> time = stretch(); !time.ok()) return time.status();
  }
  if (monitor != nullptr) hot.gpu = monitor->Stop();
  hot.rate = Median(rates);
  return hot;
}

// Both rates of a load.
absl::Status MeasureLoad(Device* device, double work, absl::FunctionRef<absl::Status()> run, double seconds,
                         GpuMonitor* monitor, double* cold, HotRate* hot) {
  ASSIGN_OR_RETURN(const double fastest, Fastest(device, kColdRuns, run));
  *cold = work / fastest;
  ASSIGN_OR_RETURN(HotRate held, Sustain(device, {.work = work, .fastest = fastest, .run = run}, seconds, monitor));
  *hot = held;
  return absl::OkStatus();
}

absl::Status MeasureRead(BenchKernels* kernels, Device* device, double seconds, GpuMonitor* monitor,
                         DeviceRates* rates) {
  ASSIGN_OR_RETURN(const Device::MemoryInfo info, device->memory());
  const int64_t bytes = std::min(kReadBytes, info.free / 2) / BenchKernels::kPieceBytes * BenchKernels::kPieceBytes;
  ASSIGN_OR_RETURN(DeviceMemory memory, RandomMemory(kernels, device, DType::kF32, bytes));
  const auto run = [&] { return kernels->Read(memory); };
  return MeasureLoad(device, static_cast<double>(bytes), run, seconds, monitor, &rates->read_bytes, &rates->hot_read);
}

absl::Status MeasureProduct(BenchKernels* kernels, Device* device, double seconds, GpuMonitor* monitor,
                            DeviceRates* rates) {
  ASSIGN_OR_RETURN(std::unique_ptr<MatrixProducts> products, MatrixProducts::Create(device));
  std::vector<DeviceMemory> matrices;
  for (int i = 0; i < 3; ++i) {
    ASSIGN_OR_RETURN(DeviceMemory matrix, RandomMemory(kernels, device, DType::kBF16, 2 * kMatrix * kMatrix));
    matrices.push_back(std::move(matrix));
  }
  const auto run = [&] {
    return products->Multiply({.m = kMatrix, .n = kMatrix, .k = kMatrix},
                              {.out = matrices[0].data(), .x = matrices[1].data(), .weight = matrices[2].data()});
  };
  return MeasureLoad(device, 2.0 * kMatrix * kMatrix * kMatrix, run, seconds, monitor, &rates->flops,
                     &rates->hot_flops);
}

}  // namespace

bool HasSettled(absl::Span<const double> rates) {
  if (rates.size() < kSettledStretches) return false;
  const absl::Span<const double> last = rates.subspan(rates.size() - kSettledStretches);
  const auto [least, most] = std::minmax_element(last.begin(), last.end());
  return *least >= 0.99 * *most;
}

absl::StatusOr<BenchKernels> BenchKernels::Create(Device* device) {
  ASSIGN_OR_RETURN(const std::string cubin,
                   CompileToCubin(kSource, "bench.cu", absl::StrCat("sm_", device->capability()), KernelHeaders()));
  ASSIGN_OR_RETURN(void* module, device->LoadModule(cubin));
  BenchKernels kernels;
  kernels.device_ = device;
  const std::pair<const char*, DeviceFunction*> functions[] = {{"fill_f32", &kernels.fill_[0]},
                                                               {"fill_f16", &kernels.fill_[1]},
                                                               {"fill_bf16", &kernels.fill_[2]},
                                                               {"fill_bytes", &kernels.fill_[3]},
                                                               {"read", &kernels.read_}};
  for (const auto& [name, function] : functions) {
    ASSIGN_OR_RETURN(const DeviceFunction found, device->FindFunction(module, name));
    *function = found;
  }
  return kernels;
}

absl::Status BenchKernels::FillRandom(const DeviceMemory& memory, DType type) {
  const int bits = DTypeBits(type), index = bits <= 8 ? 3 : type == DType::kF32 ? 0 : type == DType::kF16 ? 1 : 2;
  DevicePointer out = memory.data();
  int64_t size = memory.bytes() / std::max(bits / 8, 1), key = 1;
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

absl::StatusOr<DeviceRates> MeasureRates(Device* device, double seconds, GpuMonitor* monitor) {
  ASSIGN_OR_RETURN(BenchKernels kernels, BenchKernels::Create(device));
  DeviceRates rates;
  absl::Status status = MeasureRead(&kernels, device, seconds, monitor, &rates);
  if (status.ok()) status = MeasureProduct(&kernels, device, seconds, monitor, &rates);
  if (!status.ok()) return status;
  return rates;
}

}  // namespace llmc
