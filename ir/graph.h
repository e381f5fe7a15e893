// A model as a graph: values, nodes in execution order, weights, states, a prepare block and one or more steps.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/step_contract.h"
#include "ir/dim.h"
#include "ir/encoding.h"
#include "ir/tensor.h"

namespace llmc {

struct TensorType {
  DType dtype = DType::kF32;
  Dims shape;
  const Encoding* encoding = nullptr;  // how it is stored; nullptr: one element after the other
  bool operator==(const TensorType&) const = default;
  int rank() const { return static_cast<int>(shape.size()); }
  Size Bytes() const;            // that a value takes, rounded up to whole bytes; nobody else computes them
  std::string ToString() const;  // "bf16[T, 4096]", "bf16<int8 per=channel scale=f32>[64, 4096]"
  static absl::StatusOr<TensorType> Parse(absl::string_view text);
};
using Types = std::vector<TensorType>;

struct OpDef;
struct Kernel;
struct Node;
struct Block;
struct StateType;

// What a value is: made by a node, a parameter of a step, a weight, or a state that outlives the step.
enum class ValueKind { kResult, kParam, kWeight, kState };

struct Value {
  std::string name;  // with its sigil: "%x" or "@w"; unique in the model
  TensorType type;   // of a state: its memory, records of bytes
  ValueKind kind = ValueKind::kResult;
  Node* def = nullptr;  // the node that defines it; for kResult (weights made in `prepare` are kResult named "@…")
  std::vector<Node*> users;                // one entry per use
  std::string source;                      // kWeight: "file#tensor"
  StepRoleRef role;                        // kParam: of a language model's step
  std::shared_ptr<const StateType> state;  // kState (ir/state_type.h)
  // The elements of a small integer tensor as dim expressions, where they are known; derived, never printed.
  std::optional<Dims> contents;
};

// An attribute's value. A Tensor is the literal of a `constant`.
using Attr =
    std::variant<bool, int64_t, double, std::string, DType, std::vector<int64_t>, std::vector<double>, Dims, Tensor>;
using Attrs = std::map<std::string, Attr, std::less<>>;

struct Node {
  const OpDef* op = nullptr;
  std::vector<Value*> operands;  // nullptr stands for an optional operand that is absent
  Attrs attrs;                   // those that differ from their defaults, and literals always
  std::vector<Value*> results;
  std::string loc;  // the place in the model, such as a node's or layer's name
  Block* block = nullptr;
  Kernel* kernel = nullptr;  // of its step, once that is lowered; views, constants and what is not lowered have none
  std::list<std::unique_ptr<Node>>::iterator self;
  int64_t order = 0;  // grows along the block; see Block::Renumber
};

struct Block {
  std::list<std::unique_ptr<Node>> nodes;
  void Renumber();
};

struct Output {
  std::string name;
  Value* value = nullptr;
};

// Consecutive nodes of a step that one kernel computes: values that only these nodes read need no memory. It means
// what its nodes mean.
struct Kernel {
  std::string backend;  // what runs it (passes/lower/backend.h)
};

struct Step {
  std::string name = "main";
  std::vector<Value*> params;
  Block block;
  std::vector<Output> outputs;
  std::list<Kernel> kernels;  // in any order
};

class Model {
 public:
  Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  std::string name;
  DimEnv dims;  // symbol -> upper bound
  std::vector<Value*> weights;
  std::vector<Value*> states;
  Block prepare;
  std::vector<std::unique_ptr<Step>> steps;
  // Contents of weights by their name ("@l0.wq"), in place in mapped files; may be empty (text without data).
  std::map<std::string, Tensor> data;

  // Finds by name, with sigil; nullptr if there is none.
  Value* Find(absl::string_view name) const;
  // `stem` if it is free, else stem.1, stem.2, …
  std::string FreshName(absl::string_view stem);
  // A new dim symbol with a bound: `stem`, else stem1, stem2, …
  Dim FreshDim(absl::string_view stem, int64_t bound);

  Value* AddParam(Step* step, absl::string_view name, TensorType type, StepRoleRef role = {});
  Value* AddWeight(absl::string_view name, TensorType type, absl::string_view source);
  // The type must pass its Check.
  Value* AddState(absl::string_view name, const StateType& type);
  static void SetStateType(Value* state, const StateType& type);

  // Creates a node before `before` (nullptr: at the end of the block), infers its types and names its results.
  // `result_names` may be shorter than the results: the rest are named after the op. Unknown dims become fresh symbols,
  // unless `written` gives the types.
  absl::StatusOr<Node*> AddNode(Block* block, Node* before, const OpDef* op, std::vector<Value*> operands, Attrs attrs,
                                std::vector<std::string> result_names, absl::string_view loc,
                                const Types* written = nullptr);

  // Infers the types of a node again after its operands changed. Keeps symbols of dims that stay unknown.
  absl::Status Reinfer(Node* node);

  void SetOperand(Node* node, size_t index, Value* value);
  // Every use of `from`, outputs of steps included, becomes a use of `to`.
  void ReplaceUses(Value* from, Value* to);
  bool HasUses(const Value* value) const;  // by nodes or outputs
  bool IsOutput(const Value* value) const;
  // Removes a node without uses of its results.
  void Erase(Node* node);
  void Rename(Value* value, absl::string_view name);
  void MoveToEnd(Node* node, Block* block);
  void RemoveUnusedWeights();
  void RemoveUnusedStates();
  // Removes all of a step that is not, or no longer, in `steps`.
  void EraseStep(std::unique_ptr<Step> step);
  // The same model, names included, but for the contents of weights.
  std::unique_ptr<Model> Clone() const;

 private:
  Value* NewValue(const std::string& name, TensorType type, ValueKind kind);
  void SetContents(Node* node) const;

  absl::flat_hash_map<std::string, std::unique_ptr<Value>> values_;
  absl::flat_hash_map<std::string, int64_t> next_suffix_;
};

}  // namespace llmc
