#include "runtime/plan/target_code.h"

#include <algorithm>
#include <set>

namespace llmc {

TargetCode::TargetCode(const plan::Manifest& manifest, int target)
    : manifest_(&manifest), programs_(&manifest.targets(target)) {}

std::vector<const plan::Program*> TargetCode::programs() const {
  std::vector<const plan::Program*> programs;
  for (const uint32_t index : programs_->programs()) programs.push_back(&Program(index));
  return programs;
}

uint64_t TargetCode::persistent_bytes() const {
  uint64_t bytes = 0;
  for (const plan::Buffer& buffer : persistent()) bytes = std::max(bytes, buffer.offset() + buffer.bytes());
  return bytes;
}

const plan::Buffer* TargetCode::FindPersistent(absl::string_view name) const {
  for (const plan::Buffer& buffer : persistent()) {
    if (buffer.name() == name) return &buffer;
  }
  return nullptr;
}

std::vector<int> TargetCode::Kernels() const {
  std::set<int> kernels;
  std::vector<const plan::Program*> all = programs();
  all.push_back(&prepare());
  for (const plan::Program* program : all) {
    for (const plan::Task& task : program->tasks()) {
      if (task.has_kernel()) kernels.insert(static_cast<int>(task.kernel().kernel()));
    }
    for (const plan::Run& run : program->runs()) kernels.insert(static_cast<int>(run.kernel()));
  }
  return {kernels.begin(), kernels.end()};
}

}  // namespace llmc
