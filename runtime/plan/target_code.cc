#include "runtime/plan/target_code.h"

#include <set>

namespace llmc {

TargetCode::TargetCode(const plan::Manifest& manifest, int target)
    : manifest_(&manifest), programs_(&manifest.targets(target)) {}

std::vector<const plan::Program*> TargetCode::programs() const {
  std::vector<const plan::Program*> programs;
  for (const uint32_t index : programs_->programs()) programs.push_back(&Program(index));
  return programs;
}

const plan::Program& TargetCode::sampling() const {
  return programs_->has_sampling() ? Program(programs_->sampling()) : plan::Program::default_instance();
}

std::vector<int> TargetCode::Kernels() const {
  std::set<int> kernels;
  std::vector<const plan::Program*> all = programs();
  all.push_back(&prepare());
  all.push_back(&sampling());
  for (const plan::Program* program : all) {
    for (const plan::Step& step : program->steps()) {
      if (step.has_launch()) kernels.insert(static_cast<int>(step.launch().kernel()));
    }
  }
  return {kernels.begin(), kernels.end()};
}

}  // namespace llmc
