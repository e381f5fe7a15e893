// Many tasks as one launch (kernels/common/persistent_run.cuh).
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/device/device_model.h"

namespace llmc {

absl::StatusOr<DeviceTask> DeviceModel::MakeRun(const plan::Run& run, const plan::Program& program,
                                                const std::vector<DeviceRange>& buffers) const {
  DeviceTask made{.task = &program.tasks(static_cast<int>(run.first())), .run = &run};
  made.function = functions_[run.kernel()];
  size_t words = 0;
  for (uint32_t i = run.first(); i < run.first() + run.count(); ++i) {
    const plan::Task& task = program.tasks(static_cast<int>(i));
    absl::StatusOr<DeviceTask> member = MakeTask(task, plan::Launch::SERIAL, buffers);
    if (!member.ok()) {
      return absl::Status(member.status().code(), absl::StrCat(member.status().message(), "\n  at: ", task.label()));
    }
    words += member->sizes.size() + member->arguments.size();
    made.members.push_back(*std::move(member));
  }
  for (const plan::Arg& arg : run.args()) {
    ASSIGN_OR_RETURN(DeviceArgument argument, MakeArgument(arg, buffers));
    made.arguments.push_back(std::move(argument));
  }
  const std::optional<std::vector<size_t>>& sizes = parameter_sizes_[run.kernel()];
  const bool fits =
      !sizes.has_value() || (sizes->size() == made.arguments.size() + 1 && sizes->front() == words * sizeof(int64_t));
  if (fits) return made;
  return absl::InvalidArgumentError(absl::StrCat(plan_->path(), ": a launch of many tasks gets ", words,
                                                 " words, which its kernel does not take; the plan is damaged: compile "
                                                 "the model again"));
}

absl::Status DeviceModel::LaunchRun(const DeviceTask& run, const StepDims& dims) {
  std::vector<int64_t> words;
  for (const DeviceTask& member : run.members) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> tiles, SizesOf(member, dims));
    words.insert(words.end(), tiles.begin(), tiles.end());
    for (const DeviceArgument& argument : member.arguments) {
      ASSIGN_OR_RETURN(words.emplace_back(), WordOf(argument, dims));
    }
  }
  std::vector<int64_t> values(run.arguments.size());
  std::vector<void*> pointers = {words.data()};
  for (size_t i = 0; i < values.size(); ++i) {
    ASSIGN_OR_RETURN(values[i], WordOf(run.arguments[i], dims));
    pointers.push_back(&values[i]);
  }
  const plan::Kernel& kernel = manifest().kernels(static_cast<int>(run.run->kernel()));
  const LaunchShape shape = {.grid = {run.run->blocks(), 1, 1},
                             .threads = kernel.threads(),
                             .shared_bytes = SharedBytesOf(kernel),
                             .cooperative = true};
  return device_->Launch(run.function, shape, pointers);
}

}  // namespace llmc
