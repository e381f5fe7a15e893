// The programs of a language model's device plan, run with chosen sizes and timed on the device: steps as they come
// from an engine, without one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/step_contract.h"
#include "runtime/device/device_model.h"
#include "runtime/plan/plan.h"
#include "tools/bench_sampling.h"

namespace llmc {

// Some tokens of one sequence: those at [position, position + tokens), of which the last gives a row of logits.
struct BenchSequence {
  int64_t position = 0;
  int64_t tokens = 1;
};

struct BenchStep {
  size_t program = 0;
  StepDims dims;
  std::vector<BenchSequence> sequences = {};
};

// A step's inputs on the device: a step overwrites its own, once nothing needs them any more.
struct BenchInputs {
  DeviceMemory memory;
  struct Copy {
    DevicePointer to = 0, from = 0;
    int64_t bytes = 0;
  };
  std::vector<Copy> copies;
};

class BenchModel {
 public:
  // With room for the largest of `wishes` (tokens in the KV cache) that fits, or for as many as fit; the cache holds
  // random numbers. `plan` must outlive it. InvalidArgument: the plan is not that of a language model with a paged
  // cache; else as DeviceModel::Load.
  static absl::StatusOr<std::unique_ptr<BenchModel>> Load(const Plan* plan, const std::vector<int64_t>& wishes);

  Device* device() { return model_->device(); }
  const MemoryNeeds& needs() const { return model_->needs(); }
  const plan::Manifest& manifest() const { return model_->manifest(); }
  const TargetCode& code() const { return model_->code(); }
  const plan::Program& program(const BenchStep& step) const { return *programs_[step.program].code.plan; }
  const DeviceProgram& code(const BenchStep& step) const { return programs_[step.program].code; }
  const StepContract& contract() const { return contract_; }
  int64_t max_step_tokens() const { return max_step_tokens_; }

  // ResourceExhausted: the sequences do not fit into the KV cache; InvalidArgument: the plan's bounds are smaller.
  absl::StatusOr<BenchStep> MakeStep(std::vector<BenchSequence> sequences) const;
  // Random tokens, and pages in a random order.
  absl::StatusOr<BenchInputs> MakeInputs(const BenchStep& step);
  // Puts them to where the step reads them.
  absl::Status SetInputs(const BenchInputs& inputs);
  // The model alone.
  absl::Status Enqueue(const BenchStep& step);
  absl::StatusOr<DeviceGraph> Capture(const BenchStep& step);
  // These tasks of the model, by their numbers in the program, each in a launch of its own; all of them `repeats`
  // times.
  absl::StatusOr<DeviceGraph> CaptureTasks(const BenchStep& step, const std::vector<int>& tasks, int repeats);
  // A decode step as an executor runs it: its inputs come in a message, and the device chooses the next tokens.
  // Unimplemented: the plan has no code that samples.
  absl::StatusOr<DeviceGraph> CaptureSampled(const BenchStep& step, BenchSampling::Kind kind);
  // Internal: such a graph ran and chose no token of the vocabulary. Waits for the device.
  absl::Status CheckSampled();

  // Seconds on the device of each of `runs` runs, one after the other, after one that is not counted. The inputs are
  // set before each, beside the time.
  absl::StatusOr<std::vector<double>> Time(int runs, const BenchInputs& inputs, absl::FunctionRef<absl::Status()> run);

 private:
  struct Program {
    DeviceProgram code;
    DeviceProgram each;                         // the model's tasks, each in a launch of its own
    std::map<std::string, DeviceRange> places;  // of inputs, and "logits"
  };
  absl::Status ReadSymbols(const Plan& plan);
  void ReadBounds();
  absl::Status Allocate(const std::vector<int64_t>& wishes);
  absl::Status BuildPrograms();
  int64_t PagesOf(size_t pool) const;
  struct Layout {
    std::vector<int32_t> ids;
    std::vector<std::vector<int32_t>> pages;  // by pool
    StepLayout step;
  };
  Layout LayoutOf(const BenchStep& step) const;

  StepContract contract_;
  std::string tokens_, sequences_, rows_, table_;  // dims, as the plan calls them
  int64_t max_step_tokens_ = 0, max_sequences_ = 0;
  std::unique_ptr<DeviceModel> model_;
  DeviceMemory arena_;
  PageSizes page_sizes_;
  int64_t pages_ = 0;  // of the largest size, in each pool of the cache: every page that is named is there
  int64_t room_ = 0;   // for tokens of a cache on the device
  BenchSampling sampling_;
  std::vector<Program> programs_;
};

// The largest of `wishes` that is at most `most`; `most` if all are larger, or there is none.
int64_t LargestThatFits(const std::vector<int64_t>& wishes, int64_t most);

}  // namespace llmc
