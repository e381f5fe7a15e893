// The GPUs that code is compiled for, by NVIDIA's names of their architectures, and what each has, in one table: what
// chooses between kernels, estimates times or names targets asks here, and a new target is one row of targets.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace llmc {

struct Target {
  std::string name;    // "sm_90a"
  int capability = 0;  // 90 for 9.0
  std::string gpus;    // that have it
  // Of the GPU that the row of the table names; those of the GPU that is here take their place, as far as it tells
  // them: see runtime/device/device_target.h.
  int64_t sms = 0;        // streaming multiprocessors
  int64_t l2_bytes = 0;   // of the L2 cache
  double bandwidth = 0;   // of memory, in bytes a second
  double flops_f16 = 0;   // of dense products of f16 or bf16 that are summed in f32, a second
  double flops_8bit = 0;  // of f8 or i8
  // Shared memory that a block may have on every GPU that runs the target's code, and that of a multiprocessor, of
  // which each block takes kBlockSharedBytes more than it asks for.
  int64_t shared_bytes = 0, sm_shared_bytes = 0;
  bool wgmma = false;        // products of warpgroups, which sm_90a alone has
  bool bulk_copies = false;  // into shared memory, which complete on barriers (TMA)
  bool pdl = false;          // a launch may start while its predecessor ends
  // Of weights that each task of a step reads, on average: from there on one persistent launch was measured to be
  // faster than a launch for each task, of sm_90a on an H100 alone. 0: not measured.
  double persistent_bytes = 0;
};
inline constexpr int64_t kBlockSharedBytes = 1024;

absl::Span<const Target> Targets();
// What is compiled for where nobody says for what and there is no GPU.
const Target& DefaultTarget();

// InvalidArgument, which says which there are.
absl::StatusOr<Target> FindTarget(absl::string_view name);
// Reads names given one by one or as lists ("sm_80,sm_90a"), and drops repeated ones.
absl::StatusOr<std::vector<Target>> ParseTargets(absl::Span<const std::string> texts);
std::vector<std::string> NamesOf(absl::Span<const Target> targets);

// 90 for "sm_90a"; 0 if that is no name of a target.
int CapabilityOf(absl::string_view target);
// Whether code for `target` runs on a GPU of this compute capability (90 for 9.0).
bool RunsOn(absl::string_view target, int capability);

// What to compile for such a GPU: a row of the table or, for one that is newer than the table, a target with the
// features of the oldest. FailedPrecondition: kernels do not run on it.
absl::StatusOr<Target> TargetFor(int capability);

// Whether programs that were chosen for `target` run on `gpu` if their kernels are compiled for it.
bool RunsProgramsOf(const Target& gpu, const Target& target);

}  // namespace llmc
