// Runs language models of ONNX form: `input_ids` in, `logits` out, and the cache, if there is one, as outputs
// (present.N.key) that are fed back as inputs (past_key_values.N.key). One sequence at a time; the sequences of a step
// run one after the other. Pages are for accounting only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine/executor.h"
#include "runtime/host_tensor.h"
#include "runtime/model_parts.h"

namespace llmc {

// Whether the model takes input_ids and gives logits [B, S, V], and has no states.
bool IsPastKvLanguageModel(const ModelDescription& model);

class PastKvExecutor : public SynchronousExecutor {
 public:
  // `run` runs the model once. Inputs: input_ids [B, S]; attention_mask [B, past + S] and position_ids [B, S], if
  // there; any past… [B, …] with an output present… of the same type. Without a cache the whole sequence is computed
  // again for each token. Unimplemented: there is another input, or no output `logits` [B, S, V].
  using ModelRunner = std::function<absl::StatusOr<NamedHostTensors>(const NamedHostTensors& inputs)>;
  static absl::StatusOr<std::unique_ptr<PastKvExecutor>> Create(const ModelDescription& model,
                                                                const CacheOptions& options, ModelRunner run);

  const ExecutorLimits& limits() const override { return limits_; }
  void EndSequence(int64_t sequence) override {
    SynchronousExecutor::EndSequence(sequence);
    sequences_.erase(sequence);
  }

 protected:
  absl::StatusOr<Logits> ComputeLogits(const StepInput& input) override;

 private:
  // An input, and the output that becomes it.
  struct PastKv {
    std::string input, output;
    HostTensor start;  // without tokens
  };
  struct Sequence {
    std::vector<int32_t> ids;
    NamedHostTensors past;
  };

  PastKvExecutor() = default;
  absl::Status ReadInputs(const ModelDescription& model);
  absl::Status AddPastKv(const ModelDescription& model, const TensorInfo& past);
  absl::Status ReadVocabulary(const ModelDescription& model);
  absl::StatusOr<NamedHostTensors> StepTensors(const Sequence& sequence, absl::Span<const int32_t> ids,
                                               int64_t position) const;
  // Runs the chunk, appends its wanted rows.
  absl::Status RunChunk(const Chunk& chunk, Logits* logits);

  ModelRunner run_;
  ExecutorLimits limits_;
  std::map<std::string, DType> inputs_;  // that are not fed back
  std::vector<PastKv> past_kv_;
  std::map<int64_t, Sequence> sequences_;
};

}  // namespace llmc
