// Applies rules to a model until none fires.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "ir/op.h"
#include "passes/driver/ledger.h"
#include "passes/driver/rule.h"

namespace llmc {

// What a rule with Apply builds with: new nodes go before the node that it was called with.
class Rewriter {
 public:
  Rewriter(Model* model, Node* node) : model_(model), node_(node) {}

  Model& model() { return *model_; }
  // nullptr if an operand is null or does not fit.
  template <class Op>
  Value* Add(const Op& op) {
    auto [operands, attrs] = Flatten(op);
    return AddRaw(DefOf<Op>(), std::move(operands), std::move(attrs));
  }
  // Replaces the node's only result and removes the node. `value` takes over the name if this rewriter made it. False,
  // and nothing is done, if `value` is null or has another type.
  bool ReplaceWith(Value* value);
  // False, and why: what was there and what was expected, for the ledger.
  bool Refuse(std::string actual, std::string expected);
  // Removes what was added.
  void Discard();

  const std::vector<Node*>& created() const { return created_; }
  bool replaced() const { return replaced_; }
  bool refused() const { return !expected_.empty(); }
  const std::string& actual() const { return actual_; }
  const std::string& expected() const { return expected_; }

 private:
  Value* AddRaw(const OpDef* op, std::vector<Value*> operands, Attrs attrs);

  Model* model_;
  Node* node_;
  std::vector<Node*> created_;
  bool replaced_ = false;
  std::string actual_, expected_;
};

// Runs the rules over `prepare` and every step until no rule fires. Rules earlier in the list are tried first at each
// node. `ledger` may be null. Time grows linearly with the nodes and the rewrites; an error means that rules undo each
// other. Returns how many times a rule fired.
absl::StatusOr<int64_t> RunRules(Model* model, absl::Span<const Rule* const> rules, Ledger* ledger);
// With the refusals in a ledger of their own.
absl::StatusOr<int64_t> RunRules(Model* model, absl::Span<const Rule* const> rules, Ledger* ledger, Ledger* refusals);
absl::StatusOr<int64_t> RunRules(Model* model, RuleSpan rules, Ledger* ledger);

// RunRules and MergeEqualOps in turns, until neither finds anything.
absl::Status RunToFixedPoint(Model* model, absl::Span<const Rule* const> rules, Ledger* ledger);

// How the ledger names the place of a node: its first result (or operand) and where it comes from.
LedgerPlace LedgerPlaceOf(const Node& node);
std::string PlaceOf(const Node& node);

}  // namespace llmc
