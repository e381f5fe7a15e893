// Runs a decoder over a calibration text part by part, with all samples in each part: in memory are the hidden states
// of all tokens, the weights of one part, and what one batch of samples takes in it. On the host a batch is one sample;
// on a device it is as many as a step takes, and each part is a model of its own.
//
// Parts end where the fewest values pass from what is before to what is behind: of a usual decoder behind each
// attention and each MLP, where only the residual stream does. That is found from the graph.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/graph.h"
#include "quantize/input_stats.h"
#include "quantize/step_runner.h"
#include "runtime/host/paged_model.h"

namespace llmc {

class LayerRunner {
 public:
  // `model` (imported, of a step with a paged cache), `samples`, each of ids of the vocabulary, and `device` (nullptr:
  // the host) must outlive this. `products`: those whose inputs are asked for; what is behind the last one is not run.
  // Unimplemented: the model is no decoder with a paged cache.
  static absl::StatusOr<std::unique_ptr<LayerRunner>> Create(const Model* model,
                                                             const std::vector<std::vector<int32_t>>* samples,
                                                             const absl::flat_hash_set<const Node*>& products,
                                                             StepRunner* device);

  size_t parts() const { return ends_.size(); }
  size_t batches() const { return batches_.size(); }
  // Whether the node is in this part.
  bool IsIn(size_t part, const Node* node) const;

  // What each tap sees in all batches; they are of values that the part computes, or takes from the part before.
  // `weights` stand in for the model's. With `advance` what passes to the next part is kept, and the part's own inputs
  // go: parts run in order, each of them at last with it. `on_batch` is called when a batch is done.
  absl::StatusOr<std::vector<InputStats>> Run(size_t part, const std::map<const Value*, Tensor>& weights,
                                              const std::vector<Tap>& taps, bool advance,
                                              const std::function<void()>& on_batch);

 private:
  using Values = absl::flat_hash_map<const Value*, Tensor>;
  struct Batch {
    Values values;  // inputs of the step, and what passes from part to part
    DimEnv dims;
  };
  LayerRunner() = default;
  absl::Status Init(const absl::flat_hash_set<const Node*>& products);
  absl::Status AddBatches(const std::vector<std::vector<int32_t>>& samples);
  absl::Status AddBatch(absl::Span<const std::vector<int32_t>> samples, const StepContract& contract);
  void FindUses();
  void FindParts(const absl::flat_hash_set<const Node*>& products);
  int64_t Begin(size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }
  std::vector<const Value*> PassingBehind(size_t part) const;
  // Drops what nothing behind the part reads.
  void DropInputs(size_t part, Values* values) const;
  // Of what the part reads, as far as files of it are mapped.
  void DropWeights(size_t part) const;

  // What a run of a part has beside the batch.
  struct Scope {
    const std::map<const Value*, Tensor>* weights;
    Values fixed;   // made of weights and constants alone
    Values states;  // of the batch
  };
  absl::StatusOr<Tensor> WeightOf(const Value* value, const std::map<const Value*, Tensor>& weights) const;
  absl::StatusOr<Tensor> Find(const Value* value, Batch* batch, Scope* run) const;
  absl::Status RunNode(const Node& node, Batch* batch, Scope* run) const;
  // The values that taps ask for, of one batch.
  absl::StatusOr<Values> RunOnHost(size_t part, const std::vector<Tap>& taps, Batch* batch, Scope* run) const;
  absl::StatusOr<std::vector<InputStats>> RunOnDevice(size_t part, const std::map<const Value*, Tensor>& weights,
                                                      const std::vector<Tap>& taps, bool advance,
                                                      const std::function<void()>& on_batch);

  const Model* model_ = nullptr;
  PagedModel paged_;
  std::vector<const Node*> nodes_;
  absl::flat_hash_map<const Node*, int64_t> place_;
  absl::flat_hash_map<const Value*, int64_t> last_use_;
  absl::flat_hash_set<const Value*> of_sample_;  // results that depend on the samples
  std::vector<int64_t> ends_;                    // of parts, as numbers of nodes
  std::vector<Batch> batches_;
  StepRunner* device_ = nullptr;
  DimEnv records_;  // of states in any batch
  DimEnv sizes_;    // the largest of any batch
};

}  // namespace llmc
