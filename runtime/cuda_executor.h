// Runs the language model of a device plan on an NVIDIA GPU: weights, KV states and programs in device memory, one
// captured graph for each small batch size.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/cublaslt.h"
#include "runtime/device.h"
#include "runtime/dim_expression.h"
#include "runtime/executor.h"
#include "runtime/plan.h"

namespace llmc {

struct CudaExecutorOptions {
  int device = 0;
  int64_t num_pages = 0;    // KV cache pages; 0: what fits into 90 % of the memory that is free after loading
  int64_t max_context = 0;  // tokens of a sequence; 0: what the model allows
  bool use_graphs = true;   // replay steps of few sequences from captured graphs
};

class CudaExecutor : public Executor {
 public:
  // `plan` must outlive the executor. FailedPrecondition: the plan has no code for this device; NotFound: there is no
  // device; ResourceExhausted: the weights do not fit.
  static absl::StatusOr<std::unique_ptr<CudaExecutor>> Create(const Plan* plan, const CudaExecutorOptions& options);

  const ExecutorLimits& limits() const override { return limits_; }
  absl::StatusOr<Logits> RunStep(const StepInput& input) override;

 private:
  // An argument that is ready to be passed: a pointer, a dim to evaluate or a number.
  struct Argument {
    DevicePointer pointer = 0;
    std::optional<DimExpression> dim;
    float number = 0;
    enum class Kind : uint8_t { kPointer, kDim, kNumber } kind = Kind::kPointer;
  };
  struct Operation {
    const plan::Step* step = nullptr;
    DeviceFunction function;
    std::vector<DimExpression> sizes;  // the grid, m of a product, or the bytes of a copy
    std::vector<Argument> arguments;
  };
  struct Program {
    const plan::Program* plan = nullptr;
    std::vector<Operation> operations;
    DevicePointer arena = 0;
    std::map<std::string, DevicePointer> inputs;
    DevicePointer logits = 0;
  };
  using Dims = std::map<std::string, int64_t>;

  CudaExecutor() = default;
  absl::Status ReadLimits(const CudaExecutorOptions& options);
  absl::Status ReadSymbols();
  absl::Status LoadKernels();
  absl::Status LoadWeights();
  absl::Status Prepare();
  absl::Status AllocateStates(const CudaExecutorOptions& options);
  absl::Status BuildPrograms();
  absl::StatusOr<Program> Build(const plan::Program& plan, DevicePointer arena);
  absl::StatusOr<Argument> MakeArgument(const plan::Arg& arg, const plan::Program& program, DevicePointer arena) const;
  absl::Status Enqueue(const Program& program, const Dims& dims);
  absl::Status EnqueueOne(const Operation& operation, const Dims& dims);
  absl::Status RunOrReplay(size_t program, const Dims& dims);

  const Plan* plan_ = nullptr;
  ExecutorLimits limits_;
  int64_t max_pages_ = 0;  // of a KV state, at the bound of its dim
  // The dims of ir/ops_lm.h, as this plan calls them.
  std::string tokens_, sequences_, rows_, pages_, pool_;
  bool use_graphs_ = true;
  std::unique_ptr<Device> device_;
  std::unique_ptr<MatrixProducts> products_;
  std::vector<DeviceFunction> functions_;
  std::vector<DeviceMemory> weights_, states_, constants_;
  DeviceMemory prepared_, arena_, logits_on_device_;
  PinnedMemory staging_, logits_;
  std::vector<Program> programs_;
  std::map<std::pair<size_t, int64_t>, DeviceGraph> graphs_;  // by program and batch size
};

}  // namespace llmc
