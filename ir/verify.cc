#include "ir/verify.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/op.h"
#include "ir/ops.h"
#include "ir/state_type.h"
#include "ir/step_inputs.h"
#include "ir/text.h"

namespace llmc {
namespace {

absl::Status FailAt(const Node& node, absl::string_view message) {
  return absl::InternalError(absl::StrCat(message, "\n  in: ", PrintNode(node)));
}

class Verifier {
 public:
  Verifier(const Model& model, Phase phase) : model_(model), phase_(phase) {}

  absl::Status Run() {
    if (model_.steps.empty()) return absl::InternalError("the model has no step");
    RETURN_IF_ERROR(CheckShared());
    const Scope shared = scope_;
    absl::flat_hash_set<absl::string_view> names;
    for (const auto& step : model_.steps) {
      if (!names.insert(step->name).second) {
        return absl::InternalError(absl::StrCat("two steps are named ", step->name));
      }
      scope_ = shared;
      RETURN_IF_ERROR(CheckStep(*step));
    }
    return CheckUsers();
  }

 private:
  // What may be used at a place: values, and dim symbols whose sizes are known there.
  struct Scope {
    absl::flat_hash_set<const Value*> values;
    absl::flat_hash_set<std::string> symbols;
  };

  void Define(const Value* value) {
    scope_.values.insert(value);
    defined_.push_back(value);
  }

  // Weights, `prepare` and states, which every step sees.
  absl::Status CheckShared() {
    for (const Value* weight : model_.weights) {
      RETURN_IF_ERROR(CheckDeclared(*weight));
      Define(weight);
    }
    RETURN_IF_ERROR(CheckBlock(model_.prepare));
    for (const auto& node : model_.prepare.nodes) {
      if (node->op->info.touches_state()) {
        return FailAt(*node, "an op that touches a state stands in prepare");
      }
    }
    for (const Value* state : model_.states) {
      RETURN_IF_ERROR(CheckDeclared(*state));
      RETURN_IF_ERROR(CheckState(*state));
      Define(state);
      for (const Dim& dim : state->type.shape) {
        for (std::string& symbol : dim.Symbols()) scope_.symbols.insert(std::move(symbol));
      }
    }
    return absl::OkStatus();
  }

  // States of one pool have records of one kind, and pages of one size.
  absl::Status CheckState(const Value& state) {
    const auto fail = [&](absl::string_view what) {
      return absl::InternalError(absl::StrCat("state ", state.name, ": ", what));
    };
    if (state.state == nullptr) return fail("has no type of a state");
    if (const absl::Status status = state.state->Check(); !status.ok()) return fail(status.message());
    if (state.type != state.state->Memory()) return fail("its memory is not that of its type");
    if (state.state->count.is_constant()) return absl::OkStatus();  // a pool of its own
    const auto [first, is_new] = pools_.emplace(state.state->count.ToString(), &state);
    const StateType &own = *state.state, &other = *first->second->state;
    if (is_new || (own.kind == other.kind && own.page_size == other.page_size)) return absl::OkStatus();
    return fail(absl::StrCat("is ", TypeText(state), ", but ", first->second->name, " of the same pool is ",
                             TypeText(*first->second)));
  }

  absl::Status CheckStep(const Step& step) {
    for (const Value* param : step.params) {
      RETURN_IF_ERROR(CheckDeclared(*param));
      Define(param);
      BindPlain(param->type);
    }
    for (const Value* param : step.params) {
      const std::string symbol = BindExpressions(param->type);
      if (!symbol.empty()) {
        return absl::InternalError(absl::StrCat("step ", step.name, ": no parameter binds dim ", symbol, " of ",
                                                param->name, ": ", param->type.ToString()));
      }
    }
    if (const absl::Status status = ContractOf(step).status(); !status.ok()) {
      return absl::InternalError(absl::StrCat("step ", step.name, ": ", status.message()));
    }
    RETURN_IF_ERROR(CheckBlock(step.block));
    RETURN_IF_ERROR(CheckKernels(step, /*all=*/false));
    absl::flat_hash_set<absl::string_view> names;
    for (const Output& output : step.outputs) {
      if (output.value == nullptr || !scope_.values.contains(output.value)) {
        return absl::InternalError(absl::StrCat("output '", output.name, "' has no value"));
      }
      if (output.value->type.encoding != nullptr) {
        return absl::InternalError(absl::StrCat("output '", output.name, "' is encoded"));
      }
      if (!names.insert(output.name).second) {
        return absl::InternalError(absl::StrCat("step ", step.name, ": two outputs are named '", output.name, "'"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckBlock(const Block& block) {
    for (const auto& node : block.nodes) {
      if (node->block != &block) return FailAt(*node, "a node does not know its block");
      if (node->kernel != nullptr && &block == &model_.prepare) return FailAt(*node, "a kernel stands in prepare");
      for (const Value* operand : node->operands) {
        if (operand == nullptr) continue;
        if (!scope_.values.contains(operand)) {
          return FailAt(*node, absl::StrCat(operand->name, " is used before it is defined"));
        }
        ++uses_[operand];
      }
      RETURN_IF_ERROR(CheckNode(*node));
      RETURN_IF_ERROR(CheckSymbols(*node));
      for (const Value* result : node->results) {
        if (result->def != node.get()) return FailAt(*node, "a result does not know its node");
        if (model_.Find(result->name) != result)
          return FailAt(*node, absl::StrCat("the name ", result->name, " is not unique"));
        Define(result);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckNode(const Node& node) const {
    if (phase_ >= Phase::kRaised && Is<Identity>(&node)) return FailAt(node, "an identity is left");
    if (absl::Status status = CheckForm(*node.op, node.operands, node.attrs); !status.ok()) {
      return FailAt(node, status.message());
    }
    absl::StatusOr<Types> types = node.op->infer(node);
    if (!types.ok()) return FailAt(node, types.status().message());
    if (types->size() != node.results.size()) return FailAt(node, "the number of results is wrong");
    for (size_t i = 0; i < types->size(); ++i) {
      const TensorType& inferred = (*types)[i];
      const TensorType& type = node.results[i]->type;
      bool same = inferred.dtype == type.dtype && inferred.encoding == type.encoding &&
                  inferred.shape.size() == type.shape.size();
      for (size_t d = 0; same && d < type.shape.size(); ++d) {
        same = inferred.shape[d].is_unknown() || inferred.shape[d] == type.shape[d];
        if (type.shape[d].is_unknown()) return FailAt(node, "a result's dim has no name");
      }
      if (!same) return FailAt(node, absl::StrCat("the type should be ", inferred.ToString()));
    }
    return absl::OkStatus();
  }

  // ---- dim symbols: bound as the evaluator binds them ---------------------------
  absl::Status CheckDeclared(const Value& value) const {
    if (value.type.encoding != nullptr && value.kind != ValueKind::kResult) {
      return absl::InternalError(absl::StrCat(value.name, " is encoded, but not the result of an op"));
    }
    for (const Dim& dim : value.type.shape) {
      for (const std::string& symbol : dim.Symbols()) {
        if (!model_.dims.contains(symbol)) {
          return absl::InternalError(absl::StrCat(value.name, ": dim ", symbol, " is not declared"));
        }
      }
    }
    return absl::OkStatus();
  }

  // An attribute's symbols must be bound before; those of a result's type may be bound by it.
  absl::Status CheckSymbols(const Node& node) {
    for (const auto& [key, attr] : node.attrs) {
      const Dims* dims = std::get_if<Dims>(&attr);
      if (dims == nullptr) continue;
      for (const Dim& dim : *dims) {
        for (const std::string& symbol : dim.Symbols()) {
          if (!scope_.symbols.contains(symbol)) return FailAt(node, Unbound(symbol));
        }
      }
    }
    for (const Value* result : node.results) {
      if (absl::Status status = CheckDeclared(*result); !status.ok()) return FailAt(node, status.message());
      BindPlain(result->type);
      const std::string symbol = BindExpressions(result->type);
      if (!symbol.empty()) return FailAt(node, Unbound(symbol));
    }
    return absl::OkStatus();
  }

  static std::string Unbound(absl::string_view symbol) {
    return absl::StrCat("dim ", symbol, " is bound by no parameter, state or earlier result");
  }

  void BindPlain(const TensorType& type) {
    for (const Dim& dim : type.shape) {
      if (dim.is_symbol()) scope_.symbols.insert(dim.ToString());
    }
  }

  // An expression binds one symbol, if it has no other that is not bound. Returns such a symbol, if there is one.
  std::string BindExpressions(const TensorType& type) {
    for (const Dim& dim : type.shape) {
      if (dim.is_constant() || dim.is_symbol()) continue;
      std::vector<std::string> symbols = dim.Symbols();
      std::erase_if(symbols, [&](const std::string& symbol) { return scope_.symbols.contains(symbol); });
      if (symbols.size() > 1) return symbols[0];
      scope_.symbols.insert(symbols.begin(), symbols.end());
    }
    return "";
  }

  absl::Status CheckUsers() const {
    for (const Value* value : defined_) {
      auto it = uses_.find(value);
      const size_t uses = it == uses_.end() ? 0 : it->second;
      if (uses == value->users.size()) continue;
      return absl::InternalError(absl::StrCat(value->name, " has ", uses, " uses, but its list ", value->users.size()));
    }
    return absl::OkStatus();
  }

  const Model& model_;
  const Phase phase_;
  Scope scope_;
  std::vector<const Value*> defined_;                     // in every step
  absl::flat_hash_map<std::string, const Value*> pools_;  // the first state of each
  absl::flat_hash_map<const Value*, size_t> uses_;
};

}  // namespace

absl::Status Verify(const Model& model, Phase phase) { return Verifier(model, phase).Run(); }

absl::Status CheckKernels(const Step& step, bool all) {
  absl::flat_hash_set<const Kernel*> unseen;
  for (const Kernel& kernel : step.kernels) unseen.insert(&kernel);
  const Kernel* last = nullptr;
  for (const auto& node : step.block.nodes) {
    const Kernel* kernel = node->kernel;
    if (kernel != nullptr && kernel != last && unseen.erase(kernel) == 0) {
      return FailAt(*node, "a kernel of another step, or in two places");
    }
    last = kernel;
    if (all && kernel == nullptr && !NeedsNoKernel(*node)) return FailAt(*node, "a node in no kernel");
  }
  return absl::OkStatus();
}

}  // namespace llmc
