// Runs a decoder over a calibration text part by part, with all samples in each part: in memory are the hidden states
// of all tokens, the weights of one part, and what one sample takes in it.
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
#include "ir/graph.h"
#include "runtime/host/paged_model.h"

namespace llmc {

class LayerRunner {
 public:
  // `model` (imported, of a step with a paged cache) and `samples`, each of ids of the vocabulary, must outlive this.
  // `products`: those whose inputs are asked for; what is behind the last one is not run. Unimplemented: the model is
  // no decoder with a paged cache.
  static absl::StatusOr<std::unique_ptr<LayerRunner>> Create(const Model* model,
                                                             const std::vector<std::vector<int32_t>>* samples,
                                                             const absl::flat_hash_set<const Node*>& products);

  size_t parts() const { return ends_.size(); }
  // Whether the node is in this part.
  bool IsIn(size_t part, const Node* node) const;

  // Called with each value of `watched` that the part computes, or takes from the part before, for each sample.
  using Watch = std::function<absl::Status(const Value* value, const Tensor& contents)>;
  // `weights` stand in for the model's. With `advance` what passes to the next part is kept, and the part's own inputs
  // go: parts run in order, each of them at last with it.
  absl::Status Run(size_t part, const std::map<const Value*, Tensor>& weights,
                   const absl::flat_hash_set<const Value*>& watched, const Watch& watch, bool advance,
                   const std::function<void(int64_t done)>& on_sample);

 private:
  using Values = absl::flat_hash_map<const Value*, Tensor>;
  struct Sample {
    Values values;  // inputs of the step, and what passes from part to part
    DimEnv dims;
  };
  LayerRunner() = default;
  absl::Status Init(const absl::flat_hash_set<const Node*>& products);
  absl::Status AddSample(const std::vector<int32_t>& ids, const StepContract& contract);
  void FindUses();
  void FindParts(const absl::flat_hash_set<const Node*>& products);
  int64_t Begin(size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }
  // What a run of a part has beside the sample.
  struct Scope {
    const std::map<const Value*, Tensor>* weights;
    Values fixed;   // made of weights and constants alone
    Values states;  // of the sample
  };
  absl::StatusOr<const Tensor*> Find(const Value* value, Sample* sample, Scope* run) const;
  absl::Status RunNode(const Node& node, Sample* sample, Scope* run) const;

  const Model* model_ = nullptr;
  PagedModel paged_;
  std::vector<const Node*> nodes_;
  absl::flat_hash_map<const Node*, int64_t> place_;
  absl::flat_hash_map<const Value*, int64_t> last_use_;
  absl::flat_hash_set<const Value*> of_sample_;  // what depends on the sample
  std::vector<int64_t> ends_;                    // of parts, as numbers of nodes
  std::vector<Sample> samples_;
};

}  // namespace llmc
