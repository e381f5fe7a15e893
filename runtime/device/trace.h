// What ran when, as JSON for chrome://tracing and https://ui.perfetto.dev: steps and launch calls of the host, and
// kernels on the device with their lines of the language if wanted. NVIDIA's profilers get the same spans, and the
// lines that are launched, as NVTX ranges.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace llmc {

// One thread at a time.
class Trace {
 public:
  enum class Row : uint8_t { kHost, kDevice };

  // With `kernels`, steps are launched kernel by kernel, not as graphs, so that each kernel can be seen.
  explicit Trace(bool kernels) : kernels_(kernels) {}
  bool kernels() const { return kernels_; }

  double Now() const;  // microseconds since this was made
  void Add(Row row, std::string name, double begin, double end);
  std::string ToJson() const;

 private:
  struct Event {
    Row row;
    std::string name;
    double begin, end;
  };
  const bool kernels_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::vector<Event> events_;
};

// What happens while this lives is an NVTX range of its thread. Without a profiler it costs nanoseconds.
class ProfilerRange {
 public:
  explicit ProfilerRange(const std::string& name);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

// What happens while this lives is one event of the host, if there is a trace, and an NVTX range.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, absl::string_view name);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* trace_;
  std::string name_;
  ProfilerRange range_;
  double begin_ = 0;
};

}  // namespace llmc
