// Which consecutive tasks of a program a device may run as one launch (kernels/common/persistent_run.cuh).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "codegen/task_writer.h"
#include "codegen/tasks/select.h"
#include "cubins/targets.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// The tasks of one program, as they are added.
class PersistentRuns {
 public:
  explicit PersistentRuns(const Target& target) : target_(target) {}

  // The next task of the program; `kinds` as Task.sampling. `weight_bytes`: of weights, that it reads.
  void Add(const DeviceCall& call, const std::vector<plan::Sampling>& kinds, double weight_bytes = 0);
  // A value that the program gives, which is read when all tasks are done.
  void AddOutput(const Value* value) { outputs_.AddRead(value); }
  // Adds the runs to `program`, all of whose tasks have been added here. If `least_weight_bytes` is not 0, only those
  // that together have most of the tasks, each going on where the one before is full, whose tasks read so many bytes of
  // weights, on average, with room for a ring of five stages and no product of more than eight warps. Returns what is
  // in them, and why not more, in lines for people.
  std::vector<std::string> Write(double least_weight_bytes, TaskWriter* writer, plan::Program* program) const;
  // Nothing if Write would add some; else its lines, without the numbers of tasks.
  std::optional<std::vector<std::string>> WhyNone(double least_weight_bytes) const;

 private:
  struct Entry {
    KernelCall call;     // of what is no kernel: what it reads
    std::string misfit;  // why it can be in no run
    double weight_bytes = 0;

    void AddRead(const Value* value) {
      if (value != nullptr) call.params.push_back({"const void*", "read", KernelArg::Of(value)});
    }
  };

  struct Stretch;
  class Reasons;
  std::vector<Stretch> Stretches() const;
  // Those that become runs; `reasons`: why others do not.
  std::vector<Stretch> Chosen(double least_weight_bytes, Reasons* reasons) const;
  std::string WhyLaunches(absl::Span<const Stretch> stretches, double least_weight_bytes) const;

  const Target& target_;
  std::vector<Entry> entries_;
  Entry outputs_;
};

}  // namespace llmc
