// Where the time of persistent launches goes (kernels/common/persistent_run.cuh), task by task.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "tools/bench_model.h"

namespace llmc {

// The tasks of a launch that are of one kernel. Times are means over them, in seconds.
struct RunRow {
  std::string name;  // of the kernel
  int count = 0;
  double step = 0;  // from when the last block has done the task before to when the last has done this one
  // Until a block knows that the last one has done the task before, mean of the blocks. Of tasks that take a row
  // (kernels/common/tagged_row.cuh): until it is there, of the blocks that need it, before the last has done if below
  // 0.
  double hop = 0;
  double input = 0;    // from then until its x is there, mean of the blocks that have a product
  double busy = 0;     // from then until it has done its part, mean of the blocks
  double slowest = 0;  // the same of the block that takes longest
  double told = 0;     // from then until the block may count up, mean of the blocks
};

// The rows of a launch, the longest first. `words`: RunClocks of so many blocks; names: of the kernels of its tasks.
std::vector<RunRow> RowsOfRun(const std::vector<int64_t>& words, int blocks, const std::vector<std::string>& names);

// Of the first launch of many tasks in the step; none if it has none. `run` runs the step.
absl::StatusOr<std::vector<RunRow>> ProfileRuns(BenchModel* model, const BenchStep& step, const BenchInputs& inputs,
                                                absl::FunctionRef<absl::Status()> run);

std::string RunsText(const std::vector<RunRow>& rows);

}  // namespace llmc
