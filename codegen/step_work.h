// What computes the nodes of a step: the calls of each kernel, and why they are these.
#pragma once

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

// What has no form for GPUs goes to `missing`: no error.
absl::Status NoteMissing(const absl::Status& status, std::set<std::string>* missing);
absl::Status SetCalls(absl::StatusOr<std::vector<DeviceCall>> calls, std::set<std::string>* missing, StepUnit* unit);

// The units of a lowered step with their calls.
absl::StatusOr<std::vector<StepUnit>> SelectStep(const Step& step, const ProgramScope& scope,
                                                 std::set<std::string>* missing);

// Adds the kernels, whose first tasks are `begins` (one for each unit), to the report of a program.
void DescribeKernels(const std::vector<StepUnit>& units, const std::vector<uint32_t>& begins,
                     const std::vector<KernelReport>& reports, plan::LoweredProgram* program);

}  // namespace llmc
