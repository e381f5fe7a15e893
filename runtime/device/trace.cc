#include "runtime/device/trace.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#ifdef LLMC_NVTX
#include <nvtx3/nvToolsExt.h>  // only headers: a profiler that runs the program names its library to them
#endif

namespace llmc {
namespace {

constexpr const char* kRowNames[] = {"host", "device"};

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

double Trace::Now() const {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_).count();
}

void Trace::Add(Row row, std::string name, double begin, double end) {
  events_.push_back({row, std::move(name), begin, end});
}

std::string Trace::ToJson() const {
  std::string json = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (int row = 0; row < 2; ++row) {
    absl::StrAppend(&json, R"({"ph": "M", "pid": 1, "tid": )", row, R"(, "name": "thread_name", "args": {"name": ")",
                    kRowNames[row], "\"}}", row == 1 && events_.empty() ? "\n" : ",\n");
  }
  for (size_t i = 0; i < events_.size(); ++i) {
    const Event& event = events_[i];
    absl::StrAppendFormat(&json, R"({"ph": "X", "pid": 1, "tid": %d, "ts": %.3f, "dur": %.3f, "name": %s}%s)",
                          static_cast<int>(event.row), event.begin, event.end - event.begin, Quoted(event.name),
                          i + 1 == events_.size() ? "\n" : ",\n");
  }
  return absl::StrCat(json, "]}\n");
}

#ifdef LLMC_NVTX
ProfilerRange::ProfilerRange(const std::string& name) { nvtxRangePushA(name.c_str()); }
ProfilerRange::~ProfilerRange() { nvtxRangePop(); }
#else
ProfilerRange::ProfilerRange(const std::string&) {}
ProfilerRange::~ProfilerRange() = default;
#endif

TraceSpan::TraceSpan(Trace* trace, absl::string_view name) : trace_(trace), name_(name), range_(name_) {
  if (trace != nullptr) begin_ = trace->Now();
}

TraceSpan::~TraceSpan() {
  if (trace_ != nullptr) trace_->Add(Trace::Row::kHost, std::move(name_), begin_, trace_->Now());
}

}  // namespace llmc
