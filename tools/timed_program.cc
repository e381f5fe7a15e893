#include "tools/timed_program.h"

#include <map>
#include <utility>

#include "base/status_macros.h"

namespace llmc {

absl::StatusOr<std::vector<double>> TimeRuns(Device* device, int runs, absl::FunctionRef<absl::Status()> set_inputs,
                                             absl::FunctionRef<absl::Status()> run) {
  std::vector<std::pair<DeviceEvent, DeviceEvent>> marks;
  for (int i = 0; i <= runs; ++i) {
    RETURN_IF_ERROR(set_inputs());
    ASSIGN_OR_RETURN(DeviceEvent begin, device->Mark());
    RETURN_IF_ERROR(run());
    ASSIGN_OR_RETURN(DeviceEvent end, device->Mark());
    marks.emplace_back(std::move(begin), std::move(end));
  }
  std::vector<double> seconds;
  for (int i = 1; i <= runs; ++i) {
    ASSIGN_OR_RETURN(const double time,
                     device->SecondsBetween(marks[static_cast<size_t>(i)].first, marks[static_cast<size_t>(i)].second));
    seconds.push_back(time);
  }
  return seconds;
}

absl::StatusOr<DeviceGraph> CaptureEach(DeviceModel* model, const DeviceProgram& each, const StepDims& sizes,
                                        const std::vector<int>& tasks, int repeats) {
  std::map<const plan::Task*, const DeviceTask*> launches;
  for (const DeviceTask& task : each.tasks) launches[task.task] = &task;
  RETURN_IF_ERROR(model->device()->BeginCapture());
  absl::Status enqueued;
  for (int i = 0; i < repeats; ++i) {
    for (const int task : tasks) {
      if (!enqueued.ok()) break;
      enqueued = model->Enqueue(*launches.at(&each.plan->tasks(task)), sizes);
    }
  }
  absl::StatusOr<DeviceGraph> graph = model->device()->EndCapture();
  if (!enqueued.ok()) return enqueued;
  return graph;
}

}  // namespace llmc
