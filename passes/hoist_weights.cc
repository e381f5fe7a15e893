// Moves ops that depend on weights and constants only from the steps to `prepare`, which runs once at load.

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/status_macros.h"
#include "ir/ops.h"
#include "passes/passes.h"

namespace llmc {
namespace {

constexpr double kMaxGrowth = 4;         // a hoisted result may be this many times its inputs,
constexpr double kSmallBytes = 1 << 20;  // or small: else it would cost memory for as long as the model is loaded

bool HasConstantShape(const Value* value) {
  for (const Dim& dim : value->type.shape) {
    if (!dim.is_constant()) return false;
  }
  return true;
}

// Of a value of constant shape.
double BytesOf(const Value* value) { return static_cast<double>(value->type.Bytes().number()); }

// `prepare` knows no dim symbols.
bool UsesSymbols(const Node& node) {
  for (const auto& [name, attr] : node.attrs) {
    const Dims* dims = std::get_if<Dims>(&attr);
    if (dims == nullptr) continue;
    for (const Dim& dim : *dims) {
      if (!dim.is_constant()) return true;
    }
  }
  return Is<DimsOf>(&node);
}

// A weight of floats in another type of floats.
bool IsRetypedWeight(const Node& node) {
  return Is<Cast>(&node) && node.operands[0]->kind == ValueKind::kWeight && IsFloat(node.operands[0]->type.dtype) &&
         IsFloat(node.results[0]->type.dtype);
}

class Hoister {
 public:
  explicit Hoister(Model* model) : model_(model) {}

  absl::Status Run() {
    for (const auto& step : model_->steps) {
      for (auto it = step->block.nodes.begin(); it != step->block.nodes.end();) {
        Node* node = (it++)->get();
        if (!CanMove(*node)) continue;
        RETURN_IF_ERROR(Move(node));
      }
    }
    return absl::OkStatus();
  }

  // The same of encodings, and of what only they need; and of weights in other types.
  absl::Status RunEncodings() {
    for (const auto& step : model_->steps) {
      std::vector<Node*> movable;
      for (const auto& node : step->block.nodes) {
        if (!CanMove(*node)) continue;
        movable.push_back(node.get());
        for (const Value* result : node->results) movable_.insert(result);
      }
      absl::flat_hash_set<const Node*> needed;
      for (auto node = movable.rbegin(); node != movable.rend(); ++node) {
        if (!Is<Encode>(*node) && !IsRetypedWeight(**node) && !needed.contains(*node)) continue;
        needed.insert(*node);
        for (const Value* operand : (*node)->operands) {
          if (operand != nullptr) needed.insert(operand->def);
        }
      }
      for (Node* node : movable) {
        if (needed.contains(node)) RETURN_IF_ERROR(Move(node));
      }
      movable_.clear();
    }
    return absl::OkStatus();
  }

 private:
  bool IsPrepared(const Value* value) const {
    return value->kind == ValueKind::kWeight || (value->def != nullptr && value->def->block == &model_->prepare);
  }

  bool CanMove(const Node& node) const {
    if (node.op->info.touches_state() || node.operands.empty() || UsesSymbols(node)) {
      return false;
    }
    double bytes_in = 0;
    for (const Value* operand : node.operands) {
      if (operand == nullptr) continue;
      if (!IsPrepared(operand) && !movable_.contains(operand) && !Is<Constant>(operand->def)) return false;
      bytes_in += BytesOf(operand);
    }
    double bytes_out = 0;
    for (const Value* result : node.results) {
      if (!HasConstantShape(result) || model_->IsOutput(result)) return false;
      bytes_out += BytesOf(result);
    }
    return bytes_out <= kSmallBytes || bytes_out <= kMaxGrowth * bytes_in;
  }

  absl::Status Move(Node* node) {
    for (size_t i = 0; i < node->operands.size(); ++i) {
      Value* operand = node->operands[i];
      if (operand == nullptr || IsPrepared(operand)) continue;
      ASSIGN_OR_RETURN(Value * copy, CopyOfConstant(operand));
      model_->SetOperand(node, i, copy);
    }
    model_->MoveToEnd(node, &model_->prepare);
    for (Value* result : node->results) {
      if (result->name[0] == '%') model_->Rename(result, "@" + result->name.substr(1));
    }
    return absl::OkStatus();
  }

  // Steps may still read the constant: `prepare` gets its own.
  absl::StatusOr<Value*> CopyOfConstant(Value* constant) {
    Value*& copy = constants_[constant];
    if (copy != nullptr) return copy;
    const Types types = {constant->type};
    ASSIGN_OR_RETURN(Node * node,
                     model_->AddNode(&model_->prepare, nullptr, constant->def->op, {}, constant->def->attrs,
                                     {"@" + constant->name.substr(1)}, constant->def->loc, &types));
    return copy = node->results[0];
  }

  Model* model_;
  absl::flat_hash_map<const Value*, Value*> constants_;
  absl::flat_hash_set<const Value*> movable_;  // results of nodes that will be in `prepare`
};

// Puts each op of `prepare` right before the first that needs it, so that what it makes on the way there is not there
// longer than that.
class Sorter {
 public:
  explicit Sorter(Model* model) : model_(model) {}

  void Run() {
    std::vector<Node*> nodes;
    for (const auto& node : model_->prepare.nodes) nodes.push_back(node.get());
    for (Node* node : nodes) {
      if (IsWanted(*node)) Put(node);
    }
    for (Node* node : nodes) Put(node);
  }

 private:
  bool IsWanted(const Node& node) const {
    return std::any_of(node.results.begin(), node.results.end(), [&](const Value* result) {
      return std::any_of(result->users.begin(), result->users.end(),
                         [&](const Node* user) { return user->block != &model_->prepare; });
    });
  }

  // Behind what it needs. Without recursion: chains may be long.
  void Put(Node* node) {
    struct Waiting {
      Node* node = nullptr;
      size_t looked_at = 0;  // operands
    };
    std::vector<Waiting> waiting;
    if (seen_.insert(node).second) waiting.push_back({node});
    while (!waiting.empty()) {
      Waiting& last = waiting.back();
      if (last.looked_at == last.node->operands.size()) {
        model_->MoveToEnd(last.node, &model_->prepare);
        waiting.pop_back();
        continue;
      }
      const Value* operand = last.node->operands[last.looked_at++];
      Node* needed = operand == nullptr ? nullptr : operand->def;
      if (needed != nullptr && seen_.insert(needed).second) waiting.push_back({needed});
    }
  }

  Model* model_;
  absl::flat_hash_set<const Node*> seen_;
};

}  // namespace

absl::Status HoistEncodings(Model* model) { return Hoister(model).RunEncodings(); }

absl::Status HoistWeights(Model* model, const PassContext& context) {
  RETURN_IF_ERROR(Hoister(model).Run());
  MergeEqualOps(model, &model->prepare, context.ledger);
  Sorter(model).Run();
  return RaiseLinear(model, context);
}

}  // namespace llmc
