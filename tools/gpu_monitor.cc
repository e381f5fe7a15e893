#include "tools/gpu_monitor.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace llmc {

// The part of NVML in use, by its documented binary interface. Results are 0 for success.
struct NvmlField {
  unsigned id;
  unsigned scope;
  long long timestamp, latency;
  int type;
  int result;
  union {
    unsigned number;
    unsigned long long bytes;
  } value;
};
static_assert(sizeof(NvmlField) == 40, "nvmlFieldValue_t");

struct Nvml {
  int (*nvmlInit_v2)();
  int (*nvmlDeviceGetHandleByPciBusId_v2)(const char*, void**);
  int (*nvmlDeviceGetClockInfo)(void*, int, unsigned*);
  int (*nvmlDeviceGetPowerUsage)(void*, unsigned*);
  int (*nvmlDeviceGetFieldValues)(void*, int, NvmlField*);  // nullptr in old drivers
};

namespace {

constexpr std::chrono::milliseconds kInterval(10);
constexpr int kClockSm = 1;
constexpr unsigned kPowerInstant = 186;  // what PowerUsage gives is the average of a second on some GPUs

absl::StatusOr<Nvml> OpenLibrary() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError("there is no NVML on this machine (libnvidia-ml.so.1)");
  Nvml nvml = {};
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    return *function != nullptr;
  };
  const bool whole = find("nvmlInit_v2", &nvml.nvmlInit_v2) &&
                     find("nvmlDeviceGetHandleByPciBusId_v2", &nvml.nvmlDeviceGetHandleByPciBusId_v2) &&
                     find("nvmlDeviceGetClockInfo", &nvml.nvmlDeviceGetClockInfo) &&
                     find("nvmlDeviceGetPowerUsage", &nvml.nvmlDeviceGetPowerUsage);
  find("nvmlDeviceGetFieldValues", &nvml.nvmlDeviceGetFieldValues);
  if (!whole || nvml.nvmlInit_v2() != 0) return absl::NotFoundError("NVML of this machine's driver does not start");
  return nvml;
}

// Opened once and never closed.
absl::StatusOr<const Nvml*> Library() {
  static const absl::StatusOr<Nvml>* library = new absl::StatusOr<Nvml>(OpenLibrary());
  if (!library->ok()) return library->status();
  return &**library;
}

std::optional<double> Watts(const Nvml& nvml, void* handle) {
  NvmlField field = {.id = kPowerInstant};
  if (nvml.nvmlDeviceGetFieldValues != nullptr && nvml.nvmlDeviceGetFieldValues(handle, 1, &field) == 0 &&
      field.result == 0) {
    return field.value.number * 1e-3;
  }
  unsigned milliwatts = 0;
  if (nvml.nvmlDeviceGetPowerUsage(handle, &milliwatts) != 0) return std::nullopt;
  return milliwatts * 1e-3;
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

GpuState Summarize(absl::Span<const GpuReading> readings) {
  GpuState state = {.readings = static_cast<int>(readings.size())};
  std::vector<double> clocks, watts;
  for (const GpuReading& reading : readings) {
    clocks.push_back(reading.sm_mhz);
    watts.push_back(reading.watts);
  }
  if (!clocks.empty()) state.least_sm_mhz = *std::min_element(clocks.begin(), clocks.end());
  state.sm_mhz = Median(std::move(clocks));
  state.watts = Median(std::move(watts));
  return state;
}

absl::StatusOr<std::unique_ptr<GpuMonitor>> GpuMonitor::Open(const std::string& pci_bus_id) {
  ASSIGN_OR_RETURN(const Nvml* nvml, Library());
  void* handle = nullptr;
  if (nvml->nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.c_str(), &handle) != 0) {
    return absl::NotFoundError(absl::StrCat("NVML does not know the GPU ", pci_bus_id));
  }
  return std::unique_ptr<GpuMonitor>(new GpuMonitor(nvml, handle));
}

void GpuMonitor::Read() {
  unsigned megahertz = 0;
  const bool has_clock = nvml_->nvmlDeviceGetClockInfo(handle_, kClockSm, &megahertz) == 0;
  const std::optional<double> watts = Watts(*nvml_, handle_);
  if (has_clock && watts.has_value()) {
    readings_.push_back({.sm_mhz = static_cast<double>(megahertz), .watts = *watts});
  }
}

void GpuMonitor::Start() {
  Stop();
  readings_.clear();
  runs_ = true;
  thread_ = std::thread([this] {
    while (runs_) {
      std::this_thread::sleep_for(kInterval);
      Read();
    }
  });
}

GpuState GpuMonitor::Stop() {
  runs_ = false;
  if (thread_.joinable()) thread_.join();
  return Summarize(readings_);
}

}  // namespace llmc
