// What the kernels of a plan take of a GPU: `llmc show PLAN --kernels`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/plan/plan.h"

namespace llmc {

// A row for each kernel and each target that it was compiled for. InvalidArgument: the plan has no code for GPUs, or
// some of it is damaged.
absl::StatusOr<std::string> KernelTableText(const Plan& plan);

// The same: entry, target, threads, registers, stack_bytes, shared_bytes (with those that its launches ask for),
// code_bytes and label.
absl::StatusOr<nlohmann::ordered_json> KernelTableJson(const Plan& plan);

}  // namespace llmc
