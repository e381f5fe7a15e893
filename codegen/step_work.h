// What computes the nodes of a step: the calls of each kernel, what memory they need, and why they are these.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "codegen/memory/memory_plan.h"
#include "codegen/tasks/select.h"
#include "ir/graph.h"
#include "passes/lower/lower.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// Nodes that one or more calls compute.
struct Work {
  std::vector<const Node*> nodes;
  std::vector<DeviceCall> calls = {};
  bool keeps_rows = false;  // see KernelMemory
};

// The scratch memory that the calls of a node share.
std::optional<Size> ScratchOf(const std::vector<DeviceCall>& calls);

// What has no form for GPUs goes to `missing`: no error.
absl::Status NoteMissing(const absl::Status& status, std::set<std::string>* missing);
absl::Status SetCalls(absl::StatusOr<std::vector<DeviceCall>> calls, std::set<std::string>* missing, Work* work);

// What the units of a lowered step take, in their order.
absl::StatusOr<std::vector<Work>> SelectStep(const Step& step, const ProgramScope& scope,
                                             std::set<std::string>* missing);
KernelMemory MemoryOf(const std::vector<Work>& work);

// Adds the kernels, whose first tasks are `begins` (one for each work), to the report of a program.
void DescribeKernels(const std::vector<Work>& work, const std::vector<uint32_t>& begins,
                     const std::vector<KernelReport>& reports, plan::LoweredProgram* program);

}  // namespace llmc
