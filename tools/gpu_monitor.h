// The clock and the power of a GPU while something runs on it, through NVML, which is opened when first needed.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace llmc {

struct GpuReading {
  double sm_mhz = 0;
  double watts = 0;
};

// Medians of readings; 0 where there are none.
struct GpuState {
  int readings = 0;
  double sm_mhz = 0, least_sm_mhz = 0;
  double watts = 0;
};
GpuState Summarize(absl::Span<const GpuReading> readings);

double Median(std::vector<double> values);  // 0 of none

struct Nvml;  // the functions of libnvidia-ml.so.1

// Start and Stop from one thread.
class GpuMonitor {
 public:
  // `pci_bus_id` as Device says it. NotFound: there is no NVML on this machine, or it does not know that GPU.
  static absl::StatusOr<std::unique_ptr<GpuMonitor>> Open(const std::string& pci_bus_id);
  ~GpuMonitor() { Stop(); }

  // Reads every few milliseconds, on a thread of its own, until Stop.
  void Start();
  GpuState Stop();

 private:
  GpuMonitor(const Nvml* nvml, void* handle) : nvml_(nvml), handle_(handle) {}
  void Read();

  const Nvml* nvml_;
  void* handle_;
  std::thread thread_;
  std::atomic<bool> runs_ = false;
  std::vector<GpuReading> readings_;
};

}  // namespace llmc
