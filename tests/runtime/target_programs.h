// The parts of a plan's code for its first target, for tests that change or make them.
#pragma once

#include <string>

#include "runtime/plan/plan.pb.h"
#include "runtime/plan/target_code.h"

namespace llmc {

// A manifest without programs gets a target with a `prepare`.
inline plan::TargetPrograms* FirstTarget(plan::Manifest* manifest) {
  if (manifest->targets().empty()) {
    plan::TargetPrograms* target = manifest->add_targets();
    target->set_target("sm_90a");
    target->set_prepare(static_cast<uint32_t>(manifest->programs_size()));
    manifest->add_programs();
  }
  return manifest->mutable_targets(0);
}

inline plan::Program* AddProgram(plan::Manifest* manifest) {
  FirstTarget(manifest)->add_programs(static_cast<uint32_t>(manifest->programs_size()));
  return manifest->add_programs();
}

inline plan::Program* PrepareOf(plan::Manifest* manifest) {
  return manifest->mutable_programs(static_cast<int>(FirstTarget(manifest)->prepare()));
}
// Of the steps; a negative index counts from the last.
inline plan::Program* ProgramOf(plan::Manifest* manifest, int index) {
  const plan::TargetPrograms& target = *FirstTarget(manifest);
  return manifest->mutable_programs(
      static_cast<int>(target.programs(index < 0 ? target.programs_size() + index : index)));
}

inline TargetCode FirstCode(const plan::Manifest& manifest) { return {manifest, 0}; }

}  // namespace llmc
