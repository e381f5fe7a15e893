// What a step of a device plan must move and compute, by the costs in the plan.
#pragma once

#include "cubins/targets.h"
#include "runtime/device/device_model.h"
#include "runtime/plan/memory_needs.h"
#include "tools/bench_model.h"

namespace llmc {

struct StepCost {
  double weight_bytes = 0;      // read; of a gather only the rows
  double kv_bytes = 0;          // of the KV cache: read for attention, and written
  double activation_bytes = 0;  // other operands and results
  double flops = 0;             // of products, convolutions and attention
  double bytes() const { return weight_bytes + kv_bytes + activation_bytes; }
};

// Of one task of a program.
StepCost CostOf(const plan::Task& task, const BenchStep& run);

// Of a whole program: weights and the KV cache of each sequence are read once; activations are not counted, which the
// cache of the device holds.
StepCost CostOf(const plan::Program& program, const BenchStep& run);

// The least seconds that a GPU of the target takes for it: to move the bytes, or to multiply matrices of 16 bits.
double FloorSeconds(const StepCost& cost, const Target& target);

}  // namespace llmc
