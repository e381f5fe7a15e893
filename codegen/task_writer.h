// Writes what computes a node into a program of the plan: kernels, products and copies with their arguments, as tasks
// and the launches over them.
#pragma once

#include <optional>
#include <string>
#include <vector>

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
  // Places of values and of scratch memory by their names, which copies of a model share: indices of the buffers of a
  // program.
  using Buffers = absl::flat_hash_map<std::string, uint32_t>;

  // `tf32`: as DevicePlanOptions has it.
  TaskWriter(const Model& model, const Target& target, bool tf32, PlanPools* pools);

  // The buffers of `prepare`; for good, before anything is written.
  void SetPrepared(const Buffers& prepared);
  // Of the program that is written from now on.
  void SetBuffers(Buffers buffers) { buffers_ = std::move(buffers); }

  absl::Status AddConstant(const Node& node);
  // What a task is besides its call.
  struct TaskInfo {
    std::string label;
    std::string scratch;  // the name of the scratch memory, if the call takes some
    std::optional<plan::Cost> cost;
    std::vector<plan::Sampling> kinds;  // of steps that run it; none: all
  };
  // Adds a task, and its launch. Unimplemented: a plan cannot hold it.
  absl::Status Add(const DeviceCall& call, const TaskInfo& info, plan::Program* program);
  // Tasks from `first` on as one launch.
  void AddRun(const RunCall& call, uint32_t first, plan::Program* program);
  // Outputs are in the arena, whatever they are: copies one that is a weight, a state, a constant or prepared.
  absl::Status AddOutput(const Output& output, plan::Program* program);

  // Memory that all programs share, as far as calls asked for it.
  const std::vector<plan::Buffer>& persistent() const { return persistent_; }

 private:
  absl::Status Add(const KernelCall& call, const TaskInfo& info, plan::Task* task);
  absl::Status Add(const GemmCall& call, const TaskInfo& info, plan::Task* task);
  absl::Status Add(const CopyCall& call, const TaskInfo& info, plan::Task* task);
  absl::Status SetArg(const KernelParam& param, const TaskInfo& info, plan::Arg* arg);
  absl::Status SetValue(const Value* value, plan::Arg* arg) const;
  absl::Status SetPlace(const std::string& name, plan::Arg* arg) const;
  uint32_t PersistentBuffer(const std::string& name, int64_t bytes);

  const bool pdl_;
  const bool tf32_;
  PlanPools* pools_;
  absl::flat_hash_map<std::string, plan::Arg> kept_;  // weights, states, constants and buffers of `prepare`
  Buffers buffers_;
  std::vector<plan::Buffer> persistent_;
};

}  // namespace llmc
