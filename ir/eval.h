// Runs a model on the host: the reference meaning of the language.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "ir/graph.h"

namespace llmc {

using NamedTensors = std::map<std::string, Tensor>;

// Holds a model's weights (prepared once) and states, and runs its steps. One thread at a time.
class Evaluator {
 public:
  // `model` must outlive the evaluator and every weight of it must have data. Runs `prepare`.
  static absl::StatusOr<std::unique_ptr<Evaluator>> Create(const Model* model);

  // Allocates the states, with the given sizes for symbols that occur in their shapes. Contents are zero.
  absl::Status AllocateStates(const DimEnv& dims);

  // Runs one step. Inputs by parameter name without sigil ("input_ids"); each must have the parameter's dtype and a
  // shape that gives every dim symbol one size within its bound. Returns outputs by name.
  absl::StatusOr<NamedTensors> Run(const Step& step, const NamedTensors& inputs);

  const Model& model() const { return *model_; }

 private:
  explicit Evaluator(const Model* model) : model_(model) {}
  absl::Status RunBlock(const Block& block, DimEnv* dims, absl::flat_hash_map<const Value*, Tensor>* values);

  const Model* model_;
  absl::flat_hash_map<const Value*, Tensor> persistent_;  // weights, prepared values, states
};

}  // namespace llmc
