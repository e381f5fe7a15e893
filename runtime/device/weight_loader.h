// Weights from the files of a plan to a device: several threads read them into page-locked memory, with the copies to
// the device overlapped.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/device/device.h"
#include "runtime/plan/plan.h"

namespace llmc {

struct WeightCopy {
  int weight = 0;  // of plan.manifest().weights(), in a file
  DevicePointer to = 0;
};

// Waits until all is there. With `verify` every byte of the plan's weights is read, also of those that are not copied,
// and an error says which file changed. The copies have streams of their own, so that another thread may use the device
// meanwhile. Cancelled: `stop` became true, if it is given.
absl::Status CopyWeights(const Plan& plan, absl::Span<const WeightCopy> copies, bool verify, Device* device,
                         const std::atomic<bool>* stop = nullptr);

// The same, begun when this is made, on threads of its own; both must outlive this.
class WeightCopying {
 public:
  WeightCopying(const Plan& plan, std::vector<WeightCopy> copies, bool verify, Device* device);
  ~WeightCopying();  // gives up what is not read yet
  absl::Status Wait();

 private:
  std::atomic<bool> stop_ = false;
  absl::Status status_;
  std::thread thread_;
};

}  // namespace llmc
