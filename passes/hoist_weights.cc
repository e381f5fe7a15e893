// Moves ops that depend on weights and constants only from the steps to `prepare`, which runs once at load.

#include "absl/container/flat_hash_map.h"
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

double BytesOf(const Value* value) {
  double bytes = DTypeBits(value->type.dtype) / 8.0;
  for (const Dim& dim : value->type.shape) bytes *= static_cast<double>(dim.value());
  return bytes;
}

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

class Hoister {
 public:
  explicit Hoister(Model* model) : model_(model) {}

  absl::Status Run() {
    for (const auto& step : model_->steps) {
      for (auto it = step->block.nodes.begin(); it != step->block.nodes.end();) {
        Node* node = (it++)->get();
        if (!CanMove(*node)) continue;
        if (absl::Status status = Move(node); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

 private:
  bool IsPrepared(const Value* value) const {
    return value->kind == ValueKind::kWeight || (value->def != nullptr && value->def->block == &model_->prepare);
  }

  bool CanMove(const Node& node) const {
    if ((node.op->info.flags & (kWritesState | kReadsState)) != 0 || node.operands.empty() || UsesSymbols(node)) {
      return false;
    }
    double bytes_in = 0;
    for (const Value* operand : node.operands) {
      if (operand == nullptr) continue;
      if (!IsPrepared(operand) && !Is<Constant>(operand->def)) return false;
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
      absl::StatusOr<Value*> copy = CopyOfConstant(operand);
      if (!copy.ok()) return copy.status();
      model_->SetOperand(node, i, *copy);
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
    absl::StatusOr<Node*> node = model_->AddNode(&model_->prepare, nullptr, constant->def->op, {}, constant->def->attrs,
                                                 {"@" + constant->name.substr(1)}, constant->def->loc, &types);
    if (!node.ok()) return node.status();
    return copy = (*node)->results[0];
  }

  Model* model_;
  absl::flat_hash_map<const Value*, Value*> constants_;
};

}  // namespace

absl::Status HoistWeights(Model* model, const PassContext& context) {
  if (absl::Status status = Hoister(model).Run(); !status.ok()) return status;
  MergeEqualOps(model, &model->prepare, context.ledger);
  return absl::OkStatus();
}

}  // namespace llmc
