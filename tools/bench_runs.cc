#include "tools/bench_runs.h"

#include <algorithm>
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/layout/run_clocks.h"

namespace llmc {
namespace {

// The words of RunClocks, as times of the whole device.
class ClockTimes {
 public:
  ClockTimes(const std::vector<int64_t>& words, int blocks) : words_(words), blocks_(blocks) {}

  // Seconds since some time; the clock of a multiprocessor is as fast as its launch says.
  double At(int task, int block, RunClocks::RunStamp stamp) const {
    const auto word = [&](RunClocks::BlockWord w) {
      return static_cast<double>(words_[RunClocks::OfBlock(block, w)] - words_[RunClocks::OfBlock(0, w)]);
    };
    const auto of = [&](RunClocks::BlockWord w) { return words_[RunClocks::OfBlock(block, w)]; };
    const auto clocks = static_cast<double>(of(RunClocks::kEndClock) - of(RunClocks::kBeginClock));
    const auto seconds = static_cast<double>(of(RunClocks::kEndTime) - of(RunClocks::kBeginTime)) * 1e-9;
    const auto since =
        static_cast<double>(words_[RunClocks::Of(blocks_, task, block, stamp)] - of(RunClocks::kBeginClock));
    return word(RunClocks::kBeginTime) * 1e-9 + since * seconds / clocks;
  }
  bool Has(int task, int block, RunClocks::RunStamp stamp) const {
    return words_[RunClocks::Of(blocks_, task, block, stamp)] != 0;
  }
  int blocks() const { return blocks_; }
  double LastDone(int task) const {
    double last = At(task, 0, RunClocks::kDone);
    for (int block = 1; block < blocks_; ++block) last = std::max(last, At(task, block, RunClocks::kDone));
    return last;
  }

 private:
  const std::vector<int64_t>& words_;
  int blocks_;
};

void AddTask(const ClockTimes& times, int task, RunRow* row) {
  const double before = times.LastDone(task - 1);
  RunRow sums;
  int begun = 0, with_input = 0;
  for (int block = 0; block < times.blocks(); ++block) {
    const double done = times.At(task, block, RunClocks::kDone);
    row->told += (times.At(task, block, RunClocks::kTold) - done) / times.blocks();
    const bool joins = times.Has(task, block, RunClocks::kBegun), has_input = times.Has(task, block, RunClocks::kInput);
    if (!joins && !has_input) continue;
    const double begin = times.At(task, block, joins ? RunClocks::kBegun : RunClocks::kInput);
    sums.hop += begin - before;
    sums.busy += done - begin;
    sums.slowest = std::max(sums.slowest, done - begin);
    ++begun;
    if (!joins || !has_input) continue;
    sums.input += times.At(task, block, RunClocks::kInput) - begin;
    ++with_input;
  }
  row->step += times.LastDone(task) - before;
  row->slowest += sums.slowest;
  if (begun > 0) {
    row->hop += sums.hop / begun;
    row->busy += sums.busy / begun;
  }
  if (with_input > 0) row->input += sums.input / with_input;
  ++row->count;
}

}  // namespace

std::vector<RunRow> RowsOfRun(const std::vector<int64_t>& words, int blocks, const std::vector<std::string>& names) {
  const ClockTimes times(words, blocks);
  std::map<std::string, RunRow> rows;
  for (int task = 1; task < static_cast<int>(names.size()); ++task) {  // the first has no stamps
    RunRow& row = rows[names[task]];
    row.name = names[task];
    AddTask(times, task, &row);
  }
  std::vector<RunRow> list;
  for (auto& [name, row] : rows) {
    for (double* sum : {&row.step, &row.hop, &row.input, &row.busy, &row.slowest, &row.told}) *sum /= row.count;
    list.push_back(row);
  }
  absl::c_sort(list, [](const RunRow& a, const RunRow& b) { return a.step * a.count > b.step * b.count; });
  return list;
}

absl::StatusOr<std::vector<RunRow>> ProfileRuns(BenchModel* model, const BenchStep& step, const BenchInputs& inputs,
                                                absl::FunctionRef<absl::Status()> run) {
  const std::vector<DeviceTask>& tasks = model->code(step).tasks;
  const auto launch = absl::c_find_if(tasks, [](const DeviceTask& task) { return task.run != nullptr; });
  if (launch == tasks.end()) return std::vector<RunRow>();
  const auto blocks = static_cast<int>(launch->run->blocks()), count = static_cast<int>(launch->run->count());
  const int64_t needed = RunClocks::Words(blocks, count), bytes = needed * static_cast<int64_t>(sizeof(int64_t));
  if (launch->arguments.empty() || launch->arguments.back().bytes < bytes) {
    return absl::InvalidArgumentError("the plan is damaged: its launch has no room for clocks");
  }
  const DeviceArgument& clocks = launch->arguments.back();
  std::vector<int64_t> words(static_cast<size_t>(needed), 0);
  words[0] = 1;
  absl::Status status = model->device()->CopyToDevice(clocks.pointer, words.data(), bytes);
  status.Update(model->Time(2, inputs, run).status());
  if (status.ok()) status = model->device()->CopyToHost(words.data(), clocks.pointer, bytes);
  status.Update(model->device()->FillBytes(clocks.pointer, 0, bytes));  // else later steps are timed with clocks
  status.Update(model->device()->Synchronize());
  RETURN_IF_ERROR(status);
  std::vector<std::string> names;
  for (const DeviceTask& member : launch->members) {
    names.push_back(model->manifest().kernels(static_cast<int>(member.task->kernel().kernel())).entry());
  }
  return RowsOfRun(words, blocks, names);
}

std::string RunsText(const std::vector<RunRow>& rows) {
  std::string text = absl::StrFormat("  %-34s %6s %9s %9s %9s %9s %9s %9s %9s\n", "tasks of one launch, us", "count",
                                     "all", "of each", "hop", "input", "busy", "slowest", "told");
  for (const RunRow& row : rows) {
    absl::StrAppendFormat(&text, "  %-34s %6d", row.name, row.count);
    for (const double seconds : {row.step * row.count, row.step, row.hop, row.input, row.busy, row.slowest, row.told}) {
      absl::StrAppendFormat(&text, " %9.2f", seconds * 1e6);
    }
    text += "\n";
  }
  return text;
}

}  // namespace llmc
