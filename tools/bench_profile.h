// Where the time of a step goes, kernel by kernel.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench_cost.h"
#include "tools/bench_device.h"
#include "tools/timed_program.h"

namespace llmc {

struct ProfileRow {
  std::string name;     // the kernel's entry, "cuBLASLt m x n x k" or "copy"
  std::string example;  // the label of the first of its steps
  int count = 0;        // in a step
  // By their numbers in the program: its tasks, each behind what makes the indices that it reads; and these alone.
  std::vector<int> tasks, makers;
  bool reads_inputs = false;
  double seconds = 0;  // of all of them
  StepCost cost;       // of all of them
  // Of the time at which the device could do it at best, what it took: 1 is the roof.
  double Share(const DeviceRates& rates) const;
  bool IsBoundByBytes(const DeviceRates& rates) const {
    return cost.bytes() / rates.read_bytes >= cost.flops / rates.flops;
  }
};

struct StepProfile {
  double seconds = 0;            // of the step
  std::vector<ProfileRow> rows;  // the longest first; of each kernel alone
};

// What is left of a step beside its kernels: with it the rows add up to the step. "gaps between kernels" if the step
// takes longer than all of them, else "overlap of kernels", with seconds below 0: kernels that start while others end.
ProfileRow RestOf(const StepProfile& profile);

// Of all launches of a kernel in a step a graph of their own is captured: of different layers, so that no weight is in
// the device's cache that would not be there in the step. Where a task reads indices that others make, such as the
// experts of tokens, these run in front of it, and the time of a graph of them alone is taken off. Leaves activations
// behind that mean nothing.
absl::StatusOr<StepProfile> ProfileStep(TimedProgram* step);

}  // namespace llmc
