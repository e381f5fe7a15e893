// Where the time of a step goes, kernel by kernel.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench_cost.h"
#include "tools/bench_device.h"
#include "tools/bench_model.h"

namespace llmc {

struct ProfileRow {
  std::string name;     // the kernel's entry, "cuBLASLt m x n x k" or "copy"
  std::string example;  // the label of the first of its steps
  int count = 0;        // in a step
  bool reads_inputs = false;
  double seconds = 0;  // of all of them
  StepCost cost;       // of all of them
  // Of the time at which the device could do it at best, what it took: 1 is the roof.
  double Share(const DeviceRates& rates) const;
  bool IsBoundByBytes(const DeviceRates& rates) const {
    return cost.bytes() / rates.read_bytes >= cost.flops / rates.flops;
  }
};

// All launches of a kernel in the step, captured into a graph of their own: of different layers, so that no weight is
// in the device's cache that would not be there in the step. The longest first. Leaves activations behind that mean
// nothing.
absl::StatusOr<std::vector<ProfileRow>> ProfileStep(BenchModel* model, const BenchStep& step,
                                                    const BenchInputs& inputs);

}  // namespace llmc
