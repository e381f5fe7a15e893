// Runs of one program that are ready to be repeated, by its sizes: launched at first, then replayed from a graph.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/plan/dim_expression.h"

namespace llmc {

// A graph takes device memory for each of its launches, so only the sizes that were used last have one.
inline constexpr size_t kMaxPreparedRuns = 16;

// `Work` is what was made for some sizes: launches with the addresses of their buffers. `Device` captures and replays
// as llmc::Device does. One thread at a time; a run is over before the next is added or cleared.
template <class Device, class Work>
class PreparedRuns {
 public:
  explicit PreparedRuns(Device* device, bool captures = true, size_t most = kMaxPreparedRuns)
      : device_(device), captures_(captures), most_(most) {}

  // The work for these sizes, which becomes the current one; nullptr if there is none.
  const Work* Find(const StepDims& sizes) {
    const auto found = std::find_if(runs_.begin(), runs_.end(), [&](const Run& run) { return run.sizes == sizes; });
    if (found == runs_.end()) return nullptr;
    runs_.splice(runs_.begin(), runs_, found);
    return &runs_.front().work;
  }

  // Makes it the current work. The one that was not used for the longest time goes if there are too many.
  const Work* Add(StepDims sizes, Work work) {
    if (runs_.size() == most_) runs_.pop_back();
    runs_.push_front({.sizes = std::move(sizes), .work = std::move(work)});
    return &runs_.front().work;
  }

  // Memory that work and graphs refer to has moved.
  void Clear() { runs_.clear(); }

  // Gives the current work to the device: by `launch` the first time, which finds algorithms and loads kernels, as a
  // capture must not; then as a graph that is captured the second time. Where a capture fails, `launch` does this and
  // all later runs, except those that have a graph.
  absl::Status Enqueue(absl::FunctionRef<absl::Status(const Work&)> launch) {
    Run& run = runs_.front();
    if (!run.graph.has_value() && run.launched && captures_ && capture_status_.ok()) {
      absl::StatusOr<Graph> captured = Capture(run.work, launch);
      if (captured.ok()) run.graph = *std::move(captured);
      capture_status_ = captured.status();
    }
    if (run.graph.has_value()) return device_->Launch(*run.graph);
    absl::Status launched = launch(run.work);
    run.launched = launched.ok();
    return launched;
  }

  // Why there are no new graphs any more; OK while there are.
  const absl::Status& capture_status() const { return capture_status_; }
  size_t size() const { return runs_.size(); }
  size_t num_graphs() const {
    return static_cast<size_t>(
        std::count_if(runs_.begin(), runs_.end(), [](const Run& run) { return run.graph.has_value(); }));
  }

 private:
  using Graph = typename decltype(std::declval<Device&>().EndCapture())::value_type;
  struct Run {
    StepDims sizes;
    Work work;
    bool launched = false;
    std::optional<Graph> graph = std::nullopt;
  };

  // A capture that began must end, whatever happens in it.
  absl::StatusOr<Graph> Capture(const Work& work, absl::FunctionRef<absl::Status(const Work&)> launch) {
    if (absl::Status begun = device_->BeginCapture(); !begun.ok()) return begun;
    const absl::Status launched = launch(work);
    absl::StatusOr<Graph> captured = device_->EndCapture();
    if (!launched.ok()) return launched;
    return captured;
  }

  Device* device_;
  bool captures_;
  size_t most_;
  std::list<Run> runs_;  // the latest first
  absl::Status capture_status_;
};

}  // namespace llmc
