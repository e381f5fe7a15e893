// Runs a model on the host: the reference meaning of the language.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/graph.h"
#include "ir/sizes.h"

namespace llmc {

using NamedTensors = std::map<std::string, Tensor>;

// One node by itself, as constant folding needs it: results are checked against the node's types under `dims`, which
// must give the symbols that the node's attributes use. Nodes that write a state are refused.
absl::StatusOr<Tensors> EvalNode(const Node& node, absl::Span<const Tensor* const> operands, const DimEnv& dims);

// Holds a model's weights (prepared once) and states, and runs its steps. One thread at a time.
class Evaluator {
 public:
  // `model` must outlive the evaluator, not change meanwhile, and every weight of it must have data. Runs `prepare`.
  static absl::StatusOr<std::unique_ptr<Evaluator>> Create(const Model* model);
  ~Evaluator();

  // Allocates the states, with the given sizes for symbols that occur in their shapes. Contents are zero.
  absl::Status AllocateStates(const DimEnv& dims);

  // Runs one step. Inputs by parameter name without sigil ("input_ids"); each must have the parameter's dtype and a
  // shape that gives every dim symbol one size within its bound. Returns outputs by name. Errors: InvalidArgument for
  // inputs, FailedPrecondition for states not allocated, Internal for a result that is not of its declared type, else
  // what an op reports, with the op's line and place.
  absl::StatusOr<NamedTensors> Run(const Step& step, const NamedTensors& inputs);

  const Model& model() const { return *model_; }
  // The contents of a state by its name ("@kv0"); nullptr before AllocateStates.
  Tensor* FindState(absl::string_view name);

 private:
  struct Program;

  explicit Evaluator(const Model* model);
  absl::Status Init();
  const Program* ProgramFor(const Step& step);
  std::unique_ptr<Program> Compile(const Block& block, const Step* step) const;
  absl::Status RunProgram(const Program& program, SymbolSizes* sizes, std::vector<Tensor>* locals);

  const Model* model_;
  absl::flat_hash_map<const Value*, int> persistent_index_;  // weights, states and results of prepare
  std::vector<Tensor> persistent_;
  DimEnv base_dims_;  // sizes that hold in every step: symbols of prepared values and states
  bool states_allocated_ = false;
  std::map<const Step*, std::unique_ptr<Program>> programs_;
};

}  // namespace llmc
