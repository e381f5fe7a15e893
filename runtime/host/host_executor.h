// Runs language models on the host, by the language's evaluator: slow, exact, always there.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/eval.h"
#include "ir/graph.h"
#include "runtime/engine/executor.h"
#include "runtime/model_parts.h"

namespace llmc {

// The executor for a language model: with paged KV states, or of ONNX form (runtime/engine/past_kv_executor.h).
// `model` must outlive it. Unimplemented: it is no language model of either form; InvalidArgument: it is one of the
// first form, but not a sound one. The message says what is missing.
absl::StatusOr<std::unique_ptr<Executor>> NewHostExecutor(const Model* model, const CacheOptions& options);

class HostExecutor : public SynchronousExecutor {
 public:
  // `model` must outlive the executor. Prepares the weights and allocates the states.
  static absl::StatusOr<std::unique_ptr<HostExecutor>> Create(const Model* model, const CacheOptions& options);

  const ExecutorLimits& limits() const override { return limits_; }

 protected:
  absl::StatusOr<Logits> ComputeLogits(const StepInput& input) override;

 private:
  HostExecutor() = default;
  void CopyPages(absl::Span<const PageCopy> copies);
  int64_t PagesOf(const Chunk& chunk, size_t pool) const;

  const Step* step_ = nullptr;
  StepContract contract_;
  std::unique_ptr<Evaluator> evaluator_;
  ExecutorLimits limits_;
};

}  // namespace llmc
