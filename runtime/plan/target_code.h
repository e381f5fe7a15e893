// What one target runs of a plan.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// A view of a manifest, which must outlive it and be one that plan::CheckManifest takes.
class TargetCode {
 public:
  TargetCode() = default;  // of no target: nothing may be asked
  // `target`: an index of manifest.targets().
  TargetCode(const plan::Manifest& manifest, int target);

  const plan::Manifest& manifest() const { return *manifest_; }
  const std::string& target() const { return programs_->target(); }  // "sm_90a"
  const plan::Program& prepare() const { return Program(programs_->prepare()); }
  // For different bounds: the first whose bounds hold runs.
  int programs_size() const { return programs_->programs_size(); }
  const plan::Program& program(int index) const { return Program(programs_->programs(index)); }
  std::vector<const plan::Program*> programs() const;
  // Memory that all of these share, and the bytes of its arena.
  const google::protobuf::RepeatedPtrField<plan::Buffer>& persistent() const { return programs_->persistent(); }
  uint64_t persistent_bytes() const;
  // The persistent buffer of this name; nullptr if there is none.
  const plan::Buffer* FindPersistent(absl::string_view name) const;
  // The kernels that all these launch, in rising order.
  std::vector<int> Kernels() const;

 private:
  const plan::Program& Program(uint32_t index) const { return manifest_->programs(static_cast<int>(index)); }

  const plan::Manifest* manifest_ = nullptr;
  const plan::TargetPrograms* programs_ = nullptr;
};

}  // namespace llmc
