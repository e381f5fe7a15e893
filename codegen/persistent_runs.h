// Which consecutive tasks of a program a device may run as one launch (kernels/common/persistent_run.cuh).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/task_writer.h"
#include "codegen/tasks/select.h"
#include "cubins/targets.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// The tasks of one program, as they are added.
class PersistentRuns {
 public:
  explicit PersistentRuns(const Target& target) : target_(target) {}

  // The next task of the program; `kinds` as Task.sampling.
  void Add(const DeviceCall& call, const std::vector<plan::Sampling>& kinds);
  // Adds the runs to `program`, all of whose tasks have been added here. Returns what is in them, and why not more, in
  // lines for people.
  std::vector<std::string> Write(TaskWriter* writer, plan::Program* program) const;

 private:
  struct Entry {
    std::optional<KernelCall> call;
    std::string misfit;  // why it can be in no run
  };

  const Target& target_;
  std::vector<Entry> entries_;
};

}  // namespace llmc
