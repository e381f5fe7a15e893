// Runs the language model of a device plan on an NVIDIA GPU, with a paged KV cache. Tokens are sampled on the device
// and stay there for the next step. A decode step is one captured graph of a program, for each of some batch sizes:
// reading the step's message, the model, and sampling.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "runtime/device/device_model.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/step_message.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/step_programs.h"

namespace llmc {

struct CudaExecutorOptions {
  int device = 0;  // as in DeviceChoice
  // KV cache pages, of the largest size; 0: for as many sequences of the longest context as a step takes, or what fits.
  int64_t num_pages = 0;
  double memory_fraction = kDefaultMemoryFraction;  // as in DeviceModelOptions; the KV cache is within it
  int64_t max_context = 0;                          // tokens of a sequence; 0: what the model allows
  bool use_graphs = true;                           // replay decode steps from captured graphs
  // Capture the graphs of greedy decode steps of all batch sizes at once, not each when it is first needed.
  bool capture_at_start = false;
  bool check_kernels = false;  // as in DeviceModelOptions; without graphs
  Trace* trace = nullptr;      // of the steps, if not nullptr; must outlive the executor
  std::string cache_folder;    // as in DeviceModelOptions
};

class CudaExecutor : public Executor {
 public:
  // `plan` must outlive the executor. FailedPrecondition: the plan has no code for this device; NotFound: there is no
  // device; ResourceExhausted: the model does not fit.
  static absl::StatusOr<std::unique_ptr<CudaExecutor>> Create(const Plan* plan, const CudaExecutorOptions& options);
  ~CudaExecutor() override;

  const ExecutorLimits& limits() const override { return limits_; }
  absl::Status Submit(const StepInput& input) override;
  absl::StatusOr<StepResult> Collect() override;
  void EndSequence(int64_t sequence) override;

 private:
  struct Program {
    DeviceProgram code;
    DevicePointer logits = 0;
  };
  struct Sequence {
    int64_t step = -1;  // that sampled its last token
    int32_t draw = 0;   // there
    int32_t token = 0;  // once that step is collected
    DeviceMemory counts;
  };
  // A chunk of a step in flight.
  struct Pending {
    int64_t sequence = 0;
    int32_t draw = -1;       // none
    int64_t log_probs = -1;  // to be computed here, from row `host_row`
    int64_t host_row = 0;    // of the rows that are copied to the host
    int64_t num_host_rows = 0;
    bool wants_rows = false;
    bool device_log_probs = false;  // are in the draw's result
  };
  struct InFlight {
    int64_t step = 0;
    std::vector<Pending> chunks;
    std::vector<std::vector<uint32_t>> counts;  // on their way to the device
  };
  // Of one step at a time; steps alternate between two.
  struct Place {
    DeviceEvent done;
    PinnedMemory logits;
  };
  // A step that is about to run.
  struct Shape {
    StepSizes sizes;
    bool decodes = false;  // T = S = R, padded to a size that has a graph
    plan::Sampling sampling = plan::NO_SAMPLING;
  };

  CudaExecutor() = default;
  absl::Status ReadLimits(const CudaExecutorOptions& options);
  absl::Status ReadSymbols();
  absl::Status AllocateArena();
  absl::Status AllocateStates(const CudaExecutorOptions& options);
  absl::Status AllocateSampling();
  absl::Status CheckPlaces(const plan::Program& program, const std::map<std::string, DeviceRange>& places) const;
  absl::Status CheckInputs(const plan::Program& program) const;
  absl::Status BuildPrograms();
  absl::Status WarmUpProducts();
  absl::Status CaptureAll();

  absl::Status CheckSampledTokens(const StepInput& input) const;
  Shape ShapeOf(const StepInput& input) const;
  absl::Status PrepareCounts(const StepInput& input, InFlight* step);
  absl::StatusOr<DeviceMemory> CountsOf(const Sampling& sampling, InFlight* step);
  void WriteMessage(const StepInput& input, const Shape& shape, InFlight* step);
  DrawRequest MakeDraw(const Chunk& chunk, int64_t row, const DeviceMemory& counts) const;
  absl::Status CopyPages(absl::Span<const PageCopy> copies);
  absl::Status Run(const Shape& shape);
  absl::Status CopyRows(const StepInput& input, const Program& program, InFlight* step);
  absl::Status TakeDeviceError();
  absl::StatusOr<SampledToken> ReadDraw(const Pending& chunk, const InFlight& step);
  absl::Span<const float> HostRow(const InFlight& step, int64_t row) const;
  DrawResult* ResultOf(int64_t step, int64_t draw) const;

  const Plan* plan_ = nullptr;
  ExecutorLimits limits_;
  StepContract contract_;
  std::string tokens_, sequences_, rows_, pages_;  // dims, as this plan calls them
  std::vector<std::string> pools_;                 // those that count the pages of each pool
  std::vector<size_t> pool_of_;                    // by state
  bool use_graphs_ = true;
  std::unique_ptr<DeviceModel> model_;
  DeviceMemory arena_;
  PinnedMemory messages_, results_;  // two of each, for alternate steps
  int64_t table_width_ = 0, message_bytes_ = 0, max_draws_ = 0;
  std::vector<Program> programs_;
  std::vector<const plan::Program*> plan_programs_;                            // the same
  std::map<std::tuple<size_t, int64_t, plan::Sampling>, DeviceGraph> graphs_;  // by program, batch size and sampling

  Place places_[2];
  int64_t num_steps_ = 0;  // that the device was given
  std::deque<InFlight> in_flight_;
  absl::flat_hash_map<int64_t, Sequence> state_of_;  // of sequences that sample
  std::vector<DeviceMemory> free_counts_;
  size_t last_program_ = 0;
  absl::Status device_error_;         // of data, that a step met
  size_t steps_at_device_error_ = 0;  // of those in flight
  absl::Status broken_;               // the error after which nothing runs any more
};

}  // namespace llmc
