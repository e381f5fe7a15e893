// A part of a step as a model of its own, for a device: what it reads of weights and of the parts before are its
// inputs, what it passes on and what is asked of its values its outputs. Parts that compute the same have the same
// text.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "ir/eval.h"
#include "ir/graph.h"
#include "ir/op.h"
#include "quantize/input_stats.h"

namespace llmc {

class PartModel {
 public:
  struct Request {
    std::vector<const Node*> nodes;  // of the part, in their order
    const absl::flat_hash_set<const Value*>* of_sample =
        nullptr;                        // results that are not of weights and constants alone
    std::vector<const Value*> passing;  // what later parts read
    std::vector<Tap> taps;
    DimEnv records;  // how many states have, by the dim that counts them
    DimEnv sizes;    // that dims will have at most; their bounds are raised to that
  };
  // Of nodes of a step of `from`.
  static absl::StatusOr<std::unique_ptr<PartModel>> Create(const Model& from, const Request& request);

  const Model& model() const { return model_; }
  // What each input is of the whole model: a weight, a parameter, or a value of another part.
  const std::vector<std::pair<const Value*, std::string>>& inputs() const { return inputs_; }
  // The values that pass on, by their outputs.
  const std::vector<std::pair<const Value*, std::string>>& passing() const { return passing_; }
  // Adds what tap i saw in a run with these sizes and outputs.
  absl::Status AddStats(size_t i, const NamedTensors& outputs, const DimEnv& dims, InputStats* stats) const;

 private:
  PartModel() = default;
  absl::Status Build(const Model& from, const Request& request);
  absl::StatusOr<Value*> Import(const Value* value);
  absl::Status Copy(const Node& node);
  absl::Status AddTap(const Tap& tap);
  Value* RowsOf(const Tap& tap, Value* x, Value** tokens, Builder* builder) const;
  void AddOutput(std::string name, Value* value) { step_->outputs.push_back({std::move(name), value}); }

  const Request* request_ = nullptr;  // while it is built
  Model model_;
  Step* step_ = nullptr;
  absl::flat_hash_map<const Value*, Value*> copies_;
  std::vector<std::pair<const Value*, std::string>> inputs_, passing_;
  std::vector<Dim> rows_;  // of taps
};

}  // namespace llmc
