#include "ir/verify.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "ir/op.h"
#include "ir/ops.h"
#include "ir/text.h"

namespace llmc {
namespace {

class Verifier {
 public:
  Verifier(const Model& model, Phase phase) : model_(model), phase_(phase) {}

  absl::Status Run() {
    for (const Value* weight : model_.weights) Define(weight);
    for (const Value* state : model_.states) Define(state);
    if (absl::Status status = CheckBlock(model_.prepare); !status.ok()) return status;
    for (const auto& node : model_.prepare.nodes) {
      if ((node->op->info.flags & (kWritesState | kReadsState)) != 0) {
        return Fail(*node, "an op that touches a state stands in prepare");
      }
    }
    const absl::flat_hash_set<const Value*> shared = defined_;
    for (const auto& step : model_.steps) {
      defined_ = shared;
      for (const Value* param : step->params) Define(param);
      if (absl::Status status = CheckBlock(step->block); !status.ok()) return status;
      for (const Output& output : step->outputs) {
        if (output.value == nullptr || !defined_.contains(output.value)) {
          return absl::InternalError(absl::StrCat("output '", output.name, "' has no value"));
        }
      }
    }
    return CheckUsers();
  }

 private:
  static absl::Status Fail(const Node& node, absl::string_view message) {
    return absl::InternalError(absl::StrCat(message, "\n  in: ", PrintNode(node)));
  }

  void Define(const Value* value) { defined_.insert(value); }

  absl::Status CheckBlock(const Block& block) {
    for (const auto& node : block.nodes) {
      if (node->block != &block) return Fail(*node, "a node does not know its block");
      for (const Value* operand : node->operands) {
        if (operand == nullptr) continue;
        if (!defined_.contains(operand))
          return Fail(*node, absl::StrCat(operand->name, " is used before it is defined"));
        ++uses_[operand];
      }
      if (absl::Status status = CheckNode(*node); !status.ok()) return status;
      for (const Value* result : node->results) {
        if (result->def != node.get()) return Fail(*node, "a result does not know its node");
        if (model_.Find(result->name) != result)
          return Fail(*node, absl::StrCat("the name ", result->name, " is not unique"));
        Define(result);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckNode(const Node& node) const {
    if (phase_ >= Phase::kRaised && Is<Identity>(&node)) return Fail(node, "an identity is left");
    absl::StatusOr<Types> types = node.op->infer(node);
    if (!types.ok()) return Fail(node, types.status().message());
    if (types->size() != node.results.size()) return Fail(node, "the number of results is wrong");
    for (size_t i = 0; i < types->size(); ++i) {
      const TensorType& inferred = (*types)[i];
      const TensorType& type = node.results[i]->type;
      bool same = inferred.dtype == type.dtype && inferred.shape.size() == type.shape.size();
      for (size_t d = 0; same && d < type.shape.size(); ++d) {
        same = inferred.shape[d].is_unknown() || inferred.shape[d] == type.shape[d];
        if (type.shape[d].is_unknown()) return Fail(node, "a result's dim has no name");
      }
      if (!same) return Fail(node, absl::StrCat("the type should be ", inferred.ToString()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckUsers() const {
    auto check = [&](const Value* value) {
      auto it = uses_.find(value);
      const size_t uses = it == uses_.end() ? 0 : it->second;
      if (uses == value->users.size()) return absl::OkStatus();
      return absl::InternalError(absl::StrCat(value->name, " has ", uses, " uses, but its list ", value->users.size()));
    };
    for (const Value* value : defined_) {
      if (absl::Status status = check(value); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const Model& model_;
  const Phase phase_;
  absl::flat_hash_set<const Value*> defined_;
  absl::flat_hash_map<const Value*, size_t> uses_;
};

}  // namespace

absl::Status Verify(const Model& model, Phase phase) { return Verifier(model, phase).Run(); }

}  // namespace llmc
