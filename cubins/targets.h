// The GPUs that code is compiled for, by NVIDIA's names of their architectures.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace llmc {

struct Target {
  absl::string_view name;  // "sm_90a"
  int capability;          // 90
  absl::string_view gpus;  // that have it
};
absl::Span<const Target> Targets();

// Checks names given one by one or as lists ("sm_80,sm_90a"), and drops repeated ones. InvalidArgument says which there
// are.
absl::StatusOr<std::vector<std::string>> ParseTargets(absl::Span<const std::string> texts);

// Whether code for `target` runs on a GPU of this compute capability (90 for 9.0).
bool RunsOn(absl::string_view target, int capability);

// What to compile for such a GPU. FailedPrecondition: kernels do not run on it.
absl::StatusOr<std::string> TargetFor(int capability);

}  // namespace llmc
