// Writes what computes a node into a program of the plan: kernels, products and copies with their arguments.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "codegen/plan_pools.h"
#include "codegen/tasks/select.h"
#include "cubins/targets.h"
#include "ir/graph.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// For one target, whose programs it writes one after the other.
class TaskWriter {
 public:
  // Places of values: indices of the buffers of a program.
  using Buffers = absl::flat_hash_map<const Value*, uint32_t>;

  TaskWriter(const Model& model, const Target& target, PlanPools* pools);

  // Where prepared values lie in `prepare`; for good, before anything is written.
  void SetPrepared(Buffers prepared) { prepared_ = std::move(prepared); }
  // Of the program that is written from now on.
  void SetBuffers(Buffers buffers) { buffers_ = std::move(buffers); }

  absl::Status AddConstant(const Node& node);
  // Unimplemented: a plan cannot hold it.
  absl::Status Add(const DeviceCall& call, const std::string& label, plan::Program* program);
  // Outputs are in the arena, whatever they are: copies one that is a weight, a state, a constant or prepared.
  absl::Status AddOutput(const Output& output, plan::Program* program);

 private:
  absl::Status Add(const KernelCall& call, plan::Program* program, plan::Step* step);
  absl::Status Add(const GemmCall& call, plan::Program* program, plan::Step* step);
  absl::Status Add(const CopyCall& call, plan::Program* program, plan::Step* step);
  static void SetScratch(const Size& size, plan::Program* program, plan::Arg* arg);
  absl::Status SetValue(const Value* value, plan::Arg* arg) const;
  // Whether it lies outside of the arena.
  bool IsKept(const Value* value) const;

  const bool pdl_;
  PlanPools* pools_;
  Buffers weights_, states_, constants_, prepared_, buffers_;
};

}  // namespace llmc
